//! Ring all-reduce (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
//!
//! The slice is cut into p chunks. *Share-reduce*: in each of p-1 steps a rank sends one chunk to its right neighbour
//! and reduces the one from the left into its own; rank r then holds the finished chunk r+1. *Share-only*: p-1 more
//! steps pass the finished chunks on around the ring.
//!
//! Steps: 2(p-1). Bytes sent by each rank: 2(p-1)/p of the slice, whatever p is; no all-reduce can send less. Each chunk
//! is reduced along one path, so all ranks end with the same bits. Pipelining is below: a chunk that arrives is reduced
//! piece by piece while the rest is on its way.
//!
//! Large chunks go around in [segments](Lane::segments): first the first segment of each chunk, through both phases, then
//! the second. An element stays in its chunk, so its bits do not depend on segments, nor do the bytes sent.

use std::ops::Range;

use super::{Combine, Lane, Reducing, chunk};
use crate::transport::TransportError;

/// Replaces the slice by its reduction over all ranks.
pub async fn all_reduce(lane: &mut impl Reducing) -> Result<(), TransportError> {
    let (whole, own) = (Ring::of_all(lane), lane.rank());
    let segments = lane.segments(whole.ranks);
    for segment in 0..segments {
        let ring = Ring { segment, segments, ..whole };
        ring.share_reduce(lane, own).await?;
        lane.finish(ring.chunk(own + 1));
        ring.share_only(lane, own + 1).await?;
    }
    Ok(())
}

/// After it, rank r's chunk r is finished; the others are in between.
pub async fn reduce_scatter(lane: &mut impl Reducing) -> Result<(), TransportError> {
    let (ring, own) = (Ring::of_all(lane), lane.rank());
    ring.share_reduce(lane, own + ring.ranks - 1).await?;
    lane.finish(ring.chunk(own));
    Ok(())
}

/// Collects chunk r from each rank r.
pub async fn all_gather(lane: &mut impl Lane) -> Result<(), TransportError> {
    Ring::of_all(lane).share_only(lane, lane.rank()).await
}

/// A ring of some ranks only, of which this one is the `place`-th. A mean is still a sum.
pub(super) async fn all_reduce_among(
    lane: &mut impl Reducing,
    members: &[usize],
    place: usize,
) -> Result<(), TransportError> {
    let ring = Ring::of(members.len(), place, lane.len());
    let ring = Ring { left: members[ring.left], right: members[ring.right], ..ring };
    ring.share_reduce(lane, place).await?;
    ring.share_only(lane, place + 1).await
}

/// A rank's view of the ring.
#[derive(Clone, Copy)]
struct Ring {
    ranks: usize,
    length: usize,
    left: usize,
    right: usize,
    /// The segment of each chunk that goes around, and how many there are.
    segment: usize,
    segments: usize,
}

impl Ring {
    fn of_all(lane: &impl Lane) -> Self {
        Self::of(lane.world(), lane.rank(), lane.len())
    }

    fn of(ranks: usize, place: usize, length: usize) -> Self {
        let (left, right) = ((place + ranks - 1) % ranks, (place + 1) % ranks);
        Self { ranks, length, left, right, segment: 0, segments: 1 }
    }

    /// A chunk of the slice, counted around the ring; of that the segment that goes around.
    fn chunk(&self, index: usize) -> Range<usize> {
        let whole = chunk(self.length, self.ranks, index % self.ranks);
        let part = chunk(whole.len(), self.segments, self.segment);
        whole.start + part.start..whole.start + part.end
    }

    /// p-1 steps, beginning by sending chunk `first`. The chunk after it is then reduced over all.
    async fn share_reduce(&self, lane: &mut impl Lane, first: usize) -> Result<(), TransportError> {
        self.go_around(lane, first, Combine::Reduce).await
    }

    /// p-1 steps, beginning by sending chunk `first`; what has just arrived goes on to the right.
    async fn share_only(&self, lane: &mut impl Lane, first: usize) -> Result<(), TransportError> {
        self.go_around(lane, first, Combine::Copy).await
    }

    /// Each step sends the chunk that the step before has received.
    async fn go_around(&self, lane: &mut impl Lane, first: usize, combine: Combine) -> Result<(), TransportError> {
        let mut outgoing = self.chunk(first);
        for step in 1..self.ranks {
            let incoming = self.chunk(first + self.ranks - step);
            lane.exchange(self.right, outgoing, self.left, incoming.clone(), combine).await?;
            outgoing = incoming;
        }
        Ok(())
    }
}
