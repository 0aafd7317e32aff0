//! The cores of a host, and the threads that want them.
//!
//! Threads take turns, as systems let them: one that has a core keeps it for a time slice, unless it is through before, and goes to
//! the end of the queue if others wait. Where tasks are long beside slices that is processor sharing (Kleinrock, "Time-shared
//! systems: a theoretical treatment", 1967); where they are short, each runs to its end. What communicates beside threads that
//! compute has to wait for a slice to end each time that it has waited for a message: with a core for each thread that computes
//! and none to spare, little is hidden. Where cores share caches and memory, each is slower the more of them are busy.
//!
//! Where workers outnumber cores, each thread has a core on which it waits, and a system moves it to another that is idle. A core
//! is not as long as those that wait there [look](Patience) for what they wait for: so now and then one core computes for
//! several workers while others look.

use std::collections::VecDeque;

use ringstep_cpu::wait::Patience;

/// How long a thread keeps a core that others wait for: what Linux gives it on a few cores.
pub const SLICE: f64 = 3e-3;
/// What is left of a task after rounding.
const NOTHING: f64 = 1e-15;

/// The cores of one host, at some moment.
#[derive(Debug, Clone)]
pub struct Cores {
    cores: Vec<Core>,
    contention: f64,
    slice: f64,
    at: f64,
    waiting: VecDeque<Thread>,
}

#[derive(Debug, Clone, Default)]
struct Core {
    runs: Option<Thread>,
    /// Since when it runs nothing, if it does.
    free: f64,
    /// For how many seconds threads look there before it is idle.
    looking: f64,
}

/// A thread that runs, or would.
#[derive(Debug, Clone, Copy)]
struct Thread {
    process: usize,
    /// The core that it waits for.
    home: usize,
    /// Seconds that it wants a core for.
    left: f64,
    /// When its slice ends.
    until: f64,
}

impl Cores {
    /// So many cores, and nothing to do. When all are busy, each takes `contention` times as long as alone.
    pub fn new(cores: usize, contention: f64, slice: f64) -> Self {
        Self { cores: vec![Core::default(); cores], contention, slice, at: 0.0, waiting: VecDeque::new() }
    }

    /// The same where threads look for what they wait for, on the core where they have run, for as long as they have patience.
    pub fn with_looking(mut self) -> Self {
        self.cores.iter_mut().for_each(|core| core.looking = Patience::LONGEST.as_secs_f64());
        self
    }

    /// How fast a core is, beside one that has its host to itself.
    fn speed(&self) -> f64 {
        let running = self.cores.iter().filter(|core| core.runs.is_some()).count();
        let others = (running as f64 - 1.0) / (self.cores.len() as f64 - 1.0).max(1.0);
        1.0 / (1.0 + (self.contention - 1.0) * others)
    }

    /// Lets time pass until now.
    fn advance(&mut self, now: f64) {
        let served = (now - self.at) * self.speed();
        self.cores.iter_mut().filter_map(|core| core.runs.as_mut()).for_each(|thread| thread.left -= served);
        self.at = now;
    }

    /// From this moment on a process wants to run, on so many threads, for so many seconds on cores of its own: on this core
    /// and those behind it, or on others that are idle.
    pub fn begin(&mut self, now: f64, process: usize, (home, threads): (usize, usize), seconds: f64) {
        debug_assert!(now >= self.at, "turns at cores are in the order of time");
        self.advance(now);
        let homes = (0..threads).map(|thread| (home + thread) % self.cores.len());
        self.waiting.extend(homes.map(|home| Thread { process, home, left: seconds, until: now }));
        self.fill();
    }

    /// Gives cores that are free to those that wait: to those that are at home there, or to anybody if it is idle.
    fn fill(&mut self) {
        let (now, slice) = (self.at, self.slice);
        let mut free: Vec<usize> = (0..self.cores.len()).filter(|&core| self.cores[core].runs.is_none()).collect();
        let mut at = 0;
        while !free.is_empty() && at < self.waiting.len() {
            let home = self.waiting[at].home;
            let idle = || free.iter().position(|&core| self.cores[core].idle() <= now);
            let Some(place) = free.iter().position(|&core| core == home).or_else(idle) else {
                at += 1;
                continue;
            };
            let thread = self.waiting.remove(at).expect("it waits");
            self.cores[free.swap_remove(place)].take(Thread { until: now + slice, ..thread }, now);
        }
    }

    /// Whether somebody waits for a core that another has.
    fn is_wanted(&self, core: usize) -> bool {
        self.waiting.iter().any(|thread| thread.home == core || self.cores[core].looking == 0.0)
    }

    /// When the next thread is through, or has to let another run, or goes to a core that is idle, if no other begins before.
    pub fn next(&self) -> Option<f64> {
        let speed = self.speed();
        let moment = |(at, core): (usize, &Core)| match &core.runs {
            Some(thread) => {
                let end = self.at + thread.left.max(0.0) / speed;
                Some(if self.is_wanted(at) { end.min(thread.until.max(self.at)) } else { end })
            }
            None => (!self.waiting.is_empty()).then(|| core.idle().max(self.at)),
        };
        self.cores.iter().enumerate().filter_map(moment).min_by(f64::total_cmp)
    }

