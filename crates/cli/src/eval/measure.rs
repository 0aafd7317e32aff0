//! How fast a frozen model is. Only the model is timed: images are painted before the clock starts.

use std::time::{Duration, Instant};

use serde::Serialize;

use super::Classifier;
use super::pictures::Pictures;

/// How long each measurement goes on, unless it needs longer for the fewest.
const PATIENCE: Duration = Duration::from_secs(1);
/// Passes before the clock counts: memory is touched, caches and branch predictors have learned.
const WARM_UP: usize = 20;
/// The 99th percentile of fewer would be the slowest, or nearly so.
const FEWEST_IMAGES: usize = 200;
const FEWEST_BATCHES: usize = 5;
const MOST: usize = 20_000;

/// How long one image takes.
#[derive(Debug, Clone, Copy, Serialize)]
pub struct Latency {
    /// Half of the images took at most this long.
    pub p50_seconds: f64,
    /// 99 of 100 took at most this long.
    pub p99_seconds: f64,
    /// Images that were timed, each alone.
    pub images: usize,
}

/// Times single images, all of the test images in turn.
pub fn latency(model: &mut dyn Classifier, pictures: &Pictures) -> Latency {
    let times = repeat(model, pictures, 1, WARM_UP, FEWEST_IMAGES);
    Latency { p50_seconds: percentile(&times, 50), p99_seconds: percentile(&times, 99), images: times.len() }
}

/// Images a second in batches as large as the model takes, by the median batch.
pub fn throughput(model: &mut dyn Classifier, pictures: &Pictures) -> f64 {
    let batch = model.batch();
    batch as f64 / percentile(&repeat(model, pictures, batch, 1, FEWEST_BATCHES), 50)
}

/// The seconds that each pass took, ascending.
fn repeat(model: &mut dyn Classifier, pictures: &Pictures, batch: usize, warm_up: usize, fewest: usize) -> Vec<f64> {
    let (mut times, mut numbers) = (Vec::new(), Vec::new());
    // Only whole batches: what is left at the end of the test images would count as one.
    let mut firsts = (0..=pictures.len() - batch).step_by(batch).cycle();
    let mut pass = || {
        let first = firsts.next().expect("there is a whole batch");
        pictures.paint(first..first + batch, &mut numbers);
        let started = Instant::now();
        std::hint::black_box(model.logits(&numbers));
        started.elapsed().as_secs_f64()
    };
    for _ in 0..warm_up {
        pass();
    }
    let started = Instant::now();
    while times.len() < fewest || (times.len() < MOST && started.elapsed() < PATIENCE) {
        times.push(pass());
    }
    times.sort_by(f64::total_cmp);
    times
}

/// The smallest of these ascending values that `percent` of them do not exceed.
fn percentile(sorted: &[f64], percent: usize) -> f64 {
    sorted[(sorted.len() * percent).div_ceil(100) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_are_values_that_were_measured() {
        let hundred: Vec<f64> = (1..=100).map(f64::from).collect();
        assert_eq!([50, 99, 100].map(|percent| percentile(&hundred, percent)), [50.0, 99.0, 100.0]);
        assert_eq!([1, 50, 99].map(|percent| percentile(&[7.0, 8.0], percent)), [7.0, 7.0, 8.0]);
    }
}
