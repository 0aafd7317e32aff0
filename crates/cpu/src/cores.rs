//! The cores that this process may use.

use std::hash::{DefaultHasher, Hasher};

use rustix::thread::{CpuSet, sched_getaffinity};

/// How many there are: a cpuset, `taskset` and a container's quota count.
pub fn allowed() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}

/// Which ones they are, as a number: processes of one host that have the same one share their cores, and of those that somebody
/// has bound to cores of their own each has another.
pub fn which() -> u64 {
    let mut hasher = DefaultHasher::new();
    if let Ok(allowed) = sched_getaffinity(None) {
        (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).for_each(|core| hasher.write_usize(core));
    }
    hasher.finish()
}

/// For how long this thread has had a core, in seconds: less than has passed, where others want the same one.
pub fn thread_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
