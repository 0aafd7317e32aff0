//! What one rank does, from the first weights to the last. The same for one rank and for many.

use std::path::Path;
use std::time::{Duration, Instant};

use ringstep_comm::{Group, tune};
use ringstep_data::Dataset;
use ringstep_data::canvas::Canvas;
use ringstep_data::file::sha256;
use ringstep_data::shard::Shard;
use ringstep_nn::optim::Optimizer;
use ringstep_nn::schedule::Schedule;
use ringstep_nn::team::Team;
use ringstep_nn::{Model, Score};

use crate::batch_norm::{BatchNorm, Together};
use crate::checkpoint;
use crate::clock::Clock;
use crate::error::WorkerError;
use crate::evaluate::test;
use crate::feed::Feed;
use crate::fit;
use crate::records::{Epoch, Outcome, Parts, Report, Step};
use crate::strategy::{Numbers, Pass, Strategy, Synced, add};
use crate::timebase::Timebase;
use crate::trace::{Kind, Tracer};
use crate::verify::{Difference, first_difference};
use crate::{Job, Sync};

/// How often a rank says how far it is.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Trains on this rank's part of the data. Returns what it did, and the final weights as a safetensors file.
pub fn run(
    job: &Job,
    init: Option<&Path>,
    data: &Dataset,
    group: &mut Group,
    report: &mut dyn FnMut(Report),
) -> Result<(Outcome, Vec<u8>), WorkerError> {
    let images = data.train.len();
    let mut rank = Rank::get_ready(job, init, data, group)?;
    let sent_before = rank.sent();
    let mut report_due = Instant::now() + REPORT_INTERVAL;
    let mut recent = Vec::new();
    let total_steps = job.steps(images);
    for epoch in 0.. {
        let mut record = EpochRecorder::new(epoch, &mut rank);
        for step in 0..job.steps_an_epoch(images).min(total_steps - rank.steps) {
            let (done, score) = rank.step(epoch, step)?;
            record.add(done.images, score);
            recent.push(done);
            if job.verify_every.is_some_and(|every| rank.steps.is_multiple_of(every)) {
                rank.pausing(Rank::verify)?;
            }
            if let Some(spans) = rank.tracer.take() {
                rank.clock.pausing(|| report(Report::Spans(spans)));
            }
            if Instant::now() >= report_due || rank.steps == total_steps {
                report_due = Instant::now() + REPORT_INTERVAL;
                report(Report::Steps(std::mem::take(&mut recent)));
            }
        }
        let mut record = record.finish(&mut rank);
        let last = rank.steps == total_steps;
        if !last && job.test_every.is_some_and(|every| (epoch + 1).is_multiple_of(every)) {
            (record.test_images, record.test_correct) = rank.pausing(Rank::test)?;
        }
        report(Report::Epoch(record));
        if last {
            break;
        }
    }
    rank.finish(sent_before)
}

/// A rank at work.
struct Rank<'a> {
    job: &'a Job,
    data: &'a Dataset,
    group: &'a mut Group,
    canvas: Canvas,
    shard: Shard,
    feed: Feed,
    model: Model,
    /// Batch norm over all ranks, if it is.
    together: Option<Together>,
    strategy: Box<dyn Strategy>,
    /// `None` where another rank takes the steps.
    optimizer: Option<Optimizer>,
    schedule: Schedule,
    /// Gradients of a step's batches so far.
    accumulated: Vec<f32>,
    clock: Clock,
    timebase: Timebase,
    tracer: Tracer,
    /// For predictions.
    backward_times: BackwardTimes,
    /// Bytes and messages that had nothing to do with training.
    aside: (u64, u64),
    /// Steps done.
    steps: usize,
}

