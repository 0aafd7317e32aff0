//! Signals that ask for the end, and how a run that one has ended says so.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::Result;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

/// Remembers whether the user, or the system, wants this to end.
pub struct Interrupts {
    signal: Arc<AtomicUsize>,
    /// Whether there was one, for those who wait for something else.
    any: Arc<AtomicBool>,
}

impl Interrupts {
    /// From now on Ctrl-C and its like end the workers first, and this process afterwards.
    pub fn catch() -> Result<Self> {
        let (signal, any) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::new(false)));
        for number in SIGNALS.into_iter().filter(|&number| !is_ignored(number)) {
            signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
            signal_hook::flag::register(number, Arc::clone(&any))?;
        }
        Ok(Self { signal, any })
    }

    /// A signal that has come since the last time.
    pub(super) fn take(&self) -> Option<usize> {
        self.any.store(false, Ordering::Relaxed);
        Some(self.signal.swap(0, Ordering::Relaxed)).filter(|&signal| signal != 0)
    }

    /// Whether one has come that nobody has taken.
    pub(super) fn any(&self) -> &AtomicBool {
        &self.any
    }
}

/// Those that ask for the end: Ctrl-C; what `kill` and schedulers send; what Slurm is told to send some time before; the end of a
/// terminal.
pub(super) const SIGNALS: [i32; 4] = [SIGINT, SIGTERM, SIGUSR1, SIGHUP];

/// Whether this process was started with a signal ignored, as `nohup` does with SIGHUP; it then stays ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// A signal asked for the end.
#[derive(Debug)]
pub struct Interrupted {
    /// Which.
    pub signal: usize,
    /// The folder of the run and the steps that it had done, if it can go on from there.
    pub saved: Option<(PathBuf, usize)>,
}

/// `EX_TEMPFAIL` of sysexits.h: try again later. Schedulers can be told to do so.
const TRY_AGAIN: u8 = 75;

impl Interrupted {
    /// What shells expect of a program that a signal ended; and of one that a scheduler ended, that it can go on.
    pub fn exit_code(&self) -> u8 {
        match (self.signal as i32, &self.saved) {
            (SIGTERM | SIGUSR1, Some(_)) => TRY_AGAIN,
            _ => 128 + self.signal as u8,
        }
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by signal {}; all workers are ended", self.signal)?;
        match &self.saved {
            Some((run, step)) => {
                write!(f, " after step {step}; to go on: ringstep train --resume {}", run.display())
            }
            None => Ok(()),
        }
    }
}

impl std::error::Error for Interrupted {}
