//! Stopping ranks from outside, all at the same moment between two steps, without a message among them.
//!
//! Workers that exchange something in each step are never more than one step apart, but nobody who looks on knows where they
//! are. So it takes two orders:
//!
//! ```text
//! whoever gives orders                       each worker
//! Hold         -------------------------->   answers at once how many moments it has passed, and passes no other
//!              <--------------------------   Held { passed, .. }
//! Until(the largest that it has heard)  ->   goes on to that moment, and does there what it is told to
//! ```
//!
//! The answer does not wait for the training, so that it comes even from a worker that waits for one that holds already. A new
//! order takes the place of the last one: whoever gives orders waits until all have halted before it says `Hold` again, or a
//! worker that has not come there yet would pass where the others halted.
//! Workers that never wait for each other may be halted each where it is.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard};

use ringstep_comm::transport::Aborter;

use serde::{Deserialize, Serialize};

/// What a rank is told while it trains.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Order {
    /// Say where you are, and wait between two steps until the next order.
    Hold,
    /// Go on, and halt after as many moments.
    Until(Halt),
    /// Go on.
    Release,
    /// Give up what you do, at once: another rank is gone, and all will start again from an earlier step.
    Abandon,
}

/// Where a rank is when it is told to hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Held {
    /// Moments between two steps that it has passed since it was started.
    pub passed: usize,
    /// Steps that it had done at the last of them.
    pub done: usize,
    /// There are no more: its training is over.
    pub over: bool,
}

/// What to do at a moment between two steps.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Halt {
    /// How many moments are passed before.
    pub after: usize,
    /// What the checkpoint is called; the same on all ranks. Without one there is none.
    pub save: Option<usize>,
    /// What comes then.
    pub then: Then,
}

/// What comes after a halt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Then {
    /// The next step.
    GoOn,
    /// The end of the training: what was done so far is finished, tested and summed up.
    Finish,
    /// The end of the rank.
    Leave,
}

/// What a rank is told, and by what it can be told.
#[derive(Debug, Default)]
pub struct Halts {
    told: Mutex<Told>,
    changed: Condvar,
    /// Whether it was told to give up.
    abandoned: AtomicBool,
    /// What ends its exchanges then.
    aborter: Mutex<Option<Aborter>>,
}

#[derive(Debug)]
struct Told {
    held: Held,
    holds: bool,
    halt: Option<Halt>,
}

impl Default for Told {
    fn default() -> Self {
        Self { held: Held { passed: 0, done: 0, over: false }, holds: false, halt: None }
    }
}

const NOBODY_PANICS: &str = "nobody panics with it";

impl Halts {
    /// Takes an order, on any thread; one to hold has an answer.
    pub fn take(&self, order: Order) -> Option<Held> {
        let mut told = self.told();
        (told.holds, told.halt) = match order {
            Order::Hold => (true, None),
            Order::Until(halt) => (false, Some(halt)),
            Order::Release => (false, None),
            Order::Abandon => {
                self.abandoned.store(true, Ordering::SeqCst);
                if let Some(aborter) = &*self.aborter.lock().expect(NOBODY_PANICS) {
                    aborter.abort();
                }
                (false, None)
            }
        };
        self.changed.notify_all();
        (order == Order::Hold).then_some(told.held)
    }

    /// The rank stands between two steps, of which it has done so many. Waits as long as it is to hold; returns what it is to
    /// do now.
    pub(crate) fn pass(&self, done: usize) -> Option<Halt> {
        let mut told = self.told();
        while told.holds {
            told = self.changed.wait(told).expect(NOBODY_PANICS);
        }
        let now = told.held.passed;
        told.held = Held { passed: now + 1, done, over: false };
        told.halt.take_if(|halt| halt.after == now)
    }

