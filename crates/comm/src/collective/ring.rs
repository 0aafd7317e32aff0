//! Ring all-reduce (Patarasuk and Yuan, "Bandwidth optimal all-reduce algorithms for clusters of workstations", 2009).
//!
//! The slice is cut into p chunks. *Share-reduce*: in each of p-1 steps a rank sends one chunk to its right neighbour
//! and adds the one from the left to its own; rank r then holds the finished chunk r+1. *Share-only*: p-1 more steps
//! pass the finished chunks on around the ring.
//!
//! Steps: 2(p-1). Bytes sent by each rank: 2(p-1)/p of the slice, whatever p is; no all-reduce can send less. Each
//! chunk is added up in one place, so all ranks end with the same bits.

use super::{add, chunk};
use crate::transport::{Transport, TransportError};

/// Replaces `data` by its sum over all ranks. `scratch` grows to one chunk and can be kept for the next call.
pub fn all_reduce(
    transport: &mut impl Transport,
    data: &mut [f32],
    scratch: &mut Vec<f32>,
) -> Result<(), TransportError> {
    let (rank, world, length) = (transport.rank(), transport.world(), data.len());
    let right = (rank + 1) % world;
    let left = (rank + world - 1) % world;
    // The chunk that is `back` places behind rank r's own on the ring.
    let behind = |back: usize| chunk(length, world, (rank + 2 * world - back) % world);

    // Share-reduce.
    scratch.resize(chunk(length, world, 0).len(), 0.0);
    for step in 0..world - 1 {
        let (outgoing, target) = (behind(step), behind(step + 1));
        let incoming = &mut scratch[..target.len()];
        transport.exchange(right, bytemuck::cast_slice(&data[outgoing]), left, bytemuck::cast_slice_mut(incoming))?;
        add(&mut data[target], incoming);
    }

    // Share-only: what was finished or received last goes on to the right.
    for step in 0..world - 1 {
        let (outgoing, target) = (behind(step + world - 1), behind(step));
        let [outgoing, incoming] =
            data.get_disjoint_mut([outgoing, target]).expect("neighbouring chunks do not overlap");
        transport.exchange(right, bytemuck::cast_slice(outgoing), left, bytemuck::cast_slice_mut(incoming))?;
    }
    Ok(())
}
