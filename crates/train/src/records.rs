//! What a rank says while it trains, and at the end.

use serde::{Deserialize, Serialize};

use crate::clock::Clock;
use crate::trace::Span;

/// What a rank says while it trains.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub enum Report {
    /// Steps are done; a few times a second.
    Steps(Vec<Step>),
    /// What went on when.
    Spans(Vec<Span>),
    /// An epoch is over.
    Epoch(Epoch),
}

/// One rank's part of a step. Times are in seconds.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub struct Step {
    /// From 0, since the beginning.
    pub step: usize,
    /// Images this rank trained on.
    pub images: usize,
    /// Sum of their losses.
    pub loss_sum: f64,
    /// The whole step.
    pub seconds: f64,
    /// When this rank's last gradient was written, on the clock of all ranks.
    pub ready: f64,
    /// When its gradients were those of all ranks, on the same clock.
    pub synced: f64,
    /// When each collective began and ended on the same clock, where some began before `ready`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub overlapping: Vec<[f64; 2]>,
    /// What it took, by what was done.
    #[serde(flatten)]
    pub parts: Parts,
}

/// Seconds by what was done.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq)]
pub struct Parts {
    /// Forward, backward and optimizer.
    #[serde(rename = "compute_seconds")]
    pub compute: f64,
    /// Synchronising while nothing else was done, with the waiting for other ranks in it.
    #[serde(rename = "comm_seconds")]
    pub comm: f64,
    /// Waiting for batches that were not ready.
    #[serde(rename = "data_seconds")]
    pub data: f64,
}

impl Parts {
    /// What the clock has added up so far.
    pub fn of(clock: &Clock) -> Self {
        let [compute, comm, data] = [clock.compute, clock.communication, clock.data].map(|time| time.as_secs_f64());
        Self { compute, comm, data }
    }

    /// What has been added since then.
    pub fn since(self, then: Self) -> Self {
        let (compute, comm) = (self.compute - then.compute, self.comm - then.comm);
        Self { compute, comm, data: self.data - then.data }
    }
}

/// One rank's part of an epoch. Times and bytes are those of this epoch alone.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub struct Epoch {
    /// From 0.
    pub epoch: usize,
    /// Images this rank trained on.
    pub images: usize,
    /// Sum of their losses, each as it was when the image was trained on.
    pub loss_sum: f64,
    /// How many were classified rightly then.
    pub correct: usize,
    /// Wall time.
    pub seconds: f64,
    /// What it took, by what was done.
    #[serde(flatten)]
    pub parts: Parts,
    /// Bytes sent to synchronise gradients.
    pub bytes_sent: u64,
}

/// One rank's part of a test of the model as it was at some moment of the training.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq)]
pub struct Tested {
    /// The last epoch before it, from 0.
    pub epoch: usize,
    /// Steps done by then.
    pub step: usize,
    /// Seconds of training by then.
    pub seconds: f64,
    /// Bytes that rank 0 had sent by then.
    pub bytes_sent: u64,
    /// Test images that this rank classified.
    pub images: usize,
    /// How many of them rightly.
    pub correct: usize,
}

/// What a rank has to show at the end.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct Outcome {
    /// The instructions that the rank computed with.
    pub instructions: String,
    /// Steps taken.
    pub steps: usize,
    /// Wall time of the training.
    pub seconds: f64,
    /// Median time of a step, the first left out.
    pub seconds_per_step: f64,
    /// Mean time of a step, the first left out.
    pub mean_seconds_per_step: f64,
    /// What the time went to.
    #[serde(flatten)]
    pub parts: Parts,
    /// Bytes sent to synchronise.
    pub bytes_sent: u64,
    /// Messages sent to synchronise.
    pub messages_sent: u64,
    /// Seconds of a step's communication that the cost model expects to be exposed, if it was asked.
    pub predicted_comm: Option<f64>,
    /// The tests, in the order of their models; the last is that of the final one.
    pub tests: Vec<Tested>,
    /// Of the weights as a safetensors file.
    pub weights_sha256: String,
}
