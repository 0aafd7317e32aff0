//! Dissemination barrier (Hensgen, Finkel and Manber 1988): nobody leaves before everybody has come.
//!
//! In step k a rank signals the one 2^k to its right and waits for the one 2^k to its left; after log2(p) steps,
//! rounded up, it has heard of everyone.

use crate::transport::{Transport, TransportError};

/// Returns once all ranks have called it.
pub fn wait(transport: &mut impl Transport) -> Result<(), TransportError> {
    let (rank, world) = (transport.rank(), transport.world());
    let mut distance = 1;
    while distance < world {
        let right = (rank + distance) % world;
        let left = (rank + world - distance) % world;
        transport.exchange(right, &[0], left, &mut [0])?;
        distance *= 2;
    }
    Ok(())
}
