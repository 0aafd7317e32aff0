//! Why a rank stops before the end.

use std::io;
use std::time::Duration;

use ringstep_comm::CollectiveError;
use ringstep_cpu::MissingInstructions;
use ringstep_nn::state::Foreign;

use crate::checkpoint::CheckpointError;
use crate::compress::Malformed;
use crate::fit::Misfit;

/// Why a rank stopped before the end.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Another rank is gone, silent or out of step.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The initial weights do not fit.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model cannot take the images.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// The rank's machine is not the one that the job was made for.
    #[error("rank {rank}: {error}")]
    NoInstructions {
        /// The rank there.
        rank: usize,
        /// What it has and has not.
        error: MissingInstructions,
    },
    /// The system has no thread left.
    #[error("rank {rank}: no thread to {purpose}: {error}")]
    NoThread {
        /// The rank without one.
        rank: usize,
        /// What it is needed for.
        purpose: &'static str,
        /// What the system said.
        error: io::Error,
    },
    /// What was saved is not a state of this job.
    #[error("rank {rank}: what was saved is of another job: {foreign}")]
    OtherState {
        /// The rank.
        rank: usize,
        /// The first difference.
        foreign: Foreign,
    },
    /// Training has run away.
    #[error(
        "rank {rank}: the loss is {loss} in step {step} of epoch {epoch}, first seen in layer {layer}: training diverged, \
         a smaller lr may help"
    )]
    Diverged {
        /// The rank that saw it.
        rank: usize,
        /// From 0.
        epoch: usize,
        /// Within the epoch, from 0.
        step: usize,
        /// Not a number, or infinite.
        loss: f64,
        /// The first layer whose weights or output are not finite.
        layer: String,
    },
    /// Replicas that should be equal are not.
    #[error(
        "rank {rank}: after step {step}, {tensor} is not the same everywhere: {} from rank 0's", differ(.ranks)
    )]
    OutOfStep {
        /// The rank that noticed; all do.
        rank: usize,
        /// Steps done.
        step: usize,
        /// The first tensor that differs, in the order of the layers.
        tensor: String,
        /// Whose differ from rank 0's.
        ranks: Vec<usize>,
    },
    /// A worker and a server do not understand each other.
    #[error("rank {rank}: a message of rank {from} makes no sense: {problem}")]
    Malformed {
        /// The rank that got it.
        rank: usize,
        /// The rank that sent it.
        from: usize,
        /// What is wrong with it.
        problem: &'static str,
    },
    /// A rank owes something, and is there, and says nothing.
    #[error("rank {rank}: nothing from rank {silent} for {time:?}, and rank {waiting} waits for it")]
    Silent {
        /// The rank that noticed.
        rank: usize,
        /// The rank that says nothing.
        silent: usize,
        /// How long.
        time: Duration,
        /// The rank that cannot go on.
        waiting: usize,
    },
    /// It was told to give up, because another rank is gone.
    #[error("rank {rank}: it was told to give up, since another rank is gone")]
    Abandoned {
        /// The rank.
        rank: usize,
    },
    /// A rank sent what does not stand for numbers.
    #[error("rank {rank}: {slice}: rank {peer} sent no valid {method} code: {problem}")]
    MalformedCode {
        /// The rank that noticed.
        rank: usize,
        /// Which of the gradients it was about.
        slice: String,
        /// The rank that sent it.
        peer: usize,
        /// The compression.
        method: &'static str,
        /// What is wrong with it.
        problem: Malformed,
    },
    /// Training has run away in its last step.
    #[error("rank {rank}: the final weights are not finite: training diverged, a smaller lr may help")]
    Overflowed {
        /// The rank that saw it.
        rank: usize,
    },
}

impl WorkerError {
    /// What a rank says that got no thread.
    pub(crate) fn no_thread(rank: usize, purpose: &'static str) -> impl Fn(io::Error) -> Self {
        move |error| Self::NoThread { rank, purpose, error }
    }
}

/// "rank 2 differs", "ranks 1, 3 differ".
fn differ(ranks: &[usize]) -> String {
    let list = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    if ranks.len() == 1 { format!("rank {list} differs") } else { format!("ranks {list} differ") }
}
