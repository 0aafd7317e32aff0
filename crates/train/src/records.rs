//! What a rank says while it trains, and at the end.

use std::iter::Sum;

use ringstep_nn::state::State;
use serde::{Deserialize, Serialize};

use crate::accounts::Shares;
use crate::content::Sent;
use crate::profile::Basis;
use crate::saving::FileSum;
use crate::trace::Span;

/// What a rank says while it trains.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub enum Report {
    /// Steps are done; a few times a second.
    Steps(Vec<Step>),
    /// What it did after its last step, until there was one final model.
    Closing(Box<Step>),
    /// What went on when.
    Spans(Vec<Span>),
    /// An epoch is over.
    Epoch(Epoch),
    /// Between the last step that was reported and the next, its state was copied for the checkpoint of this name.
    Checkpoint(usize),
    /// The copy is written, or cannot be.
    Saved(SavedRank),
    /// Between the last step that was reported and the next, its state was kept in memory.
    Point {
        /// Steps that are done.
        step: usize,
        /// The epoch so far.
        epoch: Epoch,
    },
}

/// A rank's part of a checkpoint.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct SavedRank {
    /// The checkpoint's name.
    pub name: usize,
    /// What was written, or why not.
    pub files: Result<Vec<FileSum>, String>,
}

/// Nanoseconds on the clock of all ranks.
pub type Nanoseconds = i64;

/// One rank's part of a step: what it did when. A server's is what it did from one answer to the next.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub struct Step {
    /// From 0, since the beginning.
    pub step: usize,
    /// Images this rank trained on.
    pub images: usize,
    /// Sum of their losses.
    pub loss_sum: f64,
    /// The step's beginning.
    pub began: Nanoseconds,
    /// Its end.
    pub ended: Nanoseconds,
    /// When this rank's last gradient was written.
    pub ready: Nanoseconds,
    /// From when until when it computed; exchanges may have interrupted it.
    pub computing: Vec<[Nanoseconds; 2]>,
    /// From when until when its gradients were ready and the strategy was not through with them.
    pub synchronising: Vec<[Nanoseconds; 2]>,
    /// From when until when it asked for a batch.
    pub data: Vec<[Nanoseconds; 2]>,
    /// What it exchanged with others.
    pub exchanges: Vec<Exchange>,
    /// Bytes of data that the rank had sent by the end of the step.
    pub bytes_sent: u64,
    /// What compression did in the step, if there is one.
    pub compressed: Option<Compressed>,
    /// On a server, whose steps it has seen, and how stale they were.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub observed: Vec<(usize, u64)>,
}

impl Step {
    /// The whole step.
    pub fn length(&self) -> Nanoseconds {
        self.ended - self.began
    }
}

/// One rank's part of an exchange with others. Lists of them travel as bare numbers, since there are many.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq, Eq)]
#[serde(from = "BareExchange", into = "BareExchange")]
pub struct Exchange {
    /// Which of the rank's groups it belongs to.
    pub group: u8,
    /// Who sent to whom, if it was a message from one rank to another and not a collective of all.
    pub message: Option<[usize; 2]>,
    /// Its number among those of its kind; the same on all ranks that took part.
    pub sequence: u32,
    /// When this rank came to it.
    pub began: Nanoseconds,
    /// When this rank was through with it.
    pub ended: Nanoseconds,
    /// Whether another thread than the computing one did it.
    pub beside: bool,
}

type BareExchange = (u8, Option<[usize; 2]>, u32, Nanoseconds, Nanoseconds, u8);

impl From<Exchange> for BareExchange {
    fn from(Exchange { group, message, sequence, began, ended, beside }: Exchange) -> Self {
        (group, message, sequence, began, ended, u8::from(beside))
    }
}

impl From<BareExchange> for Exchange {
    fn from((group, message, sequence, began, ended, beside): BareExchange) -> Self {
        Self { group, message, sequence, began, ended, beside: beside != 0 }
    }
}

/// Which exchange: its group, who sent to whom, and its number.
pub(crate) type Key = (u8, Option<[usize; 2]>, u32);

