//! All-reduce by recursive halving and doubling (Rabenseifner, "Optimization of collective reduction operations", 2004).
//!
//! *Halving*: each rank and its partner at half the distance of the step before split what they share, send each other
//! the half that the other keeps, and reduce; after log2(p) steps everyone has one finished chunk. *Doubling* goes the
//! same way back and collects them. Steps: 2 log2(p); bytes sent by each rank: 2(p-1)/p of the slice, as by the ring.
//! Where p is no power of two, see [`recursive_doubling`](super::recursive_doubling).
//!
//! A large slice goes through block by block, in chunks of [one segment](super::Lane::segments). Every element is reduced
//! in the same order, so its bits do not depend on blocks, nor, as they are multiples of p, do the bytes sent.

use std::ops::Range;

use super::recursive_doubling::Core;
use super::{Combine, Reducing, chunks};
use crate::transport::TransportError;

/// Replaces the slice by its reduction over all ranks.
pub async fn all_reduce(lane: &mut impl Reducing) -> Result<(), TransportError> {
    let (length, count) = (lane.len(), 1 << lane.world().ilog2());
    let blocks = lane.segments(count);
    let size = length.div_ceil(blocks).next_multiple_of(count);
    for block in 0..blocks {
        let start = (block * size).min(length);
        all_reduce_block(lane, start..(start + size).min(length)).await?;
    }
    Ok(())
}

async fn all_reduce_block(lane: &mut impl Reducing, block: Range<usize>) -> Result<(), TransportError> {
    let Some(core) = Core::enter(lane, block.clone()).await? else { return Ok(()) };
    let (number, count) = (core.number, core.count);
    // The chunks of everyone whose number agrees with this one's above the bit `size`.
    let window = |number: usize, size: usize| {
        let start = number / size * size;
        let chunks = chunks(block.len(), count, start..start + size);
        block.start + chunks.start..block.start + chunks.end
    };
    let mut size = count / 2;
    while size > 0 {
        let partner = core.rank(number ^ size);
        let (theirs, mine) = (window(number ^ size, size), window(number, size));
        lane.exchange(partner, theirs, partner, mine, Combine::Reduce).await?;
        size /= 2;
    }
    lane.finish(window(number, 1));
    size = 1;
    while size < count {
        let partner = core.rank(number ^ size);
        let (mine, theirs) = (window(number, size), window(number ^ size, size));
        lane.exchange(partner, mine, partner, theirs, Combine::Copy).await?;
        size *= 2;
    }
    core.leave(lane, block).await
}
