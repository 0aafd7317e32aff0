//! The formulas of the tables: speed-up, efficiency, bandwidth, and the subtraction that splits a time without looking inside.

/// How many times as fast several workers are as one, on the same images.
pub fn speedup(alone: f64, together: f64) -> f64 {
    alone / together
}

/// The share of the ideal speed-up, which is the number of workers.
pub fn efficiency(speedup: f64, workers: usize) -> f64 {
    speedup / workers as f64
}

/// The speed-up that so many cores allow: that of the cores in use, over those that one worker uses.
pub fn allowed_speedup(workers: usize, threads: usize, cores: usize) -> f64 {
    let used = |workers: usize| workers.saturating_mul(threads).min(cores).max(1) as f64;
    used(workers) / used(1)
}

/// Bytes a second that each worker has to send at the least, if so many bytes are all-reduced in this time: 2 (p - 1) / p of
/// them (Patarasuk and Yuan, 2009).
pub fn bandwidth(workers: usize, bytes: f64, seconds: f64) -> Option<f64> {
    let p = workers as f64;
    (workers > 1 && seconds > 0.0).then(|| 2.0 * (p - 1.0) / p * bytes / seconds)
}

/// A time as a stopwatch alone splits it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Subtraction {
    /// What one worker takes for its share of the images.
    pub compute: f64,
    /// All the rest. Negative where several workers compute faster than one.
    pub comm: f64,
}

/// Splits the time of several workers by that of one on all images.
pub fn by_subtraction(alone: f64, together: f64, workers: usize) -> Subtraction {
    let compute = alone / workers as f64;
    Subtraction { compute, comm: together - compute }
}

/// What keeps workers from the ideal time, in seconds: together, the time minus one worker's over the number of workers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Losses {
    /// Communication that nothing hides.
    pub exposed: f64,
    /// Waiting for other workers.
    pub waiting: f64,
    /// Computing for longer than one worker does for as many images.
    pub slower: f64,
    /// Anything else that there is more of.
    pub other: f64,
}

/// Where the time of one worker, or of several, went.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Split {
    /// All of it but the loading of data.
    pub seconds: f64,
    /// Computing.
    pub compute: f64,
    /// Communication, and nothing else.
    pub exposed: f64,
    /// Waiting for other workers.
    pub waiting: f64,
}

impl Split {
    fn other(&self) -> f64 {
        self.seconds - self.compute - self.exposed - self.waiting
    }
}

/// Compares the times of so many workers with those of one.
pub fn losses(alone: &Split, together: &Split, workers: usize) -> Losses {
    let p = workers as f64;
    Losses {
        exposed: together.exposed - alone.exposed / p,
        waiting: together.waiting - alone.waiting / p,
        slower: together.compute - alone.compute / p,
        other: together.other() - alone.other() / p,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An epoch takes one worker 12 s, four of them 4 s.
    #[test]
    fn three_times_as_fast_with_four_is_an_efficiency_of_three_quarters() {
        assert_eq!(speedup(12.0, 4.0), 3.0);
        assert_eq!(efficiency(3.0, 4), 0.75);
        assert_eq!(efficiency(speedup(12.0, 12.0), 1), 1.0);
    }

    #[test]
    fn cores_allow_what_they_are_more_than_one_worker_uses() {
        for (workers, threads, cores, allowed) in [
            (1, 1, 2, 1.0),
            (2, 1, 2, 2.0),
            (4, 1, 2, 2.0),
            (2, 2, 2, 1.0),
            (4, 2, 6, 3.0),
            (3, 1, 8, 3.0),
            (2, 8, 4, 1.0),
        ] {
            assert_eq!(allowed_speedup(workers, threads, cores), allowed, "{workers} x {threads} on {cores}");
        }
    }

    /// Four workers that all-reduce 100 MB in 50 ms each send 150 MB in that time.
    #[test]
    fn a_worker_sends_twice_the_bytes_but_for_its_own_share() {
        assert_eq!(bandwidth(4, 100e6, 0.05), Some(3e9));
        assert_eq!(bandwidth(2, 100e6, 0.05), Some(2e9));
        assert_eq!(bandwidth(1, 100e6, 0.05), None);
        assert_eq!(bandwidth(4, 100e6, 0.0), None);
    }

    #[test]
    fn what_is_not_one_workers_share_is_taken_for_communication() {
        assert_eq!(by_subtraction(12.0, 4.0, 4), Subtraction { compute: 3.0, comm: 1.0 });
        assert_eq!(by_subtraction(12.0, 5.5, 2), Subtraction { compute: 6.0, comm: -0.5 });
        assert_eq!(by_subtraction(12.0, 12.0, 1), Subtraction { compute: 12.0, comm: 0.0 });
    }

    #[test]
    fn losses_add_up_to_the_difference_from_ideal() {
        let alone = Split { seconds: 12.0, compute: 11.5, exposed: 0.0, waiting: 0.0 };
        let together = Split { seconds: 4.0, compute: 3.0, exposed: 0.5, waiting: 0.25 };
        let Losses { exposed, waiting, slower, other } = losses(&alone, &together, 4);
        assert_eq!([exposed, waiting, slower, other], [0.5, 0.25, 0.125, 0.125]);
        assert_eq!(exposed + waiting + slower + other, 4.0 - 12.0 / 4.0);
    }
}
