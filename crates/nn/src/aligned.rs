//! Numbers that begin where a line of the cache begins: a vector register's worth of them then never lies across two
//! lines, which would cost a second access. What the system hands out usually begins 16 bytes after such a place.

use std::ops::{Deref, DerefMut};

/// Bytes in a line of the cache.
const LINE: usize = 64;

/// A slice of fixed length.
pub(crate) struct Aligned<T = f32> {
    /// Never grows, so it stays where it is.
    data: Vec<T>,
    start: usize,
    length: usize,
}

impl<T: Copy + Default> Aligned<T> {
    /// All zero.
    pub fn zeros(length: usize) -> Self {
        let most = LINE / size_of::<T>() - 1;
        let data = vec![T::default(); length + most];
        let start = data.as_ptr().align_offset(LINE).min(most);
        Self { data, start, length }
    }
}

impl<T> Deref for Aligned<T> {
    type Target = [T];

    fn deref(&self) -> &[T] {
        &self.data[self.start..][..self.length]
    }
}

impl<T> DerefMut for Aligned<T> {
    fn deref_mut(&mut self) -> &mut [T] {
        &mut self.data[self.start..][..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_long_as_asked_and_begins_at_a_line() {
        for length in [0, 1, 16, 1000, 100_000] {
            let mut numbers = Aligned::<f32>::zeros(length);
            assert_eq!(numbers.len(), length);
            numbers.fill(1.0);
            assert!(numbers.as_ptr().addr().is_multiple_of(64));
        }
    }
}
