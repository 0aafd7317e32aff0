//! Numbers that begin where a line of the cache begins: a vector register's worth of them then never lies across two
//! lines, which would cost a second access. What the system hands out usually begins 16 bytes after such a place.

use std::ops::{Deref, DerefMut};

/// Numbers in a line of the cache.
const LINE: usize = 16;

/// A slice of fixed length.
pub(crate) struct Aligned {
    /// Never grows, so it stays where it is.
    data: Vec<f32>,
    start: usize,
    length: usize,
}

impl Aligned {
    /// All zero.
    pub fn zeros(length: usize) -> Self {
        let data = vec![0.0; length + LINE - 1];
        let start = data.as_ptr().align_offset(LINE * size_of::<f32>()).min(LINE - 1);
        Self { data, start, length }
    }
}

impl Deref for Aligned {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        &self.data[self.start..][..self.length]
    }
}

impl DerefMut for Aligned {
    fn deref_mut(&mut self) -> &mut [f32] {
        &mut self.data[self.start..][..self.length]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_as_long_as_asked_and_begins_at_a_line() {
        for length in [0, 1, 16, 1000, 100_000] {
            let mut numbers = Aligned::zeros(length);
            assert_eq!(numbers.len(), length);
            numbers.fill(1.0);
            assert!(numbers.as_ptr().addr().is_multiple_of(64));
        }
    }
}
