//! What launcher and worker processes tell each other, a line of JSON a message.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use ringstep_comm::rendezvous::{RendezvousError, Token};
use ringstep_comm::transport::{Cause, TransportError};
use ringstep_comm::{CollectiveError, Failure};
use ringstep_train::error::WorkerError;
use ringstep_train::records::{Outcome, Report};
use serde::{Deserialize, Serialize};

use crate::bench::collectives as bench;
use crate::names::ByName;
use crate::settings::{ProcessTransport, Run};

/// What workers are there for.
#[derive(Clone, Serialize, Deserialize)]
pub enum Task {
    /// One training run.
    Train {
        /// What to do, on what; validated.
        run: Box<Run>,
        /// Where rank 0 writes the final weights.
        model_file: PathBuf,
    },
    /// Timing collectives.
    Bench(bench::Plan),
}

/// The launcher's first and only line to a worker. The end of the worker's standard input means that the launcher is
/// gone.
#[derive(Serialize, Deserialize)]
pub struct Start {
    pub task: Task,
    /// The ranks of this process; most have one.
    pub ranks: Vec<usize>,
    pub world: usize,
    /// The only core that it may use, if it is bound to one.
    pub core: Option<usize>,
    pub transport: ByName<ProcessTransport>,
    /// How long it waits for others that say nothing.
    pub timeout: Duration,
    pub meeting: SocketAddr,
    pub token: Token,
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
    /// At the end of its training.
    Done(Box<Outcome>),
    /// A collective was timed.
    Timed(bench::Timing),
    /// All collectives were timed.
    BenchDone(bench::Choices),
    /// At the end, if it failed.
    Failed {
        /// Begins with `rank N`.
        error: String,
        /// Whose fault it was.
        blame: Blame,
    },
}

/// How much a failure says about the cause of the end, less first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub enum Blame {
    /// It only failed because another rank was gone.
    LostPeer,
    /// It only failed because another rank was silent for too long.
    SilentPeer,
    /// It failed by itself.
    OwnError,
    /// It is gone without a word.
    Died,
}

impl Message {
    /// Whether a rank that has said this has done its task.
    pub fn is_last(&self) -> bool {
        matches!(self, Self::Done(_) | Self::BenchDone(_))
    }

    /// What a rank that failed says.
    pub fn failure(rank: usize, error: &anyhow::Error) -> Self {
        let mut text = format!("{error:#}");
        if !text.starts_with(&format!("rank {rank}:")) {
            text = format!("rank {rank}: {text}");
        }
        let collective = match error.downcast_ref() {
            Some(WorkerError::Collective(error)) => Some(error),
            _ => error.downcast_ref::<CollectiveError>(),
        };
        let cause = match collective {
            Some(error) => error.cause(),
            None => error.downcast_ref::<TransportError>().map(|error| &error.cause),
        };
        let after_a_failure = collective.is_some_and(|error| matches!(error.error, Failure::Unusable(_)));
        let waited_in_vain = matches!(error.downcast_ref(), Some(WorkerError::Silent { .. }));
        let blame = match cause {
            Some(Cause::TimedOut(_)) => Blame::SilentPeer,
            _ if waited_in_vain => Blame::SilentPeer,
            Some(Cause::Closed) => Blame::LostPeer,
            _ if after_a_failure || error.is::<RendezvousError>() => Blame::LostPeer,
            _ => Blame::OwnError,
        };
        Self::Failed { error: text, blame }
    }
}
