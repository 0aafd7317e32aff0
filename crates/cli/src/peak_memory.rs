//! How much memory this process takes.

use std::fs;

/// The most memory that this process had, since its start or since [`forget_peak`]; 0 where the system does not say.
pub fn peak_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok()).unwrap_or(0) * 1024
}

/// Lets the peak begin anew at what the process has now.
pub fn forget_peak() {
    // See proc_pid_clear_refs(5). Where it is not allowed, the peak stays that of the whole process.
    let _ = fs::write("/proc/self/clear_refs", "5");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_large_buffer_raises_the_peak() {
        let buffer = vec![1u8; 300 << 20];
        assert!(peak_bytes() >= buffer.len() as u64);
    }
}
