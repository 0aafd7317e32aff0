//! What there is to do: parsed and validated once, then trusted.
//!
//! | look for | in |
//! | --- | --- |
//! | what is trained | [`Design`] |
//! | what cannot be done, and why | [`Job::validate`], [`JobError`] |

mod design;
mod error;
mod validate;

use std::ops::Range;
use std::path::PathBuf;

use ringstep_cpu::Instructions;
use ringstep_data::augment::Augment;
use ringstep_data::shard::{Deal, Shard};
use ringstep_nn::optim::Rule;
use ringstep_nn::schedule::{Curve, Schedule, WarmUp};
use serde::{Deserialize, Serialize};

pub use self::design::Design;
pub use self::error::{JobError, Learners};
pub use self::validate::{MAX_THREADS, MAX_WORKERS};
use crate::SyncMethod;
use crate::batch_norm::BatchNorm;
use crate::compress::Compression;
use crate::slow::Slow;
use crate::strategy::Servers;
use crate::world::Role;

/// One training job, the same on all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// What to train.
    pub model: Design,
    /// How the workers stay in step.
    pub sync: SyncMethod,
    /// Which of them are made slow.
    pub slow: Vec<Slow>,
    /// How they send less than their gradients, if they do.
    pub compress: Option<Compression>,
    /// How many there are.
    pub workers: usize,
    /// Images that a worker takes at once.
    pub batch: usize,
    /// Batches in a step, whose gradients are added up before workers synchronise.
    pub accumulate: usize,
    /// When to stop.
    pub length: Length,
    /// Threads that a worker computes on.
    pub threads: usize,
    /// The instructions that it computes with; whether its machine has them is seen there.
    pub instructions: Instructions,
    /// A file with the initial weights; without one the seed decides.
    pub init: Option<PathBuf>,
    /// How parameters follow their gradients.
    pub rule: Rule,
    /// The full learning rate.
    pub lr: f32,
    /// How it begins.
    pub warm_up: WarmUp,
    /// How it goes on.
    pub curve: Curve,
    /// How much of the right class's probability is spread over all classes.
    pub label_smoothing: f32,
    /// Decides the initial weights, the order of the images and what happens to them at random.
    pub seed: u64,
    /// Whether each epoch has an order of its own.
    pub shuffle: bool,
    /// How the images are dealt out to workers.
    pub deal: Deal,
    /// What happens to training images at random.
    pub augment: Augment,
    /// What workers share of batch norm's statistics.
    pub batch_norm: BatchNorm,
    /// Also test after every so many epochs, not only at the end.
    pub test_every: Option<usize>,
    /// Compare the ranks' parameters after every so many steps.
    pub verify_every: Option<usize>,
    /// Say of so many steps what went on when.
    pub trace_steps: usize,
    /// Say what the cost model would have expected.
    pub predict: bool,
    /// Where these workers began, if others did so before them.
    #[serde(default)]
    pub leg: Leg,
}

/// Where workers began that go on with what others have begun.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Leg {
    /// Steps that were done.
    pub step: usize,
    /// The epoch that they were in.
    pub epoch: usize,
    /// Images that were taken of its order.
    pub images: usize,
}

/// When a job is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Length {
    /// After all images have been seen so many times.
    Epochs(usize),
    /// After so many steps.
    Steps(usize),
}

impl Job {
    /// A job of which nothing else is said: plain SGD with a learning rate of 0.01, one thread a worker, images in the
    /// order of the files.
    pub fn new(model: Design, sync: SyncMethod, workers: usize, batch: usize, length: Length) -> Self {
        Self {
            model,
            sync,
            slow: Vec::new(),
            compress: None,
            workers,
            batch,
            accumulate: 1,
            length,
            threads: 1,
            instructions: Instructions::Auto,
            init: None,
            rule: Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
            lr: 0.01,
            warm_up: WarmUp::Linear { epochs: 0.0 },
            curve: Curve::Constant,
            label_smoothing: 0.0,
            seed: 0,
            shuffle: false,
            deal: Deal::Strided,
            augment: Augment::default(),
            batch_norm: BatchNorm::Local,
            test_every: None,
            verify_every: None,
            trace_steps: 0,
            predict: false,
            leg: Leg::default(),
        }
    }

