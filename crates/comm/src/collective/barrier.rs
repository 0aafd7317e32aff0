//! Dissemination barrier (Hensgen, Finkel and Manber, "Two algorithms for barrier synchronization", 1988): nobody leaves
//! before everybody has come.
//!
//! In step k a rank signals the one 2^k to its right and waits for the one 2^k to its left; after log2(p) steps, rounded
//! up, it has heard of everyone. The signals are messages without data.

use crate::transport::{Transport, TransportError};

/// Returns once all ranks have called it.
pub fn wait(transport: &mut dyn Transport) -> Result<(), TransportError> {
    let (rank, world) = (transport.rank(), transport.world());
    let mut distance = 1;
    while distance < world {
        let (right, left) = ((rank + distance) % world, (rank + world - distance) % world);
        transport.exchange(right, &[], left, &mut [])?;
        distance *= 2;
    }
    Ok(())
}
