//! Starting workers, listening to them, and ending them all when one fails or the user has had enough.

mod processes;
mod protocol;
mod threads;
pub mod worker;

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use ringstep_data::Dataset;
use ringstep_train::summary::{Summary, sum_up};
use ringstep_train::worker::{Epoch, Outcome, Report};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

pub use self::protocol::Message;
use crate::settings::{Launch, Settings};

/// One run: everything that its workers need to know but their rank.
pub struct Run<'a> {
    /// A completed row.
    pub settings: &'a Settings,
    /// Its data, loaded and validated.
    pub data: &'a Arc<Dataset>,
    /// Where rank 0 writes the final weights.
    pub model_file: PathBuf,
}

impl Run<'_> {
    /// Runs all workers to the end. `observe` is told what each rank says.
    pub fn execute(&self, interrupts: &Interrupts, observe: &mut dyn FnMut(usize, &Message)) -> Result<Summary> {
        let job = self.settings.job()?;
        let ranks = match self.settings.launch()? {
            Launch::Processes => {
                let (mut crew, events) = processes::start(self, job.workers)?;
                supervise(&mut crew, &events, job.workers, interrupts, observe)?
            }
            Launch::Threads => {
                let (mut crew, events) = threads::start(self, &job);
                supervise(&mut crew, &events, job.workers, interrupts, observe)?
            }
        };
        Ok(sum_up(&job, &ranks)?)
    }
}

/// What the supervisor hears: a worker speaks, or will never speak again.
enum Event {
    Said(usize, Message),
    Gone(usize),
}

/// The workers of a run. Dropping it ends those that are left.
trait Crew {
    /// How a worker that is gone ended.
    fn obituary(&mut self, rank: usize) -> String;
}

/// How long a failure waits for others that may be its cause.
const AUTOPSY: Duration = Duration::from_millis(300);
/// How soon Ctrl-C is noticed.
const ATTENTION: Duration = Duration::from_millis(30);

/// Listens until all workers are done, or one has failed.
fn supervise(
    crew: &mut dyn Crew,
    events: &Receiver<Event>,
    world: usize,
    interrupts: &Interrupts,
    observe: &mut dyn FnMut(usize, &Message),
) -> Result<Vec<(Vec<Epoch>, Outcome)>> {
    let mut epochs: Vec<Vec<Epoch>> = vec![Vec::new(); world];
    let mut outcomes: Vec<Option<Outcome>> = vec![None; world];
    let mut failures: Vec<Failure> = Vec::new();
    let mut verdict_due: Option<Instant> = None;
    loop {
        interrupts.check()?;
        if verdict_due.is_some_and(|due| Instant::now() >= due) {
            let worst = failures.into_iter().max_by_key(|failure| failure.blame).expect("there is one");
            return Err(anyhow!(worst.description));
        }
        let event = match events.recv_timeout(ATTENTION) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) if verdict_due.is_some() => {
                verdict_due = Some(Instant::now());
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        match event {
            Event::Said(rank, message) => {
                observe(rank, &message);
                match message {
                    Message::Report(Report::Progress { .. }) => {}
                    Message::Report(Report::Epoch(epoch)) => epochs[rank].push(epoch),
                    Message::Done(outcome) => outcomes[rank] = Some(outcome),
                    Message::Failed { error, lost_peer } => {
                        let blame = if lost_peer { Blame::LostPeer } else { Blame::OwnError };
                        failures.push(Failure { rank, blame, description: error });
                    }
                }
            }
            Event::Gone(rank) => {
                let spoke = outcomes[rank].is_some() || failures.iter().any(|failure| failure.rank == rank);
                if !spoke {
                    let description = format!("rank {rank} {}", crew.obituary(rank));
                    failures.push(Failure { rank, blame: Blame::Died, description });
                }
            }
        }
        if !failures.is_empty() {
            verdict_due.get_or_insert_with(|| Instant::now() + AUTOPSY);
        }
    }
    let all: Option<Vec<Outcome>> = outcomes.into_iter().collect();
    let outcomes = all.ok_or_else(|| anyhow!("a worker ended without a result"))?;
    Ok(epochs.into_iter().zip(outcomes).collect())
}

/// Why a run failed, as one rank saw it.
struct Failure {
    rank: usize,
    blame: Blame,
    description: String,
}

/// When one rank fails the others lose it and fail too; the cause is whoever has the most blame.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Blame {
    LostPeer,
    OwnError,
    Died,
}

/// Remembers whether the user, or the system, wants this to end.
pub struct Interrupts {
    signal: Arc<AtomicUsize>,
}

impl Interrupts {
    /// From now on Ctrl-C and its like end the workers first, and this process afterwards.
    pub fn catch() -> Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGINT, SIGTERM, SIGHUP] {
            signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
        }
        Ok(Self { signal })
    }

    /// An error once a signal has come.
    pub fn check(&self) -> Result<(), Interrupted> {
        match self.signal.load(Ordering::Relaxed) {
            0 => Ok(()),
            signal => Err(Interrupted { signal }),
        }
    }
}

/// A signal asked for the end.
#[derive(Debug)]
pub struct Interrupted {
    signal: usize,
}

impl Interrupted {
    /// What shells expect of a program that a signal ended.
    pub fn exit_code(&self) -> u8 {
        128 + self.signal as u8
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by signal {}; all workers are ended", self.signal)
    }
}

impl std::error::Error for Interrupted {}
