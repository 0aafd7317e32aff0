//! What a rank that trains remembers, and where it is halted.

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use ringstep_comm::cost::Tuning;
use ringstep_nn::state::{Saved, State};

use super::Trainer;
use crate::error::WorkerError;
use crate::halt::{Halt, Halts, Then};
use crate::records::Report;
use crate::saving::file;
use crate::saving::writer::{Task, Writer, test_file};
use crate::snapshots::Snapshot;
use crate::world::{CHIEF, World};

/// The measured numbers on which the bits of a job depend, since choices rest on them.
const TUNING: &str = "tuning";

/// Sets the numbers that choices rest on to those of before. Returns whether there are some.
pub(super) fn restore_tuning(world: &mut World<'_>, saved: &Saved) -> bool {
    let mut numbers = [0.0; 12];
    // All the rest is for others.
    let _ = saved.load(|state| state.numbers(TUNING, &mut numbers));
    let known = numbers.iter().any(|&number| number > 0.0);
    if known {
        set_tuning(world, numbers);
    }
    known
}

fn tuning(world: &mut World<'_>) -> [f64; 12] {
    let numbers = |Tuning { alpha, beta, gamma, turn, sync, copy }| [alpha, beta, gamma, turn, sync, copy];
    let [all, workers] = [world.all.tuning(), world.workers().tuning()].map(numbers);
    std::array::from_fn(|at| if at < 6 { all[at] } else { workers[at - 6] })
}

fn set_tuning(world: &mut World<'_>, numbers: [f64; 12]) {
    let tuning = |first: usize| {
        let [alpha, beta, gamma, turn, sync, copy] = std::array::from_fn(|at| numbers[first + at]);
        Tuning { alpha, beta, gamma, turn, sync, copy }
    };
    world.all.set_tuning(tuning(0));
    world.workers().set_tuning(tuning(6));
}

/// What belongs to one worker alone, or is added up over all of them: what it has trained on, what compression has left out of its
/// gradients, what it has sent.
const OWN: [&str; 14] = [
    "images",
    "loss_sum",
    "correct",
    "images_since",
    "residuals",
    "velocities",
    "accumulated",
    "record",
    "parts",
    "sent",
    "payload",
    "wire",
    "messages",
    "bytes_sent",
];