    /// The same job after so many steps, gone on with by another number of workers: what is left of the epoch is shared out anew.
    pub fn with_workers(&self, workers: usize, step: usize, images: usize) -> Self {
        let (mut epoch, in_epoch) = self.place(step, images);
        let a_step = self.workers * self.sync.learners() * self.batch * self.accumulate;
        let before = if epoch == self.leg.epoch { self.leg.images } else { 0 };
        let mut taken = before + in_epoch * a_step;
        if taken >= images {
            (epoch, taken) = (epoch + 1, 0);
        }
        let slow = self.slow.iter().filter(|slow| slow.rank < workers).cloned().collect();
        Self { workers, slow, leg: Leg { step, epoch, images: taken }, ..self.clone() }
    }

    /// How many ranks there are: workers first, then those that serve them.
    pub fn ranks(&self) -> usize {
        self.workers + self.sync.servers(self.workers)
    }

    /// The ranks of each process, where workers are processes. A server that stands beside a worker is a thread of its
    /// process.
    pub fn places(&self) -> Vec<Vec<usize>> {
        match self.sync.held_by() {
            Some(Servers::Colocated) => (0..self.workers).map(|worker| vec![worker, self.workers + worker]).collect(),
            _ => (0..self.ranks()).map(|rank| vec![rank]).collect(),
        }
    }

    /// What a rank is there for.
    pub fn role(&self, rank: usize) -> Role {
        rank.checked_sub(self.workers).map_or(Role::Worker, Role::Server)
    }

    /// What each rank is there for.
    pub fn roles(&self) -> Vec<Role> {
        (0..self.ranks()).map(|rank| self.role(rank)).collect()
    }

    /// The part of so many training images that a learner has, of which there are as many on each worker; where each has
    /// one, they have their workers' ranks.
    pub fn shard(&self, learner: usize, images: usize) -> Shard {
        let shuffle = self.shuffle.then_some(self.seed);
        Shard {
            images,
            rank: learner,
            world: self.workers * self.sync.learners(),
            batch: self.batch,
            shuffle,
            deal: self.deal,
            taken: (self.leg.epoch, self.leg.images),
        }
    }

    /// The learning rate of each step on so many training images.
    pub fn schedule(&self, images: usize) -> Schedule {
        let epoch = self.steps_an_epoch(images);
        let steps = match self.length {
            Length::Epochs(epochs) => epochs * epoch,
            Length::Steps(steps) => steps,
        };
        Schedule { lr: self.lr, warm_up: self.warm_up, curve: self.curve, epoch, steps }
    }

    /// The step whose learning rate a step has. In a job of epochs it is that of the same place in the data, as if all steps had
    /// been those of as many workers.
    pub fn scheduled(&self, step: usize, images: usize) -> usize {
        let Leg { step: began, epoch, images: taken } = self.leg;
        let a_step = self.workers * self.sync.learners() * self.batch * self.accumulate;
        match self.length {
            Length::Epochs(_) => epoch * self.steps_an_epoch(images) + taken / a_step + (step - began),
            Length::Steps(_) => step,
        }
    }

    /// Steps in the whole job on so many training images.
    pub fn steps(&self, images: usize) -> usize {
        match self.length {
            Length::Epochs(epochs) => match epochs.checked_sub(self.leg.epoch + 1) {
                Some(whole) => {
                    self.leg.step + self.steps_in(self.leg.epoch, images) + whole * self.steps_an_epoch(images)
                }
                None => self.leg.step,
            },
            Length::Steps(steps) => steps,
        }
    }

    /// Steps in an epoch.
    pub fn steps_an_epoch(&self, images: usize) -> usize {
        self.shard(0, images).steps().div_ceil(self.accumulate)
    }

