//! Keeps what a rank did when, step by step.

use std::time::{Duration, Instant};

use ringstep_comm::log::{Exchange as Call, With};
use ringstep_nn::Model;
use ringstep_nn::state::State;

use crate::accounts::split;
use crate::clock::Clock;
use crate::content::Sent;
use crate::records::{Exchange, Parts, Report, Step};
use crate::replica::{Replica, Trained};
use crate::timebase::Timebase;
use crate::trace::{Kind, Span, Tracer};
use crate::world::World;

/// How often a rank says how far it is.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Steps that have not been reported yet: several go at once.
pub(crate) struct Unreported {
    steps: Vec<Step>,
    due: Instant,
}

impl Unreported {
    pub fn new() -> Self {
        Self { steps: Vec::new(), due: Instant::now() + REPORT_INTERVAL }
    }

    /// A step is done. It is reported now or later.
    pub fn add(&mut self, step: Step, report: &mut dyn FnMut(Report)) {
        self.steps.push(step);
        if Instant::now() >= self.due {
            self.report(report);
        }
    }

    /// Reports what there is.
    pub fn report(&mut self, report: &mut dyn FnMut(Report)) {
        self.due = Instant::now() + REPORT_INTERVAL;
        report(Report::Steps(std::mem::take(&mut self.steps)));
    }
}

/// The moments of a rank, for its reports and for traces alike.
pub(crate) struct Recorder {
    pub clock: Clock,
    timebase: Timebase,
    tracer: Tracer,
    /// The step that goes on.
    open: Step,
    /// What those before it took, by what was done.
    pub parts: Parts,
    /// What was sent in them, by what it was.
    pub sent: Sent,
}

impl Recorder {
    /// Starts the clock; traces the first `traced` steps.
    pub fn start(timebase: Timebase, traced: usize) -> Self {
        let (tracer, open) = (Tracer::new(timebase, traced), Step::default());
        Self { clock: Clock::start(), timebase, tracer, open, parts: Parts::default(), sent: Sent::default() }
    }

    /// To go on with the records later.
    pub fn state(&mut self, state: &mut State<'_>) {
        state.within("clock", |state| self.clock.state(state));
        state.within("parts", |state| self.parts.state(state));
        state.within("sent", |state| self.sent.state(state));
        state.count("step", &mut self.open.step);
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

    /// Something about this was encoded or decoded then, wherever exchanges go on.
    pub fn encoded(&mut self, about: &str, span: [Instant; 2]) {
        self.tracer.between(self.open.step, Kind::Encode, about, span);
    }

    /// A backward of this model began then, its last gradient was written then, and now it is over.
    pub fn backward(&mut self, began: Instant, ready: Instant, model: &Model) {
        let [began, ready, ended] = [began, ready, Instant::now()].map(|moment| self.timebase.nanoseconds(moment));
        self.open.computing.push([began, ready]);
        self.open.synchronising.push([ready, ended]);
        self.open.ready = ready;
        self.tracer.backward(self.open.step, model);
    }

    /// What comes now belongs to this step.
    pub fn is_in_step(&mut self, step: usize) {
        self.open.step = step;
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
    pub fn end(&mut self, world: &mut World<'_>, replicas: &[Replica<'_>]) -> Step {
        let [began, ended] = self.clock.since_last_step();
        self.close(world, replicas, [began, ended]);
        std::mem::take(&mut self.open)
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
            self.sent.add(world.content(call.label), call.sent);
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
