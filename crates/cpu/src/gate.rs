//! A gate that opens when all have come.

use std::time::Duration;

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicU32, Ordering};
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicU32, Ordering};

use crate::wait::{Bell, Patience};

/// Where some threads or processes wait for each other, again and again. Like a [`Bell`] it may lie in shared memory and
/// is zero at first.
///
/// What anyone wrote before [`Gate::come`] all see once the gate is open.
#[derive(Debug, Default)]
#[repr(C)]
pub struct Gate {
    /// How often anyone has come, modulo 2^32.
    arrivals: AtomicU32,
    /// Only the last to come rings: the others would wake up to find that they must go on waiting.
    bell: Bell,
}

impl Gate {
    /// Comes to the gate, which opens with arrival number `last`, and says whether it is open now. Nobody may come for
    /// the next time before it has opened.
    pub fn come(&self, last: u32) -> bool {
        let is_last = self.arrivals.fetch_add(1, Ordering::AcqRel).wrapping_add(1) == last;
        if is_last {
            self.bell.ring();
        }
        is_last
    }

    /// Whether arrival number `last` has been.
    pub fn is_open(&self, last: u32) -> bool {
        // Some may have come again since, all of them never.
        self.arrivals.load(Ordering::Acquire).wrapping_sub(last) < u32::MAX / 2
    }

    /// Waits until the gate is open; `false` if it still is not after `limit`.
    pub fn wait(&self, patience: &Patience, limit: Duration, last: u32) -> bool {
        self.bell.wait(patience, Some(limit), || self.is_open(last))
    }
}
