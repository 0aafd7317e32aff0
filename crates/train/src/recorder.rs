//! Keeps a rank's times: what each step took and what went on when.

use std::time::{Duration, Instant};

use ringstep_comm::log::Exchange;
use ringstep_nn::Model;

use crate::clock::Clock;
use crate::records::{Parts, Step};
use crate::replica::{Replica, Trained};
use crate::timebase::Timebase;
use crate::trace::{Kind, Span, Tracer};
use crate::world::World;

/// A rank's clock and its trace, which are told the same moments.
pub(crate) struct Recorder {
    pub clock: Clock,
    timebase: Timebase,
    tracer: Tracer,
    /// The step that goes on, from 0.
    step: usize,
    /// What the clock had added up before it.
    before: Parts,
    /// When its last gradient was written, and when the strategy was done with it, on the clock of all ranks.
    ready: f64,
    synced: f64,
    /// When each exchange of its last backward began and ended on the same clock, where some began before `ready`.
    overlapping: Vec<[f64; 2]>,
}

impl Recorder {
    /// Starts the clock; traces the first `traced` steps.
    pub fn start(timebase: Timebase, traced: usize) -> Self {
        let (clock, tracer) = (Clock::start(), Tracer::new(timebase, traced));
        let (before, overlapping) = (Parts::of(&clock), Vec::new());
        Self { clock, timebase, tracer, step: 0, before, ready: 0.0, synced: 0.0, overlapping }
    }

    /// Does `work`, and books its time.
    pub fn timed<R>(&mut self, kind: Kind, name: &str, work: impl FnOnce() -> R) -> R {
        let began = Instant::now();
        let result = work();
        let ended = Instant::now();
        self.clock.book(kind, ended - began);
        self.tracer.between(self.step, kind, name, began, ended);
        result
    }

    /// Does `work` after a step's backward, and books its time as the optimizer's, but for the exchanges in it.
    pub fn updating<R>(&mut self, world: &mut World<'_>, work: impl FnOnce(&mut World<'_>) -> R) -> R {
        let began = Instant::now();
        let result = work(world);
        let ended = Instant::now();
        let exchanging = self.exchanged(world);
        self.clock.book(Kind::Optimizer, (ended - began).saturating_sub(exchanging));
        self.tracer.between(self.step, Kind::Optimizer, "optimizer", began, ended);
        result
    }

    /// Books the exchanges since the last time, during which nothing else was done. Returns how long they took.
    pub fn exchanged(&mut self, world: &mut World<'_>) -> Duration {
        let exchanges = world.take_exchanges();
        self.trace(world, &exchanges);
        let took = exchanges.iter().map(|exchange| exchange.ended - exchange.began).sum();
        self.clock.book(Kind::Communication, took);
        took
    }

    /// Books a backward of a batch that is not the step's last, which began then and has ended just now.
    pub fn accumulated(&mut self, began: Instant, model: &Model) {
        self.clock.book(Kind::Backward, began.elapsed());
        self.tracer.backward(self.step, model);
    }

    /// Books a replica's last backward of a step, which began then and has ended just now, with the exchanges during it
    /// and after it.
    pub fn synchronised(&mut self, began: Instant, replica: &Replica<'_>, world: &mut World<'_>) {
        let (ready, ended) = (replica.ready, Instant::now());
        self.clock.book(Kind::Backward, ready - began);
        self.clock.book(Kind::Communication, ended - ready);
        self.tracer.backward(self.step, &replica.model);
        let exchanges = world.take_exchanges();
        self.trace(world, &exchanges);
        let at = |moment| self.timebase.seconds(moment);
        let overlap = exchanges.iter().any(|exchange| exchange.began < ready);
        self.overlapping = match overlap {
            true => exchanges.iter().map(|exchange| [at(exchange.began), at(exchange.ended)]).collect(),
            false => Vec::new(),
        };
        (self.ready, self.synced) = (at(ready), at(ended));
    }

    /// The step is over, and the next begins.
    pub fn end_step(&mut self, trained: Trained) -> Step {
        let (seconds, parts) = (self.clock.end_step(), Parts::of(&self.clock));
        let (images, loss_sum) = (trained.images, trained.score.loss);
        let (ready, synced, overlapping) = (self.ready, self.synced, std::mem::take(&mut self.overlapping));
        let parts_of_step = parts.since(self.before);
        let step =
            Step { step: self.step, images, loss_sum, seconds, ready, synced, overlapping, parts: parts_of_step };
        self.before = parts;
        self.step += 1;
        step
    }

    /// The spans since the last time, if there are any.
    pub fn take_spans(&mut self) -> Option<Vec<Span>> {
        self.tracer.take()
    }

    fn trace(&mut self, world: &World<'_>, exchanges: &[Exchange]) {
        for &Exchange { label, began, ended, .. } in exchanges {
            self.tracer.between(self.step, Kind::Communication, world.name(label), began, ended);
        }
    }
}
