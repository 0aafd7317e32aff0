//! One clock for all ranks, so that what they did can be put side by side.

use std::time::Instant;

use ringstep_comm::{CollectiveError, Group};
use rustix::time::{ClockId, clock_gettime};

use crate::records::Nanoseconds;

/// Exchanges with rank 0, or looks at both clocks; the quickest says the most.
const EXCHANGES: usize = 10;

/// Converts this rank's moments to nanoseconds on rank 0's clock.
#[derive(Debug, Clone, Copy)]
pub struct Timebase {
    origin: Instant,
    /// What rank 0's clock showed at this rank's origin.
    shown: Nanoseconds,
    /// By how much that may be wrong.
    error: Nanoseconds,
    /// What it showed at rank 0's origin, from which moments are counted.
    zero: Nanoseconds,
}

impl Timebase {
    /// Compares clocks. Ranks of rank 0's host have the same one; the others ask rank 0 (Cristian 1989): an answer was
    /// given in the middle of the time that it took, give or take half of that time. All ranks call it at the same time.
    pub fn agree(group: &mut Group) -> Result<Self, CollectiveError> {
        let (mut base, topology) = (Self::of_this_host(), group.topology().clone());
        let mut zero = [base.shown];
        group.broadcast(&mut zero, 0)?;
        base.zero = zero[0];
        for rank in (1..group.world()).filter(|&rank| !topology.are_near(rank, 0)) {
            let mut shortest = Nanoseconds::MAX;
            for _ in 0..EXCHANGES {
                let mut theirs = [0i64];
                if group.rank() == rank {
                    let asked = since(base.origin, Instant::now());
                    group.send(&[0i64], 0)?;
                    group.recv(&mut theirs, 0)?;
                    let took = since(base.origin, Instant::now()) - asked;
                    if took < shortest {
                        (shortest, base.error) = (took, took - took / 2);
                        base.shown = theirs[0] - (asked + took / 2);
                    }
                } else if group.rank() == 0 {
                    group.recv(&mut theirs, rank)?;
                    group.send(&[base.shows(Instant::now())], rank)?;
                }
            }
        }
        Ok(base)
    }

    /// By the clock that all processes of this host read, which [`Instant`] does not tell.
    fn of_this_host() -> Self {
        let look = |_| {
            let before = Instant::now();
            let shown = clock_gettime(ClockId::Monotonic);
            let (took, shown) = (since(before, Instant::now()), shown.tv_sec * 1_000_000_000 + shown.tv_nsec);
            Self { origin: before, shown: shown - took / 2, error: took - took / 2, zero: 0 }
        };
        (0..EXCHANGES).map(look).min_by_key(|look| look.error).expect("it has looked")
    }

    /// From the moment when rank 0 began to compare, on its clock.
    pub fn nanoseconds(&self, moment: Instant) -> Nanoseconds {
        self.shows(moment) - self.zero
    }

    /// Seconds by which moments may be off that lie before now, when ranks have agreed again.
    pub fn error(&self, again: &Self) -> f64 {
        let now = Instant::now();
        let drift = (again.shows(now) - self.shows(now)).abs();
        self.error.max(again.error).max(drift) as f64 / 1e9
    }

    /// What rank 0's clock shows.
    fn shows(&self, moment: Instant) -> Nanoseconds {
        since(self.origin, moment) + self.shown
    }
}

/// From then until that moment, which may be before.
fn since(then: Instant, moment: Instant) -> Nanoseconds {
    match moment.checked_duration_since(then) {
        Some(after) => after.as_nanos() as Nanoseconds,
        None => -((then - moment).as_nanos() as Nanoseconds),
    }
}

#[cfg(test)]
mod tests {
    use ringstep_comm::transport::mem;

    use super::*;

    /// Threads of one process have one clock, so a moment is the same on all, but for the time of looking at it.
    #[test]
    fn ranks_of_one_host_agree_on_a_moment() {
        let ranks: Vec<_> = mem::mesh(3)
            .into_iter()
            .enumerate()
            .map(|(rank, transport)| {
                std::thread::spawn(move || {
                    std::thread::sleep(std::time::Duration::from_millis(50 * rank as u64));
                    let mut group = Group::new(transport);
                    [(); 2].map(|()| Timebase::agree(&mut group).unwrap())
                })
            })
            .collect();
        let bases: Vec<[Timebase; 2]> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
        let moment = Instant::now();
        for [base, again] in &bases {
            let off = (base.nanoseconds(moment) - bases[0][0].nanoseconds(moment)).abs();
            assert!(off <= base.error + bases[0][0].error, "off by {off} ns, with origins 50 ms apart");
            assert!(base.error(again) <= (base.error + again.error) as f64 / 1e9);
        }
    }
}
