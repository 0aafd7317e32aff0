//! All-to-all: everyone has a part for everyone.
//!
//! In step k a rank sends to the one k to its right and receives from the one k to its left: p-1 steps, in each of which
//! every rank has one partner to send to and one to receive from. Bytes sent by each rank: (p-1)/p of the slice.

use crate::collective::chunk;
use crate::element::Element;
use crate::transport::{Incoming, Outgoing, Sink, Transport, TransportError};

/// Part j of `outgoing` goes to rank j; part i of `incoming` comes from rank i. The parts are all as long.
pub fn exchange<T: Element>(
    transport: &mut dyn Transport,
    outgoing: &[T],
    incoming: &mut [T],
) -> Result<(), TransportError> {
    let (rank, world) = (transport.rank(), transport.world());
    let part = |of: usize| chunk(outgoing.len(), world, of);
    incoming[part(rank)].copy_from_slice(&outgoing[part(rank)]);
    for distance in 1..world {
        let (to, from) = ((rank + distance) % world, (rank + world - distance) % world);
        let (out, into) = (&outgoing[part(to)], &mut incoming[part(from)]);
        transport.exchange(to, bytemuck::cast_slice(out), from, bytemuck::cast_slice_mut(into))?;
    }
    Ok(())
}

/// The same with parts whose lengths differ, of at most `limit` bytes.
pub fn exchange_varied(
    transport: &mut dyn Transport,
    outgoing: &[impl AsRef<[u8]>],
    limit: usize,
    incoming: &mut [Vec<u8>],
) -> Result<(), TransportError> {
    let (rank, world) = (transport.rank(), transport.world());
    incoming[rank].clear();
    incoming[rank].extend_from_slice(outgoing[rank].as_ref());
    for distance in 1..world {
        let (to, from) = ((rank + distance) % world, (rank + world - distance) % world);
        let sink = Sink::Take { into: &mut incoming[from], limit };
        let data = outgoing[to].as_ref();
        transport.transfer(Some(Outgoing { to, data }), Some(Incoming { from, sink }))?;
    }
    Ok(())
}
