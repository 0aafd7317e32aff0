//! Starting workers, listening to them, and ending them all when one fails or the user has had enough.

mod processes;
mod protocol;
mod threads;
pub mod worker;

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use ringstep_comm::rendezvous::RendezvousError;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

use self::protocol::Blame;
pub use self::protocol::{Message, Task};
use crate::settings::{Launch, Workers};

/// Runs a task on so many ranks to the end. `observe` is told what each of them says.
pub fn run(
    task: &Task,
    world: usize,
    workers: &Workers,
    interrupts: &Interrupts,
    observe: &mut Observer<'_>,
) -> Result<()> {
    match &workers.launch {
        Launch::Processes(how) => {
            let (mut crew, events) = processes::start(task, how.places(world), how, workers.timeout)?;
            supervise(&mut crew, &events, world, interrupts, observe)
        }
        Launch::Threads => {
            let (mut crew, events) = threads::start(task, world, workers.timeout)?;
            supervise(&mut crew, &events, world, interrupts, observe)
        }
    }
}

/// Is told what each rank says; an error ends the run.
pub type Observer<'a> = dyn FnMut(usize, Message) -> Result<()> + 'a;

/// What the supervisor hears.
enum Event {
    /// A worker speaks.
    Said(usize, Message),
    /// A worker will never speak again.
    Gone(usize),
    /// The ranks did not come together.
    NoMeeting(RendezvousError),
}

/// The workers of a run.
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
    observe: &mut Observer<'_>,
) -> Result<()> {
    let mut done = vec![false; world];
    let mut failures: Vec<Failure> = Vec::new();
    let mut verdict_due: Option<Instant> = None;
    loop {
        interrupts.check()?;
        if verdict_due.is_some_and(|due| Instant::now() >= due) {
            let heard_of = |rank: usize| done[rank] || failures.iter().any(|failure| failure.rank == Some(rank));
            let silent: Vec<usize> = (0..world).filter(|&rank| !heard_of(rank)).collect();
            return Err(verdict(&failures, &silent));
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
                done[rank] |= message.is_last();
                match message {
                    Message::Failed { error, blame } => {
                        failures.push(Failure { rank: Some(rank), blame, description: error });
                    }
                    message => observe(rank, message)?,
                }
            }
            Event::Gone(rank) => {
                let spoke = done[rank] || failures.iter().any(|failure| failure.rank == Some(rank));
                if !spoke {
                    let description = format!("rank {rank} {}", crew.obituary(rank));
                    failures.push(Failure { rank: Some(rank), blame: Blame::Died, description });
                }
            }
            Event::NoMeeting(error) => {
                failures.push(Failure { rank: None, blame: Blame::OwnError, description: error.to_string() });
            }
        }
        if !failures.is_empty() {
            verdict_due.get_or_insert_with(|| Instant::now() + AUTOPSY);
        }
    }
    match done.iter().position(|done| !done) {
        Some(rank) => Err(anyhow!("rank {rank} ended without a result")),
        None => Ok(()),
    }
}

/// Why a run failed, as one rank saw it, or as the rendezvous did.
struct Failure {
    rank: Option<usize>,
    blame: Blame,
    description: String,
}

/// What to tell the user: the cause rather than an effect. When one rank fails the others lose it and fail too.
fn verdict(failures: &[Failure], silent: &[usize]) -> anyhow::Error {
    // Of equals the first: it noticed first.
    let worst = failures.iter().rev().max_by_key(|failure| failure.blame).expect("there is a failure");
    match silent {
        [rank] if worst.blame <= Blame::SilentPeer => {
            anyhow!("rank {rank} does not answer any more ({})", worst.description)
        }
        _ => anyhow!(worst.description.clone()),
    }
}

/// Remembers whether the user, or the system, wants this to end.
pub struct Interrupts {
    signal: Arc<AtomicUsize>,
}

impl Interrupts {
    /// From now on Ctrl-C and its like end the workers first, and this process afterwards.
    pub fn catch() -> Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in [SIGINT, SIGTERM, SIGHUP].into_iter().filter(|&number| !is_ignored(number)) {
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
