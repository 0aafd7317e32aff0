//! The cores of a host, and the threads that want them.
//!
//! Threads take turns, as systems let them: one that has a core keeps it for a time slice, unless it is through before, and goes to
//! the end of the queue if others wait. Where tasks are long beside slices that is processor sharing (Kleinrock, "Time-shared
//! systems: a theoretical treatment", 1967); where they are short, each runs to its end. What communicates beside threads that
//! compute has to wait for a slice to end each time that it has waited for a message: with a core for each thread that computes
//! and none to spare, little is hidden. Where cores share caches and memory, each is slower the more of them are busy.

use std::collections::VecDeque;

/// How long a thread keeps a core that others wait for: what Linux gives it on a few cores.
pub const SLICE: f64 = 3e-3;
/// What is left of a task after rounding.
const NOTHING: f64 = 1e-15;

/// The cores of one host, at some moment.
#[derive(Debug, Clone)]
pub struct Cores {
    cores: usize,
    contention: f64,
    slice: f64,
    at: f64,
    running: Vec<Thread>,
    waiting: VecDeque<Thread>,
}

/// A thread that runs, or would.
#[derive(Debug, Clone, Copy)]
struct Thread {
    process: usize,
    /// Seconds that it wants a core for.
    left: f64,
    /// When its slice ends.
    until: f64,
}

impl Cores {
    /// So many cores, and nothing to do. When all are busy, each takes `contention` times as long as alone.
    pub fn new(cores: usize, contention: f64, slice: f64) -> Self {
        Self { cores, contention, slice, at: 0.0, running: Vec::new(), waiting: VecDeque::new() }
    }

    /// How fast a core is, beside one that has its host to itself.
    fn speed(&self) -> f64 {
        let others = (self.running.len() as f64 - 1.0) / (self.cores as f64 - 1.0).max(1.0);
        1.0 / (1.0 + (self.contention - 1.0) * others)
    }

    /// Lets time pass until now.
    fn advance(&mut self, now: f64) {
        let served = (now - self.at) * self.speed();
        self.running.iter_mut().for_each(|thread| thread.left -= served);
        self.at = now;
    }

    /// From this moment on a process wants to run, on so many threads, for so many seconds on cores of its own.
    pub fn begin(&mut self, now: f64, process: usize, threads: usize, seconds: f64) {
        debug_assert!(now >= self.at, "turns at cores are in the order of time");
        self.advance(now);
        self.waiting.extend((0..threads).map(|_| Thread { process, left: seconds, until: now }));
        self.fill();
    }

    /// Gives cores that are free to those that wait.
    fn fill(&mut self) {
        while self.running.len() < self.cores
            && let Some(next) = self.waiting.pop_front()
        {
            self.running.push(Thread { until: self.at + self.slice, ..next });
        }
    }

    /// When the next thread is through, or has to let another run, if no other begins before.
    pub fn next(&self) -> Option<f64> {
        let speed = self.speed();
        let moment = |thread: &Thread| {
            let end = self.at + thread.left.max(0.0) / speed;
            if self.waiting.is_empty() { end } else { end.min(thread.until.max(self.at)) }
        };
        self.running.iter().map(moment).min_by(f64::total_cmp)
    }

    /// The moment has come that [`Cores::next`] has said. Returns the process that is through then, if one is.
    pub fn end(&mut self, now: f64) -> Option<usize> {
        self.advance(now);
        // Rounding must not leave something that takes no time.
        let is_through = |thread: &Thread| thread.left <= NOTHING || now + thread.left <= now;
        if let Some(through) = self.running.iter().position(is_through) {
            let Thread { process, .. } = self.running.remove(through);
            self.fill();
            let goes_on = self.running.iter().chain(&self.waiting).any(|thread| thread.process == process);
            return (!goes_on).then_some(process);
        }
        if let Some(over) = self.running.iter().position(|thread| thread.until <= now) {
            if self.waiting.is_empty() {
                self.running[over].until = now + self.slice;
            } else {
                let thread = self.running.remove(over);
                self.waiting.push_back(thread);
                self.fill();
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Which process is through when.
    fn run(mut cores: Cores) -> Vec<(usize, f64)> {
        let mut ends = Vec::new();
        while let Some(at) = cores.next() {
            ends.extend(cores.end(at).map(|process| (process, at)));
        }
        ends
    }

    #[test]
    fn there_is_room_for_as_many_threads_as_cores() {
        let mut cores = Cores::new(2, 1.0, 0.5);
        cores.begin(1.0, 0, 1, 3.0);
        cores.begin(2.0, 1, 1, 1.0);
        assert_eq!(run(cores), [(1, 3.0), (0, 4.0)]);
    }

    /// Three on two cores, by slices of one second: who waits has the core that is free next.
    #[test]
    fn more_take_turns() {
        let mut cores = Cores::new(2, 1.0, 1.0);
        cores.begin(0.0, 0, 1, 2.0);
        cores.begin(0.0, 1, 1, 4.0);
        cores.begin(0.0, 2, 1, 4.0);
        // 0 and 1; then 2 has the core of 0, which has that of 1 and is through at 2; then the other two.
        let ends = run(cores);
        assert_eq!(ends[0], (0, 2.0));
        assert!(ends[1..].iter().all(|&(_, at)| at == 5.0), "{ends:?}");
    }

    /// With slices that are short beside tasks, each thread has the same share of the cores.
    #[test]
    fn short_slices_are_processor_sharing() {
        let mut cores = Cores::new(1, 1.0, 1e-3);
        cores.begin(0.0, 0, 3, 1.0);
        while let Some(at) = cores.next().filter(|&at| at < 2.0) {
            assert_eq!(cores.end(at), None);
        }
        cores.begin(2.0, 1, 1, 0.25);
        // Until 2 each of three has had 2/3; from then on a quarter of each second, so the newcomer is through at 3.
        let ends = run(cores);
        assert!(ends[0].0 == 1 && (ends[0].1 - 3.0).abs() < 0.01, "{ends:?}");
        assert!(ends[1].0 == 0 && (ends[1].1 - 3.25).abs() < 0.01, "{ends:?}");
    }

    /// With slices that are long, each runs to its end, in the order in which they came.
    #[test]
    fn long_slices_are_a_queue() {
        let mut cores = Cores::new(1, 1.0, 10.0);
        (0..3).for_each(|process| cores.begin(0.1 * process as f64, process, 1, 1.0));
        let ends = run(cores);
        assert!(ends.iter().enumerate().all(|(at, &(who, end))| who == at && (end - (at + 1) as f64).abs() < 1e-9));
    }

    /// Alone it is as fast as can be; with one on each of two cores both take half as long again.
    #[test]
    fn busy_cores_slow_each_other_down() {
        let mut cores = Cores::new(2, 1.5, 1.0);
        cores.begin(0.0, 0, 1, 2.0);
        cores.begin(1.0, 1, 1, 1.0);
        let ends = run(cores);
        assert!(ends.len() == 2 && ends.iter().all(|&(_, at)| (at - 2.5).abs() < 1e-12), "{ends:?}");
    }
}
