//! All-reduce in two levels: within each host, then between hosts.
//!
//! The ranks of a host reduce among themselves, [directly](super::direct) where they share memory and else to their
//! first rank by receiving from each; the first ranks of all hosts go around a [ring](super::ring::all_reduce); each hands the
//! result to the others of its host. Between h hosts 2(h-1)/h of the slice leaves each, however many ranks it has.

use super::{Combine, Reducing, ring};
use crate::transport::TransportError;

/// Replaces the slice by its reduction over all ranks.
pub async fn all_reduce(lane: &mut impl Reducing) -> Result<(), TransportError> {
    let (rank, all, topology) = (lane.rank(), 0..lane.len(), lane.topology());
    let (leaders, directly) = (topology.leaders(), topology.shares_memory_within_hosts());
    let neighbours: Vec<usize> = topology.neighbours(rank).collect();
    let leader = neighbours[0];

    // Within the host.
    if directly {
        lane.reduce_in_host().await?;
    } else if rank != leader {
        lane.send(leader, all.clone()).await?;
    } else {
        for &neighbour in &neighbours[1..] {
            lane.recv(neighbour, all.clone(), Combine::Reduce).await?;
        }
    }

    // Between hosts: a ring of the leaders.
    if let Some(place) = leaders.iter().position(|&leader| leader == rank) {
        ring::all_reduce_among(lane, &leaders, place).await?;
    }

    // Back within the host; one host alone has the result already.
    if leaders.len() > 1 || !directly {
        if rank != leader {
            lane.recv(leader, all.clone(), Combine::Copy).await?;
        } else {
            for &neighbour in &neighbours[1..] {
                lane.send(neighbour, all.clone()).await?;
            }
        }
    }
    lane.finish(all);
    Ok(())
}
