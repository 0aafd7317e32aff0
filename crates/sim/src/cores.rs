//! The cores of a host, and the threads that want them.
//!
//! Each thread gets the same share, and never more than one core: processor sharing (Kleinrock, "Time-shared systems: a
//! theoretical treatment", 1967). So all threads of a host have been served as long since any moment, and a task is through
//! when that has grown by its seconds. Where cores share caches and memory, each is slower the more of them are busy.

/// The cores of one host, at some moment.
#[derive(Debug, Clone)]
pub struct Cores {
    cores: f64,
    contention: f64,
    /// Seconds for which each thread has had a core so far.
    served: f64,
    /// The moment of that.
    at: f64,
    tasks: Vec<Task>,
}

/// Something that runs.
#[derive(Debug, Clone, Copy)]
struct Task {
    process: usize,
    threads: usize,
    /// It is through when each thread has been served for so long.
    until: f64,
}

impl Cores {
    /// So many cores, and nothing to do. When all are busy, each takes `contention` times as long as alone.
    pub fn new(cores: usize, contention: f64) -> Self {
        Self { cores: cores as f64, contention, served: 0.0, at: 0.0, tasks: Vec::new() }
    }

    /// The part of a core that each thread has, of one that has its host to itself.
    fn share(&self) -> f64 {
        let threads = self.tasks.iter().map(|task| task.threads).sum::<usize>() as f64;
        let others = (threads.min(self.cores) - 1.0) / (self.cores - 1.0).max(1.0);
        (self.cores / threads).min(1.0) / (1.0 + (self.contention - 1.0) * others)
    }

    /// From this moment on a process wants to run, on so many threads, for so many seconds on cores of its own.
    pub fn begin(&mut self, now: f64, process: usize, threads: usize, seconds: f64) {
        debug_assert!(now >= self.at, "turns at cores are in the order of time");
        if !self.tasks.is_empty() {
            self.served += (now - self.at) * self.share();
        }
        self.at = now;
        self.tasks.push(Task { process, threads, until: self.served + seconds });
    }

    /// When the next of them is through, if no other begins before.
    pub fn next(&self) -> Option<f64> {
        let until = self.tasks.iter().map(|task| task.until).min_by(f64::total_cmp)?;
        Some(self.at + (until - self.served).max(0.0) / self.share())
    }

    /// The next is through, at the moment that [`Cores::next`] has said. Returns the process.
    pub fn end(&mut self, now: f64) -> Option<usize> {
        let earliest = (0..self.tasks.len()).min_by(|&a, &b| self.tasks[a].until.total_cmp(&self.tasks[b].until))?;
        let task = self.tasks.remove(earliest);
        (self.served, self.at) = (task.until, now);
        Some(task.process)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which process is through when.
    fn run(mut cores: Cores) -> Vec<(usize, f64)> {
        let mut ends = Vec::new();
        while let Some(at) = cores.next() {
            ends.push((cores.end(at).unwrap(), at));
        }
        ends
    }

    #[test]
    fn there_is_room_for_as_many_threads_as_cores() {
        let mut cores = Cores::new(2, 1.0);
        cores.begin(1.0, 0, 1, 3.0);
        cores.begin(2.0, 1, 1, 1.0);
        assert_eq!(run(cores), [(1, 3.0), (0, 4.0)]);
    }

    /// Three on two cores have two thirds each until the first is through.
    #[test]
    fn more_share_alike() {
        let mut cores = Cores::new(2, 1.0);
        cores.begin(0.0, 0, 1, 2.0);
        cores.begin(0.0, 1, 1, 4.0);
        cores.begin(0.0, 2, 1, 4.0);
        assert_eq!(run(cores), [(0, 3.0), (1, 5.0), (2, 5.0)]);
    }

    /// Of two tasks on one core, one with three threads, each thread has a quarter; who comes later finds what is left.
    #[test]
    fn threads_count() {
        let mut cores = Cores::new(1, 1.0);
        cores.begin(0.0, 0, 3, 1.0);
        cores.begin(2.0, 1, 1, 0.25);
        // Until 2 each of three has had 2/3; from then on a quarter of each second, so the newcomer is through at 3.
        let ends = run(cores);
        assert_eq!(ends[0], (1, 3.0));
        assert!((ends[1].1 - 3.25).abs() < 1e-12, "{ends:?}");
    }

    /// Alone it is as fast as can be; with one on each of two cores both take half as long again.
    #[test]
    fn busy_cores_slow_each_other_down() {
        let mut cores = Cores::new(2, 1.5);
        cores.begin(0.0, 0, 1, 2.0);
        cores.begin(1.0, 1, 1, 1.0);
        assert_eq!(run(cores), [(0, 2.5), (1, 2.5)]);
    }
}
