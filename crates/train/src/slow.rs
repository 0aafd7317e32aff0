//! Ranks that are made slow, so that one machine shows what a straggler does to each way of staying in step.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::compress::Key;

/// A worker whose steps take longer than its computing does: it sleeps. What it computes does not change.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Slow {
    /// The worker.
    pub rank: usize,
    /// How many times as long as its computing its steps are to take.
    pub factor: f64,
    /// How likely a step is to be slow; 1 for all of them.
    pub probability: f64,
}

impl Slow {
    /// How long it sleeps before this step, if its last one took so long to compute.
    pub fn pause(&self, seed: u64, step: usize, computed: Duration) -> Duration {
        if self.is_slow(seed, step) { computed.mul_f64(self.factor - 1.0) } else { Duration::ZERO }
    }

    /// Whether this step is a slow one. By a hash of seed, rank and step, so that the same steps are slow when a job is repeated.
    pub fn is_slow(&self, seed: u64, step: usize) -> bool {
        let stream = Key { seed, step: step as u64, rank: self.rank as u32, ..Key::default() }.stream();
        let drawn = (stream >> 11) as f64 / (1u64 << 53) as f64;
        drawn < self.probability
    }
}

/// As on the command line: `RANK:FACTOR`, and the probability if it is not certain.
impl fmt::Display for Slow {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.rank, self.factor)?;
        if self.probability < 1.0 { write!(f, ":{}", self.probability) } else { Ok(()) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_are_as_long_and_as_frequent_as_told() {
        let computed = Duration::from_millis(10);
        let pauses = |rank, probability| -> Vec<Duration> {
            let slow = Slow { rank, factor: 4.0, probability };
            (0..10_000).map(|step| slow.pause(7, step, computed)).collect()
        };
        assert!(pauses(1, 1.0).iter().all(|&pause| pause == 3 * computed));
        assert!(pauses(1, 0.0).iter().all(|pause| pause.is_zero()));
        let some = pauses(1, 0.25);
        let slowed = some.iter().filter(|pause| !pause.is_zero()).count();
        // Within five standard deviations of the binomial distribution.
        assert!((2500 - 217..=2500 + 217).contains(&slowed), "{slowed}");
        assert_eq!(some, pauses(1, 0.25));
        assert_ne!(some, pauses(2, 0.25));
    }

    #[test]
    fn a_slow_rank_is_written_like_its_flag() {
        let slow = |factor, probability| Slow { rank: 3, factor, probability }.to_string();
        assert_eq!([slow(4.0, 1.0), slow(1.5, 0.1)], ["3:4", "3:1.5:0.1"]);
    }
}
