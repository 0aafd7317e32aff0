//! How a thread waits for others: it looks again and again for a short time, and then sleeps until somebody rings.
//!
//! A thread that looks is in the way of other programs, and they are in its way: when it has used up its share of the
//! core another program gets a whole time slice. A thread that sleeps comes before the busy program as soon as it is
//! woken, but on a quiet machine to sleep and be woken takes longer than most messages. So looking has an end after some
//! microseconds, and a thread that looks asks now and then whether anybody else wants its core, by yielding it. Where
//! nobody does, that costs nothing; where the others of its own crowd do, they run; and if it takes as long as a time
//! slice another program is there, and the thread sleeps without looking for a while. So yields are few where they cost
//! much.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicU32, Ordering, fence};
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicU32, Ordering, fence};

use crate::cores;

/// How long it looks at least, unless there is a truce.
const SHORTEST: Duration = Duration::from_micros(5);
/// Looks at memory between two looks at the clock: a microsecond or two.
const LOOKS: u32 = 64;
/// A thread between whose looks so much time has passed has lost its core to another program, or to one of its own that
/// has much to do. The system's time slices are longer.
const DISPLACED: Duration = Duration::from_millis(1);
/// How long it then sleeps without looking first: several time slices at first, and twice as long as the last time if it
/// is displaced again soon, so that finding out costs little where another program stays.
const FIRST_TRUCE: Duration = Duration::from_millis(50);
const LAST_TRUCE: Duration = Duration::from_millis(800);

/// How long a thread looks before it sleeps, which it learns: waits that went on for long make it look for less long, one
/// that looking would have shortened for longer, and losing the core not at all for a while.
#[derive(Debug)]
pub struct Patience {
    /// Whether those that wait for each other outnumber the cores.
    crowded: bool,
    /// Nanoseconds to look for.
    looking: AtomicU64,
    /// When it may look again, in nanoseconds after `born`.
    truce: AtomicU64,
    /// How long the last truce was, in nanoseconds.
    length: AtomicU64,
    born: Instant,
}

impl Patience {
    /// The longest that a thread looks before it sleeps: several times what it takes to sleep and be woken, so that the
    /// short pauses of a step pass without.
    pub const LONGEST: Duration = Duration::from_micros(200);

    /// For how many seconds a thread looks that has looked for so many, and has waited for so many.
    pub fn after(looking: f64, waited: f64) -> f64 {
        let longest = Self::LONGEST.as_secs_f64();
        match waited {
            _ if waited <= looking => looking,
            _ if waited < longest => longest,
            _ => (looking / 2.0).max(SHORTEST.as_secs_f64()),
        }
    }

    /// For one of so many threads, of one process or of several, that wait for each other.
    pub fn among(threads: usize) -> Self {
        Self {
            crowded: threads > cores::allowed(),
            looking: AtomicU64::new(Self::LONGEST.as_nanos() as u64),
            // A model has no clock: it sleeps at once.
            truce: AtomicU64::new(if cfg!(all(loom, test)) { u64::MAX } else { 0 }),
            length: AtomicU64::new(0),
            born: Instant::now(),
        }
    }

    /// Waits for something that `look` finds: looks for it, `looks` times between two looks at the clock unless it is in a
    /// crowd, and when patience is at an end does what `sleep` says.
    pub fn wait<R>(&self, looks: u32, mut look: impl FnMut() -> Option<R>, sleep: impl FnOnce() -> R) -> R {
        if let Some(found) = look() {
            return found;
        }
        let patience = Duration::from_nanos(self.looking.load(Relaxed));
        let began = Instant::now();
        if began.duration_since(self.born) < Duration::from_nanos(self.truce.load(Relaxed)) {
            return sleep();
        }
        let mut last = began;
        while last.duration_since(began) < patience {
            // In a crowd, whoever is waited for may need this core.
            let looks = if self.crowded { 0 } else { looks };
            for _ in 0..looks {
                std::hint::spin_loop();
                if let Some(found) = look() {
                    return found;
                }
            }
            std::thread::yield_now();
            if let Some(found) = look() {
                return found;
            }
            let now = Instant::now();
            if now.duration_since(last) > DISPLACED {
                self.begin_truce(now);
                return sleep();
            }
            last = now;
        }
        let found = sleep();
        let next = Self::after(patience.as_secs_f64(), began.elapsed().as_secs_f64());
        self.looking.store((1e9 * next) as u64, Relaxed);
        found
    }

