//! What a rank sends and receives, counted.

use std::ops::{Add, AddAssign, Sub};

/// What a rank has sent and received so far: in each pair, what it has sent comes first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Traffic {
    /// Bytes of data. Those that a rank lays out in shared memory for others count as sent, and what it reads of theirs as
    /// received.
    pub payload: [u64; 2],
    /// Bytes that this took on the way, with headers and padding.
    pub wire: [u64; 2],
    /// Messages.
    pub messages: [u64; 2],
}

impl Traffic {
    pub(super) fn sent(payload: usize, wire: usize) -> Self {
        Self { payload: [payload as u64, 0], wire: [wire as u64, 0], messages: [1, 0] }
    }

    pub(super) fn received(payload: usize, wire: usize) -> Self {
        Self { payload: [0, payload as u64], wire: [0, wire as u64], messages: [0, 1] }
    }

    fn with(self, other: Self, of: fn(u64, u64) -> u64) -> Self {
        let both = |ours: [u64; 2], theirs: [u64; 2]| [of(ours[0], theirs[0]), of(ours[1], theirs[1])];
        Self {
            payload: both(self.payload, other.payload),
            wire: both(self.wire, other.wire),
            messages: both(self.messages, other.messages),
        }
    }
}

impl Add for Traffic {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        self.with(other, u64::add)
    }
}

impl AddAssign for Traffic {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

/// What has come between two moments.
impl Sub for Traffic {
    type Output = Self;

    fn sub(self, earlier: Self) -> Self {
        self.with(earlier, u64::sub)
    }
}
