//! Who computes: how many workers there are, on what, and how they are started.

use std::net::IpAddr;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use ringstep_comm::rendezvous::Encryption;
use ringstep_cpu::{Instructions, cores};
use serde::{Deserialize, Serialize};

use super::network::{NetworkFlags, ProcessTransport};
use super::slow::SlowRanks;
use super::training::BATCH;
use super::{Link, Mode, SyncName, one_or_many};
use crate::names::{ByName, Named, choices};

/// Workers of the course's job.
pub(super) const WORKERS: usize = 4;

/// Flags about workers.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
#[command(next_help_heading = "Workers")]
pub struct WorkerFlags {
    /// Number of workers [default: 4; for single 1]
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// Threads that each worker computes on [default: 1]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Instructions that workers compute with: auto, portable, avx2, avx512 or neon [default: auto, the widest there are]
    #[arg(long, value_name = "LEVEL", hide_short_help = true)]
    pub instructions: Option<ByName<Instructions>>,
    /// What workers are; threads talk in memory [default: processes]
    #[arg(long, value_name = "processes|threads")]
    pub launch: Option<ByName<LaunchName>>,
    /// Start each worker process by this command, in which {rank} is its rank: 'taskset -c {rank}', 'ip netns exec
    /// node{rank}'
    #[arg(long, value_name = "COMMAND", hide_short_help = true)]
    pub start_with: Option<String>,
    /// Bind each worker process to one core, if it has one thread and each core gets as many workers, more than one: for
    /// a machine that does nothing else [default: false]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    #[arg(hide_short_help = true)]
    pub pin: Option<bool>,
    /// Make steps of a worker take so many times as long, by sleeping: all of them, or with a probability; several workers as
    /// in 1:2+3:4. In compare each of a list makes rows of its own, of which none slows nobody [default: none]
    #[arg(long, value_name = "RANK:FACTOR[:PROBABILITY]", value_delimiter = ',', allow_hyphen_values = true)]
    #[arg(hide_short_help = true)]
    #[serde(deserialize_with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub slow: Vec<SlowRanks>,
}

choices! {
    /// What workers are.
    pub enum LaunchName: "way to launch" {
        /// Processes of their own.
        Processes = "processes",
        /// Threads of the launcher.
        Threads = "threads",
    }
}

impl Named for Instructions {
    const KIND: &'static str = "instructions";

    fn all() -> Vec<Self> {
        Self::ALL.to_vec()
    }

    fn spelling(self) -> &'static str {
        self.name()
    }
}

/// How the workers of a run are started, and how they talk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Workers {
    /// What they are.
    pub launch: Launch,
    /// How long one waits for another that says nothing.
    pub timeout: Duration,
    /// What keeps their messages from passing at once, if something does.
    pub link: Option<Link>,
}

/// What workers are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Launch {
    /// Threads of the launcher, which talk in its memory.
    Threads,
    /// Processes of their own.
    Processes(Processes),
}

/// How worker processes are started and talk.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Processes {
    /// How they talk.
    pub transport: ByName<ProcessTransport>,
    /// Which of their connections are encrypted.
    pub encryption: Encryption,
    /// Where they meet.
    pub meet: IpAddr,
    /// The command that starts each, if it is not the launcher itself.
    pub start_with: Option<String>,
    /// Whether each is bound to a core if all cores then have several.
    pub pin: bool,
}

impl WorkerFlags {
    /// How many there are; `alone` there is one, which takes in a step what all others would.
    pub fn count(&mut self, alone: bool, batch: Option<usize>) -> Result<usize> {
        if let (true, Some(workers @ 2..)) = (alone, self.workers) {
            let batch = workers.saturating_mul(batch.unwrap_or(BATCH));
            bail!("single has one worker, not {workers}: the same job is --sync single --workers 1 --batch {batch}");
        }
        Ok(*self.workers.get_or_insert(if alone { 1 } else { WORKERS }))
    }

    /// Who is slow in each of the rows that this makes: in a comparison a row for each that is given, in a training all that are
    /// given in one.
    pub fn stragglers(&mut self, mode: Mode) -> Result<Vec<SlowRanks>> {
        if self.slow.is_empty() {
            self.slow = vec![SlowRanks::default()];
        }
        if mode == Mode::Train {
            let all: Vec<String> =
                self.slow.iter().filter(|ranks| !ranks.0.is_empty()).map(SlowRanks::to_string).collect();
            if all.len() > 1 {
                self.slow = vec![all.join("+").parse()?];
            }
        }
        if let Some(twice) = (1..self.slow.len()).find(|&at| self.slow[..at].contains(&self.slow[at])) {
            bail!("--slow {} is given twice", self.slow[twice]);
        }
        Ok(self.slow.clone())
    }

    /// Threads of a worker.
    pub fn threads(&mut self) -> usize {
        *self.threads.get_or_insert(1)
    }

