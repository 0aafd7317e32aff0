//! States that a rank keeps in memory on the way, to go back to when another rank fails.
//!
//! All ranks keep theirs after the same steps, so that there is always one that all have. How far these lie apart is agreed on
//! once, after the first few: so far that keeping them takes a hundredth of the time.

use std::time::{Duration, Instant};

use ringstep_nn::state::Saved;

use super::Trainer;
use crate::error::WorkerError;
use crate::job::Job;
use crate::records::Report;
use crate::saving::memory::Memory;
use crate::strategy::{Round, SyncMethod};
use crate::world::CHIEF;

/// Keeping states may take one of so many parts of the time.
const SHARE: f64 = 100.0;
/// States that are kept after each step before the ranks agree on how often they do it.
const TRIALS: usize = 8;
/// No more steps lie between two of them.
const FURTHEST: usize = 1024;

/// When a rank keeps its state.
pub(super) struct Points<'a> {
    memory: &'a Memory,
    /// Steps after which ranks are as far as each other.
    round: usize,
    /// Steps from one to the next.
    every: usize,
    /// How many there were until ranks have agreed, when the first was over, and what the others have taken.
    trials: usize,
    since: Option<(Instant, usize)>,
    spent: Duration,
}

impl<'a> Points<'a> {
    /// Of a job on so many images, if its workers are ever known to be as far as each other, and nobody else holds the parameters.
    pub fn new(job: &Job, images: usize, memory: &'a Memory) -> Option<Self> {
        let round = match (job.sync, job.sync.round()) {
            (SyncMethod::None, _) => return None,
            _ if job.sync.lets_workers_differ() || job.sync.servers(job.workers) > 0 => return None,
            (_, Some(Round::Every(steps))) => steps,
            (_, Some(Round::EveryEpoch)) => job.steps_an_epoch(images),
            _ => 1,
        };
        Some(Self { memory, round, every: round, trials: 0, since: None, spent: Duration::ZERO })
    }
}

impl Trainer<'_> {
    /// Between two steps: keeps its state, if it is time to.
    pub(super) fn keep_point(
        &mut self,
        points: &mut Points<'_>,
        report: &mut dyn FnMut(Report),
    ) -> Result<(), WorkerError> {
        let done = self.progress.done;
        if done == self.began_at || done >= self.progress.of || !done.is_multiple_of(points.every) {
            return Ok(());
        }
        let began = Instant::now();
        self.keep_state(points, report);
        if points.trials < TRIALS {
            points.trials += 1;
            match points.since {
                None => points.since = Some((Instant::now(), done)),
                Some(_) => points.spent += began.elapsed(),
            }
            if points.trials == TRIALS {
                self.agree_on_points(points)?;
            }
        }
        Ok(())
    }

    /// Keeps its state, whether or not it is time to: one that joins others has the state then that they have gone on from.
    pub(super) fn keep_state(&mut self, points: &Points<'_>, report: &mut dyn FnMut(Report)) {
        // Whoever listens then has all records up to here, whatever becomes of this process.
        self.unreported.report(report);
        report(Report::Point { step: self.progress.done, epoch: self.epoch_so_far() });
        let mut tests = self.test_steps.clone();
        let state = Saved::of(|state| self.state(state, &mut tests));
        // Where there is no memory left, an older state must do.
        let _ = points.memory.keep(self.progress.done, &state);
    }

    /// The chief has measured how long its states took, and its steps; all do as it does.
    fn agree_on_points(&mut self, points: &mut Points<'_>) -> Result<(), WorkerError> {
        let (since, first) = points.since.expect("there were some");
        let each = points.spent.as_secs_f64() / (TRIALS - 1) as f64;
        let steps = (self.progress.done - first) as f64;
        let step = since.elapsed().saturating_sub(points.spent).as_secs_f64() / steps;
        let every = (SHARE * each / step).ceil().clamp(1.0, FURTHEST as f64) as i64;
        let mut every = [every];
        self.leaving_out(|trainer| trainer.world.workers().broadcast(&mut every, CHIEF))?;
        points.every = (every[0].max(1) as usize).next_multiple_of(points.round);
        Ok(())
    }
}
