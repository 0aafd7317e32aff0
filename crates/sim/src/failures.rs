//! Workers that fail: a synchronous job stops with any of them, and goes on from its last checkpoint.

/// How often workers fail, and what that costs.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Failures {
    /// Seconds between two failures of one worker, on average; failures do not depend on each other.
    pub between: f64,
    /// Seconds from a failure until all workers go on.
    pub restart: f64,
    /// Steps from one checkpoint to the next.
    pub every: usize,
    /// Seconds that a checkpoint takes.
    pub checkpoint: f64,
}

impl Failures {
    /// Seconds that a step takes on average, with all that is lost, of so many workers that need `step` seconds for one
    /// where none fails. With M seconds between failures of any, a stretch of W seconds and its checkpoint take M e^(R/M)
    /// (e^((W + C)/M) - 1) (Daly, "A higher order estimate of the optimum checkpoint interval for restart dumps", 2006).
    pub fn step_seconds(&self, workers: usize, step: f64) -> f64 {
        let any = self.between / workers as f64;
        let stretch = step * self.every as f64 + self.checkpoint;
        any * (self.restart / any).exp() * (stretch / any).exp_m1() / self.every as f64
    }
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::random::mix;

    use super::*;

    const FAILURES: Failures = Failures { between: 4000.0, restart: 30.0, every: 10, checkpoint: 5.0 };

    /// Stretch by stretch with drawn failures, as the job would live through them.
    #[test]
    fn the_closed_form_is_what_happens() {
        let (workers, step, stretches) = (40, 4.0, 20_000);
        let mut drawn = 0;
        // Until the next failure: exponentially distributed.
        let mut until_failure = || {
            drawn += 1;
            let uniform = (f64::from(mix(drawn, 11)) + 0.5) / (u64::from(u32::MAX) + 1) as f64;
            -uniform.ln() * FAILURES.between / f64::from(workers)
        };
        let mut total = 0.0;
        for _ in 0..stretches {
            let work = step * FAILURES.every as f64 + FAILURES.checkpoint;
            let mut left = until_failure();
            while left < work {
                total += left;
                // The restart may fail, too.
                left = until_failure();
                while left < FAILURES.restart {
                    total += left;
                    left = until_failure();
                }
                total += FAILURES.restart;
                left -= FAILURES.restart;
            }
            total += work;
        }
        let lived = total / (stretches * FAILURES.every) as f64;
        let expected = FAILURES.step_seconds(workers as usize, step);
        assert!((lived / expected - 1.0).abs() < 0.02, "{lived}, not {expected}");
    }

    #[test]
    fn who_never_fails_only_takes_checkpoints() {
        let never = Failures { between: 1e15, ..FAILURES };
        assert!((never.step_seconds(4096, 1.0) - 1.5).abs() < 1e-6);
    }
}
