//! An all-reduce that reduces in the order of the ranks, so that its bits do not depend on how it is done.
//!
//! Each rank sends chunk c to rank c, which reduces all p contributions to it from rank 0 upwards; a ring then collects
//! the finished chunks. Steps: 2(p-1), bytes sent by each rank: 2(p-1)/p of the slice, as by the ring. What it costs:
//! nothing is reduced on the way, so a rank needs room for p+1 chunks beside its slice, about as much again, reads them
//! all at the end, and hides none of it behind the wire.
//!
//! [`gather_scatter`](super::gather_scatter) and [`direct`](super::direct) reduce in that order anyway.

use super::{Algorithm, Reducing, chunk, ring};
use crate::transport::TransportError;

/// Replaces the slice by its reduction over all ranks, with the same bits for every algorithm.
pub async fn all_reduce(algorithm: Algorithm, lane: &mut impl Reducing) -> Result<(), TransportError> {
    if matches!(algorithm, Algorithm::GatherScatter | Algorithm::Direct) {
        return super::all_reduce(algorithm, lane).await;
    }
    let (rank, world, length) = (lane.rank(), lane.world(), lane.len());
    let mine = chunk(length, world, rank);
    for distance in 1..world {
        let (to, from) = ((rank + distance) % world, (rank + world - distance) % world);
        lane.exchange_aside(to, chunk(length, world, to), from, mine.clone()).await?;
    }
    lane.reduce_aside(mine);
    ring::all_gather(lane).await
}
