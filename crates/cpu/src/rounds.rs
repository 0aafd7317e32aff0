//! Rounds of work: a leader and some followers share the parts of each round between them.
//!
//! Each thread takes its own part first, and then those that nobody has begun. So a thread that has no core at the
//! moment, or has not woken up yet, keeps nobody waiting: others do its part. Which part is which does not depend on who
//! does it.

use crate::wait::{Bell, Patience};

#[cfg(all(loom, test))]
use loom::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
#[cfg(not(all(loom, test)))]
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};

/// What a leader and its followers have in common.
///
/// What the leader wrote before [`Rounds::lead`] is seen in the work on every part, and what that wrote is seen by the
/// leader when `lead` has returned.
#[derive(Debug)]
pub struct Rounds {
    /// Counts the rounds: a follower that has seen n waits for n + 1.
    round: AtomicU32,
    /// For each part the last round in which somebody took it.
    taken: Box<[Taken]>,
    /// Parts of the present round that are not done.
    left: AtomicUsize,
    closing: AtomicBool,
    begun: Bell,
    done: Bell,
    leader: Patience,
    followers: Patience,
}

/// No two parts' words share a pair of cache lines.
#[derive(Debug)]
#[repr(align(128))]
struct Taken(AtomicU32);

impl Rounds {
    /// Rounds of so many parts for a leader and some followers.
    pub fn new(parts: usize, followers: usize) -> Self {
        Self {
            round: AtomicU32::new(0),
            taken: (0..parts).map(|_| Taken(AtomicU32::new(0))).collect(),
            left: AtomicUsize::new(0),
            closing: AtomicBool::new(false),
            begun: Bell::default(),
            done: Bell::default(),
            leader: Patience::among(followers + 1),
            followers: Patience::among(followers + 1),
        }
    }

    /// The leader's side of a round: returns when `work` has been called once for each part, by whomever. There is one
    /// leader, and `work` must not unwind.
    pub fn lead(&self, work: impl Fn(usize)) {
        self.left.store(self.taken.len(), Ordering::Relaxed);
        let round = self.round.fetch_add(1, Ordering::Release).wrapping_add(1);
        self.begun.ring();
        self.work(round, 0, work);
        self.done.wait(&self.leader, None, || self.left.load(Ordering::Acquire) == 0);
    }

    /// A follower's side of all rounds, until [`Rounds::close`]: calls `work` for its own part and for those that nobody
    /// has begun. It must not unwind.
    pub fn follow(&self, own: usize, work: impl Fn(usize)) {
        let mut round = 0;
        loop {
            self.begun.wait(&self.followers, None, || self.round.load(Ordering::Acquire) != round);
            // Rounds may have passed without it.
            round = self.round.load(Ordering::Acquire);
            if self.closing.load(Ordering::Relaxed) {
                return;
            }
            self.work(round, own, &work);
        }
    }

    /// Tells the followers that there are no more rounds. Only the leader may do so, between two of them.
    pub fn close(&self) {
        self.closing.store(true, Ordering::Relaxed);
        self.round.fetch_add(1, Ordering::Release);
        self.begun.ring();
    }

    /// Takes parts of a round, its own first, and does them.
    fn work(&self, round: u32, own: usize, work: impl Fn(usize)) {
        let parts = self.taken.len();
        let own = own % parts;
        for part in (own..parts).chain(0..own) {
            // Taken in the round before this one: only then it is this round's and free. Once a round is over all its
            // parts are taken, so that whoever comes late gets none.
            let Taken(taken) = &self.taken[part];
            let free = round.wrapping_sub(1);
            if taken.load(Ordering::Relaxed) == free
                && taken.compare_exchange(free, round, Ordering::Relaxed, Ordering::Relaxed).is_ok()
            {
                work(part);
                if self.left.fetch_sub(1, Ordering::Release) == 1 {
                    self.done.ring();
                }
            }
        }
    }
}

#[cfg(all(loom, test))]
mod models {
    use loom::cell::UnsafeCell;
    use loom::sync::Arc;
    use loom::thread;

    use super::*;
    use crate::wait::check;

    /// A leader and followers add to each part's number what the leader has written, in so many rounds.
    #[allow(unsafe_code)]
    fn lead(parts: usize, followers: usize, rounds: u32) {
        struct Shared {
            rounds: Rounds,
            task: UnsafeCell<u32>,
            numbers: Vec<UnsafeCell<u32>>,
        }
        impl Shared {
            fn work(&self, part: usize) {
                // SAFETY: the model checks that only the leader writes to it, and not while this goes on.
                let task = self.task.with(|task| unsafe { *task });
                // SAFETY: the model checks that nobody else has this part.
                self.numbers[part].with_mut(|number| unsafe { *number += task });
            }
        }
        check(if followers > 1 { 2 } else { 3 }, move || {
            let shared = Arc::new(Shared {
                rounds: Rounds::new(parts, followers),
                task: UnsafeCell::new(0),
                numbers: (0..parts).map(|_| UnsafeCell::new(0)).collect(),
            });
            let others: Vec<_> = (1..=followers)
                .map(|own| {
                    let shared = Arc::clone(&shared);
                    thread::spawn(move || shared.rounds.follow(own, |part| shared.work(part)))
                })
                .collect();
            for round in 1..=rounds {
                // SAFETY: as in `work`.
                shared.task.with_mut(|task| unsafe { *task = round });
                shared.rounds.lead(|part| shared.work(part));
                for number in &shared.numbers {
                    // SAFETY: as in `work`.
                    number.with(|number| assert_eq!(unsafe { *number }, (1..=round).sum::<u32>()));
                }
            }
            shared.rounds.close();
            others.into_iter().for_each(|other| other.join().unwrap());
        });
    }

    #[test]
    fn a_follower_and_a_part_for_each() {
        lead(2, 1, 2);
    }

    #[test]
    fn more_parts_than_threads() {
        lead(3, 1, 1);
    }

    #[test]
    fn two_followers() {
        lead(2, 2, 1);
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::thread;

    use super::*;

    #[test]
    fn every_part_is_done_once_in_every_round() {
        for (parts, followers) in [(1, 0), (3, 0), (2, 1), (4, 1), (3, 2), (2, 4)] {
            let rounds = Rounds::new(parts, followers);
            let counts: Vec<_> = (0..parts).map(|_| AtomicU32::new(0)).collect();
            let work = |part: usize| {
                counts[part].fetch_add(1, Ordering::Relaxed);
            };
            thread::scope(|scope| {
                for own in 1..=followers {
                    let rounds = &rounds;
                    scope.spawn(move || rounds.follow(own, work));
                }
                for round in 1..=200 {
                    rounds.lead(work);
                    assert!(counts.iter().all(|count| count.load(Ordering::Relaxed) == round));
                }
                rounds.close();
            });
        }
    }
}
