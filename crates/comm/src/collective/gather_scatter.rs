//! All-reduce over rank 0: it gathers everyone's slice, adds them up and hands the sum back.
//!
//! Steps: 2(p-1), all of them through rank 0, which receives and sends (p-1) slices; every other rank sends one. What
//! courses start with, and what the [ring](super::ring) is there to beat. Rank 0 adds in rank order.

use super::add;
use crate::transport::{Transport, TransportError};

/// Replaces `data` by its sum over all ranks. `scratch` grows to one slice on rank 0 and can be kept for the next call.
pub fn all_reduce(
    transport: &mut impl Transport,
    data: &mut [f32],
    scratch: &mut Vec<f32>,
) -> Result<(), TransportError> {
    if transport.rank() > 0 {
        transport.send(0, bytemuck::cast_slice(data))?;
        return transport.recv(0, bytemuck::cast_slice_mut(data));
    }
    scratch.resize(data.len(), 0.0);
    for worker in 1..transport.world() {
        transport.recv(worker, bytemuck::cast_slice_mut(scratch))?;
        add(data, scratch);
    }
    for worker in 1..transport.world() {
        transport.send(worker, bytemuck::cast_slice(data))?;
    }
    Ok(())
}
