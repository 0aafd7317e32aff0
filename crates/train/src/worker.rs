//! What one rank does, from the first weights to the last. The same for one rank and for many, and for every way to stay
//! in step.

use std::thread;
use std::time::{Duration, Instant};

use ringstep_comm::{Group, tune};
use ringstep_data::Dataset;
use ringstep_data::canvas::Canvas;
use ringstep_data::file::sha256;
use ringstep_nn::schedule::Schedule;
use ringstep_nn::team::Team;

use crate::Job;
use crate::backward_times::BackwardTimes;
use crate::batch_norm::{BatchNorm, Broadcast, SyncBatchNorm};
use crate::checkpoint;
use crate::error::WorkerError;
use crate::evaluate;
use crate::feed::Feed;
use crate::fit;
use crate::recorder::Recorder;
use crate::records::{Epoch, Outcome, Report, Step, Tested};
use crate::replica::{Replica, Trained};
use crate::snapshots::{self, Snapshot};
use crate::strategy::{CostInputs, Next, Progress, Strategy, Turn, server};
use crate::timebase::Timebase;
use crate::trace::Kind;
use crate::verify::{Difference, first_difference};
use crate::world::{CHIEF, Role, World};

/// How often a rank says how far it is.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// Trains on this rank's part of the data, or serves those that do. Returns what it did, and of a worker the final weights
/// as a safetensors file.
pub fn run(
    job: &Job,
    data: &Dataset,
    group: &mut Group,
    report: &mut dyn FnMut(Report),
) -> Result<(Outcome, Vec<u8>), WorkerError> {
    match job.role(group.rank()) {
        Role::Worker => {
            let mut trainer = Trainer::get_ready(job, data, group)?;
            trainer.train(report)?;
            trainer.finish()
        }
        Role::Server(number) => Ok((server::run(job, data, group, number)?, Vec::new())),
    }
}

/// A rank that trains.
struct Trainer<'a> {
    job: &'a Job,
    data: &'a Dataset,
    canvas: Canvas,
    world: World<'a>,
    strategy: Box<dyn Strategy>,
    replicas: Vec<Replica<'a>>,
    /// Rank 0's running statistics for everybody before each step, if the job says so.
    broadcast: Option<Broadcast>,
    schedule: Schedule,
    progress: Progress,
    /// The epoch that the job is in.
    epoch: usize,
    recorder: Recorder,
    /// How long the last step's computing took.
    computed: Duration,
    /// For predictions.
    backward_times: BackwardTimes,
    /// What had been sent before the first step, and what has been since that has nothing to do with training.
    left_out: (u64, u64),
    /// On the chief, the models that are to be tested after the training.
    snapshots: Vec<Snapshot>,
}

impl<'a> Trainer<'a> {
    /// All that comes before the first step. Ends with a barrier, and starts the clock.
    fn get_ready(job: &'a Job, data: &'a Dataset, group: &'a mut Group) -> Result<Self, WorkerError> {
        let canvas = fit::fit(&job.model, data)?;
        let (images, rank) = (data.train.len(), group.rank());
        let mut world = World::new(group, &job.roles())?;
        let level = job.instructions.level().map_err(|error| WorkerError::NoInstructions { rank, error })?;
        let build = || job.model.build(job.batch, Team::new(job.threads, level));
        let mut model = build();
        match &job.init {
            Some(path) => checkpoint::load(&mut model, path)?,
            None => model.initialise(job.seed),
        }
        world.all.broadcast(model.values_mut(), CHIEF)?;
        world.workers().broadcast(model.statistics_mut(), CHIEF)?;
        if job.sync.algorithm() == Some(None) {
            tune::measure(world.workers())?;
        }
        let mut batch_norm = match job.batch_norm {
            BatchNorm::Sync if job.workers > 1 => Some(SyncBatchNorm::begin(&mut model, &mut world)?),
            _ => None,
        };
        let broadcast = (job.batch_norm == BatchNorm::Broadcast).then(|| Broadcast::new(&mut world));
        let schedule = job.schedule(images);
        let strategy = job.sync.strategy((job, images), &mut model, &schedule, &mut world);
        let mut models = vec![model];
        for _ in 1..job.sync.learners() {
            let mut model = build();
            model.values_mut().copy_from_slice(models[0].values_mut());
            model.statistics_mut().copy_from_slice(models[0].statistics_mut());
            models.push(model);
        }
        let mut replicas = Vec::new();
        for (at, mut model) in models.into_iter().enumerate() {
            let learner = rank * job.sync.learners() + at;
            model.set_label_smoothing(job.label_smoothing);
            model.set_dropout_seed(job.seed.wrapping_add((learner as u64) << 32));
            let shard = job.shard(learner, images);
            let feed = Feed::start(strategy.source(), job, data, &canvas, &shard, &mut world)?;
            let rule = strategy.rule(job.rule, rank);
            replicas.push(Replica::new(job, model, rule, batch_norm.take(), (shard, feed)));
        }
        let timebase = Timebase::agree(world.all)?;
        world.all.barrier()?;
        world.record();
        let mut trainer = Self {
            job,
            data,
            canvas,
            world,
            strategy,
            replicas,
            broadcast,
            schedule,
            progress: Progress { done: 0, of: job.steps(images) },
            epoch: 0,
            recorder: Recorder::start(timebase, job.trace_steps),
            computed: Duration::ZERO,
            backward_times: BackwardTimes::default(),
            left_out: (0, 0),
            snapshots: Vec::new(),
        };
        trainer.left_out = trainer.sent();
        Ok(trainer)
    }

