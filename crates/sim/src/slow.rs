//! Workers that are slower than others, always or now and then.

use ringstep_cpu::random::mix;
use ringstep_train::slow::Slow;

use crate::workload::Invalid;

/// How many times as long a worker's computing takes, step by step.
#[derive(Debug, Clone, PartialEq)]
pub enum Slowness {
    /// Always once.
    None,
    /// Some workers, in the steps in which they are slow in training, too.
    Some(Vec<Slow>),
    /// All workers: once, and an exponentially distributed part of that with this mean.
    Exponential {
        /// The mean of what comes on top.
        mean: f64,
    },
    /// All workers: a log-normal distribution whose median is one.
    LogNormal {
        /// The standard deviation of the logarithm.
        sigma: f64,
    },
}

impl Slowness {
    /// How many times as long this worker computes in this step: the same whenever it is asked.
    pub fn factor(&self, seed: u64, rank: usize, step: usize) -> f64 {
        match self {
            Self::None => 1.0,
            Self::Some(slow) => {
                let slow = slow.iter().filter(|slow| slow.rank == rank);
                slow.filter(|slow| slow.is_slow(seed, step)).map(|slow| slow.factor).product()
            }
            Self::Exponential { mean } => 1.0 - mean * uniform(seed, rank, step, 0).ln(),
            Self::LogNormal { sigma } => (sigma * normal(seed, rank, step)).exp(),
        }
    }

    /// Refuses what makes no sense among so many workers.
    pub fn check(&self, workers: usize) -> Result<(), Invalid> {
        let positive =
            |number: f64| if number >= 0.0 && number.is_finite() { Ok(()) } else { Err(Invalid::Slowness(number)) };
        match self {
            Self::None => Ok(()),
            Self::Some(slow) => slow.iter().try_for_each(|slow| match slow.rank < workers {
                true => positive(slow.factor),
                false => Err(Invalid::NoSuchWorker { rank: slow.rank, workers }),
            }),
            Self::Exponential { mean } => positive(*mean),
            Self::LogNormal { sigma } => positive(*sigma),
        }
    }
}

/// Between 0 and 1, neither of them, by a hash of where it is drawn.
fn uniform(seed: u64, rank: usize, step: usize, draw: u64) -> f64 {
    let stream = (u64::from(mix(step as u32, seed ^ draw)) << 32) | u64::from(mix(step as u32, !seed ^ draw));
    (f64::from(mix(rank as u32, stream)) + 0.5) / (u64::from(u32::MAX) + 1) as f64
}

/// Standard normal, by Box and Muller ("A note on the generation of random normal deviates", 1958).
pub(crate) fn normal(seed: u64, rank: usize, step: usize) -> f64 {
    let (radius, angle) = (uniform(seed, rank, step, 1), uniform(seed, rank, step, 2));
    (-2.0 * radius.ln()).sqrt() * (std::f64::consts::TAU * angle).cos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn factors(slowness: &Slowness) -> Vec<f64> {
        (0..100)
            .flat_map(|rank| (0..100).map(move |step| (rank, step)))
            .map(|(rank, step)| slowness.factor(7, rank, step))
            .collect()
    }

    fn mean(numbers: &[f64]) -> f64 {
        numbers.iter().sum::<f64>() / numbers.len() as f64
    }

    /// Within five standard deviations of the mean of 10,000.
    #[test]
    fn distributions_have_their_moments() {
        let exponential = factors(&Slowness::Exponential { mean: 0.2 });
        assert!(exponential.iter().all(|&factor| factor > 1.0));
        assert!((mean(&exponential) - 1.2).abs() < 5.0 * 0.2 / 100.0);
        let logs: Vec<f64> = factors(&Slowness::LogNormal { sigma: 0.5 }).iter().map(|factor| factor.ln()).collect();
        assert!(mean(&logs).abs() < 5.0 * 0.5 / 100.0);
        let squares: Vec<f64> = logs.iter().map(|log| log * log).collect();
        assert!((mean(&squares) - 0.25).abs() < 5.0 * 0.25 * 2f64.sqrt() / 100.0);
    }

    #[test]
    fn the_workers_that_are_told_are_slow_in_as_many_steps() {
        let slow = Slowness::Some(vec![Slow { rank: 3, factor: 4.0, probability: 0.25 }]);
        let of = |rank| (0..10_000).filter(|&step| slow.factor(7, rank, step) == 4.0).count();
        assert!((2500 - 217..=2500 + 217).contains(&of(3)), "{}", of(3));
        assert_eq!(of(2), 0);
    }
}
