//! The cores that this process may use.

/// How many there are: a cpuset, `taskset` and a container's quota count.
pub fn allowed() -> usize {
    std::thread::available_parallelism().map_or(1, usize::from)
}
