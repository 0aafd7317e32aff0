//! Local SGD (Stich, "Local SGD converges fast and communicates little", ICLR 2019): workers step alone, and from time to
//! time their models are averaged.
//!
//! ```text
//! w_r <- w_r - lr mean_r(g)                 H times, over the images of rank r alone
//! w   <- sum_r (n_r / n) w_r                n_r images of rank r since the last average, n of all
//! ```
//!
//! With H = 1 and without momentum this is the step of a synchronous way. What optimizers remember stays with their ranks;
//! batch norm's running statistics are averaged like the parameters.

use std::time::Instant;

use ringstep_comm::{Algorithm, CollectiveError, How, Op};
use ringstep_nn::schedule::Schedule;
use serde::{Deserialize, Serialize};

use super::{Next, Progress, Strategy, Turn, Weighting, how};
use crate::error::WorkerError;
use crate::replica::Replica;
use crate::world::World;

/// When models are averaged.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Round {
    /// After every so many steps.
    Every(usize),
    /// After every epoch.
    EveryEpoch,
    /// After the step in which so many seconds since the last average are over. Workers share the steps of the job then:
    /// it ends when all together have done as many as there would be otherwise, of which a fast one does more.
    Period(f64),
}

/// Models that are averaged from time to time.
pub struct LocalSgd {
    round: Round,
    algorithm: Option<Algorithm>,
    label: u16,
    /// Steps of an epoch, and those of the job that all workers together take.
    epoch: usize,
    budget: usize,
    /// This worker's steps since the last average, those of all until then, and when that was.
    since: usize,
    total: usize,
    began: Instant,
}

impl LocalSgd {
    pub fn new(round: Round, algorithm: Option<Algorithm>, schedule: &Schedule, world: &mut World<'_>) -> Self {
        let (label, workers) = (world.label("average"), world.workers().world());
        let (epoch, budget) = (schedule.epoch, workers.saturating_mul(schedule.steps));
        Self { round, algorithm, label, epoch, budget, since: 0, total: 0, began: Instant::now() }
    }

    /// The workers have equal models now, and have taken so many steps together.
    pub fn begin(&mut self, total: usize) {
        (self.since, self.total, self.began) = (0, total, Instant::now());
    }

    /// A step of this worker alone, then the average if the round is over. Returns whether it is.
    pub fn step(
        &mut self,
        world: &mut World<'_>,
        replica: &mut Replica<'_>,
        turn: Turn,
    ) -> Result<bool, CollectiveError> {
        replica.optimize_alone(turn.lr);
        self.since += 1;
        let over = match self.round {
            Round::Every(steps) => self.since == steps,
            Round::EveryEpoch => (turn.step + 1).is_multiple_of(self.epoch),
            Round::Period(seconds) => {
                self.began.elapsed().as_secs_f64() >= seconds || self.total + self.since >= self.budget
            }
        };
        if over {
            self.average(world, replica)?;
        }
        Ok(over)
    }

    /// The last average, if there have been steps since the one before. Returns whether there have been.
    pub fn end(&mut self, world: &mut World<'_>, replica: &mut Replica<'_>) -> Result<bool, CollectiveError> {
        let open = self.since > 0;
        if open {
            self.average(world, replica)?;
        }
        Ok(open)
    }

    /// w <- 1/p sum_r (p n_r / n) w_r: where p workers had as many images each, the weights are exactly 1.
    fn average(&mut self, world: &mut World<'_>, replica: &mut Replica<'_>) -> Result<(), CollectiveError> {
        let workers = world.workers_for(self.label);
        // Who comes late from a slow step is waited for.
        workers.meet()?;
        let own = replica.take_images() as f64;
        let mut sums = [own, self.since as f64];
        workers.all_reduce(&mut sums, Op::Sum, How::default())?;
        let [images, steps] = sums;
        let weight = (own * workers.world() as f64 / images) as f32;
        let mut mean = |numbers: &mut [f32]| {
            numbers.iter_mut().for_each(|number| *number *= weight);
            workers.all_reduce(numbers, Op::Mean, how(self.algorithm))
        };
        mean(replica.model.values_mut())?;
        if replica.model.has_statistics() {
            mean(replica.model.statistics_mut())?;
        }
        self.begin(self.total + steps as usize);
        Ok(())
    }
}

impl Strategy for LocalSgd {
    /// By period, the step of the job is that of a worker as fast as this one has been since the last average.
    fn before(
        &mut self,
        world: &mut World<'_>,
        _: &mut [Replica<'_>],
        progress: &Progress,
    ) -> Result<Next, WorkerError> {
        Ok(match self.round {
            Round::Every(_) | Round::EveryEpoch => progress.next(),
            Round::Period(_) if self.total >= self.budget => Next::End,
            Round::Period(_) => {
                let step = self.total / world.workers().world() + self.since;
                Next::Step(step.min(progress.of - 1))
            }
        })
    }

    fn update(&mut self, world: &mut World<'_>, replicas: &mut [Replica<'_>], turn: Turn) -> Result<(), WorkerError> {
        self.step(world, &mut replicas[0], turn)?;
        Ok(())
    }

    fn finish(&mut self, world: &mut World<'_>, replicas: &mut [Replica<'_>]) -> Result<(), WorkerError> {
        self.end(world, &mut replicas[0])?;
        Ok(())
    }

    fn weighting(&self, _: usize) -> Weighting {
        Weighting::OwnImages
    }

    /// By period, workers are not at the same step when they meet.
    fn replicas_equal(&self) -> bool {
        self.since == 0 && !matches!(self.round, Round::Period(_))
    }
}
