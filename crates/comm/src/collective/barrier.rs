//! Dissemination barrier (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988): nobody leaves
//! before everybody has come.
//!
//! In step k a rank signals the one 2^k to its right and waits for the one 2^k to its left; after log2(p) steps, rounded
//! up, it has heard of everyone. The signals are messages without data.

use super::{Combine, Lane};
use crate::transport::TransportError;

/// Is over once all ranks have come.
pub async fn wait(lane: &mut impl Lane) -> Result<(), TransportError> {
    let (rank, world) = (lane.rank(), lane.world());
    let mut distance = 1;
    while distance < world {
        let (right, left) = ((rank + distance) % world, (rank + world - distance) % world);
        lane.exchange(right, 0..0, left, 0..0, Combine::Copy).await?;
        distance *= 2;
    }
    Ok(())
}
