//! The threads of one worker: as many as it was given, but no more than there are cores.
//!
//! Work is dealt out evenly and in a fixed way: part t of n is the t-th n-th of the units, n being the number of threads
//! that it was given. So a given number of threads does the same sums in the same order every time, whichever thread
//! takes which part and however many cores there are.

use std::any::Any;
use std::cell::UnsafeCell;
use std::io;
use std::marker::PhantomData;
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, JoinHandle};

use ringstep_cpu::rounds::Rounds;
use ringstep_cpu::{Level, cores};

/// Threads that work together on one layer after the other.
pub struct Team {
    level: Level,
    threads: usize,
    shared: Arc<Shared>,
    others: Vec<JoinHandle<()>>,
}

type Task<'a> = dyn Fn(usize) + Sync + 'a;

struct Shared {
    /// What to do; set between rounds, read within one.
    task: UnsafeCell<Option<*const Task<'static>>>,
    /// Each task is a round, with a part for each thread that was asked for.
    rounds: Rounds,
    /// What the first part that panicked in this round said.
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: `task` is written by `Team::run` alone, between rounds, and read by the threads within one; `Rounds` orders all
// accesses. What it points to is Sync.
#[allow(unsafe_code)]
unsafe impl Send for Shared {}
// SAFETY: as above.
#[allow(unsafe_code)]
unsafe impl Sync for Shared {}

impl Team {
    /// The caller and `threads - 1` others, with these instructions. If there are fewer cores it starts no more threads than these, and each does
    /// the parts of several.
    pub fn new(threads: usize, level: Level) -> Self {
        Self::start(threads, level).expect("threads can be started")
    }

    /// The same, unless the system has no thread left.
    pub fn start(threads: usize, level: Level) -> io::Result<Self> {
        assert!(threads > 0, "a team without threads");
        let running = threads.min(cores::allowed());
        let shared = Arc::new(Shared {
            task: UnsafeCell::new(None),
            rounds: Rounds::new(threads, running - 1),
            panic: Mutex::new(None),
        });
        let mut team = Self { level, threads, shared, others: Vec::new() };
        for index in 1..running {
            let shared = team.shared.clone();
            let builder = thread::Builder::new().name(format!("compute {index}"));
            team.others.push(builder.spawn(move || shared.rounds.follow(index, |part| shared.work(part)))?);
        }
        Ok(team)
    }

    /// The instructions that its kernels use.
    pub fn level(&self) -> Level {
        self.level
    }

    /// How many threads it was given.
    pub fn threads(&self) -> usize {
        self.threads
    }

    /// Calls `task` once for each thread that it was given, with that thread's index, and returns when all calls have
    /// returned. Takes `&mut self` so that no two tasks run at once.
    #[allow(unsafe_code)]
    fn run(&mut self, task: &Task<'_>) {
        if self.threads == 1 {
            return task(0);
        }
        // SAFETY: the lifetime is only forgotten, not exceeded: this function does not return, nor unwind, before all
        // threads are through with the task.
        let task_pointer: *const Task<'static> =
            unsafe { std::mem::transmute::<&Task<'_>, &'static Task<'static>>(task) };
        // SAFETY: no thread works now, see `Shared`.
        unsafe { *self.shared.task.get() = Some(task_pointer) };
        self.shared.rounds.lead(|part| self.shared.work(part));
        let panic = self.shared.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(panic) = panic {
            resume_unwind(panic);
        }
    }

    /// Deals `units` units of work out evenly. Each thread gets its range of them, and with it its own part of `parts`:
    /// what it may write to.
    #[allow(unsafe_code)]
    pub fn deal<P: Parts>(&mut self, units: usize, parts: P, work: impl Fn(Range<usize>, P::Part) + Sync) {
        let threads = self.threads();
        // Products that wrapped would make ranges that overlap.
        assert!(units.checked_mul(threads).is_some(), "{units} units for {threads} threads");
        parts.check(units, threads);
        self.run(&|thread| {
            let range = units * thread / threads..units * (thread + 1) / threads;
            // SAFETY: `check` has passed, each index comes once, and the ranges are disjoint.
            let part = unsafe { parts.part(thread, range.clone()) };
            if !range.is_empty() {
                work(range, part);
            }
        });
    }
}

impl Drop for Team {
    fn drop(&mut self) {
        self.shared.rounds.close();
        for other in self.others.drain(..) {
            // It has not panicked: `Shared::work` catches that.
            let _ = other.join();
        }
    }
}

impl Shared {
    /// Does a part of the present task.
    #[allow(unsafe_code)]
    fn work(&self, part: usize) {
        // SAFETY: within a round, see `Shared`; `Team::run` keeps the task alive so long.
        let task = unsafe { &*(*self.task.get()).expect("a round has a task") };
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| task(part))) {
            self.panic.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(panic);
        }
    }
}

/// Something that can be dealt out to threads, each getting a part that is its own.
#[allow(unsafe_code)]
pub trait Parts: Sync {
    /// What one thread gets.
    type Part;

    /// Panics if there is not enough for so many units and threads.
    fn check(&self, units: usize, threads: usize);

    /// The part of a thread.
    ///
    /// # Safety
    /// `check` has passed; each thread's part is taken once, with ranges that do not overlap.
    unsafe fn part(&self, thread: usize, range: Range<usize>) -> Self::Part;
}

/// A slice of equal units, one after the other: a thread gets those of its range.
pub struct Units<'a, T> {
    start: *mut T,
    length: usize,
    unit: usize,
    slice: PhantomData<&'a mut [T]>,
}

