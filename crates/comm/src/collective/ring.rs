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

use super::{Combine, Lane, chunk};
use crate::element::Element;
use crate::transport::TransportError;

/// Replaces the slice by its reduction over all ranks.
pub fn all_reduce<T: Element>(lane: &mut Lane<'_, T>) -> Result<(), TransportError> {
    let (whole, own) = (Ring::of_all(lane), lane.rank());
    let segments = lane.segments(whole.ranks);
    for segment in 0..segments {
        let ring = Ring { segment, segments, ..whole };
        ring.share_reduce(lane, own)?;
        lane.finish(ring.chunk(own + 1));
        ring.share_only(lane, own + 1)?;
    }
    Ok(())
}

/// After it, rank r's chunk r is finished; the others are in between.
pub fn reduce_scatter<T: Element>(lane: &mut Lane<'_, T>) -> Result<(), TransportError> {
    let (ring, own) = (Ring::of_all(lane), lane.rank());
    ring.share_reduce(lane, own + ring.ranks - 1)?;
    lane.finish(ring.chunk(own));
    Ok(())
}

/// Collects chunk r from each rank r.
pub fn all_gather<T: Element>(lane: &mut Lane<'_, T>) -> Result<(), TransportError> {
    Ring::of_all(lane).share_only(lane, lane.rank())
}

/// A ring of some ranks only, of which this one is the `place`-th. A mean is still a sum.
pub(super) fn all_reduce_among<T: Element>(
    lane: &mut Lane<'_, T>,
    members: &[usize],
    place: usize,
) -> Result<(), TransportError> {
    let ring = Ring::of(members, place, lane.len());
    ring.share_reduce(lane, place)?;
    ring.share_only(lane, place + 1)
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
    fn of_all<T: Element>(lane: &Lane<'_, T>) -> Self {
        let all: Vec<usize> = (0..lane.world()).collect();
        Self::of(&all, lane.rank(), lane.len())
    }

    fn of(members: &[usize], place: usize, length: usize) -> Self {
        let ranks = members.len();
        let (left, right) = (members[(place + ranks - 1) % ranks], members[(place + 1) % ranks]);
        Self { ranks, length, left, right, segment: 0, segments: 1 }
    }

    /// A chunk of the slice, counted around the ring; of that the segment that goes around.
    fn chunk(&self, index: usize) -> Range<usize> {
        let whole = chunk(self.length, self.ranks, index % self.ranks);
        let part = chunk(whole.len(), self.segments, self.segment);
        whole.start + part.start..whole.start + part.end
    }

    /// p-1 steps, beginning by sending chunk `first`. The chunk after it is then reduced over all.
    fn share_reduce<T: Element>(&self, lane: &mut Lane<'_, T>, first: usize) -> Result<(), TransportError> {
        self.go_around(lane, first, Combine::Reduce)
    }

    /// p-1 steps, beginning by sending chunk `first`; what has just arrived goes on to the right.
    fn share_only<T: Element>(&self, lane: &mut Lane<'_, T>, first: usize) -> Result<(), TransportError> {
        self.go_around(lane, first, Combine::Copy)
    }

    /// Each step sends the chunk that the step before has received.
    fn go_around<T: Element>(
        &self,
        lane: &mut Lane<'_, T>,
        first: usize,
        combine: Combine,
    ) -> Result<(), TransportError> {
        for step in 1..self.ranks {
            let incoming = first + self.ranks - step;
            lane.exchange(self.right, self.chunk(incoming + 1), self.left, self.chunk(incoming), combine)?;
        }
        Ok(())
    }
}
