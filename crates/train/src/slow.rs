//! Ranks that are made slow, so that one machine shows what a straggler does to each way of staying in step.

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
    /// How long it sleeps before this step, if its last one took so long to compute. By a hash of seed, rank and step, so that
    /// the same steps are slow when a job is repeated.
    pub fn pause(&self, seed: u64, step: usize, computed: Duration) -> Duration {
        let stream = Key { seed, step: step as u64, rank: self.rank as u32, ..Key::default() }.stream();
        let drawn = (stream >> 11) as f64 / (1u64 << 53) as f64;
        if drawn < self.probability { computed.mul_f64(self.factor - 1.0) } else { Duration::ZERO }
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
}
