//! The cores that this process may use.

/// How many there are: a cpuset, `taskset` and a container's quota count.
pub fn allowed() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
/// For how long this thread has had a core, in seconds: less than has passed, where others want the same one.
pub fn thread_seconds() -> f64 {
    let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    time.tv_sec as f64 + time.tv_nsec as f64 / 1e9
}