    fn begin_truce(&self, now: Instant) {
        let now = now.duration_since(self.born).as_nanos() as u64;
        let (last, length) = (self.truce.load(Relaxed), self.length.load(Relaxed));
        let soon = now < last.saturating_add(2 * length);
        let (first, most) = (FIRST_TRUCE.as_nanos() as u64, LAST_TRUCE.as_nanos() as u64);
        let length = if soon { (2 * length).min(most) } else { first };
        self.length.store(length, Relaxed);
        self.truce.store(now + length, Relaxed);
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
    sleepers: (loom::sync::Mutex<()>, loom::sync::Condvar),
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

/// The system's futex as a model sees it: to compare the word and to fall asleep is one step for those that wake.
#[cfg(all(loom, test))]
impl Bell {
    fn wake(&self) {
        drop(self.sleepers.0.lock());
        self.sleepers.1.notify_all();
    }

    fn fall_asleep(&self, word: u32, _: Option<Duration>) {
        let guard = self.sleepers.0.lock().unwrap();
        if self.word.load(Ordering::Relaxed) == word {
            drop(self.sleepers.1.wait(guard));
        }
    }
}

/// Tries all interleavings in which threads that could go on are displaced so many times at most.
#[cfg(all(loom, test))]
pub(crate) fn check(displacements: usize, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(displacements);
    builder.check(model);
}

#[cfg(all(loom, test))]
mod models {
    use loom::sync::Arc;
    use loom::thread;

    use super::*;

    /// A word and the bell of whoever waits for it, as at each end of a pipe.
    #[derive(Default)]
    struct End {
        word: AtomicU32,
        bell: Bell,
    }

    impl End {
        fn put(&self, value: u32) {
            self.word.store(value, Ordering::Release);
            self.bell.ring();
        }

        fn wait_for(&self, value: u32) {
            assert!(self.bell.wait(&Patience::among(2), None, || self.word.load(Ordering::Acquire) == value));
        }
    }

    #[test]
    fn two_that_take_turns_wake_each_other() {
        check(3, || {
            let ends = Arc::new([End::default(), End::default()]);
            let other = {
                let ends = Arc::clone(&ends);
                thread::spawn(move || {
                    for turn in 1..=2 {
                        ends[1].wait_for(turn);
                        ends[0].put(turn);
                    }
                })
            };
            for turn in 1..=2 {
                ends[1].put(turn);
                ends[0].wait_for(turn);
            }
            other.join().unwrap();
        });
    }

    #[test]
    fn of_two_that_ring_at_once_none_is_missed() {
        check(3, || {
            let end = Arc::new((AtomicU32::new(0), AtomicU32::new(0), Bell::default()));
            let others = [0, 1].map(|which| {
                let end = Arc::clone(&end);
                thread::spawn(move || {
                    let word = if which == 0 { &end.0 } else { &end.1 };
                    word.store(1, Ordering::Release);
                    end.2.ring();
                })
            });
            let both = || end.0.load(Ordering::Acquire) + end.1.load(Ordering::Acquire) == 2;
            assert!(end.2.wait(&Patience::among(3), None, both));
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }

    #[test]
    fn one_ring_wakes_all_that_sleep() {
        check(3, || {
            let end = Arc::new(End::default());
            let others = [(); 2].map(|()| {
                let end = Arc::clone(&end);
                thread::spawn(move || end.wait_for(1))
            });
            end.put(1);
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::Arc;
    use std::thread;

    use super::*;

    /// Where threads outnumber the cores.
    fn crowded() -> Patience {
        Patience::among(usize::MAX)
    }

    /// Never looks before it sleeps.
    fn none() -> Patience {
        Patience { truce: AtomicU64::new(u64::MAX), ..Patience::among(1) }
    }

    #[test]
    fn messages_to_and_fro_arrive_whether_the_threads_look_or_sleep() {
        for make in [none as fn() -> Patience, crowded, || Patience::among(1)] {
            let ends = Arc::new([(); 2].map(|()| (AtomicU32::new(0), Bell::default())));
            let put = |(word, bell): &(AtomicU32, Bell), value| {
                word.store(value, Ordering::Release);
                bell.ring();
            };
            let wait = |(word, bell): &(AtomicU32, Bell), patience: &Patience, value| {
                assert!(bell.wait(patience, None, || word.load(Ordering::Acquire) == value));
            };
            let other = {
                let ends = Arc::clone(&ends);
                thread::spawn(move || {
                    let patience = make();
                    for value in 1..=2000 {
                        wait(&ends[1], &patience, value);
                        put(&ends[0], value);
                    }
                })
            };
            let patience = make();
            for value in 1..=2000 {
                put(&ends[1], value);
                wait(&ends[0], &patience, value);
            }
            other.join().unwrap();
        }
    }

    #[test]
    fn a_wait_with_a_limit_ends() {
        assert!(!Bell::default().wait(&none(), Some(Duration::from_millis(1)), || false));
        assert!(!Bell::default().wait(&Patience::among(1), Some(Duration::from_millis(1)), || false));
        assert!(Bell::default().wait(&none(), Some(Duration::ZERO), || true));
    }

    #[test]
    fn in_a_truce_a_thread_looks_once() {
        let mut looks = 0;
        let found = none().wait(
            16,
            || {
                looks += 1;
                None
            },
            || "slept",
        );
        assert_eq!((found, looks), ("slept", 1));
    }

    #[test]
    fn a_thread_that_is_displaced_leaves_off_looking() {
        let displaced = || -> Option<()> {
            thread::sleep(2 * DISPLACED);
            None
        };
        for patience in [Patience::among(1), crowded()] {
            patience.wait(1, displaced, || ());
            assert!(patience.truce.load(Relaxed) > FIRST_TRUCE.as_nanos() as u64);
        }
    }

    #[test]
    fn truces_grow_while_displacements_go_on_and_begin_anew_after_a_pause() {
        let patience = Patience::among(1);
        let displace = |milliseconds| {
            patience.begin_truce(patience.born + Duration::from_millis(milliseconds));
            Duration::from_nanos(patience.length.load(Relaxed)).as_millis()
        };
        assert_eq!([100, 151, 252, 453, 854, 1655].map(displace), [50, 100, 200, 400, 800, 800]);
        assert_eq!(displace(10_000), 50);
    }
}
