//! All-reduce by recursive doubling (Thakur, Rabenseifner and Gropp, "Optimization of collective communication
//! operations in MPICH", 2005).
//!
//! In step k everyone exchanges the whole slice with the rank whose number differs in bit k, and reduces: log2(p) steps,
//! the fewest there can be, each with the whole slice. Best for small slices. Where p is no power of two, the ranks
//! beyond the largest one hand their slice to a partner first and get the result at the end.

use std::ops::Range;

use super::{Combine, Lane};
use crate::element::Element;
use crate::transport::TransportError;

/// Replaces the slice by its reduction over all ranks.
pub fn all_reduce<T: Element>(lane: &mut Lane<'_, T>) -> Result<(), TransportError> {
    let all = 0..lane.len();
    with_power_of_two(lane, all.clone(), |lane, number, count, rank| {
        let mut distance = 1;
        while distance < count {
            let partner = rank(number ^ distance);
            lane.exchange(partner, all.clone(), partner, all.clone(), Combine::Reduce)?;
            distance *= 2;
        }
        lane.finish(all.clone());
        Ok(())
    })
}

/// Runs `core` on a power of two of ranks, numbered from 0. Of the first 2(p-count) ranks the even ones only hand their
/// part of the slice to the odd one after them and take the result back. `core` also gets the rank of each number.
pub(super) fn with_power_of_two<T: Element>(
    lane: &mut Lane<'_, T>,
    part: Range<usize>,
    core: impl FnOnce(&mut Lane<'_, T>, usize, usize, &dyn Fn(usize) -> usize) -> Result<(), TransportError>,
) -> Result<(), TransportError> {
    let (rank, world) = (lane.rank(), lane.world());
    let count = 1 << world.ilog2();
    let extra = world - count;
    if rank < 2 * extra && rank.is_multiple_of(2) {
        lane.send(rank + 1, part.clone())?;
        return lane.recv(rank + 1, part, Combine::Copy);
    }
    if rank < 2 * extra {
        lane.recv(rank - 1, part.clone(), Combine::Reduce)?;
    }
    let number = if rank < 2 * extra { rank / 2 } else { rank - extra };
    let rank_of = |number: usize| if number < extra { 2 * number + 1 } else { number + extra };
    core(lane, number, count, &rank_of)?;
    if rank < 2 * extra {
        lane.send(rank - 1, part)?;
    }
    Ok(())
}
