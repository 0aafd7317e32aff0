//! All-to-all: everyone has a part for everyone.
//!
//! In step k a rank sends to the one k to its right and receives from the one k to its left: p-1 steps, in each of which
//! every rank has one partner to send to and one to receive from. Bytes sent by each rank: (p-1)/p of the slice.

use super::{Combine, Lane, chunk};
use crate::transport::TransportError;

/// Part j of what goes out goes to rank j; part i of what comes in comes from rank i. The parts are all as many elements.
pub async fn exchange(lane: &mut impl Lane) -> Result<(), TransportError> {
    let (rank, world, length) = (lane.rank(), lane.world(), lane.len());
    for distance in 1..world {
        let (to, from) = ((rank + distance) % world, (rank + world - distance) % world);
        let (outgoing, incoming) = (chunk(length, world, to), chunk(length, world, from));
        lane.exchange(to, outgoing, from, incoming, Combine::Copy).await?;
    }
    Ok(())
}
