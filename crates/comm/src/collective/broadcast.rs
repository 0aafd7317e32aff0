//! Broadcast from rank 0 along a binomial tree: whoever has the data passes it on, so their number doubles each step.
//!
//! Steps: log2(p), rounded up. Bytes: every rank but 0 receives the slice once.

use crate::transport::{Transport, TransportError};

/// Replaces `data` on all ranks by rank 0's.
pub fn from_rank_0(transport: &mut impl Transport, data: &mut [f32]) -> Result<(), TransportError> {
    let (rank, world) = (transport.rank(), transport.world());
    let mut informed = 1;
    while informed < world {
        if rank < informed && rank + informed < world {
            transport.send(rank + informed, bytemuck::cast_slice(data))?;
        } else if (informed..2 * informed).contains(&rank) {
            transport.recv(rank - informed, bytemuck::cast_slice_mut(data))?;
        }
        informed *= 2;
    }
    Ok(())
}