    /// Steps that these workers take in an epoch.
    fn steps_in(&self, epoch: usize, images: usize) -> usize {
        self.shard(0, images).steps_in(epoch).div_ceil(self.accumulate)
    }

    /// The epoch of a step, and the step's number in it among those of these workers.
    pub fn place(&self, step: usize, images: usize) -> (usize, usize) {
        let (first, an_epoch) = (self.steps_in(self.leg.epoch, images), self.steps_an_epoch(images));
        let step = step - self.leg.step;
        match step.checked_sub(first) {
            None => (self.leg.epoch, step),
            Some(after) => (self.leg.epoch + 1 + after / an_epoch, after % an_epoch),
        }
    }

    /// Tests in the course of the training; the last is that of the final model and comes on top.
    pub fn tests_before_the_last(&self, images: usize) -> usize {
        let whole_epochs = (self.steps(images) - 1) / self.steps_an_epoch(images);
        self.test_every.map_or(0, |every| whole_epochs / every)
    }

    /// Which of an epoch's batches belong to one of its steps; the last step may have fewer.
    pub fn batches(&self, epoch: usize, step: usize, images: usize) -> Range<usize> {
        let start = step * self.accumulate;
        start..self.shard(0, images).steps_in(epoch).min(start + self.accumulate)
    }

    /// Batches that a worker takes before a step, since these workers began.
    pub fn batches_before(&self, step: usize, images: usize) -> usize {
        let ((epoch, step), shard) = (self.place(step, images), self.shard(0, images));
        let start = self.batches(epoch, step, images).start;
        match epoch.checked_sub(self.leg.epoch + 1) {
            Some(whole) => {
                shard.steps_in(self.leg.epoch).saturating_add(whole.saturating_mul(shard.steps())).saturating_add(start)
            }
            None => start,
        }
    }

    /// Batches that a worker takes in the whole job; those that are not in step take as many as they can.
    pub fn batches_in_all(&self, images: usize) -> usize {
        if self.sync.lets_workers_differ() {
            return usize::MAX;
        }
        self.batches_before(self.steps(images), images)
    }
}

#[cfg(test)]
mod tests {
    use ringstep_comm::Algorithm;
    use ringstep_nn::Architecture;

    use super::*;
    use crate::compress::Method;
    use crate::strategy::Round;

    pub(super) fn course_job() -> Job {
        let lenet5 = Design::new("lenet5", Architecture::LeNet5.network()).unwrap();
        Job::new(lenet5, SyncMethod::GatherScatter, 4, 5, Length::Epochs(100))
    }

