//! What a server decides: whose gradients have come, who waits for parameters, and who may have them. It knows neither what
//! connects it with workers nor any clock, so that a simulation can ask it, too.

use std::ops::Range;
use std::time::Duration;

use ringstep_nn::optim::Optimizer;
use ringstep_nn::state::State;
use ringstep_nn::team::Team;

use super::keeper::{Keeper, Read};
use super::messages::{Answer, Push};
use crate::Job;

/// The parameters of a server, and the workers that it serves.
pub struct Service {
    keeper: Keeper,
    workers: Vec<Worker>,
    /// Steps that workers have been sent to do, and how many there are to be.
    begun: u64,
    budget: u64,
}

/// A worker as a server sees it.
#[derive(Debug, Clone, Default)]
struct Worker {
    /// Gradients that have come.
    steps: u64,
    waits: bool,
    finished: bool,
}

/// What a worker gets that may have the parameters.
pub struct Reply<'a> {
    /// What is said with them.
    pub answer: Answer,
    /// They themselves.
    pub values: &'a [f32],
    /// How stale they are, if that shows already now and a step comes of it.
    pub staleness: Option<u64>,
}

impl Service {
    /// For a job on so many images, of a shard with these parameters and this optimizer.
    pub fn new(job: &Job, images: usize, values: Vec<f32>, optimizer: Optimizer) -> Self {
        Self {
            keeper: Keeper::new(job, images, values, optimizer),
            workers: vec![Worker::default(); job.workers],
            begun: 0,
            budget: (job.workers as u64).saturating_mul(job.steps(images) as u64),
        }
    }

    /// Steps that workers have been sent to do.
    pub fn begun(&self) -> u64 {
        self.begun
    }

    /// Steps that the parameters have taken.
    pub fn steps(&self) -> u64 {
        self.keeper.steps()
    }

    /// Gradients of a worker that have come.
    pub fn steps_of(&self, worker: usize) -> u64 {
        self.workers[worker].steps
    }

    /// Whether a worker waits for an answer.
    pub fn waits(&self, worker: usize) -> bool {
        self.workers[worker].waits
    }

    /// Whether some worker has said that it has done its last step.
    pub fn any_finished(&self) -> bool {
        self.workers.iter().any(|worker| worker.finished)
    }

    /// Whether a worker has said that it has done its last step, or has left before it.
    pub fn has_finished(&self, worker: usize) -> bool {
        self.workers[worker].finished
    }

    /// Whether all workers have said that they have done their last step.
    pub fn all_finished(&self) -> bool {
        self.workers.iter().all(|worker| worker.finished)
    }

    /// Whether those that may not read yet wait for this worker's gradient.
    pub fn waits_for(&self, worker: usize) -> bool {
        self.keeper.waits_for(worker)
    }

    /// A worker's whole gradient has come. Returns how stale it was, if that shows only now.
    pub fn push(
        &mut self,
        team: &mut Team,
        worker: usize,
        push: &Push,
        gradient: Vec<f32>,
    ) -> Result<Option<u64>, &'static str> {
        self.workers[worker].steps += 1;
        self.keeper.push(team, worker, push, gradient)
    }

    /// A worker wants the parameters for its next step.
    pub fn pull(&mut self, worker: usize) {
        self.workers[worker].waits = true;
    }

    /// A worker goes before the end, and gets nothing more.
    pub fn leave(&mut self, worker: usize) {
        self.workers[worker].finished = true;
    }

    /// A worker has done its last step, and wants the parameters that all end with.
    pub fn finish(&mut self, team: &mut Team, worker: usize) {
        self.workers[worker].waits = true;
        self.workers[worker].finished = true;
        self.keeper.leave(team, worker);
    }

    /// What a worker gets now, if it waits and may have it.
    pub fn reply(&mut self, team: &mut Team, to: usize) -> Option<Reply<'_>> {
        let workers = self.workers.len() as u64;
        let worker = &mut self.workers[to];
        if !worker.waits || worker.finished {
            return None;
        }
        let Read { values, version, staleness } = self.keeper.read(team, worker.steps)?;
        let (step, end) = (self.begun / workers, self.begun >= self.budget);
        worker.waits = false;
        self.begun += u64::from(!end);
        Some(Reply { answer: Answer::Values { version, step, end }, values, staleness: staleness.filter(|_| !end) })
    }

    /// When it is to take a step by what has arrived, after the beginning.
    pub fn due(&self) -> Option<Duration> {
        self.keeper.due()
    }

    /// Takes that step once it is time.
    pub fn apply_in_time(&mut self, team: &mut Team, now: Duration) {
        self.keeper.apply_in_time(team, now);
    }

    /// What it remembers between two steps of all workers.
    pub fn state(&mut self, state: &mut State<'_>) {
        state.within("keeper", |state| self.keeper.state(state));
        for (rank, worker) in self.workers.iter_mut().enumerate() {
            state.within(format_args!("worker.{rank}"), |state| state.number("steps", &mut worker.steps));
        }
        state.number("begun", &mut self.begun);
    }

    /// The parameters after all gradients, once all workers have left.
    pub fn last(&mut self, team: &mut Team) -> &[f32] {
        self.keeper.last(team)
    }
}

/// The pieces of a bucket of gradients, as each server gets them: its number, and where they stand in the flat buffer.
pub fn pieces(shards: &[Range<usize>], bucket: Range<usize>) -> impl Iterator<Item = (usize, Range<usize>)> + '_ {
    let piece = move |shard: &Range<usize>| shard.start.max(bucket.start)..shard.end.min(bucket.end);
    shards.iter().map(piece).enumerate().filter(|(_, piece)| !piece.is_empty())
}