impl Exchange {
    /// The same for all ranks that took part.
    pub(crate) fn key(&self) -> Key {
        (self.group, self.message, self.sequence)
    }
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
    /// To go on counting later.
    pub(crate) fn state(&mut self, state: &mut State<'_>) {
        state.number("compute", &mut self.compute);
        state.number("comm", &mut self.comm);
        state.number("data", &mut self.data);
    }

    /// Adds the shares of a step. A rank alone cannot tell waiting from communication.
    pub(crate) fn add(&mut self, shares: Shares) {
        let seconds = |nanoseconds: Nanoseconds| nanoseconds as f64 / 1e9;
        self.compute += seconds(shares.compute);
        self.comm += seconds(shares.exposed + shares.waiting);
        self.data += seconds(shares.data);
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

impl Epoch {
    /// To go on adding later.
    pub(crate) fn state(&mut self, state: &mut State<'_>) {
        state.count("epoch", &mut self.epoch);
        state.count("images", &mut self.images);
        state.number("loss_sum", &mut self.loss_sum);
        state.count("correct", &mut self.correct);
        state.number("seconds", &mut self.seconds);
        state.within("parts", |state| self.parts.state(state));
        state.number("bytes_sent", &mut self.bytes_sent);
    }
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

/// What compression has done to a rank's numbers.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, PartialEq)]
pub struct Compressed {
    /// Bytes that the rank would have sent to sum the same numbers as they are.
    pub bytes_dense: u64,
    /// The sum of the squares of what was left out of what there was to send.
    pub lost: f64,
    /// The sum of the squares of what there was to send.
    pub all: f64,
    /// Time in encoding and decoding.
    pub encode_seconds: f64,
}

/// Of several ranks or steps.
impl Sum for Compressed {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |sum, more| Self {
            bytes_dense: sum.bytes_dense + more.bytes_dense,
            lost: sum.lost + more.lost,
            all: sum.all + more.all,
            encode_seconds: sum.encode_seconds + more.encode_seconds,
        })
    }
}

impl Compressed {
    /// To go on counting later.
    pub(crate) fn state(&mut self, state: &mut State<'_>) {
        state.number("bytes_dense", &mut self.bytes_dense);
        state.number("lost", &mut self.lost);
        state.number("all", &mut self.all);
        state.number("encode_seconds", &mut self.encode_seconds);
    }

    /// What has been added since then.
    pub fn since(self, then: Self) -> Self {
        Self {
            bytes_dense: self.bytes_dense - then.bytes_dense,
            lost: self.lost - then.lost,
            all: self.all - then.all,
            encode_seconds: self.encode_seconds - then.encode_seconds,
        }
    }

    /// How much was left out, relative to what there was to send.
    pub fn error(&self) -> f64 {
        if self.all > 0.0 { (self.lost / self.all).sqrt() } else { 0.0 }
    }
}

/// What a rank has to show at the end. A server has neither tests nor weights.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
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
    /// Bytes put on the way, by what they are.
    pub sent: Sent,
    /// Bytes sent to synchronise.
    pub bytes_sent: u64,
    /// Bytes received for that. A server's come from all its workers through one link.
    pub bytes_received: u64,
    /// Bytes that both took on the way, with headers and padding.
    pub wire_bytes: [u64; 2],
    /// Messages sent to synchronise.
    pub messages_sent: u64,
    /// On a server, how often each staleness was seen: by how many steps the parameters that a worker read lacked gradients
    /// of others, or had moved on before its own came.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub staleness: Vec<u64>,
    /// What compression did to the gradients, if they were compressed; a server only decodes.
    pub compressed: Option<Compressed>,
    /// What a prediction of its steps rests on, if one is wanted.
    pub basis: Option<Box<Basis>>,
    /// The tests, in the order of their models; the last is that of the final one.
    pub tests: Vec<Tested>,
    /// Seconds by which the moments that it told may be off, beside those of rank 0.
    pub clock_error: f64,
    /// Of the weights as a safetensors file.
    pub weights_sha256: String,
    /// Whether it was told to end before its last step.
    #[serde(default)]
    pub interrupted: bool,
}

impl Outcome {
    /// Bytes of data sent and received, and what these took on the way.
    pub fn bytes(&self) -> [u64; 4] {
        [self.bytes_sent, self.bytes_received, self.wire_bytes[0], self.wire_bytes[1]]
    }
}
