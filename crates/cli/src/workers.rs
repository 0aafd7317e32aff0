//! How workers are started and talk: the settings of launching, and what they mean.

use std::net::Ipv4Addr;

use anyhow::{Result, bail};

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

impl Settings {
    /// Decides how worker processes are started and talk; threads need none of that.
    pub(crate) fn complete_processes(&mut self) -> Result<()> {
        self.launch.get_or_insert_with(|| Launch::Processes.name().to_owned());
        if self.launch()? == Launch::Processes {
            self.transport.get_or_insert_with(|| ProcessTransport::Auto.name().to_owned());
            self.transport()?;
            self.meet.get_or_insert(Ipv4Addr::LOCALHOST.into());
            self.pin.get_or_insert(true);
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
