//! What launcher and worker processes tell each other, a line of JSON a message.

use std::path::PathBuf;
use std::time::Duration;

use ringstep_comm::rendezvous::Invitation;
use ringstep_comm::tune::Timings;
use ringstep_train::halt::{Held, Order};
use ringstep_train::records::{Outcome, Report};
use ringstep_train::saving::Checkpoints;
use serde::{Deserialize, Serialize};

use super::diagnosis::Blame;
use super::halting::Halting;
use super::pulse::Waiting;
use super::recovery::Seat;
use crate::bench::collectives as bench;
use crate::names::ByName;
use crate::settings::{Faults, Link, ProcessTransport, Run};

/// What workers are there for.
#[derive(Clone, Serialize, Deserialize)]
pub enum Task {
    /// One training run.
    Train {
        /// What to do, on what; validated.
        run: Box<Run>,
        /// Where rank 0 writes the final weights.
        model_file: PathBuf,
        /// Where ranks are saved, if they can be.
        checkpoints: Option<Checkpoints>,
        /// What they go on from.
        resume: Option<Resume>,
    },
    /// Timing collectives.
    Bench(bench::Plan),
    /// Timing what predictions rest on.
    Timings,
}

/// What ranks go on from.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Resume {
    /// Steps that were done.
    pub step: usize,
    /// Where their states are.
    pub from: Origin,
    /// Those that have none, since they join the others now: they get the chief's.
    pub joining: Vec<usize>,
}

/// Where the states of ranks are.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Origin {
    /// In a checkpoint, with a file for each rank.
    Folder {
        /// The checkpoint's.
        path: PathBuf,
        /// Whose file each rank reads: as many may not be left as there were.
        files: Vec<usize>,
    },
    /// In each rank's own memory, or in that of whoever was there before it.
    Memory,
}

impl Task {
    /// How its workers are halted, if they can be.
    pub(super) fn halting(&self) -> Option<Halting> {
        match self {
            Self::Train { run, checkpoints, resume, .. } => {
                Some(Halting::new(run, resume.as_ref().map_or(0, |resume| resume.step), checkpoints.is_some()))
            }
            Self::Bench(_) | Self::Timings => None,
        }
    }

    /// Whether its processes stay when they have done their parts, since it may be gone on with.
    pub fn stays(&self) -> bool {
        match self {
            Self::Train { run, .. } => run.faults != Faults::default(),
            Self::Bench(_) | Self::Timings => false,
        }
    }

    /// Those of its ranks that have just joined the others.
    pub fn joining(&self) -> &[usize] {
        match self {
            Self::Train { resume: Some(resume), .. } => &resume.joining,
            _ => &[],
        }
    }

    /// Whether others may join those that do it.
    pub fn grows(&self) -> bool {
        matches!(self, Self::Train { run, .. } if run.faults.elastic.is_some())
    }

    /// How often it is gone on with after ranks have failed.
    pub fn restarts(&self) -> usize {
        match self {
            Self::Train { run, .. } => run.faults.restarts,
            Self::Bench(_) | Self::Timings => 0,
        }
    }

    /// The ranks of each process, of so many.
    pub fn places(&self, world: usize) -> Vec<Vec<usize>> {
        match self {
            Self::Train { run, .. } => run.job.places(),
            Self::Bench(_) | Self::Timings => (0..world).map(|rank| vec![rank]).collect(),
        }
    }
}

/// A task, and how its ranks talk.
#[derive(Clone, Serialize, Deserialize)]
pub struct Work {
    pub task: Task,
    pub world: usize,
    pub transport: ByName<ProcessTransport>,
    /// How long a rank waits for others that say nothing.
    pub timeout: Duration,
    /// What messages pass through, if they do not pass at once.
    pub link: Option<Link>,
}

/// The launcher's first line to a worker process; after that come orders. The end of the worker's standard input means that the
/// launcher is gone.
#[derive(Serialize, Deserialize)]
pub struct Start {
    pub work: Work,
    /// The ranks of this process; most have one.
    pub ranks: Vec<usize>,
    /// The only core that it may use, if it is bound to one.
    pub core: Option<usize>,
    /// Where its ranks meet the others, and by which secret.
    pub invitation: Invitation,
    /// Where each of its ranks keeps its last states, if it does.
    pub memories: Vec<Option<[PathBuf; 2]>>,
    /// Whether the process stays afterwards, for another start.
    pub stays: bool,
}

/// A line to a worker process, but for the first.
#[derive(Serialize, Deserialize)]
pub enum Told {
    /// One of its ranks is told something.
    Order(Ordered),
    /// There is something else to do.
    Start(Box<Start>),
}

/// What the first of the processes that somebody else has started tells another.
#[derive(Serialize, Deserialize)]
pub enum Request {
    /// To do its part.
    Work {
        work: Box<Work>,
        /// The ranks of each worker that it starts, or of the one that it is.
        places: Vec<Vec<usize>>,
    },
    /// To go on with those of its ranks that are left, and with new ones in the place of the others.
    Again {
        work: Box<Work>,
        /// Its own, as above.
        places: Vec<Vec<usize>>,
        /// Of all ranks.
        seats: Vec<Seat>,
    },
    /// To pass on an order to one of its ranks.
    Tell(Ordered),
    /// To end the process of a rank.
    Kill(usize),
    /// Nothing but to know that the first process is there, which is at fault once it has been silent for so long.
    Pulse { timeout: Duration },
    /// To go.
    End { failed: bool },
}

/// What it hears.
#[derive(Serialize, Deserialize)]
pub enum Answer {
    /// What a rank says.
    Said(Said),
    /// All ranks of that process have done their parts.
    Finished,
}

/// What a rank is told.
#[derive(Debug, Serialize, Deserialize)]
pub struct Ordered {
    pub rank: usize,
    pub order: Order,
}

/// A line of a worker process.
#[derive(Debug, Serialize, Deserialize)]
pub struct Said {
    pub rank: usize,
    pub message: Message,
}

/// What a rank says.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub enum Message {
    /// While it trains.
    Report(Report),
    /// About once a second, whatever it does: what it waits in.
    Pulse(Vec<Waiting>),
    /// What the launcher has noticed about it.
    Noticed(String),
    /// Where it is, when it is told to hold.
    Held(Held),
    /// At the end of its training.
    Done(Box<Outcome>),
    /// At the end, if it was told to leave before that of its training.
    Left,
    /// A collective was timed.
    Timed(bench::Timing),
    /// All collectives were timed.
    BenchDone(bench::Choices),
    /// What predictions rest on was timed.
    Timings(Timings),
    /// After its last word, if it is there for another start.
    Waits {
        /// Steps that it had done.
        done: usize,
        /// The steps after which its states are in its memory.
        points: Vec<usize>,
    },
    /// It will never speak again: whoever has started it says so.
    Gone {
        /// How it ended.
        obituary: String,
        /// The steps after which its states are there all the same.
        points: Vec<usize>,
    },
    /// At the end, if it failed.
    Failed {
        /// Begins with `rank N`.
        error: String,
        /// Whose fault it was.
        blame: Blame,
    },
}

impl Message {
    /// Whether a rank that has said this has done its task.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Done(_) | Self::Left | Self::BenchDone(_) | Self::Timings(_))
    }

    /// What a rank that failed says.
    pub fn failure(rank: usize, error: &anyhow::Error) -> Self {
        let mut text = format!("{error:#}");
        if !text.starts_with(&format!("rank {rank}:")) {
            text = format!("rank {rank}: {text}");
        }
        Self::Failed { error: text, blame: Blame::of(error) }
    }
}
