//! Where the processes of a job run that ringstep has not started itself, or not on this host: which one this is, and where
//! they meet.

mod flags;
pub(crate) mod nodelist;
mod place;
mod placement;
pub mod scripts;

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, ToSocketAddrs};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use ringstep_comm::rendezvous::{Encryption, source_address};

pub use self::flags::ClusterFlags;
pub use self::place::{Note, Place};
pub use self::placement::{Environment, Placement, Share};
use crate::launch::{Cluster, Site};
use crate::settings::{Launch, Run, Settings};

/// Where the processes of a job run.
#[derive(Debug)]
pub enum Arrangement {
    /// Here.
    Here,
    /// On these hosts, on which this process starts them.
    Hosts {
        names: Vec<String>,
        /// The address of this host at which they find it, if that was said.
        interface: Option<IpAddr>,
    },
    /// Wherever somebody else has started them.
    Part(Part),
}

/// The part of this process in a job of several.
#[derive(Debug)]
pub struct Part {
    /// Who has started the processes, as a subject of sentences.
    pub launcher: String,
    /// Which of them this is.
    pub process: usize,
    /// How many there are.
    pub processes: usize,
    /// What it is.
    pub share: Share,
    /// How many workers each of them has.
    pub each: usize,
    /// Where they meet.
    pub place: Place,
    /// At which address others find this one, if that was said.
    pub interface: Option<IpAddr>,
}

/// What this process was started with.
pub fn environment() -> Environment {
    let text = |(name, value): (std::ffi::OsString, std::ffi::OsString)| {
        Some((name.into_string().ok()?, value.into_string().ok()?))
    };
    std::env::vars_os().filter_map(text).collect()
}

/// A job of a scheduler that may put it back into its queue, and start it anew.
pub struct Scheduled<'a> {
    /// Its name, which stays.
    pub job: &'a str,
    /// How often it was started anew.
    pub restarts: usize,
}

impl<'a> Scheduled<'a> {
    /// That of Slurm which this process belongs to.
    pub fn find(environment: &'a Environment) -> Option<Self> {
        let restarts = environment.get("SLURM_RESTART_COUNT").and_then(|times| times.parse().ok()).unwrap_or(0);
        Some(Self { job: environment.get("SLURM_JOB_ID")?, restarts })
    }
}

impl Arrangement {
    /// The part of this process, if another one tells it what to do.
    pub fn member(&self) -> Option<&Part> {
        match self {
            Self::Part(part) if part.process > 0 => Some(part),
            _ => None,
        }
    }

    /// Whether workers may be on other machines.
    pub fn is_elsewhere(&self) -> bool {
        !matches!(self, Self::Here)
    }

    /// Who starts the workers, as the end of sentences.
    fn starter(&self) -> &str {
        match self {
            Self::Here => "ringstep",
            Self::Hosts { .. } => "--hosts",
            Self::Part(part) => &part.launcher,
        }
    }

    /// Makes settings of a whole job, which an earlier run has left, those of one process or host; what is `given`
    /// now is so already. Where that run's workers met is not where these do.
    pub fn share_out(&self, settings: &mut Settings, given: &Settings) {
        let sharers = match self {
            Self::Hosts { names, .. } => names.len(),
            Self::Part(Part { share: Share::Node(_), processes, .. }) => *processes,
            Self::Here | Self::Part(_) => 1,
        };
        if self.is_elsewhere() {
            settings.network.meet = given.network.meet;
        }
        if let (Some(workers), None) = (&mut settings.workers.workers, given.workers.workers) {
            *workers = workers.div_ceil(sharers);
        }
    }

    /// Lets what goes between hosts be encrypted.
    pub fn encrypt(&mut self) {
        if let Self::Part(Part { place: Place::Address { secret, .. }, .. }) = self {
            *secret = secret.clone().encrypting(Encryption::BetweenHosts);
        }
    }

