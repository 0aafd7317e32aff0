//! Local SGD (Stich, "Local SGD converges fast and communicates little", ICLR 2019): workers step alone, and from time to
//! time their models are averaged.
//!
//! ```text
//! w_r <- w_r - lr mean_r(g)                 H times, over the images of rank r alone
//! w   <- sum_r (n_r / n) w_r                n_r images of rank r since the last average, n of all
//! ```
//!
//! Compressed, it is not models that are sent but how far they have moved, since codes of whole models would lose most of what
//! they are: with a the model that all have had since the last average, and what error feedback adds to each difference,
//!
//! ```text
//! w   <- a + sum_r C((n_r / n) (w_r - a))
//! ```
//!
//! All workers add the same sum to the same bits, so their models stay equal; what a code lacks of a difference comes with the
//! next one.
//!
//! With H = 1 and without momentum this is the step of a synchronous way. What optimizers remember stays with their ranks;
//! batch norm's running statistics are averaged like the parameters.

use std::time::Instant;

use ringstep_comm::{Algorithm, Group, How, Op};
use ringstep_nn::Model;
use ringstep_nn::schedule::Schedule;
use ringstep_nn::state::State;
use serde::{Deserialize, Serialize};

use super::reducer::Reducer;
use super::{Next, Progress, Strategy, Turn, Weighting, add, how};
use crate::Job;
use crate::clock::moment_before;
use crate::content::Content;
use crate::error::WorkerError;
use crate::records::Compressed;
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
    labels: Labels,
    /// Steps of an epoch, and those of the job that all workers together take.
    epoch: usize,
    budget: usize,
    /// This worker's steps since the last average, those of all until then, and when that was.
    since: usize,
    total: usize,
    began: Instant,
    /// If differences are sent instead of models.
    differences: Option<Differences>,
}

/// What it takes to send compressed differences.
struct Differences {
    /// a above.
    anchor: Vec<f32>,
    reducer: Reducer,
    /// Averages so far.
    rounds: usize,
}

/// What is exchanged at the end of a round.
#[derive(Clone, Copy)]
struct Labels {
    counts: u16,
    statistics: u16,
    average: u16,
}

impl LocalSgd {
    /// For a job on so many images.
    pub fn new(
        job: (&Job, usize),
        model: &mut Model,
        (round, algorithm): (Round, Option<Algorithm>),
        schedule: &Schedule,
        world: &mut World<'_>,
    ) -> Self {
        let labels = Labels {
            counts: world.label("counts", Content::Control),
            statistics: world.label("statistics", Content::Statistics),
            average: world.label("average", Content::Parameters),
        };
        let workers = world.workers().world();
        let (epoch, budget) = (schedule.epoch, workers.saturating_mul(schedule.steps));
        let anchor = model.values_mut().to_vec();
        let slices = vec![("average".to_owned(), 0..anchor.len())];
        let differences = job.0.compress.map(|_| {
            let reducer = Reducer::new(job, algorithm, model, slices, Content::Parameters, world);
            Differences { anchor, reducer, rounds: 0 }
        });
        Self { round, algorithm, labels, epoch, budget, since: 0, total: 0, began: Instant::now(), differences }
    }

    /// The workers have equal models now, and have taken so many steps together.
    pub fn begin(&mut self, total: usize) {
        (self.since, self.total, self.began) = (0, total, Instant::now());
    }

    /// The model that all workers have now.
    pub fn anchor(&mut self, values: &[f32]) {
        if let Some(differences) = &mut self.differences {
            differences.anchor.copy_from_slice(values);
        }
    }

    /// A step of this worker alone, then the average if the round is over. Returns whether it is.
    pub fn step(&mut self, world: &mut World<'_>, replica: &mut Replica<'_>, turn: Turn) -> Result<bool, WorkerError> {
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
    pub fn end(&mut self, world: &mut World<'_>, replica: &mut Replica<'_>) -> Result<bool, WorkerError> {
        let open = self.since > 0;
        if open {
            self.average(world, replica)?;
        }
        Ok(open)
    }

    /// w <- 1/p sum_r (p n_r / n) w_r: where p workers had as many images each, the weights are exactly 1.
    fn average(&mut self, world: &mut World<'_>, replica: &mut Replica<'_>) -> Result<(), WorkerError> {
        let workers = world.workers_for(self.labels.counts);
        // Who comes late from a slow step is waited for.
        workers.meet()?;
        let own = replica.take_images();
        let mut sums = [own as f64, self.since as f64];
        workers.all_reduce(&mut sums, Op::Sum, How::default())?;
        let [images, steps] = sums;
        let weight = weight_in_average(own, images as usize, workers.world());
        let Labels { statistics, average, .. } = self.labels;
        let mut mean = |label: u16, numbers: &mut [f32]| {
            workers.label(label);
            numbers.iter_mut().for_each(|number| *number *= weight);
            workers.all_reduce(numbers, Op::Mean, how(self.algorithm))
        };
        if replica.model.has_statistics() {
            mean(statistics, replica.model.statistics_mut())?;
        }
        match &mut self.differences {
            None => mean(average, replica.model.values_mut())?,
            Some(differences) => {
                let share = (own as f64 / images) as f32;
                differences.average(workers, replica.model.values_mut(), share)?;
            }
        }
        self.begin(self.total + steps as usize);
        Ok(())
    }
}

impl Differences {
    /// Makes this worker's model that of all, to which its difference counts for this share.
    fn average(&mut self, workers: &mut Group, values: &mut [f32], share: f32) -> Result<(), WorkerError> {
        for (value, anchor) in values.iter_mut().zip(&self.anchor) {
            *value = share * (*value - anchor);
        }
        self.reducer.begin_step(self.rounds);
        self.rounds += 1;
        self.reducer.sum(workers, 0, values)?;
        add(values, &self.anchor);
        self.anchor.copy_from_slice(values);
        Ok(())
    }
}

/// What a worker's model is multiplied with before the mean over `workers` models: its share of the images, p times.
pub fn weight_in_average(own_images: usize, all_images: usize, workers: usize) -> f32 {
    (own_images as f64 * workers as f64 / all_images as f64) as f32
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

    fn state(&mut self, state: &mut State<'_>) {
        state.count("since", &mut self.since);
        state.count("total", &mut self.total);
        let mut seconds = self.began.elapsed().as_secs_f64();
        state.number("seconds", &mut seconds);
        self.began = moment_before(seconds);
        if let Some(Differences { anchor, reducer, rounds }) = &mut self.differences {
            state.numbers("anchor", anchor);
            state.count("rounds", rounds);
            reducer.state(state);
        }
    }

    /// By period, each takes as many steps in a round as it can.
    fn is_common_moment(&self) -> bool {
        self.since == 0 || !matches!(self.round, Round::Period(_))
    }

    fn compressed(&self) -> Option<Compressed> {
        self.differences.as_ref().and_then(|differences| differences.reducer.compressed())
    }

    fn take_encoding(&mut self) -> Vec<(u16, [Instant; 2])> {
        self.differences.as_mut().map_or_else(Vec::new, |differences| differences.reducer.take_encoding())
    }

    fn weighting(&self, _: usize) -> Weighting {
        Weighting::OwnImages
    }

    /// By period, workers are not at the same step when they meet.
    fn replicas_equal(&self) -> bool {
        self.since == 0 && !matches!(self.round, Round::Period(_))
    }
}