    /// There is nothing left to do. If whoever gives orders has been told otherwise, the rank stands at one more moment, where
    /// the others may be halted with it; if not, there are no more.
    pub(crate) fn pass_or_close(&self, done: usize) -> Option<Halt> {
        let mut told = self.told();
        while told.holds {
            told = self.changed.wait(told).expect(NOBODY_PANICS);
        }
        let now = told.held.passed;
        let halt = told.halt.take_if(|halt| halt.after == now);
        told.held = Held { passed: now + usize::from(halt.is_some()), done, over: halt.is_none() };
        halt
    }

    /// Whether the rank was told to give up.
    pub fn abandoned(&self) -> &AtomicBool {
        &self.abandoned
    }

    /// From now on this ends the rank's exchanges when it is told to give up, if it was not told so before.
    pub fn abort_by(&self, aborter: Aborter) {
        let mut slot = self.aborter.lock().expect(NOBODY_PANICS);
        if self.abandoned.load(Ordering::SeqCst) {
            aborter.abort();
        }
        *slot = Some(aborter);
    }

    /// Where the rank was when it last stood between two steps.
    pub fn held(&self) -> Held {
        self.told().held
    }

    /// There are no more moments.
    pub(crate) fn close(&self) {
        self.told().held.over = true;
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        self.told.lock().expect(NOBODY_PANICS)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Barrier, mpsc};
    use std::thread;

    use super::*;

    /// Workers in lockstep are halted wherever they are, again and again: always all at the same moment.
    #[test]
    fn all_halt_at_the_same_moment_and_nobody_waits_for_ever() {
        const WORKERS: usize = 3;
        let (halts, step) = ([(); WORKERS].map(|()| Halts::default()), Barrier::new(WORKERS));
        let (tell, told) = mpsc::channel();
        thread::scope(|scope| {
            let (halts, step) = (&halts, &step);
            let workers: Vec<_> = (0..WORKERS)
                .map(|rank| {
                    let tell = tell.clone();
                    scope.spawn(move || {
                        for done in 0.. {
                            if let Some(halt) = halts[rank].pass(done) {
                                tell.send((done, halt)).unwrap();
                                if halt.then == Then::Leave {
                                    break;
                                }
                            }
                            step.wait();
                        }
                        halts[rank].close();
                    })
                })
                .collect();
            for round in 0..100 {
                let held = halts.each_ref().map(|halts| halts.take(Order::Hold).unwrap());
                let after = held.iter().map(|held| held.passed).max().unwrap();
                assert!(held.iter().all(|held| held.passed + 1 >= after), "{held:?}");
                let then = if round == 99 { Then::Leave } else { Then::GoOn };
                let halt = Halt { after, save: None, then };
                for halts in halts {
                    assert_eq!(halts.take(Order::Until(halt)), None);
                }
                for _ in 0..WORKERS {
                    assert_eq!(told.recv().unwrap(), (after, halt));
                }
                if round % 10 == 0 {
                    thread::yield_now();
                }
            }
            workers.into_iter().for_each(|worker| worker.join().unwrap());
            assert!(halts[0].take(Order::Hold).unwrap().over);
        });
    }

    /// Who was asked before it found that nothing is left halts as it was told to; who was not is over.
    #[test]
    fn the_last_moment_is_one_only_for_who_was_asked() {
        let halts = Halts::default();
        assert_eq!(halts.pass(0), None);
        let held = halts.take(Order::Hold).unwrap();
        assert_eq!(held, Held { passed: 1, done: 0, over: false });
        let halt = Halt { after: held.passed, save: None, then: Then::Leave };
        halts.take(Order::Until(halt));
        assert_eq!(halts.pass_or_close(0), Some(halt));
        assert_eq!(halts.take(Order::Hold), Some(Held { passed: 2, done: 0, over: false }));
        halts.take(Order::Release);
        assert_eq!(halts.pass_or_close(0), None);
        assert_eq!(halts.take(Order::Hold), Some(Held { passed: 2, done: 0, over: true }));
    }
}