    /// Step by step to the end.
    fn train(&mut self, report: &mut dyn FnMut(Report)) -> Result<(), WorkerError> {
        let (mut recent, mut report_due) = (Vec::new(), Instant::now() + REPORT_INTERVAL);
        let an_epoch = self.job.steps_an_epoch(self.data.train.len());
        let mut open = OpenEpoch::new(self);
        while let Next::Step(step) = self.before()? {
            self.reach_epoch(step / an_epoch, &mut open, report);
            let (done, trained) = self.step(Turn { step, lr: self.schedule.lr(step) })?;
            open.add(trained);
            recent.push(done);
            let verify = self.job.verify_every.is_some_and(|every| self.progress.done.is_multiple_of(every));
            if verify && self.strategy.replicas_equal() {
                self.leaving_out(Self::verify)?;
            }
            if let Some(spans) = self.recorder.take_spans() {
                self.recorder.clock.pausing(|| report(Report::Spans(spans)));
            }
            if Instant::now() >= report_due {
                report_due = Instant::now() + REPORT_INTERVAL;
                report(Report::Steps(std::mem::take(&mut recent)));
            }
        }
        report(Report::Steps(recent));
        // Where workers share the steps, a slow one may not have come so far.
        self.reach_epoch((self.progress.of - 1) / an_epoch, &mut open, report);
        report(Report::Epoch(open.finish(self)));
        self.strategy.finish(&mut self.world, &mut self.replicas)?;
        self.recorder.end(&mut self.world, &self.replicas);
        Ok(())
    }

    /// Ends the epochs before this one.
    fn reach_epoch(&mut self, epoch: usize, open: &mut OpenEpoch, report: &mut dyn FnMut(Report)) {
        while self.epoch < epoch {
            report(Report::Epoch(open.finish(self)));
            if self.job.test_every.is_some_and(|every| (self.epoch + 1).is_multiple_of(every)) {
                self.keep_snapshot();
            }
            self.epoch += 1;
            *open = OpenEpoch::new(self);
        }
    }

    /// What comes before a step's first forward.
    fn before(&mut self) -> Result<Next, WorkerError> {
        let next = self.strategy.before(&mut self.world, &mut self.replicas, &self.progress)?;
        if let (Next::Step(_), Some(broadcast)) = (next, &self.broadcast) {
            for replica in &mut self.replicas {
                broadcast.before(&mut self.world, &mut replica.model)?;
            }
        }
        Ok(next)
    }

    /// Forward, backward and update.
    fn step(&mut self, turn: Turn) -> Result<(Step, Trained), WorkerError> {
        let (before, slept) = (self.recorder.parts.compute, self.sleep_if_slow());
        let Self { world, strategy, replicas, recorder, .. } = self;
        let weighting = strategy.weighting(turn.step);
        let mut trained = Trained::default();
        for replica in replicas.iter_mut() {
            let scale = replica.scale(weighting);
            trained += replica.forward(world, recorder, scale)?;
            let began = Instant::now();
            strategy.backward(world, replica, scale)?;
            recorder.backward(began, replica.ready, &replica.model);
            replica.check_statistics()?;
            if self.job.predict {
                self.backward_times.add(&replica.model, replica.had_whole_batch());
            }
        }
        recorder.timed(Kind::Optimizer, "optimizer", || strategy.update(world, replicas, turn))?;
        self.progress.done += 1;
        let step = recorder.end_step(world, replicas, trained);
        self.computed = Duration::from_secs_f64((recorder.parts.compute - before).max(0.0)).saturating_sub(slept);
        Ok((step, trained))
    }

    /// What a rank that is made slow does before a step, with parameters that grow stale meanwhile.
    /// Returns how long it took.
    fn sleep_if_slow(&mut self) -> Duration {
        let (rank, seed, step) = (self.world.rank(), self.job.seed, self.progress.done);
        let slow = self.job.slow.iter().filter(|slow| slow.rank == rank);
        let pause: Duration = slow.map(|slow| slow.pause(seed, step, self.computed)).sum();
        if pause.is_zero() {
            return pause;
        }
        let began = Instant::now();
        self.recorder.timed(Kind::Slowed, "slowed", || thread::sleep(pause));
        began.elapsed()
    }