impl Trainer<'_> {
    /// What a worker goes on from that joins others: what their chief remembers, but for what is its own.
    pub(super) fn beside(&mut self, chief: &Saved) -> Saved {
        let own = Saved::of(|state| self.state(state, &mut Vec::new()));
        let is_own = |name: &String| name.split('.').any(|part| OWN.contains(&part));
        let own = own.numbers.into_iter().filter(|(name, _)| is_own(name));
        let common = chief.numbers.clone().into_iter().filter(|(name, _)| !is_own(name));
        Saved { numbers: common.chain(own).collect() }
    }

    /// Goes on from where a rank of this number was before.
    pub(super) fn restore(&mut self, saved: &Saved, checkpoints: Option<&Path>) -> Result<(), WorkerError> {
        let (rank, mut tests) = (self.world.rank(), Vec::new());
        let foreign = |foreign| WorkerError::OtherState { rank, foreign };
        saved.load(|state| self.state(state, &mut tests)).map_err(foreign)?;
        self.began_at = self.progress.done;
        self.compressed = self.strategy.compressed();
        self.snapshots.clear();
        self.test_steps = tests;
        for &step in self.test_steps.iter().filter(|_| rank == CHIEF) {
            let folder = checkpoints.unwrap_or(Path::new("."));
            let path = test_file(folder, step as usize);
            let mut test = Snapshot::like(&mut self.replicas[0].model);
            file::read(&path)?.load(|state| test.state(state)).map_err(foreign)?;
            self.snapshots.push(Arc::new(test));
        }
        self.replicas.iter_mut().try_for_each(|replica| replica.find_place(rank))
    }

    /// All that the next step depends on, and what the records go on from; models that wait for a test by their steps.
    pub(super) fn state(&mut self, state: &mut State<'_>, tests: &mut Vec<u64>) {
        let mut numbers = tuning(&mut self.world);
        state.numbers(TUNING, &mut numbers);
        set_tuning(&mut self.world, numbers);
        for (at, replica) in self.replicas.iter_mut().enumerate() {
            state.within(format_args!("replica.{at}"), |state| replica.state(state));
        }
        state.within("strategy", |state| self.strategy.state(state));
        state.within("progress", |state| {
            state.count("done", &mut self.progress.done);
            state.count("epoch", &mut self.epoch);
            let mut computed = self.computed.as_secs_f64();
            state.number("computed", &mut computed);
            self.computed = Duration::try_from_secs_f64(computed).unwrap_or_default();
        });
        state.within("records", |state| {
            state.within("epoch", |state| self.open.state(state));
            state.within("recorder", |state| self.recorder.state(state));
            let mut traffic = self.traffic();
            for (name, numbers) in
                [("payload", &mut traffic.payload), ("wire", &mut traffic.wire), ("messages", &mut traffic.messages)]
            {
                state.numbers(name, numbers);
            }
            self.set_traffic(traffic);
            state.list("tests", tests);
        });
    }

    /// Between two steps: waits while it is told to, and saves itself if it is told to or if it is time. Says if this is the end.
    pub(super) fn halt(
        &mut self,
        halts: &Halts,
        writer: &mut Option<Writer>,
        every: Option<usize>,
        report: &mut dyn FnMut(Report),
    ) -> Result<Option<Then>, WorkerError> {
        if let Some(writer) = writer {
            writer.report(report);
        }
        if halts.abandoned().load(Ordering::Relaxed) {
            return Err(WorkerError::Abandoned { rank: self.world.rank() });
        }
        let told = if self.strategy.is_common_moment() { self.pass(halts) } else { None };
        let done = self.progress.done;
        // Not where it begins, or has just gone on from.
        let due =
            every.is_some_and(|every| done > self.began_at && done < self.progress.of && done.is_multiple_of(every));
        let name = told.and_then(|halt| halt.save).or(due.then_some(done));
        if let (Some(name), Some(writer)) = (name, writer) {
            self.save(name, writer, report)?;
        }
        Ok(told.map(|halt| halt.then).filter(|&then| then != Then::GoOn))
    }

    /// The same where there is no further step. Others may have one, and are halted with a rank that they are told is there.
    pub(super) fn halt_in_the_end(
        &mut self,
        halts: &Halts,
        writer: &mut Option<Writer>,
        report: &mut dyn FnMut(Report),
    ) -> Result<Option<Then>, WorkerError> {
        let done = self.progress.done;
        while self.strategy.is_common_moment()
            && let Some(halt) = self.recorder.clock.pausing(|| halts.pass_or_close(done))
        {
            if let (Some(name), Some(writer)) = (halt.save, writer.as_mut()) {
                self.save(name, writer, report)?;
            }
            if halt.then != Then::GoOn {
                return Ok(Some(halt.then));
            }
        }
        Ok(None)
    }

    /// The time of a hold does not count.
    fn pass(&mut self, halts: &Halts) -> Option<Halt> {
        let done = self.progress.done;
        self.recorder.clock.pausing(|| halts.pass(done))
    }

    /// Copies its state, and lets it be written.
    fn save(&mut self, name: usize, writer: &mut Writer, report: &mut dyn FnMut(Report)) -> Result<(), WorkerError> {
        let (rank, before) = (self.world.rank(), self.all_traffic());
        self.strategy.before_saving(&mut self.world, &mut self.replicas, name)?;
        self.left_out += self.all_traffic() - before;
        self.unreported.report(report);
        report(Report::Checkpoint(name));
        let tests = self.snapshots.clone();
        let mut steps = self.test_steps.clone();
        let state = Saved::of(|state| self.state(state, &mut steps));
        let task = Task { name, state, tests };
        writer.write(task, report).map_err(WorkerError::no_thread(rank, "write checkpoints"))
    }
}
