//! What went on when, on each rank: spans for a trace that can be looked at.

use std::time::Instant;

use ringstep_nn::Model;
use serde::{Deserialize, Serialize};

use crate::timebase::Timebase;

/// A row of a rank's timeline. Collectives go on beside computation, so there are two.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Track {
    /// Forward, backward, optimizer, and waiting for data.
    Computation,
    /// Collectives, and the encoding of what they send.
    Communication,
}

/// Something that went on for some time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Where it is drawn.
    pub track: Track,
    /// What.
    pub name: String,
    /// What sort of thing: slowed, data, forward, backward, optimizer, communication or encode.
    pub kind: Kind,
    /// The step it belongs to, from 0.
    pub step: usize,
    /// Seconds on the clock of all ranks.
    pub began: f64,
    /// Seconds that it took.
    pub seconds: f64,
}

/// The sorts of spans, which have colours of their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Kind {
    /// Sleeping, on a rank that is made slow.
    Slowed,
    /// Waiting for a batch.
    Data,
    /// A forward.
    Forward,
    /// A layer's backward.
    Backward,
    /// The optimizer.
    Optimizer,
    /// A collective.
    Communication,
    /// Encoding numbers, or decoding codes.
    Encode,
}

impl Kind {
    /// All, in the order in which they happen.
    pub const ALL: [Self; 7] =
        [Self::Slowed, Self::Data, Self::Forward, Self::Backward, Self::Encode, Self::Communication, Self::Optimizer];

    /// The name that reports and traces use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Slowed => "slowed",
            Self::Data => "data",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
            Self::Communication => "communication",
            Self::Encode => "encode",
        }
    }
}

/// Collects the spans of the first steps.
pub(crate) struct Tracer {
    timebase: Timebase,
    /// Steps to trace.
    steps: usize,
    spans: Vec<Span>,
}

impl Tracer {
    pub fn new(timebase: Timebase, steps: usize) -> Self {
        Self { timebase, steps, spans: Vec::new() }
    }

    /// Something went on.
    pub fn between(&mut self, step: usize, kind: Kind, name: &str, [began, ended]: [Instant; 2]) {
        if step < self.steps {
            let track = match kind {
                Kind::Communication | Kind::Encode => Track::Communication,
                _ => Track::Computation,
            };
            let (name, seconds) = (name.to_owned(), (ended - began).as_secs_f64());
            self.spans.push(Span {
                track,
                name,
                kind,
                step,
                began: self.timebase.nanoseconds(began) as f64 / 1e9,
                seconds,
            });
        }
    }

    /// The layers' last backward.
    pub fn backward(&mut self, step: usize, model: &Model) {
        if step < self.steps {
            for layer in model.timeline().rev() {
                let ended = layer.backward.began + layer.backward.took;
                self.between(step, Kind::Backward, layer.name, [layer.backward.began, ended]);
            }
        }
    }

    /// The spans since the last time, if there are any.
    pub fn take(&mut self) -> Option<Vec<Span>> {
        (!self.spans.is_empty()).then(|| std::mem::take(&mut self.spans))
    }
}