    /// The instructions that they compute with; this machine has them.
    pub fn instructions(&mut self) -> Result<Instructions> {
        let ByName(instructions) = *self.instructions.get_or_insert(ByName(Instructions::Auto));
        instructions.level()?;
        Ok(instructions)
    }

    /// How they are started and talk.
    pub fn launch(&mut self, network: &mut NetworkFlags, ways: &[SyncName], mode: Mode) -> Result<Workers> {
        let (timeout, link) = (network.timeout()?, network.net.clone());
        if link.is_some() {
            ensure!(
                mode == Mode::Compare || *ways != [SyncName::DataParallel],
                "--net: data-parallel is one process, with no network between its workers"
            );
            ensure!(self.start_with.is_none(), "--net shapes links within this machine: not with --start-with");
            ensure!(
                network.meet.is_none_or(|address| address.is_loopback()),
                "--net shapes links within this machine: not with --meet"
            );
        }
        if mode == Mode::Train && *ways == [SyncName::DataParallel] {
            let ByName(launch) = *self.launch.get_or_insert(ByName(LaunchName::Threads));
            ensure!(
                launch == LaunchName::Threads,
                "data-parallel is one process: its workers are threads, not {}",
                launch.spelling()
            );
        }
        if self.launch.get_or_insert(ByName(LaunchName::Processes)).0 == LaunchName::Processes {
            let (transport, meet) = network.of_processes();
            // Whoever starts workers by a command of their own, or with many threads, has other plans for the cores.
            let pin = *self.pin.get_or_insert(false) && self.start_with.is_none() && self.threads() == 1;
            let (encryption, start_with) = (network.encryption(transport)?, self.start_with.clone());
            let processes = Processes { transport: ByName(transport), encryption, meet, start_with, pin };
            return Ok(Workers { launch: Launch::Processes(processes), timeout, link });
        }
        let given = [
            ("--transport", network.transport.is_some()),
            ("--meet", network.meet.is_some()),
            ("--tls", network.tls.is_some()),
            ("--start-with", self.start_with.is_some()),
            ("--pin", self.pin.is_some()),
        ];
        match given.iter().find(|(_, given)| *given) {
            Some((flag, _)) => bail!("{flag} is for worker processes; these workers are threads of one"),
            None => Ok(Workers { launch: Launch::Threads, timeout, link }),
        }
    }
}

impl Workers {
    /// Those of a way that may need to be threads, between which there is no network.
    pub fn of(&self, way: SyncName) -> Self {
        match way {
            SyncName::DataParallel => Self { launch: Launch::Threads, timeout: self.timeout, link: None },
            _ => self.clone(),
        }
    }

    /// Whether nothing keeps them from sharing memory.
    pub fn may_share_memory(&self) -> bool {
        let by_messages = |transport| matches!(transport, ProcessTransport::Tcp | ProcessTransport::Mpi);
        let apart = matches!(&self.launch, Launch::Processes(processes) if by_messages(processes.transport.0));
        !apart && self.link.is_none()
    }

    /// Whether a command of the user's starts them, perhaps on other machines.
    pub fn are_elsewhere(&self) -> bool {
        matches!(&self.launch, Launch::Processes(processes) if processes.start_with.is_some())
    }
}

/// Says so if workers of so many threads, and their servers, have to share the cores that this process may use.
pub fn crowd(workers: usize, servers: usize, threads: usize) -> Option<String> {
    crowd_on(cores::allowed(), workers, servers, threads)
}

fn crowd_on(cores: usize, workers: usize, servers: usize, threads: usize) -> Option<String> {
    let several = |count: usize, thing: &str| format!("{count} {thing}{}", if count == 1 { "" } else { "s" });
    let who = match (workers, servers, threads) {
        _ if workers.saturating_mul(threads).saturating_add(servers) <= cores => return None,
        (1, 0, _) => several(threads, "thread"),
        (_, _, 1) => several(workers, "worker"),
        _ => format!("{} of {threads} threads", several(workers, "worker")),
    };
    let servers = if servers == 0 { String::new() } else { format!(" and {}", several(servers, "server")) };
    Some(format!("{who}{servers} share {}", several(cores, "core")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn more_threads_than_cores_are_told() {
        assert_eq!(crowd_on(4, 2, 0, 2), None);
        assert_eq!(crowd_on(2, 4, 0, 1).unwrap(), "4 workers share 2 cores");
        assert_eq!(crowd_on(1, 1, 0, 3).unwrap(), "3 threads share 1 core");
        assert_eq!(crowd_on(2, 2, 0, 2).unwrap(), "2 workers of 2 threads share 2 cores");
        assert_eq!(crowd_on(4, 4, 1, 1).unwrap(), "4 workers and 1 server share 4 cores");
    }
}
