//! All-gather of parts whose lengths differ: a ring that is told no lengths beforehand, since each message says its own.
//!
//! Each rank sends its part to the right, and in each later step what has just arrived from the left. Steps: p-1. Bytes
//! sent by each rank: all parts but that of its right neighbour.

use crate::transport::{Incoming, Outgoing, Sink, Transport, TransportError};

/// Fills `parts`, one for each rank, of at most `limit` bytes; this rank's is `own`.
pub fn all_gather(
    transport: &mut dyn Transport,
    own: &[u8],
    limit: usize,
    parts: &mut [Vec<u8>],
) -> Result<(), TransportError> {
    let (rank, world) = (transport.rank(), transport.world());
    let (left, right) = ((rank + world - 1) % world, (rank + 1) % world);
    parts[rank].clear();
    parts[rank].extend_from_slice(own);
    for step in 1..world {
        let incoming = (rank + world - step) % world;
        let [data, into] = parts.get_disjoint_mut([(incoming + 1) % world, incoming]).expect("two of several parts");
        let sink = Sink::Take { into, limit };
        transport.transfer(Some(Outgoing { to: right, data }), Some(Incoming { from: left, sink }))?;
    }
    Ok(())
}