impl<'a> Rank<'a> {
    /// All that comes before the first step. Ends with a barrier, and starts the clock.
    fn get_ready(
        job: &'a Job,
        init: Option<&Path>,
        data: &'a Dataset,
        group: &'a mut Group,
    ) -> Result<Self, WorkerError> {
        let canvas = fit::fit(&job.model, data)?;
        let (images, rank) = (data.train.len(), group.rank());
        // The first batches are filled while the ranks get ready.
        let feed = Feed::start(job, data, &canvas, rank)?;
        let mut model = job.model.build(job.batch, Team::new(job.threads, job.level));
        match init {
            Some(path) => checkpoint::load(&mut model, path)?,
            None => model.initialise(job.seed),
        }
        group.broadcast(model.values_mut(), 0)?;
        group.broadcast(model.statistics_mut(), 0)?;
        model.set_label_smoothing(job.label_smoothing);
        model.set_dropout_seed(job.seed.wrapping_add((rank as u64) << 32));
        if job.sync.algorithm() == Some(None) {
            tune::measure(group)?;
        }
        let together = match job.batch_norm {
            BatchNorm::Sync if job.workers > 1 => Some(Together::begin(&mut model, group)?),
            _ => None,
        };
        let strategy = job.sync.strategy(&model, group);
        let optimizer = strategy.steps_on(rank).then(|| Optimizer::new(job.rule, &mut model));
        let accumulated = vec![0.0; if job.accumulate > 1 { model.gradients_mut().len() } else { 0 }];
        let timebase = Timebase::agree(group)?;
        let tracer = Tracer::new(timebase, job.trace_steps, strategy.labels(&model));
        group.barrier()?;
        let (schedule, shard, clock) = (job.schedule(images), job.shard(rank, images), Clock::start());
        Ok(Self {
            job,
            data,
            group,
            canvas,
            shard,
            feed,
            model,
            together,
            strategy,
            optimizer,
            schedule,
            accumulated,
            clock,
            timebase,
            tracer,
            backward_times: BackwardTimes::default(),
            aside: (0, 0),
            steps: 0,
        })
    }

    /// Forward, backward and synchronising for all of a step's batches, then the optimizer.
    fn step(&mut self, epoch: usize, step: usize) -> Result<(Step, Score), WorkerError> {
        let before = Parts::of(&self.clock);
        if self.job.sync == Sync::DataParallel || self.job.batch_norm == BatchNorm::Broadcast {
            self.replicate()?;
        }
        let batches = self.job.batches(step, self.data.train.len());
        let images: usize = batches.clone().map(|batch| self.shard.step_images(batch)).sum();
        let scale = 1.0 / images as f32;
        let (mut score, mut trained) = (Score::default(), 0);
        for batch in batches.start..batches.end - 1 {
            trained += self.forward((epoch, step), batch, &mut score)?;
            self.accumulate(batch == batches.start, scale);
            self.check_statistics()?;
        }
        trained += self.forward((epoch, step), batches.end - 1, &mut score)?;
        let synced = self.backward(batches.len() > 1, scale)?;
        self.check_statistics()?;
        self.optimize();

        let (seconds, parts) = (self.clock.end_step(), Parts::of(&self.clock).since(before));
        let at = |moment| self.timebase.seconds(moment);
        let overlaps = synced.reductions.iter().any(|reduced| reduced.began < synced.ready);
        let overlapping = match overlaps {
            true => synced.reductions.iter().map(|reduced| [at(reduced.began), at(reduced.ended)]).collect(),
            false => Vec::new(),
        };
        let (ready, synced) = (at(synced.ready), at(synced.ended));
        let (step, images, loss_sum) = (self.steps, trained, score.loss);
        let done = Step { step, images, loss_sum, seconds, ready, synced, overlapping, parts };
        self.steps += 1;
        Ok((done, score))
    }

    /// Gets rank 0's model, where ranks do not keep their own in step, and its running statistics.
    fn replicate(&mut self) -> Result<(), WorkerError> {
        let began = Instant::now();
        self.clock.communicating(|| {
            self.strategy.replicate(self.group, &mut self.model)?;
            match self.model.has_statistics() {
                true => self.group.broadcast(self.model.statistics_mut(), 0),
                false => Ok(()),
            }
        })?;
        self.tracer.since(self.steps, Kind::Communication, "replicate", began);
        Ok(())
    }

