//! Temporary room of convolutions.

use crate::aligned::Aligned;
use crate::team::Shares;

/// How many numbers of each kind a thread needs room for.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Room {
    /// Windows as they are.
    pub bytes: usize,
    /// Transformed windows.
    pub words: usize,
    /// Sums of 32 bits.
    pub sums: usize,
}

impl Room {
    /// Enough for this and for another.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        Self { bytes: self.bytes.max(other.bytes), words: self.words.max(other.words), sums: self.sums.max(other.sums) }
    }
}

/// Room for each thread of a team.
pub struct Workspace {
    each: Room,
    bytes: Aligned<u8>,
    words: Aligned<i16>,
    sums: Aligned<i32>,
}

impl Workspace {
    /// So much for each of so many threads.
    pub fn new(each: Room, threads: usize) -> Self {
        Self {
            each,
            bytes: Aligned::zeros(each.bytes * threads),
            words: Aligned::zeros(each.words * threads),
            sums: Aligned::zeros(each.sums * threads),
        }
    }

    /// How many bytes it takes.
    pub fn size(&self) -> usize {
        self.bytes.len() + size_of::<i16>() * self.words.len() + size_of::<i32>() * self.sums.len()
    }

    /// A share of the bytes for each thread.
    pub(super) fn bytes(&mut self) -> Shares<'_, u8> {
        Shares::new(&mut self.bytes, self.each.bytes)
    }

    /// A share of the words and of the sums for each thread.
    pub(super) fn words_and_sums(&mut self) -> (Shares<'_, i16>, Shares<'_, i32>) {
        (Shares::new(&mut self.words, self.each.words), Shares::new(&mut self.sums, self.each.sums))
    }
}
