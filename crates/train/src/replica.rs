//! A model in training.

use std::ops::{AddAssign, Range};
use std::time::Instant;

use ringstep_comm::log::Exchange;
use ringstep_comm::transport::Traffic;
use ringstep_cpu::cores::thread_seconds;
use ringstep_data::shard::Shard;
use ringstep_nn::optim::{Optimizer, Rule};
use ringstep_nn::state::State;
use ringstep_nn::{Model, Score};

use crate::Job;
use crate::batch_norm::SyncBatchNorm;
use crate::error::WorkerError;
use crate::feed::Feed;
use crate::recorder::Recorder;
use crate::strategy::{Weighting, add};
use crate::trace::Kind;
use crate::world::World;

/// A model in training: its parameters, how they follow gradients, and its place in the data.
pub(crate) struct Replica<'a> {
    pub model: Model,
    job: &'a Job,
    /// `None` where others take the steps.
    optimizer: Option<Optimizer>,
    /// Batch norm over all workers, if it is.
    batch_norm: Option<SyncBatchNorm>,
    shard: Shard,
    feed: Feed,
    /// Steps that it has begun.
    steps: usize,
    /// Gradients of a step's batches so far.
    accumulated: Vec<f32>,
    /// Whether the step had batches before the last.
    accumulates: bool,
    /// Images of its step.
    pub images: usize,
    /// Images since somebody asked.
    images_since: usize,
    /// When its last gradient was written.
    pub ready: Instant,
    /// For how long its thread had had a core by then, in seconds.
    pub served: f64,
}

/// How a step's images fared.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Trained {
    pub images: usize,
    pub score: Score,
}

impl AddAssign for Trained {
    fn add_assign(&mut self, more: Self) {
        self.images += more.images;
        self.score.loss += more.score.loss;
        self.score.correct += more.score.correct;
    }
}

impl<'a> Replica<'a> {
    /// Stands before its first step.
    pub fn new(
        job: &'a Job,
        mut model: Model,
        rule: Option<Rule>,
        batch_norm: Option<SyncBatchNorm>,
        (shard, feed): (Shard, Feed),
    ) -> Self {
        let optimizer = rule.map(|rule| Optimizer::new(rule, &mut model));
        let accumulated = vec![0.0; if job.accumulate > 1 { model.gradients_mut().len() } else { 0 }];
        Self {
            model,
            job,
            optimizer,
            batch_norm,
            shard,
            feed,
            steps: 0,
            accumulated,
            accumulates: false,
            images: 0,
            images_since: 0,
            ready: Instant::now(),
            served: 0.0,
        }
    }

    /// Takes the batches of its next step through the model: forward all of them, backward all but the last, whose
    /// backward is the strategy's.
    pub fn forward(
        &mut self,
        world: &mut World<'_>,
        recorder: &mut Recorder,
        scale: f32,
    ) -> Result<Trained, WorkerError> {
        let batches = self.batches();
        let mut trained = Trained::default();
        for batch in batches.start..batches.end - 1 {
            self.forward_batch(world, recorder, batch, &mut trained)?;
            self.accumulate(recorder, batch == batches.start, scale);
            self.check_statistics()?;
        }
        self.forward_batch(world, recorder, batches.end - 1, &mut trained)?;
        self.accumulates = batches.len() > 1;
        self.steps += 1;
        self.images = trained.images;
        self.images_since += trained.images;
        Ok(trained)
    }

    /// One over the images that the gradient of its next step is the mean over; without an image there is no gradient.
    pub fn scale(&self, weighting: Weighting) -> f32 {
        let (epoch, _) = self.place();
        let images_of = |batch| match weighting {
            Weighting::WholeStep => self.shard.step_images(epoch, batch),
            Weighting::OwnImages => self.shard.own_images(epoch, batch),
        };
        1.0 / self.batches().map(images_of).sum::<usize>().max(1) as f32
    }

    /// Backward of the step's last batch, with what was accumulated before it.
    pub fn backward(&mut self, scale: f32) {
        let batch = self.feed.current();
        self.model.backward(&batch.images, &batch.labels, scale);
        if self.accumulates {
            add(self.model.gradients_mut(), &self.accumulated);
        }
        (self.ready, self.served) = (Instant::now(), thread_seconds());
    }

    /// The same, and hands the gradients out in buckets while it goes on: `complete` is given the number and the
    /// gradients of each as soon as they are complete. `ends` are the buckets' ends in the flat buffer, in ascending order.
    pub fn backward_in_buckets<'s>(
        &'s mut self,
        scale: f32,
        ends: &[usize],
        mut complete: impl FnMut(usize, &'s mut [f32]),
    ) {
        let Self { model, feed, accumulated, accumulates, ready, served, .. } = self;
        let batch = feed.current();
        let mut number = 0;
        let mut earlier = if *accumulates { &accumulated[..] } else { &[] };
        model.backward_in_buckets(&batch.images, &batch.labels, scale, ends, |bucket| {
            if !earlier.is_empty() {
                add(bucket, earlier);
                earlier = &earlier[bucket.len()..];
            }
            complete(number, bucket);
            number += 1;
        });
        (*ready, *served) = (Instant::now(), thread_seconds());
    }

    /// Takes a step along the gradients, if steps are taken here.
    pub fn optimize(&mut self, lr: f32) {
        if let Some(optimizer) = &mut self.optimizer {
            let (team, values, gradients) = self.model.for_optimizer();
            optimizer.step(team, values, gradients, lr);
        }
    }