    /// Makes settings of one process or host those of the whole job.
    pub fn claim(&mut self, settings: &mut Settings) -> Result<()> {
        if let Self::Here = self {
            return Ok(());
        }
        let foreign =
            [("--start-with", settings.workers.start_with.is_some()), ("--meet", settings.network.meet.is_some())];
        let foreign = foreign.into_iter().find(|(_, is_given)| *is_given).map(|(flag, _)| flag);
        if let Some(flag) = foreign {
            bail!("{flag} is for workers that ringstep starts here; these are started by {}", self.starter());
        }
        match self {
            Self::Here => Ok(()),
            Self::Part(part) => part.claim(settings),
            Self::Hosts { names, .. } => {
                let each = settings.workers.workers.unwrap_or(1);
                settings.workers.workers = Some(each.saturating_mul(names.len()));
                Ok(())
            }
        }
    }

    /// Whether the largest of these runs takes as many processes as there are.
    pub fn check(&self, runs: &[Run]) -> Result<()> {
        let are_processes = |run: &&Run| matches!(run.workers.launch, Launch::Processes(_));
        let most = runs.iter().filter(are_processes).map(|run| run.job.places().len()).max().unwrap_or(1);
        match self {
            Self::Here => {}
            Self::Hosts { names, .. } => ensure!(
                most.is_multiple_of(names.len()),
                "this job takes {most} processes, which {} hosts cannot share evenly",
                names.len()
            ),
            Self::Part(Part { launcher, processes, each, .. }) => {
                let room = processes * each;
                ensure!(most == room, "this job takes {most} processes, and {launcher} has started {room}");
            }
        }
        Ok(())
    }

    /// Where workers are started, once all that start some are there.
    pub fn site(&self, timeout: Duration) -> Result<Site> {
        Ok(match self {
            Self::Here => Site::Here,
            Self::Hosts { names, interface } => {
                let meet = interface.map_or_else(|| address_towards(names), Ok)?;
                Site::Hosts { names: names.clone(), meet }
            }
            Self::Part(part) => Site::Cluster(Cluster::assemble(part, timeout)?),
        })
    }
}

/// The address of this host at which others find it: the one from which it reaches the first of them.
fn address_towards(hosts: &[String]) -> Result<IpAddr> {
    let Some(other) = hosts.iter().find(|host| *host != "localhost") else { return Ok(Ipv4Addr::LOCALHOST.into()) };
    // ssh takes a user before the name.
    let name = other.rsplit('@').next().unwrap_or(other);
    let told = || format!("{name}: no way there is known; --interface says at which address hosts find this one");
    let address = (name, 22).to_socket_addrs().with_context(told)?.next().with_context(told)?;
    source_address(address).with_context(told)
}

impl Part {
    /// Where ranks of this process listen, if not at the address from which they call the meeting, which is at this one. One
    /// that reaches it by loopback is on its host, and may be known to others by any address.
    pub fn listen(&self, meeting: IpAddr) -> Option<IpAddr> {
        let by_any = !self.place.is_here() && meeting.is_loopback();
        self.interface.filter(|_| !self.place.is_here()).or(by_any.then_some(Ipv6Addr::UNSPECIFIED.into()))
    }

    /// Makes settings of one process those of the whole job.
    fn claim(&mut self, settings: &mut Settings) -> Result<()> {
        let Self { launcher, processes, .. } = self;
        let given = settings.workers.workers;
        self.each = match self.share {
            Share::Worker => {
                settings.workers.workers.get_or_insert(*processes);
                return Ok(());
            }
            Share::Node(None) => given.unwrap_or(1),
            Share::Node(Some(workers)) => {
                let differs = given.filter(|&given| given != workers);
                ensure!(differs.is_none(), "--workers is {}, but {launcher} says {workers} a node", given.unwrap_or(0));
                workers
            }
        };
        settings.workers.workers = Some(self.each.saturating_mul(*processes));
        Ok(())
    }
}