    /// Takes the next batch and runs it through the model; returns how many images it had.
    fn forward(&mut self, place: (usize, usize), batch: usize, score: &mut Score) -> Result<usize, WorkerError> {
        let began = Instant::now();
        let together = self.shard.step_images(batch);
        let (batch, loaded) = self.feed.next(&mut self.clock, self.group, together, self.canvas.len())?;
        self.tracer.between(self.steps, Kind::Data, "data", began, loaded);
        if self.job.sync == Sync::DataParallel {
            self.tracer.since(self.steps, Kind::Communication, "scatter", loaded);
        }

        let began = Instant::now();
        let Score { loss, correct } = self.clock.computing(|| self.model.forward(&batch.images, &batch.labels));
        self.tracer.since(self.steps, Kind::Forward, "forward", began);
        if let Some(together) = &self.together {
            self.clock.rebook(together.check()?);
        }
        if !loss.is_finite() {
            let layer = self.model.first_not_finite(&batch.images, &batch.labels).unwrap_or("the loss").to_owned();
            let (rank, (epoch, step)) = (self.group.rank(), place);
            return Err(WorkerError::Diverged { rank, epoch, step, loss, layer });
        }
        score.loss += loss;
        score.correct += correct;
        Ok(batch.len())
    }

    /// Backward of a batch that is not the step's last: nobody else is involved.
    fn accumulate(&mut self, first: bool, scale: f32) {
        let batch = self.feed.current();
        self.clock.computing(|| {
            self.model.backward(&batch.images, &batch.labels, scale);
            match first {
                true => self.accumulated.copy_from_slice(self.model.gradients_mut()),
                false => add(&mut self.accumulated, self.model.gradients_mut()),
            }
        });
        self.tracer.backward(self.steps, &self.model);
    }

    /// Backward of the step's last batch, after which the gradients are those of all ranks and batches.
    fn backward(&mut self, accumulated: bool, scale: f32) -> Result<Synced, WorkerError> {
        let batch = self.feed.current();
        let earlier = if accumulated { &self.accumulated[..] } else { &[] };
        let pass = Pass { images: &batch.images, labels: &batch.labels, scale, accumulated: earlier };
        let began = Instant::now();
        let mut synced = self.strategy.backward(self.group, &mut self.model, pass)?;
        synced.ended = Instant::now();
        self.clock.synchronising(began, &synced);
        if self.job.predict {
            self.backward_times.add(&self.model, batch.len() == self.job.batch);
        }
        self.tracer.backward(self.steps, &self.model);
        self.tracer.reductions(self.steps, &synced);
        Ok(synced)
    }

    fn optimize(&mut self) {
        let Some(optimizer) = &mut self.optimizer else { return };
        let began = Instant::now();
        self.clock.computing(|| {
            let (team, values, gradients) = self.model.for_optimizer();
            optimizer.step(team, values, gradients, self.schedule.lr(self.steps));
        });
        self.tracer.since(self.steps, Kind::Optimizer, "optimizer", began);
    }

    /// A layer has nobody to tell that it could not add its statistics up, nor how long that took.
    fn check_statistics(&mut self) -> Result<(), WorkerError> {
        if let Some(together) = &self.together {
            self.clock.rebook(together.check()?);
        }
        Ok(())
    }