    /// Takes a step along gradients that are its own alone: none, if it had no images.
    pub fn optimize_alone(&mut self, lr: f32) {
        if self.images > 0 {
            self.optimize(lr);
        }
    }

    /// What it remembers from step to step.
    pub fn state(&mut self, state: &mut State<'_>) {
        state.within("model", |state| self.model.state(state));
        if let Some(optimizer) = &mut self.optimizer {
            state.within("optimizer", |state| optimizer.state(state));
        }
        state.count("steps", &mut self.steps);
        state.count("images_since", &mut self.images_since);
    }

    /// Finds its place in the data, once another state is set.
    pub fn find_place(&mut self, rank: usize) -> Result<(), WorkerError> {
        self.feed.seek(rank, self.job.batches_before(self.steps, self.shard.images))
    }

    /// Images that it has trained on since the last time, for means over images.
    pub fn take_images(&mut self) -> usize {
        std::mem::take(&mut self.images_since)
    }

    /// A layer has nobody to tell that it could not add its statistics up.
    pub fn check_statistics(&self) -> Result<(), WorkerError> {
        self.batch_norm.as_ref().map_or(Ok(()), |batch_norm| Ok(batch_norm.check()?))
    }

    /// What batch norm has exchanged since the last time.
    pub fn take_exchanges(&self) -> Vec<Exchange> {
        self.batch_norm.as_ref().map_or_else(Vec::new, SyncBatchNorm::take_exchanges)
    }

    /// What batch norm has sent and received.
    pub fn traffic(&self) -> Traffic {
        self.batch_norm.as_ref().map_or_else(Traffic::default, SyncBatchNorm::traffic)
    }

    /// Seconds of a core that it took to load its last batch, if it was loaded here.
    pub fn load_seconds(&self) -> f64 {
        self.feed.current().took
    }

    /// Whether its last batch was as large as batches get.
    pub fn had_whole_batch(&self) -> bool {
        self.feed.current().len() == self.job.batch
    }

    /// Which of the epoch's batches its next step has.
    fn batches(&self) -> Range<usize> {
        let (images, (epoch, step)) = (self.shard.images, self.place());
        self.job.batches(epoch, step, images)
    }

    /// The epoch of its next step, and the step's number in it.
    fn place(&self) -> (usize, usize) {
        self.job.place(self.steps, self.shard.images)
    }

    /// Takes the next batch and runs it through the model.
    fn forward_batch(
        &mut self,
        world: &mut World<'_>,
        recorder: &mut Recorder,
        batch: usize,
        trained: &mut Trained,
    ) -> Result<(), WorkerError> {
        self.feed.next(world, recorder, self.shard.step_images(self.place().0, batch))?;
        let batch = self.feed.current();
        let score = recorder.timed(Kind::Forward, "forward", || self.model.forward(&batch.images, &batch.labels));
        self.check_statistics()?;
        if !score.loss.is_finite() {
            let layer = self.model.first_not_finite(&batch.images, &batch.labels).unwrap_or("the loss").to_owned();
            let (rank, (epoch, step), loss) = (world.rank(), self.place(), score.loss);
            return Err(WorkerError::Diverged { rank, epoch, step, loss, layer });
        }
        *trained += Trained { images: batch.len(), score };
        Ok(())
    }

    /// Backward of a batch that is not the step's last: nobody else is involved.
    fn accumulate(&mut self, recorder: &mut Recorder, first: bool, scale: f32) {
        let batch = self.feed.current();
        let began = Instant::now();
        self.model.backward(&batch.images, &batch.labels, scale);
        match first {
            true => self.accumulated.copy_from_slice(self.model.gradients_mut()),
            false => add(&mut self.accumulated, self.model.gradients_mut()),
        }
        recorder.backward(began, Instant::now(), &self.model);
    }
}

#[cfg(test)]
mod tests {
    use ringstep_comm::Group;
    use ringstep_comm::transport::mem;
    use ringstep_data::synthetic::Recipe;
    use ringstep_nn::Architecture;

    use super::*;
    use crate::feed::Source;
    use crate::job::{Design, Length};
    use crate::world::Role;
    use crate::{SyncMethod, fit};

    /// 14 images for 3 workers of 2: batches of 6, 6 and 2, in the last of which the third worker has nothing.
    #[test]
    fn a_gradient_is_the_mean_over_the_images_of_all_or_over_its_own() {
        let lenet5 = Design::new("lenet5", Architecture::LeNet5.network()).unwrap();
        let data = Recipe { shape: lenet5.input(), classes: 10, train: 14, test: 1, seed: 0 }.make();
        let canvas = fit::fit(&lenet5, &data).unwrap();
        let job = Job { accumulate: 2, ..Job::new(lenet5, SyncMethod::GatherScatter, 3, 2, Length::Epochs(1)) };
        let mut group = Group::new(mem::mesh(1).remove(0));
        let mut world = World::new(&mut group, &[Role::Worker]).unwrap();
        let shard = job.shard(1, 14);
        let feed = Feed::start(Source::Own, &job, &data, &canvas, &shard, &mut world).unwrap();
        let mut replica = Replica::new(&job, job.model.build_small(), None, None, (shard, feed));
        let scales = |replica: &Replica<'_>| {
            [Weighting::WholeStep, Weighting::OwnImages].map(|weighting| replica.scale(weighting))
        };
        assert_eq!(scales(&replica), [1.0 / 12.0, 1.0 / 4.0]);
        replica.steps = 1;
        assert_eq!(scales(&replica), [1.0 / 2.0, 1.0 / 1.0]);
    }
}