    /// Fails if workers differ.
    fn verify(&mut self) -> Result<(), WorkerError> {
        // Unless they are of all workers' images, statistics are meant to differ.
        let with_statistics = self.job.batch_norm == BatchNorm::Sync;
        let (rank, step) = (self.world.rank(), self.progress.done);
        match first_difference(&mut self.replicas[0].model, self.world.workers(), with_statistics)? {
            None => Ok(()),
            Some(Difference { tensor, ranks }) => Err(WorkerError::OutOfStep { rank, step, tensor, ranks }),
        }
    }

    /// Does what is no part of training: neither its time counts nor what it sends.
    fn leaving_out<R>(&mut self, work: impl FnOnce(&mut Self) -> R) -> R {
        let (began, before) = (Instant::now(), self.sent());
        let result = work(self);
        let after = self.sent();
        self.left_out = (self.left_out.0 + after.0 - before.0, self.left_out.1 + after.1 - before.1);
        self.world.take_exchanges();
        self.recorder.clock.leave_out(began);
        result
    }

    /// The chief keeps the model that stands for the job, for a test after the training.
    fn keep_snapshot(&mut self) {
        if self.world.is_chief() {
            let when = self.now();
            let values = self.strategy.view(&mut self.replicas).to_vec();
            let statistics = self.replicas[0].model.statistics_mut().to_vec();
            self.snapshots.push(Snapshot { when, values, statistics });
        }
    }

    /// A test of the model as it is now, without images as yet.
    fn now(&self) -> Tested {
        let (seconds, (bytes_sent, _)) = (self.recorder.clock.seconds(), self.sent());
        Tested { epoch: self.epoch, step: self.progress.done, seconds, bytes_sent, ..Tested::default() }
    }

    /// Bytes and messages that this rank has sent to keep in step.
    fn sent(&self) -> (u64, u64) {
        let (bytes, messages) = self.replicas.iter().fold(self.world.sent(), |sum, replica| {
            let (bytes, messages) = replica.sent();
            (sum.0 + bytes, sum.1 + messages)
        });
        (bytes - self.left_out.0, messages - self.left_out.1)
    }

    /// Seconds of a step's communication that the cost model expects to be exposed.
    fn predict(&mut self) -> Result<Option<f64>, WorkerError> {
        let (workers, model) = (self.world.workers(), &self.replicas[0].model);
        let (tuning, hosts, shared) = (tune::measure(workers)?, workers.hosts(), workers.can_be_direct());
        let backward = self.backward_times.means(model);
        Ok(self.strategy.predict(&CostInputs { tuning, hosts, shared, backward }, model))
    }

    /// Tests, and sums up.
    fn finish(mut self) -> Result<(Outcome, Vec<u8>), WorkerError> {
        // The last step's loss was that before it.
        if self.replicas[0].model.values_mut().iter().any(|value| !value.is_finite()) {
            return Err(WorkerError::Overflowed { rank: self.world.rank() });
        }
        let (clock, (bytes_sent, messages_sent)) = (&self.recorder.clock, self.sent());
        let (seconds, parts) = (clock.seconds(), self.recorder.parts);
        let (seconds_per_step, mean_seconds_per_step) = (clock.median_step(), clock.mean_step());
        let last = self.now();
        let clock_error = self.recorder.clock_error(&Timebase::agree(self.world.all)?);
        let predicted_comm = if self.job.predict { self.predict()? } else { None };
        let (model, workers) = (&mut self.replicas[0].model, self.world.workers());
        let (images, correct) = evaluate::test(model, self.data, &self.canvas, workers)?;
        let weights = checkpoint::to_bytes(model);
        let mut tests = snapshots::test(self.snapshots, model, self.data, &self.canvas, workers)?;
        tests.push(Tested { images, correct, ..last });
        let outcome = Outcome {
            instructions: model.level().name().to_owned(),
            steps: self.progress.done,
            seconds,
            seconds_per_step,
            mean_seconds_per_step,
            parts,
            bytes_sent,
            messages_sent,
            compressed: self.strategy.compressed(),
            predicted_comm,
            tests,
            clock_error,
            weights_sha256: sha256(&weights),
            ..Outcome::default()
        };
        Ok((outcome, weights))
    }
}

/// Adds an epoch up, from the readings at its beginning.
struct OpenEpoch {
    sums: Epoch,
}

impl OpenEpoch {
    fn new(trainer: &Trainer<'_>) -> Self {
        let Recorder { clock, parts, .. } = &trainer.recorder;
        let (seconds, parts, bytes_sent) = (clock.seconds(), *parts, trainer.sent().0);
        Self { sums: Epoch { epoch: trainer.epoch, seconds, parts, bytes_sent, ..Epoch::default() } }
    }

    fn add(&mut self, trained: Trained) {
        self.sums.images += trained.images;
        self.sums.loss_sum += trained.score.loss;
        self.sums.correct += trained.score.correct;
    }

    fn finish(&self, trainer: &Trainer<'_>) -> Epoch {
        let Recorder { clock, parts, .. } = &trainer.recorder;
        Epoch {
            seconds: clock.seconds() - self.sums.seconds,
            parts: parts.since(self.sums.parts),
            bytes_sent: trainer.sent().0 - self.sums.bytes_sent,
            ..self.sums
        }
    }
}