impl<'a, T> Units<'a, T> {
    /// Units of `unit` elements.
    pub fn new(slice: &'a mut [T], unit: usize) -> Self {
        Self { start: slice.as_mut_ptr(), length: slice.len(), unit, slice: PhantomData }
    }
}

// SAFETY: it stands for the exclusive borrow of a slice, and hands out parts of it that do not overlap.
#[allow(unsafe_code)]
unsafe impl<T: Send> Sync for Units<'_, T> {}

#[allow(unsafe_code)]
impl<'a, T: Send> Parts for Units<'a, T> {
    type Part = &'a mut [T];

    fn check(&self, units: usize, _: usize) {
        let fits = units.checked_mul(self.unit).is_some_and(|needed| needed <= self.length);
        assert!(fits, "{units} units of {} in {}", self.unit, self.length);
    }

    unsafe fn part(&self, _: usize, range: Range<usize>) -> Self::Part {
        // SAFETY: `check` has seen that the slice is long enough; nobody else gets this range.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(range.start * self.unit), range.len() * self.unit) }
    }
}

/// A slice of which each thread gets an equal share, whatever its units are.
pub struct Shares<'a, T>(Units<'a, T>);

impl<'a, T> Shares<'a, T> {
    /// Shares of `share` elements.
    pub fn new(slice: &'a mut [T], share: usize) -> Self {
        Self(Units::new(slice, share))
    }
}

#[allow(unsafe_code)]
impl<'a, T: Send> Parts for Shares<'a, T> {
    type Part = &'a mut [T];

    fn check(&self, _: usize, threads: usize) {
        self.0.check(threads, threads);
    }

    unsafe fn part(&self, thread: usize, _: Range<usize>) -> Self::Part {
        // SAFETY: each thread's share is taken once.
        unsafe { self.0.part(thread, thread..thread + 1) }
    }
}

/// Nothing to write to.
#[allow(unsafe_code)]
impl Parts for () {
    type Part = ();

    fn check(&self, _: usize, _: usize) {}

    unsafe fn part(&self, _: usize, _: Range<usize>) {}
}

/// Something that may not be there.
#[allow(unsafe_code)]
impl<P: Parts> Parts for Option<P> {
    type Part = Option<P::Part>;

    fn check(&self, units: usize, threads: usize) {
        self.iter().for_each(|parts| parts.check(units, threads));
    }

    unsafe fn part(&self, thread: usize, range: Range<usize>) -> Self::Part {
        // SAFETY: the caller's promise.
        self.as_ref().map(|parts| unsafe { parts.part(thread, range) })
    }
}

macro_rules! tuples {
    ($(($($part:ident)+))+) => {$(
        /// Each thread gets its part of each.
        #[allow(unsafe_code, non_snake_case)]
        impl<$($part: Parts),+> Parts for ($($part,)+) {
            type Part = ($($part::Part,)+);

            fn check(&self, units: usize, threads: usize) {
                let ($($part,)+) = self;
                $($part.check(units, threads);)+
            }

            unsafe fn part(&self, thread: usize, range: Range<usize>) -> Self::Part {
                let ($($part,)+) = self;
                // SAFETY: the caller's promise holds for each of them.
                unsafe { ($($part.part(thread, range.clone()),)+) }
            }
        }
    )+};
}
tuples! { (A B) (A B C) (A B C D) }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_done_once_whatever_the_number_of_threads() {
        for threads in 1..=5 {
            let mut team = Team::new(threads, Level::best());
            for units in [0, 1, 2, 7, 100] {
                let mut counts = vec![0; units * 3];
                let mut shares = vec![0; threads * 2];
                team.deal(
                    units,
                    (Units::new(&mut counts, 3), Shares::new(&mut shares, 2)),
                    |range, (counts, share)| {
                        assert_eq!(counts.len(), range.len() * 3);
                        for (at, count) in counts.iter_mut().enumerate() {
                            *count += range.start * 3 + at + 1;
                        }
                        share[1] += range.len();
                    },
                );
                assert_eq!(counts, (1..=units * 3).collect::<Vec<_>>());
                assert_eq!(shares.iter().sum::<usize>(), units);
            }
        }
    }

    #[test]
    fn a_thousand_rounds_with_pauses_lose_nothing() {
        let mut team = Team::new(3, Level::best());
        let mut sums = vec![0; 3];
        for round in 0..1000 {
            team.deal(3, Units::new(&mut sums, 1), |_, sums| sums[0] += 1);
            if round % 100 == 0 {
                thread::sleep(std::time::Duration::from_millis(2));
            }
        }
        assert_eq!(sums, [1000; 3]);
    }

    #[test]
    #[should_panic(expected = "not this one")]
    fn a_panic_on_any_thread_reaches_the_caller() {
        Team::new(2, Level::best()).deal(2, (), |range, ()| assert_eq!(range.start, 0, "not this one"));
    }

    #[test]
    #[should_panic(expected = "3 units of 2 in 5")]
    fn too_short_a_slice_is_refused() {
        Team::new(2, Level::best()).deal(3, Units::new(&mut [0; 5], 2), |_, _| ());
    }

    #[test]
    #[should_panic(expected = "2 units of 9223372036854775808 in 4")]
    fn units_whose_product_wraps_are_refused() {
        Team::new(1, Level::best()).deal(2, Units::new(&mut [0; 4], 1 << 63), |_, _| ());
    }

    #[test]
    #[should_panic(expected = "9223372036854775808 units for 2 threads")]
    fn ranges_that_would_wrap_are_refused() {
        Team::new(2, Level::best()).deal(1 << 63, (), |_, ()| ());
    }
}
