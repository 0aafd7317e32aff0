//! How workers are started and talk: the settings of launching, and what they mean.

use std::net::Ipv4Addr;

use anyhow::{Result, bail};
use ringstep_cpu::cores;

use crate::names::lookup;
use crate::settings::Settings;

/// How workers are started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launch {
    /// As processes.
    Processes,
    /// As threads of this process.
    Threads,
}

impl Launch {
    const ALL: [Self; 2] = [Self::Processes, Self::Threads];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Processes => "processes",
            Self::Threads => "threads",
        }
    }
}

/// How worker processes talk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ProcessTransport {
    /// Through shared memory within a host, over TCP between hosts.
    Auto,
    /// Over TCP, also within a host.
    Tcp,
    /// Through shared memory; all must be on one host.
    Shm,
}

impl ProcessTransport {
    /// All.
    pub const ALL: [Self; 3] = [Self::Auto, Self::Tcp, Self::Shm];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Tcp => "tcp",
            Self::Shm => "shm",
        }
    }
}

/// Says so if workers of so many threads have to share the cores that this process may use.
pub fn crowd(workers: usize, threads: usize) -> Option<String> {
    crowd_on(cores::allowed(), workers, threads)
}

fn crowd_on(cores: usize, workers: usize, threads: usize) -> Option<String> {
    let who = match (workers, threads) {
        _ if workers.saturating_mul(threads) <= cores => return None,
        (1, _) => format!("{threads} threads"),
        (_, 1) => format!("{workers} workers"),
        _ => format!("{workers} workers of {threads} threads"),
    };
    Some(format!("{who} share {cores} core{}", if cores == 1 { "" } else { "s" }))
}

impl Settings {
    /// Decides how worker processes are started and talk; threads need none of that.
    pub(crate) fn complete_processes(&mut self) -> Result<()> {
        self.launch.get_or_insert_with(|| Launch::Processes.name().to_owned());
        if self.launch()? == Launch::Processes {
            self.transport.get_or_insert_with(|| ProcessTransport::Auto.name().to_owned());
            self.transport()?;
            self.meet.get_or_insert(Ipv4Addr::LOCALHOST.into());
            self.pin.get_or_insert(false);
            return Ok(());
        }
        let given = [
            ("--transport", self.transport.is_some()),
            ("--meet", self.meet.is_some()),
            ("--start-with", self.start_with.is_some()),
            ("--pin", self.pin.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => bail!("{flag} is for worker processes; these workers are threads of one"),
            None => Ok(()),
        }
    }

    /// How worker processes of a completed row talk.
    pub fn transport(&self) -> Result<ProcessTransport> {
        let Some(name) = &self.transport else { return Ok(ProcessTransport::Auto) };
        lookup("transport", name, &ProcessTransport::ALL, ProcessTransport::name)
    }

    /// How the workers of a completed row are started.
    pub fn launch(&self) -> Result<Launch> {
        lookup("way to launch", self.launch.as_deref().unwrap_or_default(), &Launch::ALL, Launch::name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_cores_are_told() {
        assert_eq!(crowd_on(4, 2, 2), None);
        assert_eq!(crowd_on(2, 4, 1).unwrap(), "4 workers share 2 cores");
        assert_eq!(crowd_on(1, 1, 3).unwrap(), "3 threads share 1 core");
        assert_eq!(crowd_on(2, 2, 2).unwrap(), "2 workers of 2 threads share 2 cores");
    }
}
