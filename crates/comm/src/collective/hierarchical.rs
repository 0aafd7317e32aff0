//! All-reduce in two levels: within each host, then between hosts.
//!
//! The ranks of a host reduce among themselves, [directly](super::direct) where they share memory and else to their
//! first rank by receiving from each; the first ranks of all hosts go around a [ring](super::ring::all_reduce); each hands the
//! result to the others of its host. Between h hosts 2(h-1)/h of the slice leaves each, however many ranks it has.

use super::{Combine, Lane, direct, ring};
use crate::element::Element;
use crate::transport::TransportError;

/// Replaces the slice by its reduction over all ranks.
pub fn all_reduce<T: Element>(lane: &mut Lane<'_, T>) -> Result<(), TransportError> {
    let (rank, all, hosts) = (lane.rank(), 0..lane.len(), lane.hosts());
    let mut leaders: Vec<usize> = Vec::new();
    for (candidate, host) in hosts.iter().enumerate() {
        if leaders.iter().all(|&leader| hosts[leader] != *host) {
            leaders.push(candidate);
        }
    }
    let neighbours: Vec<usize> = (0..hosts.len()).filter(|&other| hosts[other] == hosts[rank]).collect();
    let leader = neighbours[0];

    // Within the host.
    let mut reduced_directly = false;
    if let Some(memory) = lane.in_shared_memory() {
        direct::within_host(memory)?;
        reduced_directly = true;
        let received = neighbours.iter().filter(|&&other| other != rank);
        lane.tell(None, received.map(|&other| (other, all.clone(), Combine::Reduce)).collect());
    } else if rank != leader {
        lane.send(leader, all.clone())?;
    } else {
        for &neighbour in &neighbours[1..] {
            lane.recv(neighbour, all.clone(), Combine::Reduce)?;
        }
    }

    // Between hosts: a ring of the leaders.
    if let Some(place) = leaders.iter().position(|&leader| leader == rank) {
        ring::all_reduce_among(lane, &leaders, place)?;
    }

    // Back within the host; one host alone has the result already.
    if leaders.len() > 1 || !reduced_directly {
        if rank != leader {
            lane.recv(leader, all.clone(), Combine::Copy)?;
        } else {
            for &neighbour in &neighbours[1..] {
                lane.send(neighbour, all.clone())?;
            }
        }
    }
    lane.finish(all);
    Ok(())
}
