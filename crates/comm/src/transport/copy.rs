//! Copying memory.

/// glibc's `memcpy` turns to `rep movsb` from a few KiB on. On some processors (AMD's Zen 3 among them) that is several
/// times slower than the vector loop which it uses below.
const PIECE: usize = 2 << 10;

/// Copies a slice, fast at every size.
pub(crate) fn copy(to: &mut [u8], from: &[u8]) {
    assert_eq!(to.len(), from.len());
    for (to, from) in to.chunks_mut(PIECE).zip(from.chunks(PIECE)) {
        to.copy_from_slice(from);
    }
}
