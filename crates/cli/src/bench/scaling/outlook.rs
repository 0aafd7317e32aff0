//! What is done, what is left, and when it will end.

use std::time::Instant;

use super::cells::Size;
use super::formulas::allowed_speedup;

/// How far a plan is. A training is expected to take as long as others took for as much work on as many cores.
pub struct Outlook {
    began: Instant,
    /// What each training costs beside the others, in the order of the plan.
    costs: Vec<f64>,
}

impl Outlook {
    /// Nothing is done yet of these trainings with so many threads a worker.
    pub fn new(sizes: &[Size], threads: usize, cores: usize) -> Self {
        let cost = |size: &Size| 1.0 / allowed_speedup(size.workers, threads, cores);
        Self { began: Instant::now(), costs: sizes.iter().map(cost).collect() }
    }

    /// A line about it, when so many are done.
    pub fn line(&self, done: usize) -> String {
        let elapsed = self.began.elapsed().as_secs_f64();
        let (done, left) = self.costs.split_at(done);
        if left.is_empty() {
            return format!("all {} done in {}", done.len(), time(elapsed));
        }
        let rest = left_seconds(elapsed, done, left);
        format!(
            "{} of {} done in {}; {} left, for about {}",
            done.len(),
            self.costs.len(),
            time(elapsed),
            left.len(),
            time(rest)
        )
    }
}

/// Seconds for what is left, if what is done took so long.
fn left_seconds(elapsed: f64, done: &[f64], left: &[f64]) -> f64 {
    elapsed / done.iter().sum::<f64>() * left.iter().sum::<f64>()
}

/// Hours, minutes and seconds, as far as they matter.
fn time(seconds: f64) -> String {
    match seconds.round() as u64 {
        whole @ ..60 => format!("{whole} s"),
        whole @ ..3600 => format!("{} min {} s", whole / 60, whole % 60),
        whole => format!("{} h {} min", whole / 3600, whole / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_workers_on_two_cores_are_expected_to_take_half_as_long() {
        let sizes = [1, 2, 4].map(|workers| Size { workers, batch: 32 });
        let outlook = Outlook::new(&sizes, 1, 2);
        assert_eq!(outlook.costs, [1.0, 0.5, 0.5]);
        assert_eq!(left_seconds(60.0, &outlook.costs[..1], &outlook.costs[1..]), 60.0);
        assert!(outlook.line(2).starts_with("2 of 3 done in 0 s; 1 left, for about "));
        assert_eq!(outlook.line(3), "all 3 done in 0 s");
    }

    #[test]
    fn times_have_two_units_at_most() {
        assert_eq!([59.4, 61.0, 3725.0].map(time), ["59 s", "1 min 1 s", "1 h 2 min"]);
    }
}
