//! All-reduce by recursive doubling (Thakur, Rabenseifner and Gropp, "Optimization of collective communication
//! operations in MPICH", 2005).
//!
//! In step k everyone exchanges the whole slice with the rank whose number differs in bit k, and reduces: log2(p) steps,
//! the fewest there can be, each with the whole slice. Best for small slices. Where p is no power of two, the ranks
//! beyond the largest one hand their slice to a partner first and get the result at the end.

use std::ops::Range;

use super::{Combine, Lane, Reducing};
use crate::transport::TransportError;

/// Replaces the slice by its reduction over all ranks.
pub async fn all_reduce(lane: &mut impl Reducing) -> Result<(), TransportError> {
    let all = 0..lane.len();
    let Some(core) = Core::enter(lane, all.clone()).await? else { return Ok(()) };
    let mut distance = 1;
    while distance < core.count {
        let partner = core.rank(core.number ^ distance);
        lane.exchange(partner, all.clone(), partner, all.clone(), Combine::Reduce).await?;
        distance *= 2;
    }
    lane.finish(all.clone());
    core.leave(lane, all).await
}

/// The largest power of two of ranks, which do the work. Of the first 2(p-count) ranks the even ones only hand their part
/// of the slice to the odd one after them and take the result back.
pub(super) struct Core {
    /// How many ranks are in it.
    pub count: usize,
    /// This rank's place in it, from 0.
    pub number: usize,
    /// How many ranks are not.
    extra: usize,
}

impl Core {
    /// Takes in the part of a partner that is not in the core. `None` for such a partner, which has the result already.
    pub async fn enter(lane: &mut impl Lane, part: Range<usize>) -> Result<Option<Self>, TransportError> {
        let (rank, world) = (lane.rank(), lane.world());
        let count = 1 << world.ilog2();
        let extra = world - count;
        if rank < 2 * extra && rank.is_multiple_of(2) {
            lane.send(rank + 1, part.clone()).await?;
            lane.recv(rank + 1, part, Combine::Copy).await?;
            return Ok(None);
        }
        if rank < 2 * extra {
            lane.recv(rank - 1, part, Combine::Reduce).await?;
        }
        let number = if rank < 2 * extra { rank / 2 } else { rank - extra };
        Ok(Some(Self { count, number, extra }))
    }

    /// The rank that has this place.
    pub fn rank(&self, number: usize) -> usize {
        if number < self.extra { 2 * number + 1 } else { number + self.extra }
    }

    /// Hands the result to the partner that is not in the core, if there is one.
    pub async fn leave(&self, lane: &mut impl Lane, part: Range<usize>) -> Result<(), TransportError> {
        if self.number < self.extra { lane.send(lane.rank() - 1, part).await } else { Ok(()) }
    }
}
