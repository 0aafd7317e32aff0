//! Ring all-reduce (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
//!
//! The slice is cut into p chunks. *Share-reduce*: in each of p-1 steps a rank sends one chunk to its right neighbour
//! and reduces the one from the left into its own; rank r then holds the finished chunk r+1. *Share-only*: p-1 more
//! steps pass the finished chunks on around the ring.
//!
//! Steps: 2(p-1). Bytes sent by each rank: 2(p-1)/p of the slice, whatever p is; no all-reduce can send less. Each chunk
//! is reduced along one path, so all ranks end with the same bits. Pipelining is below: a chunk that arrives is reduced
//! piece by piece while the rest is on its way.

use super::{Combine, Lane, chunk};
use crate::element::Element;
use crate::transport::TransportError;

/// Replaces the slice by its reduction over all ranks.
pub fn all_reduce<T: Element>(lane: &mut Lane<'_, T>) -> Result<(), TransportError> {
    let own = lane.rank();
    share_reduce(lane, own)?;
    share_only(lane, own + 1)
}

/// After it, rank r's chunk r is finished; the others are in between.
pub fn reduce_scatter<T: Element>(lane: &mut Lane<'_, T>) -> Result<(), TransportError> {
    let before = lane.rank() + lane.world() - 1;
    share_reduce(lane, before)
}

/// Collects chunk r from each rank r.
pub fn all_gather<T: Element>(lane: &mut Lane<'_, T>) -> Result<(), TransportError> {
    let own = lane.rank();
    share_only(lane, own)
}

/// p-1 steps, beginning by sending chunk `first`. The chunk after it is then finished.
fn share_reduce<T: Element>(lane: &mut Lane<'_, T>, first: usize) -> Result<(), TransportError> {
    let ring = Ring::of(lane);
    for step in 1..ring.world {
        let (outgoing, incoming) = (ring.behind(first, step - 1), ring.behind(first, step));
        lane.exchange(ring.right, outgoing, ring.left, incoming, Combine::Reduce)?;
    }
    lane.finish(ring.behind(first + 1, 0));
    Ok(())
}

/// p-1 steps, beginning by sending chunk `first`; what has just arrived goes on to the right.
fn share_only<T: Element>(lane: &mut Lane<'_, T>, first: usize) -> Result<(), TransportError> {
    let ring = Ring::of(lane);
    for step in 1..ring.world {
        let (outgoing, incoming) = (ring.behind(first, step - 1), ring.behind(first, step));
        lane.exchange(ring.right, outgoing, ring.left, incoming, Combine::Copy)?;
    }
    Ok(())
}

/// A rank's view of the ring.
struct Ring {
    world: usize,
    length: usize,
    left: usize,
    right: usize,
}

impl Ring {
    fn of<T: Element>(lane: &Lane<'_, T>) -> Self {
        let (rank, world) = (lane.rank(), lane.world());
        Self { world, length: lane.len(), left: (rank + world - 1) % world, right: (rank + 1) % world }
    }

    /// The chunk `back` places behind chunk `first` on the ring.
    fn behind(&self, first: usize, back: usize) -> std::ops::Range<usize> {
        chunk(self.length, self.world, (first + self.world - back) % self.world)
    }
}
