//! How a thread waits for others: it looks again and again for a short time, where there are cores to spare, and then
//! sleeps until somebody rings.
//!
//! It never yields. A thread that yields stays runnable, and on a core that another program wants too it gets its turn
//! again only after that program's whole time slice; a thread that sleeps is put before the busy program as soon as it
//! is woken.

use std::time::{Duration, Instant};

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::cores;

/// The longest that a thread looks before it sleeps: several times what it takes to sleep and be woken, so that the
/// short pauses of a step pass without.
const LONGEST: Duration = Duration::from_micros(50);
/// How long it looks at least where there are cores to spare.
const SHORTEST: Duration = Duration::from_micros(2);
/// Looks at memory between two looks at the clock.
const LOOKS: u32 = 16;

/// How long a thread looks before it sleeps. It learns: after waits that looking would have shortened it looks for
/// longer, after waits that went on for long it looks less, and leaves the core to those that have work.
#[derive(Debug)]
pub struct Patience {
    /// Nanoseconds to look for; 0 if there are no cores to spare.
    nanoseconds: std::sync::atomic::AtomicU32,
}

impl Patience {
    /// For one of so many threads that wait for each other. If they outnumber the cores, looking only keeps the one that
    /// is waited for from running.
    pub fn among(threads: usize) -> Self {
        let first = if threads <= cores::allowed() { LONGEST } else { Duration::ZERO };
        Self { nanoseconds: std::sync::atomic::AtomicU32::new(first.as_nanos() as u32) }
    }

    /// Waits for something that `look` finds: looks for it, `looks` times between two looks at the clock, and when
    /// patience is at an end does what `sleep` says.
    pub fn wait<R>(&self, looks: u32, mut look: impl FnMut() -> Option<R>, sleep: impl FnOnce() -> R) -> R {
        if let Some(found) = look() {
            return found;
        }
        let patience = Duration::from_nanos(self.nanoseconds.load(std::sync::atomic::Ordering::Relaxed).into());
        if patience.is_zero() {
            return sleep();
        }
        let began = Instant::now();
        while began.elapsed() < patience {
            for _ in 0..looks {
                std::hint::spin_loop();
                if let Some(found) = look() {
                    return found;
                }
            }
        }
        let found = sleep();
        let next = if began.elapsed() < LONGEST { LONGEST } else { (patience / 2).max(SHORTEST) };
        self.nanoseconds.store(next.as_nanos() as u32, std::sync::atomic::Ordering::Relaxed);
        found
    }
}

/// Wakes those that sleep by it. It is one word that may lie in memory that several processes share; zero is a bell that
/// nobody has touched yet.
///
/// The lowest bit says that somebody sleeps or is about to; the others count how often sleepers were woken. So a ring
/// costs no call of the system while nobody sleeps, and one for all that do.
#[derive(Debug, Default)]
#[cfg_attr(not(all(loom, test)), repr(transparent))]
pub struct Bell {
    word: AtomicU32,
    #[cfg(all(loom, test))]
    futex: futex::Queue,
}

const SLEEPERS: u32 = 1;

impl Bell {
    /// Wakes all that sleep by this bell, if any do. What they wait for must have been stored before.
    pub fn ring(&self) {
        // Pairs with the fence in `sleep`: either this sees the sleeper's bit, or the sleeper sees what was stored.
        fence(Ordering::SeqCst);
        let mut word = self.word.load(Ordering::Relaxed);
        while word & SLEEPERS != 0 {
            // Clears the bit and counts up. Of several that ring at once one wakes the sleepers.
            match self.word.compare_exchange_weak(
                word,
                word.wrapping_add(SLEEPERS),
                Ordering::Relaxed,
                Ordering::Relaxed,
            ) {
                Ok(_) => return self.wake(),
                Err(present) => word = present,
            }
        }
    }

    /// Waits until `ready`, which must become true by what is stored before a ring of this bell; `false` if that has not
    /// happened within `limit`.
    pub fn wait(&self, patience: &Patience, limit: Option<Duration>, ready: impl Fn() -> bool) -> bool {
        patience.wait(LOOKS, || ready().then_some(true), || self.sleep(limit, &ready))
    }

    fn sleep(&self, limit: Option<Duration>, ready: impl Fn() -> bool) -> bool {
        let deadline = limit.map(|limit| Instant::now() + limit);
        loop {
            let word = self.word.fetch_or(SLEEPERS, Ordering::Relaxed) | SLEEPERS;
            // Pairs with the fence in `ring`. Whoever stores what makes this ready from here on finds the bit and changes
            // the word, and the system lets nobody fall asleep by a word that has changed.
            fence(Ordering::SeqCst);
            if ready() {
                return true;
            }
            let left = deadline.map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left.is_zero()) {
                return false;
            }
            self.fall_asleep(word, left);
        }
    }
}

#[cfg(not(all(loom, test)))]
impl Bell {
    fn wake(&self) {
        // The bell may be in memory that processes share, so the futex is not a private one.
        let _ = rustix::thread::futex::wake(&self.word, rustix::thread::futex::Flags::empty(), i32::MAX as u32);
    }

    /// Sleeps until woken, or for as long as is left, unless the word is another by now. May also return for no reason.
    fn fall_asleep(&self, word: u32, left: Option<Duration>) {
        use rustix::thread::futex;
        let left = left.map(|left| futex::Timespec {
            tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX),
            tv_nsec: left.subsec_nanos().into(),
        });
        let _ = futex::wait(&self.word, futex::Flags::empty(), word, left.as_ref());
    }
}
