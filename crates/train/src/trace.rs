//! What went on when, on each rank: spans for a trace that can be looked at.

use std::time::Instant;

use ringstep_nn::Model;
use serde::{Deserialize, Serialize};

use crate::strategy::Synced;
use crate::timebase::Timebase;

/// What a rank does at the same time as something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Lane {
    /// Forward, backward, optimizer, and waiting for data.
    Computation,
    /// Collectives.
    Communication,
}

/// Something that went on for some time.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Span {
    /// Beside what.
    pub lane: Lane,
    /// What.
    pub name: String,
    /// What sort of thing: data, forward, backward, optimizer or communication.
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
}

impl Kind {
    /// All, in the order in which they happen.
    pub const ALL: [Self; 5] = [Self::Data, Self::Forward, Self::Backward, Self::Communication, Self::Optimizer];

    /// The name that reports and traces use.
    pub fn name(self) -> &'static str {
        match self {
            Self::Data => "data",
            Self::Forward => "forward",
            Self::Backward => "backward",
            Self::Optimizer => "optimizer",
            Self::Communication => "communication",
        }
    }
}

/// Collects the spans of the first steps.
pub(crate) struct Tracer {
    timebase: Timebase,
    /// Steps to trace.
    steps: usize,
    /// What collectives are about.
    labels: Vec<String>,
    spans: Vec<Span>,
}

impl Tracer {
    pub fn new(timebase: Timebase, steps: usize, labels: Vec<String>) -> Self {
        Self { timebase, steps, labels, spans: Vec::new() }
    }

    /// Something went on from `began` until now.
    pub fn since(&mut self, step: usize, kind: Kind, name: &str, began: Instant) {
        self.between(step, kind, name, began, Instant::now());
    }

    pub fn between(&mut self, step: usize, kind: Kind, name: &str, began: Instant, ended: Instant) {
        if step < self.steps {
            let lane = if kind == Kind::Communication { Lane::Communication } else { Lane::Computation };
            let (name, seconds) = (name.to_owned(), (ended - began).as_secs_f64());
            self.spans.push(Span { lane, name, kind, step, began: self.timebase.seconds(began), seconds });
        }
    }

    /// The layers' last backward.
    pub fn backward(&mut self, step: usize, model: &Model) {
        if step < self.steps {
            for layer in model.timeline().rev() {
                self.between(
                    step,
                    Kind::Backward,
                    layer.name,
                    layer.backward.began,
                    layer.backward.began + layer.backward.took,
                );
            }
        }
    }

    /// A step's collectives.
    pub fn reductions(&mut self, step: usize, synced: &Synced) {
        if step < self.steps {
            let labels = std::mem::take(&mut self.labels);
            for (label, reduced) in labels.iter().zip(&synced.reductions) {
                self.between(step, Kind::Communication, label, reduced.began, reduced.ended);
            }
            self.labels = labels;
        }
    }

    /// The spans since the last time, if there are any.
    pub fn take(&mut self) -> Option<Vec<Span>> {
        (!self.spans.is_empty()).then(|| std::mem::take(&mut self.spans))
    }
}