    /// The moment has come that [`Cores::next`] has said. Returns the process that is through then, if one is.
    pub fn end(&mut self, now: f64) -> Option<usize> {
        self.advance(now);
        // Rounding must not leave something that takes no time.
        let is_through = |thread: &Thread| thread.left <= NOTHING || now + thread.left <= now;
        if let Some(core) = self.cores.iter_mut().find(|core| core.runs.as_ref().is_some_and(is_through)) {
            let Thread { process, .. } = core.runs.take().expect("it runs something");
            core.free = now;
            self.fill();
            let mut others = self.cores.iter().filter_map(|core| core.runs.as_ref()).chain(&self.waiting);
            return (!others.any(|thread| thread.process == process)).then_some(process);
        }
        let over = |core: &Core| core.runs.as_ref().is_some_and(|thread| thread.until <= now);
        if let Some(core) = self.cores.iter().position(over) {
            let thread = self.cores[core].runs.take().expect("it runs something");
            self.cores[core].free = now;
            self.waiting.push_back(Thread { home: core, ..thread });
        }
        self.fill();
        None
    }
}

impl Core {
    /// From when on it is idle, while it runs nothing.
    fn idle(&self) -> f64 {
        self.free + self.looking
    }

    /// Runs something. Those that looked there meanwhile have learned how long is worth it.
    fn take(&mut self, thread: Thread, now: f64) {
        if self.looking > 0.0 {
            self.looking = Patience::after(self.looking, now - self.free);
        }
        self.runs = Some(thread);
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
        cores.begin(1.0, 0, (0, 1), 3.0);
        cores.begin(2.0, 1, (0, 1), 1.0);
        assert_eq!(run(cores), [(1, 3.0), (0, 4.0)]);
    }

    /// Three on two cores, by slices of one second: who waits has the core that is free next.
    #[test]
    fn more_take_turns() {
        let mut cores = Cores::new(2, 1.0, 1.0);
        cores.begin(0.0, 0, (0, 1), 2.0);
        cores.begin(0.0, 1, (0, 1), 4.0);
        cores.begin(0.0, 2, (0, 1), 4.0);
        // 0 and 1; then 2 has the core of 0, which has that of 1 and is through at 2; then the other two.
        let ends = run(cores);
        assert_eq!(ends[0], (0, 2.0));
        assert!(ends[1..].iter().all(|&(_, at)| at == 5.0), "{ends:?}");
    }

    /// With slices that are short beside tasks, each thread has the same share of the cores.
    #[test]
    fn short_slices_are_processor_sharing() {
        let mut cores = Cores::new(1, 1.0, 1e-3);
        cores.begin(0.0, 0, (0, 3), 1.0);
        while let Some(at) = cores.next().filter(|&at| at < 2.0) {
            assert_eq!(cores.end(at), None);
        }
        cores.begin(2.0, 1, (0, 1), 0.25);
        // Until 2 each of three has had 2/3; from then on a quarter of each second, so the newcomer is through at 3.
        let ends = run(cores);
        assert!(ends[0].0 == 1 && (ends[0].1 - 3.0).abs() < 0.01, "{ends:?}");
        assert!(ends[1].0 == 0 && (ends[1].1 - 3.25).abs() < 0.01, "{ends:?}");
    }

    /// With slices that are long, each runs to its end, in the order in which they came.
    #[test]
    fn long_slices_are_a_queue() {
        let mut cores = Cores::new(1, 1.0, 10.0);
        (0..3).for_each(|process| cores.begin(0.1 * process as f64, process, (0, 1), 1.0));
        let ends = run(cores);
        assert!(ends.iter().enumerate().all(|(at, &(who, end))| who == at && (end - (at + 1) as f64).abs() < 1e-9));
    }

    /// Alone it is as fast as can be; with one on each of two cores both take half as long again.
    #[test]
    fn busy_cores_slow_each_other_down() {
        let mut cores = Cores::new(2, 1.5, 1.0);
        cores.begin(0.0, 0, (0, 1), 2.0);
        cores.begin(1.0, 1, (0, 1), 1.0);
        let ends = run(cores);
        assert!(ends.len() == 2 && ends.iter().all(|&(_, at)| (at - 2.5).abs() < 1e-12), "{ends:?}");
    }

    /// Two wait for one core while another is free, but not idle before its threads have looked for long enough.
    #[test]
    fn a_core_where_threads_look_takes_nothing_over() {
        let looking = Patience::LONGEST.as_secs_f64();
        for (seconds, last) in [(0.5 * looking, looking), (2.0 * looking, 3.0 * looking)] {
            let mut cores = Cores::new(2, 1.0, 1.0).with_looking();
            cores.begin(0.0, 0, (1, 1), NOTHING);
            assert_eq!(cores.end(NOTHING), Some(0));
            (1..3).for_each(|process| cores.begin(NOTHING, process, (0, 1), seconds));
            let ends = run(cores);
            assert!(ends.len() == 2 && (ends[1].1 - last).abs() < 1e-9, "{ends:?}");
        }
    }
}
