//! Copying memory.

/// glibc's `memcpy` turns to `rep movsb` from a few KiB on, and back to vector loops beyond the size of the second-level
/// cache. Into memory that another core has just read, that is several times slower on some processors (AMD's Zen 3 among
/// them); in pieces of this size it stays with vector loops.
const PIECE: usize = 2 << 10;

/// Copies a slice, as fast into shared memory as into one's own.
pub(crate) fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len());
    for (to, from) in to.chunks_mut(PIECE).zip(from.chunks(PIECE)) {
        to.copy_from_slice(from);
    }
}