    /// Does what is no part of training: neither its time counts nor what it sends.
    fn pausing<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        let (began, before) = (Instant::now(), self.sent());
        let result = work(self);
        let after = self.sent();
        self.aside = (self.aside.0 + after.0 - before.0, self.aside.1 + after.1 - before.1);
        self.clock.leave_out(began);
        result
    }

    /// Fails if ranks differ.
    fn verify(&mut self) -> Result<(), WorkerError> {
        // In DataParallel only rank 0 has taken the step as yet.
        if self.job.sync == Sync::DataParallel {
            return Ok(());
        }
        // Unless they are of all ranks' images, statistics are meant to differ.
        let with_statistics = self.job.batch_norm == BatchNorm::Sync;
        let (rank, step) = (self.group.rank(), self.steps);
        match first_difference(&mut self.model, self.group, with_statistics)? {
            None => Ok(()),
            Some(Difference { tensor, ranks }) => Err(WorkerError::OutOfStep { rank, step, tensor, ranks }),
        }
    }

    /// Classifies this rank's part of the test images.
    fn test(&mut self) -> Result<(usize, usize), WorkerError> {
        self.strategy.replicate(self.group, &mut self.model)?;
        test(&mut self.model, self.data, &self.canvas, self.group)
    }

    /// Bytes and messages that this rank has sent to keep in step.
    fn sent(&mut self) -> (u64, u64) {
        let (bytes, messages) = self.together.as_ref().map_or((0, 0), Together::sent);
        (self.group.bytes_sent() + bytes - self.aside.0, self.group.messages_sent() + messages - self.aside.1)
    }

    /// Seconds of a step's communication that the cost model expects to be exposed.
    fn predict(&mut self) -> Result<f64, WorkerError> {
        let tuning = tune::measure(self.group)?;
        let (hosts, shared) = (self.group.hosts(), self.group.can_be_direct());
        let backward = self.backward_times.means(&self.model);
        Ok(self.strategy.predict(&Numbers { tuning, hosts, shared, backward }, &self.model))
    }

    /// Tests, and sums up.
    fn finish(mut self, sent_before: (u64, u64)) -> Result<(Outcome, Vec<u8>), WorkerError> {
        // The last step's loss was that before it.
        if self.model.values_mut().iter().any(|value| !value.is_finite()) {
            return Err(WorkerError::Overflowed { rank: self.group.rank() });
        }
        let (seconds, sent) = (self.clock.seconds(), self.sent());
        let predicted_comm = if self.job.predict { Some(self.predict()?) } else { None };
        let (test_images, test_correct) = self.test()?;
        let weights = checkpoint::to_bytes(&self.model);
        let outcome = Outcome {
            instructions: self.model.level().name().to_owned(),
            steps: self.steps,
            seconds,
            seconds_per_step: self.clock.median_step(),
            mean_seconds_per_step: self.clock.mean_step(),
            parts: Parts::of(&self.clock),
            bytes_sent: sent.0 - sent_before.0,
            messages_sent: sent.1 - sent_before.1,
            predicted_comm,
            test_images,
            test_correct,
            weights_sha256: sha256(&weights),
        };
        Ok((outcome, weights))
    }
}

/// How long each layer's backward takes in a step with a whole batch.
#[derive(Default)]
struct BackwardTimes {
    sums: Vec<f64>,
    steps: usize,
}

impl BackwardTimes {
    /// Adds the model's last backward; shorter batches count only while there are no others.
    fn add(&mut self, model: &Model, whole: bool) {
        if whole || self.steps == 0 {
            let seconds = model.timeline().map(|layer| layer.backward.took.as_secs_f64());
            match self.steps {
                0 => self.sums = seconds.collect(),
                _ => self.sums.iter_mut().zip(seconds).for_each(|(sum, seconds)| *sum += seconds),
            }
            self.steps += 1;
        }
    }

    /// Where each layer's gradients end in the flat buffer, and the seconds of its backward; last layer first.
    fn means(&self, model: &Model) -> Vec<(usize, f64)> {
        let seconds = self.sums.iter().map(|sum| sum / self.steps as f64);
        let ends = model.timeline().map(|layer| layer.gradients_end);
        let mut layers: Vec<(usize, f64)> = ends.zip(seconds).collect();
        layers.reverse();
        layers
    }
}

/// Adds an epoch up, from the readings at its beginning.
struct EpochRecorder {
    sums: Epoch,
}

impl EpochRecorder {
    fn new(epoch: usize, rank: &mut Rank<'_>) -> Self {
        let (seconds, parts, bytes_sent) = (rank.clock.seconds(), Parts::of(&rank.clock), rank.sent().0);
        Self { sums: Epoch { epoch, seconds, parts, bytes_sent, ..Epoch::default() } }
    }

    fn add(&mut self, images: usize, score: Score) {
        self.sums.images += images;
        self.sums.loss_sum += score.loss;
        self.sums.correct += score.correct;
    }

    fn finish(self, rank: &mut Rank<'_>) -> Epoch {
        Epoch {
            seconds: rank.clock.seconds() - self.sums.seconds,
            parts: Parts::of(&rank.clock).since(self.sums.parts),
            bytes_sent: rank.sent().0 - self.sums.bytes_sent,
            ..self.sums
        }
    }
}
