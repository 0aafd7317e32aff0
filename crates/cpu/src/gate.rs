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

#[cfg(all(loom, test))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::wait::check;

    /// Some ranks come to a gate so many times; before each, each writes to a place of its own, and after it reads all.
    fn meet(ranks: u32, times: u32) {
        check(3, move || {
            let places: Vec<_> = (0..ranks * times).map(|_| UnsafeCell::new(0)).collect();
            let shared = Arc::new((Gate::default(), places));
            let rank = move |rank: u32, (gate, places): &(Gate, Vec<UnsafeCell<u32>>)| {
                for time in 1..=times {
                    let turn = &places[((time - 1) * ranks) as usize..][..ranks as usize];
                    turn[rank as usize].with_mut(|place| {
                        // SAFETY: the model checks that nobody reads it before the gate is open.
                        #[allow(unsafe_code)]
                        unsafe {
                            *place = time;
                        }
                    });
                    let last = time * ranks;
                    assert!(gate.come(last) || gate.bell.wait(&Patience::among(2), None, || gate.is_open(last)));
                    for place in turn {
                        // SAFETY: the model checks that it was written before.
                        #[allow(unsafe_code)]
                        place.with(|place| assert_eq!(unsafe { *place }, time));
                    }
                }
            };
            let others: Vec<_> = (1..ranks)
                .map(|index| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || rank(index, &shared))
                })
                .collect();
            rank(0, &shared);
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }

    #[test]
    fn two_meet_again_and_again() {
        meet(2, 2);
    }

    #[test]
    fn three_meet() {
        meet(3, 1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn nobody_passes_before_all_have_come() {
        let (gate, come) = (Gate::default(), AtomicU32::new(0));
        thread::scope(|scope| {
            for _ in 0..5 {
                scope.spawn(|| {
                    let patience = Patience::among(5);
                    for time in 1..=500 {
                        come.fetch_add(1, Ordering::Relaxed);
                        let open = gate.come(time * 5) || gate.wait(&patience, Duration::from_secs(60), time * 5);
                        assert!(open);
                        assert!(come.load(Ordering::Relaxed) >= time * 5);
                    }
                });
            }
        });
    }

    #[test]
    fn the_count_of_arrivals_may_wrap() {
        let gate = Gate { arrivals: AtomicU32::new(u32::MAX), bell: Bell::default() };
        assert!(!gate.is_open(1));
        assert!(!gate.come(1));
        assert!(gate.come(1));
        assert!(gate.is_open(1) && gate.is_open(0) && !gate.is_open(2));
    }
}
