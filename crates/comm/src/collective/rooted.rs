//! Gather and scatter: one rank has all parts, the others one each.
//!
//! Steps: p-1, all of them at the root. Bytes: to scatter, the root sends every other rank its part; to gather, every
//! other rank sends its own.

use crate::collective::chunk;
use crate::element::Element;
use crate::transport::{Transport, TransportError};

/// The root receives everyone's `part` into `all`, in the order of the ranks. The parts are as long on all ranks.
pub fn gather<T: Element>(
    transport: &mut dyn Transport,
    root: usize,
    part: &[T],
    all: &mut [T],
) -> Result<(), TransportError> {
    let (rank, world) = (transport.rank(), transport.world());
    if rank != root {
        return transport.send(root, bytemuck::cast_slice(part));
    }
    for sender in 0..world {
        let place = &mut all[chunk(part.len() * world, world, sender)];
        if sender == root {
            place.copy_from_slice(part);
        } else {
            transport.recv(sender, bytemuck::cast_slice_mut(place))?;
        }
    }
    Ok(())
}

/// The root sends everyone its `part` of `all`, in the order of the ranks. The parts are as long on all ranks.
pub fn scatter<T: Element>(
    transport: &mut dyn Transport,
    root: usize,
    all: &[T],
    part: &mut [T],
) -> Result<(), TransportError> {
    let (rank, world) = (transport.rank(), transport.world());
    if rank != root {
        return transport.recv(root, bytemuck::cast_slice_mut(part));
    }
    for receiver in 0..world {
        let place = &all[chunk(part.len() * world, world, receiver)];
        if receiver == root {
            part.copy_from_slice(place);
        } else {
            transport.send(receiver, bytemuck::cast_slice(place))?;
        }
    }
    Ok(())
}
