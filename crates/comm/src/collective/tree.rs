//! Binomial trees: reduce to a root, broadcast from it, and both for an all-reduce.
//!
//! Ranks are numbered from the root. To reduce, in step k those whose bit k is set send all they have to the one without
//! it, and are done: log2(p) steps, rounded up, in which every rank but the root sends the slice once. A broadcast goes
//! the same way back: whoever has the slice passes it on, so their number doubles each step.
//!
//! As an all-reduce: 2 log2(p) steps of the whole slice, rounded up; the root sends it log2(p) times.

use super::{Combine, Lane, Reducing};
use crate::transport::TransportError;

/// Replaces the slice by its reduction over all ranks.
pub async fn all_reduce(lane: &mut impl Reducing) -> Result<(), TransportError> {
    reduce(lane, 0).await?;
    broadcast(lane, 0).await
}

/// Replaces the root's slice by the reduction over all ranks; those of the others are in between.
pub async fn reduce(lane: &mut impl Reducing, root: usize) -> Result<(), TransportError> {
    let (world, all) = (lane.world(), 0..lane.len());
    let number = (lane.rank() + world - root) % world;
    let rank = |number: usize| (number + root) % world;
    let mut distance = 1;
    while distance < world {
        if number & distance != 0 {
            return lane.send(rank(number - distance), all).await;
        }
        if number + distance < world {
            lane.recv(rank(number + distance), all.clone(), Combine::Reduce).await?;
        }
        distance *= 2;
    }
    lane.finish(all);
    Ok(())
}

/// Replaces the slice on all ranks by the root's.
pub async fn broadcast(lane: &mut impl Lane, root: usize) -> Result<(), TransportError> {
    let (world, all) = (lane.world(), 0..lane.len());
    let number = (lane.rank() + world - root) % world;
    let rank = |number: usize| (number + root) % world;
    let mut distance = world.next_power_of_two() / 2;
    // A rank hears from the one without its lowest bit, and passes the slice on to those below that bit.
    if number > 0 {
        distance = 1 << number.trailing_zeros();
        lane.recv(rank(number - distance), all.clone(), Combine::Copy).await?;
        distance /= 2;
    }
    while distance > 0 {
        if number + distance < world {
            lane.send(rank(number + distance), all.clone()).await?;
        }
        distance /= 2;
    }
    Ok(())
}
