//! All-reduce in shared memory: ranks of one host read straight out of each other's slices.
//!
//! The slice goes through the shared memory in segments that stay in the cache, so that a large all-reduce costs little
//! more than reading every input once and writing every output once. A small slice, and one of two ranks, is *flat*:
//! everyone lays its segment out, all synchronise, and everyone reduces all of them; one synchronisation a segment.
//! Otherwise it is *chunked*: everyone lays its segment out, reduces one chunk of all of them into a common result, and
//! copies that; two synchronisations a segment, but each input is read once.
//!
//! Nothing is sent. Counted are the bytes that a rank lays out for others: the slice, and for chunked its chunk of the
//! result. Both reduce in the order of the ranks.

use super::{Reducing, chunk};
use crate::call::Call;
use crate::copy::copy;
use crate::element::{Element, Op};
use crate::transport::{Cause, Shared, TransportError};

/// Up to here a slice is flat whatever the number of ranks.
pub const FLAT: usize = 8 << 10;
/// Of a chunked slice this much is reduced at once, so that the sum stays in the innermost cache.
const BLOCK: usize = 8 << 10;

/// Whether a slice of so many bytes is flat.
pub fn is_flat(bytes: usize, ranks: usize) -> bool {
    ranks <= 2 || bytes <= FLAT
}

/// Replaces the slice by its reduction over all ranks, which must be on one host.
pub async fn all_reduce(lane: &mut impl Reducing) -> Result<(), TransportError> {
    let (rank, world, length) = (lane.rank(), lane.world(), lane.len());
    if !lane.topology().all_share_memory() {
        let problem = std::io::Error::other("direct needs memory that all ranks share");
        return Err(TransportError::receiving((rank + 1) % world, Cause::Io(problem)));
    }
    lane.reduce_in_host().await?;
    lane.finish(0..length);
    Ok(())
}

/// Reduces over the ranks of this host; a mean is still a sum.
pub(super) fn within_host<T: Element>(
    shared: &mut Shared,
    data: &mut [T],
    op: Op,
    call: &Call,
) -> Result<(), TransportError> {
    let members = shared.members().len();
    if members == 1 {
        return Ok(());
    }
    shared.announce(call);
    if is_flat(size_of_val(data), members) { flat(shared, data, op, call) } else { chunked(shared, data, op, call) }
}

fn flat<T: Element>(shared: &mut Shared, data: &mut [T], op: Op, call: &Call) -> Result<(), TransportError> {
    let (index, members) = (shared.index(), shared.members().len());
    let segment = Shared::slot_size() / size_of::<T>();
    let mut first = true;
    // An empty slice has no segments, and still is a call in which all must agree.
    let mut rest = data;
    while first || !rest.is_empty() {
        let count = segment.min(rest.len());
        let (part, later) = std::mem::take(&mut rest).split_at_mut(count);
        shared.offer(bytemuck::cast_slice(part));
        shared.sync()?;
        if std::mem::take(&mut first) {
            shared.compare(call)?;
        }
        let bytes = size_of_val(part);
        let offered = |index| bytemuck::cast_slice::<u8, T>(shared.offered(index, bytes));
        if members == 2 {
            // Operations are commutative to the bit, so two need not care for their order.
            T::reduce(op, part, offered(1 - index));
        } else {
            copy(part, offered(0));
            for index in 1..members {
                T::reduce(op, part, offered(index));
            }
        }
        shared.count_read((members - 1) * bytes);
        rest = later;
    }
    Ok(())
}

fn chunked<T: Element>(shared: &mut Shared, data: &mut [T], op: Op, call: &Call) -> Result<(), TransportError> {
    let (index, members) = (shared.index(), shared.members().len());
    let mut sum = [T::zeroed(); BLOCK];
    let sum = &mut sum[..BLOCK / size_of::<T>()];
    let mut first = true;
    for segment in data.chunks_mut(Shared::stage_size() / size_of::<T>()) {
        shared.put_on_stage(0, bytemuck::cast_slice(segment));
        shared.sync()?;
        if std::mem::take(&mut first) {
            shared.compare(call)?;
        }
        let mine = chunk(segment.len(), members, index);
        for start in mine.clone().step_by(sum.len()) {
            let sum = &mut sum[..(mine.end - start).min(BLOCK / size_of::<T>())];
            let (at, bytes) = (start * size_of::<T>(), size_of_val(sum));
            copy(sum, bytemuck::cast_slice(shared.stage(0, at, bytes)));
            for other in 1..members {
                T::reduce(op, sum, bytemuck::cast_slice(shared.stage(other, at, bytes)));
            }
            shared.put_result(at, bytemuck::cast_slice(sum));
        }
        shared.sync()?;
        copy(segment, bytemuck::cast_slice(shared.result(0, size_of_val(segment))));
        // A chunk of each of the others, and their chunks of the result.
        shared.count_read(size_of::<T>() * ((members - 1) * mine.len() + segment.len() - mine.len()));
    }
    Ok(())
}
