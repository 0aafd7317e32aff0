//! Rounds of work: one thread begins a round, others take part, and it waits until all of them are through.

use crate::wait::{Bell, Patience};

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// What one thread that leads and others that follow have in common.
///
/// What the leader wrote before [`Rounds::begin`] the others see after [`Rounds::next`]; what they wrote before
/// [`Rounds::end`] the leader sees after [`Rounds::finish`].
#[derive(Debug)]
pub struct Rounds {
    others: usize,
    /// Counts the rounds: a thread that has seen n waits for n + 1.
    round: AtomicU32,
    /// Threads that still work in the present round.
    running: AtomicUsize,
    closing: AtomicBool,
    begun: Bell,
    finished: Bell,
    patience: Patience,
}

impl Rounds {
    /// For a leader and so many others.
    pub fn new(others: usize) -> Self {
        Self {
            others,
            round: AtomicU32::new(0),
            running: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            begun: Bell::default(),
            finished: Bell::default(),
            patience: Patience::among(others + 1),
        }
    }

    /// Begins a round; the one before must be finished.
    pub fn begin(&self) {
        self.running.store(self.others, Ordering::Relaxed);
        self.round.fetch_add(1, Ordering::Release);
        self.begun.ring();
    }

    /// Waits until all others are through with the round.
    pub fn finish(&self) {
        self.finished.wait(&self.patience, None, || self.running.load(Ordering::Acquire) == 0);
    }

    /// Tells the others that there will be no more rounds.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        self.round.fetch_add(1, Ordering::Release);
        self.begun.ring();
    }

    /// Another thread waits for the round after the `seen` that it has taken part in; `false` if there will be none.
    pub fn next(&self, seen: &mut u32) -> bool {
        self.begun.wait(&self.patience, None, || self.round.load(Ordering::Acquire) != *seen);
        *seen = seen.wrapping_add(1);
        !self.closing.load(Ordering::Relaxed)
    }

    /// Another thread is through with its part of the round.
    pub fn end(&self) {
        if self.running.fetch_sub(1, Ordering::Release) == 1 {
            self.finished.ring();
        }
    }
}
