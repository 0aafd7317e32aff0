//! How long a rank trains, and how long its steps take.

use std::time::{Duration, Instant};

use ringstep_nn::state::State;

/// A clock that can be stopped, and remembers how long each step took.
#[derive(Debug)]
pub struct Clock {
    started: Instant,
    step_started: Instant,
    step_seconds: Vec<f64>,
}

impl Clock {
    /// Starts now.
    pub fn start() -> Self {
        let now = Instant::now();
        Self { started: now, step_started: now, step_seconds: Vec::new() }
    }

    /// To go on later: how long it has run, and what it remembers.
    pub(crate) fn state(&mut self, state: &mut State<'_>) {
        let mut seconds = [self.seconds(), self.step_started.elapsed().as_secs_f64()];
        state.numbers("seconds", &mut seconds);
        [self.started, self.step_started] = seconds.map(moment_before);
        state.list("step_seconds", &mut self.step_seconds);
    }

    /// The time of `work` does not count.
    pub fn pausing<R>(&mut self, work: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let result = work();
        self.leave_out(began);
        result
    }

    /// The time from then until now does not count.
    pub fn leave_out(&mut self, since: Instant) {
        let time = since.elapsed();
        self.started += time;
        self.step_started += time;
    }

    /// A step is over, and the next begins. Returns when it began and ended.
    pub fn end_step(&mut self) -> [Instant; 2] {
        let (began, now) = (self.step_started, Instant::now());
        self.step_seconds.push((now - began).as_secs_f64());
        self.step_started = now;
        [began, now]
    }

    /// When the last step ended, and now.
    pub fn since_last_step(&self) -> [Instant; 2] {
        [self.step_started, Instant::now()]
    }

    /// Seconds since the start.
    pub fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// The median time of a step without the first, which warms caches and connections up.
    pub fn median_step(&self) -> f64 {
        median(self.warm_steps())
    }

    /// The mean time of a step without the first.
    pub fn mean_step(&self) -> f64 {
        let steps = self.warm_steps();
        steps.iter().sum::<f64>() / steps.len().max(1) as f64
    }

    fn warm_steps(&self) -> &[f64] {
        if self.step_seconds.len() > 1 { &self.step_seconds[1..] } else { &self.step_seconds }
    }
}

/// The moment that lies so many seconds before now, or as far back as moments go.
pub(crate) fn moment_before(seconds: f64) -> Instant {
    let now = Instant::now();
    Duration::try_from_secs_f64(seconds).ok().and_then(|time| now.checked_sub(time)).unwrap_or(now)
}

/// The middle value, or the mean of the two in the middle.
fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => 0.0,
        length => (sorted[(length - 1) / 2] + sorted[length / 2]) / 2.0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn medians() {
        assert_eq!(median(&[]), 0.0);
        assert_eq!(median(&[3.0]), 3.0);
        assert_eq!(median(&[9.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(&[4.0, 1.0, 2.0, 100.0]), 3.0);
    }
}
