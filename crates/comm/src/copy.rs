//! Copying that is fast wherever the two slices lie in their pages.
//!
//! The C library and the kernel copy a few KiB and more by `rep movsb`. On AMD's Zen 3 this instruction is over ten times
//! slower if it writes 1 to 31 bytes further into a page than it reads (`bench/collectives/movsb.c`). That is no rare
//! case: a large slice begins 16 bytes into a page, where the allocator puts it, and what it is copied to 32 bytes into
//! one, behind a header. What is shorter the C library copies through vector registers, which do not mind.

/// So much is copied at once.
const PIECE: usize = 2 << 10;

/// `into.copy_from_slice(from)`.
pub(crate) fn copy<T: Copy>(into: &mut [T], from: &[T]) {
    assert_eq!(into.len(), from.len());
    let piece = PIECE / size_of::<T>();
    for (into, from) in into.chunks_mut(piece).zip(from.chunks(piece)) {
        into.copy_from_slice(from);
    }
}
