//! Keeps what a rank did when, step by step.

use std::time::Instant;

use ringstep_comm::log::{Exchange as Call, With};
use ringstep_nn::Model;

use crate::accounts::split;
use crate::clock::Clock;
use crate::records::{Exchange, Parts, Step};
use crate::replica::{Replica, Trained};
use crate::timebase::Timebase;
use crate::trace::{Kind, Span, Tracer};
use crate::world::World;

/// The moments of a rank, for its reports and for traces alike.
pub(crate) struct Recorder {
    pub clock: Clock,
    timebase: Timebase,
    tracer: Tracer,
    /// The step that goes on.
    open: Step,
    /// What those before it took, by what was done.
    pub parts: Parts,
}

impl Recorder {
    /// Starts the clock; traces the first `traced` steps.
    pub fn start(timebase: Timebase, traced: usize) -> Self {
        let (tracer, open, parts) = (Tracer::new(timebase, traced), Step::default(), Parts::default());
        Self { clock: Clock::start(), timebase, tracer, open, parts }
    }

    /// Does `work`, and remembers when.
    pub fn timed<R>(&mut self, kind: Kind, name: &str, work: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let result = work();
        let ended = Instant::now();
        let span = [began, ended].map(|moment| self.timebase.nanoseconds(moment));
        match kind {
            Kind::Data => self.open.data.push(span),
            _ => self.open.computing.push(span),
        }
        self.tracer.between(self.open.step, kind, name, [began, ended]);
        result
    }

    /// A backward of this model began then, its last gradient was written then, and now it is over.
    pub fn backward(&mut self, began: Instant, ready: Instant, model: &Model) {
        let [began, ready, ended] = [began, ready, Instant::now()].map(|moment| self.timebase.nanoseconds(moment));
        self.open.computing.push([began, ready]);
        self.open.synchronising.push([ready, ended]);
        self.open.ready = ready;
        self.tracer.backward(self.open.step, model);
    }

    /// The step is over, and the next begins.
    pub fn end_step(&mut self, world: &mut World<'_>, replicas: &[Replica<'_>], trained: Trained) -> Step {
        let [began, ended] = self.clock.end_step();
        let next = Step { step: self.open.step + 1, ..Step::default() };
        self.close(world, replicas, [began, ended]);
        let (images, loss_sum) = (trained.images, trained.score.loss);
        Step { images, loss_sum, ..std::mem::replace(&mut self.open, next) }
    }

    /// What came after the last step is over, too.
    pub fn end(&mut self, world: &mut World<'_>, replicas: &[Replica<'_>]) {
        let [began, ended] = self.clock.since_last_step();
        self.close(world, replicas, [began, ended]);
    }

    /// Seconds by which moments may be off, now that ranks have agreed again.
    pub fn clock_error(&self, again: &Timebase) -> f64 {
        self.timebase.error(again)
    }

    /// The spans since the last time, if there are any.
    pub fn take_spans(&mut self) -> Option<Vec<Span>> {
        self.tracer.take()
    }

    /// Puts the exchanges of all groups into the open step, and adds it to the sums.
    fn close(&mut self, world: &mut World<'_>, replicas: &[Replica<'_>], whole: [Instant; 2]) {
        [self.open.began, self.open.ended] = whole.map(|moment| self.timebase.nanoseconds(moment));
        let mut calls = world.take_exchanges();
        for (number, replica) in (BATCH_NORM..).zip(replicas) {
            calls.extend(replica.take_exchanges().into_iter().map(|call| (number, call)));
        }
        for (group, call) in calls {
            self.tracer.between(self.open.step, Kind::Communication, world.name(call.label), [call.began, call.ended]);
            self.open.exchanges.push(self.placed(world.rank(), group, call));
        }
        // Nobody knows here when others came to an exchange.
        self.parts.add(split(&self.open, |exchange| exchange.began));
    }

    /// An exchange on the clock of all ranks.
    fn placed(&self, rank: usize, group: u8, call: Call) -> Exchange {
        let message = match call.with {
            With::All => None,
            With::To(peer) => Some([rank, peer]),
            With::From(peer) => Some([peer, rank]),
        };
        let [began, ended] = [call.began, call.ended].map(|moment| self.timebase.nanoseconds(moment));
        Exchange { group, message, sequence: call.call.sequence, began, ended, beside: call.beside }
    }
}

/// The number of the first replica's group for batch norm, after those of the world.
const BATCH_NORM: u8 = 2;
