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
    /// After the step in which so many seconds since the last average are over. Workers share the steps of the job then, of which
    /// a fast one does more: it ends when all together have done as many as there would be otherwise, or when what is left is
    /// less than a step of each.
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
    /// By period, the most steps that this worker may take in this round.
    share: usize,
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
        let (began, share) = (Instant::now(), schedule.steps);
        Self { round, algorithm, labels, epoch, budget, since: 0, total: 0, began, share, differences }
    }

    /// The workers have equal models now, and have taken so many steps each, in step.
    pub fn begin(&mut self, workers: usize, steps: usize) {
        self.begin_round(workers * steps, (self.budget / workers).saturating_sub(steps));
    }

    fn begin_round(&mut self, total: usize, share: usize) {
        (self.since, self.total, self.began, self.share) = (0, total, Instant::now(), share);
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
            Round::Period(seconds) => self.began.elapsed().as_secs_f64() >= seconds || self.since == self.share,
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
        let (own, rank) = (replica.take_images(), workers.rank());
        // The images of all, and the steps of each.
        let mut counts = vec![0.0; 1 + workers.world()];
        (counts[0], counts[1 + rank]) = (own as f64, self.since as f64);
        workers.all_reduce(&mut counts, Op::Sum, How::default())?;
        let images = counts[0];
        let steps: Vec<usize> = counts[1..].iter().map(|&steps| steps as usize).collect();
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
        let total = self.total + steps.iter().sum::<usize>();
        self.begin_round(total, share_of(self.budget.saturating_sub(total), &steps, rank));
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

/// What a worker may take of the steps that are left, which are at least one each, if workers that have taken so many in the same
/// time are to be through with them at the same time.
fn share_of(left: usize, steps: &[usize], rank: usize) -> usize {
    let (sure, all) = (steps.len(), steps.iter().sum::<usize>().max(1) as u128);
    // Those of the workers before this one end where its own begin, so that together they are all that are left.
    let until = |rank: usize| {
        let before: usize = steps[..rank].iter().sum();
        (before as u128 * left.saturating_sub(sure) as u128 / all) as usize
    };
    1 + until(rank + 1) - until(rank)
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
            Round::Period(_) if self.budget.saturating_sub(self.total) < world.workers().world() => Next::End,
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
        state.count("share", &mut self.share);
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Every worker has a step at least, all together have what is left, and each has as much of it as of the last round.
        #[test]
        fn what_is_left_is_shared_out(steps in prop::collection::vec(1usize..1000, 1..9), more in 0usize..10_000) {
            let left = steps.len() + more;
            let shares: Vec<usize> = (0..steps.len()).map(|rank| share_of(left, &steps, rank)).collect();
            prop_assert_eq!(shares.iter().sum::<usize>(), left);
            let all: usize = steps.iter().sum();
            for (share, taken) in shares.into_iter().zip(steps) {
                let expected = 1.0 + more as f64 * taken as f64 / all as f64;
                prop_assert!(share >= 1 && (share as f64 - expected).abs() <= 1.0, "{share}, not {expected}");
            }
        }
    }
}