    #[test]
    fn a_job_that_went_over_the_wire_is_the_same() {
        let plain = course_job();
        let algorithms = Algorithm::ALL.map(Some).into_iter().chain([None]);
        let syncs = algorithms.flat_map(|algorithm| {
            let ddp = |bucket| SyncMethod::Ddp { algorithm, bucket };
            [SyncMethod::AllReduce { algorithm }, ddp(None), ddp(Some(usize::MAX))]
        });
        let syncs = syncs.chain(SyncMethod::ALL).map(|sync| Job { sync, ..plain.clone() });
        let rules = [
            Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-4 },
            Rule::Adam { betas: [0.9, 0.999], weight_decay: 0.1 },
            Rule::AdamW { betas: [0.8, 0.99], weight_decay: 0.3 },
            Rule::Lars { momentum: 0.7, weight_decay: f32::MIN_POSITIVE, trust: 1e-3 },
        ];
        let rules = rules.map(|rule| Job { rule, ..plain.clone() });
        let curves = [
            Curve::Constant,
            Curve::Step { every: 0.3, factor: 0.1 },
            Curve::Cosine,
            Curve::Polynomial { power: 1.0 / 3.0 },
        ];
        let curves = curves.map(|curve| Job { curve, ..plain.clone() });
        let warm_ups = [WarmUp::Linear { epochs: 0.7 }, WarmUp::Constant { epochs: 1.1, factor: 0.1 }];
        let warm_ups = warm_ups.map(|warm_up| Job { warm_up, ..plain.clone() });
        let instructions = Instructions::ALL.map(|instructions| Job { instructions, ..plain.clone() });
        let batch_norms = BatchNorm::ALL.map(|batch_norm| Job { batch_norm, ..plain.clone() });
        let compressions = Method::ALL
            .into_iter()
            .flat_map(|method| [true, false].map(|error_feedback| Compression { method, error_feedback }));
        let clipping = Compression::new(Method::Dgc { keep: 1.0 / 3.0, warm_up_epochs: 0, clip: Some(0.1) });
        let compressions =
            compressions.chain([clipping]).map(|compress| Job { compress: Some(compress), ..plain.clone() });
        let deals = Deal::ALL.map(|deal| Job { deal, ..plain.clone() });
        let models = Architecture::ALL
            .map(|architecture| Job { model: Design::new("some", architecture.network()).unwrap(), ..plain.clone() });
        let other = Job {
            length: Length::Steps(7),
            init: Some("/some/where.safetensors".into()),
            lr: 0.1,
            label_smoothing: 0.1,
            seed: u64::MAX,
            shuffle: true,
            augment: Augment { crop: true, flip: true },
            test_every: Some(1),
            verify_every: Some(2),
            trace_steps: 3,
            predict: true,
            slow: vec![Slow { rank: 3, factor: 4.0, probability: 0.1 }],
            ..plain.clone()
        };
        let rounds = [Round::Every(7), Round::EveryEpoch, Round::Period(0.3)];
        let rounds = rounds.map(|round| Job { sync: SyncMethod::LocalSgd { round, algorithm: None }, ..plain.clone() });
        let jobs =
            syncs.chain(rounds).chain(rules).chain(curves).chain(warm_ups).chain(instructions).chain(batch_norms);
        for job in jobs.chain(compressions).chain(deals).chain(models).chain([plain.clone(), other]) {
            let line = serde_json::to_string(&job).unwrap();
            assert_eq!(serde_json::from_str::<Job>(&line).unwrap(), job, "{line}");
        }
    }

    /// Of 100 images, four workers of five take 40 in two steps; three take the other 60 in four, and then 100 in seven.
    #[test]
    fn others_go_on_where_workers_have_left_off() {
        let four = Job { length: Length::Epochs(3), ..course_job() };
        let three = four.with_workers(3, 7, 100);
        assert_eq!(three.leg, Leg { step: 7, epoch: 1, images: 40 });
        assert_eq!([7, 10, 11, 17].map(|step| three.place(step, 100)), [(1, 0), (1, 3), (2, 0), (2, 6)]);
        assert_eq!((three.steps(100), three.batches_in_all(100), three.batches_before(11, 100)), (18, 11, 4));
        assert_eq!([7, 17].map(|step| three.scheduled(step, 100)), [7 + 2, 7 + 2 + 10]);
        let two = three.with_workers(2, 9, 100);
        assert_eq!((two.leg, two.steps(100)), (Leg { step: 9, epoch: 1, images: 70 }, 9 + 3 + 10));
        assert_eq!(four.with_workers(2, 5, 100).leg, Leg { step: 5, epoch: 1, images: 0 });
    }

    #[test]
    fn steps_are_those_of_the_epochs() {
        let mut job = course_job();
        assert_eq!(job.steps(100), 500);
        assert_eq!(job.steps(101), 600);
        job.length = Length::Steps(40);
        assert_eq!(job.steps(100), 40);
        // Five batches an epoch, two a step: 2, 2, 1.
        job.accumulate = 2;
        assert_eq!((job.steps_an_epoch(100), job.batches(0, 0, 100), job.batches(0, 2, 100)), (3, 0..2, 4..5));
        assert_eq!(job.batches_in_all(100), 13 * 5 + 2);
        job.length = Length::Epochs(4);
        assert_eq!((job.steps(100), job.batches_in_all(100)), (12, 20));
    }
}
