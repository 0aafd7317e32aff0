//! What one rank does, from the first weights to the last. The same for one rank and for many, and for every way to stay
//! in step.

mod points;
mod saving;

use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use ringstep_comm::transport::Traffic;
use ringstep_comm::{Group, tune};
use ringstep_cpu::cores::{self, thread_seconds};
use ringstep_data::Dataset;
use ringstep_data::canvas::Canvas;
use ringstep_data::file::sha256;
use ringstep_nn::schedule::Schedule;
use ringstep_nn::team::Team;

use self::points::Points;
use crate::Job;
use crate::batch_norm::{BatchNorm, Broadcast, SyncBatchNorm};
use crate::checkpoint;
use crate::error::WorkerError;
use crate::evaluate;
use crate::feed::Feed;
use crate::fit;
use crate::halt::{Halts, Then};
use crate::profile::{Basis, Times};
use crate::recorder::{Recorder, Unreported};
use crate::records::{Compressed, Epoch, Outcome, Report, Step, Tested};
use crate::replica::{Replica, Trained};
use crate::saving::Session;
use crate::saving::writer::{Writer, write_test};
use crate::snapshots::{self, Snapshot};
use crate::strategy::{Next, Progress, Strategy, Turn, server};
use crate::timebase::Timebase;
use crate::trace::Kind;
use crate::verify::{Difference, first_difference};
use crate::world::{CHIEF, Role, World};

/// Trains on this rank's part of the data, or serves those that do, from the beginning to the end.
pub fn run(
    job: &Job,
    data: &Dataset,
    group: &mut Group,
    report: &mut dyn FnMut(Report),
) -> Result<(Outcome, Vec<u8>), WorkerError> {
    let halts = &Halts::default();
    let session = Session { report, halts, checkpoints: None, from: None, joins: false, memory: None };
    match run_in(job, data, group, session)? {
        Ended::Done(outcome, weights) => Ok((*outcome, weights)),
        Ended::Left => unreachable!("nobody tells it to leave"),
    }
}

/// How a rank ends that does not fail.
pub enum Ended {
    /// With what it did, and of a worker the final weights as a safetensors file.
    Done(Box<Outcome>, Vec<u8>),
    /// It was told to leave between two steps.
    Left,
}

/// The same, where it may be halted and saved on the way, and may go on from where it was once before.
pub fn run_in(job: &Job, data: &Dataset, group: &mut Group, session: Session<'_>) -> Result<Ended, WorkerError> {
    match job.role(group.rank()) {
        Role::Worker => {
            let mut trainer = Trainer::get_ready(job, data, group, &session)?;
            match trainer.train(session)? {
                true => trainer.finish(),
                false => Ok(Ended::Left),
            }
        }
        Role::Server(number) => server::run(job, data, group, number, session),
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
    times: Times,
    /// For how long its thread had had a core when the last step was taken, in seconds.
    updated: f64,
    /// And for how long after that, before the next: records, and what halts it.
    between: f64,
    /// What had been sent and received before the first step, and what has been since that has nothing to do with training.
    left_out: Traffic,
    /// What was sent and received by whoever did the steps before the first.
    earlier: Traffic,
    /// The steps that are done when it begins.
    began_at: usize,
    /// The epoch so far, with the readings at its beginning.
    open: Epoch,
    unreported: Unreported,
    /// Whether it was told to end here.
    interrupted: bool,
    /// What compression had done at the end of the last step.
    compressed: Option<Compressed>,
    /// On the chief, the models that are to be tested after the training.
    snapshots: Vec<Arc<Snapshot>>,
    /// The steps after which these were, on every rank.
    test_steps: Vec<u64>,
}

impl<'a> Trainer<'a> {
    /// All that comes before the first step. Ends with a barrier, and starts the clock.
    fn get_ready(
        job: &'a Job,
        data: &'a Dataset,
        group: &'a mut Group,
        session: &Session<'_>,
    ) -> Result<Self, WorkerError> {
        let canvas = fit::fit(&job.model, data)?;
        let (images, rank) = (data.train.len(), group.rank());
        let mut world = World::new(group, &job.roles())?;
        let level = job.instructions.level().map_err(|error| WorkerError::NoInstructions { rank, error })?;
        let build = || {
            let team = Team::start(job.threads, level).map_err(WorkerError::no_thread(rank, "compute"))?;
            Ok::<_, WorkerError>(job.model.build(job.batch, team))
        };
        let mut model = build()?;
        match (&job.init, session.from) {
            (Some(path), None) => checkpoint::load(&mut model, path)?,
            _ => model.initialise(job.seed),
        }
        world.all.broadcast(model.values_mut(), CHIEF)?;
        world.workers().broadcast(model.statistics_mut(), CHIEF)?;
        let measured = session.from.is_some_and(|saved| saving::restore_tuning(&mut world, saved));
        if job.sync.algorithm() == Some(None) && !measured {
            tune::measure(world.workers())?;
        }
        let mut batch_norm = match job.batch_norm {
            BatchNorm::Sync if job.workers > 1 => Some(SyncBatchNorm::begin(&mut model, &mut world)?),
            _ => None,
        };
        let broadcast = (job.batch_norm == BatchNorm::Broadcast).then(|| Broadcast::new(&mut world));
        let schedule = job.schedule(images);
        let strategy = job.sync.strategy((job, images), &mut model, &schedule, &mut world);
        strategy.prepare(&mut world).map_err(WorkerError::no_thread(rank, "communicate"))?;
        let mut models = vec![model];
        for _ in 1..job.sync.learners() {
            let mut model = build()?;
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
            times: Times::default(),
            updated: thread_seconds(),
            between: 0.0,
            left_out: Traffic::default(),
            earlier: Traffic::default(),
            began_at: 0,
            open: Epoch::default(),
            unreported: Unreported::new(),
            interrupted: false,
            compressed: None,
            snapshots: Vec::new(),
            test_steps: Vec::new(),
        };
        trainer.set_traffic(Traffic::default());
        trainer.compressed = trainer.strategy.compressed();
        if let Some(saved) = session.from {
            let saved = if session.joins { &trainer.beside(saved) } else { saved };
            trainer.restore(saved, session.checkpoints.map(|checkpoints| &*checkpoints.folder))?;
            trainer.leaving_out(|trainer| trainer.world.all.barrier())?;
        }
        Ok(trainer)
    }

    /// Step by step to the end, or until it is told to stop. Says whether there is something to finish.
    fn train(&mut self, session: Session<'_>) -> Result<bool, WorkerError> {
        let Session { report, halts, checkpoints, memory, joins, .. } = session;
        let mut points = memory.and_then(|memory| Points::new(self.job, self.data.train.len(), memory));
        if let Some(points) = points.as_ref().filter(|_| joins) {
            self.keep_state(points, report);
        }
        // Models that wait for a test must outlive this process, too.
        let folder = checkpoints.filter(|_| points.is_some()).map(|checkpoints| &*checkpoints.folder);
        let mut writer = checkpoints.map(|checkpoints| Writer::new(checkpoints, self.world.rank()));
        let every = checkpoints.and_then(|checkpoints| checkpoints.every);
        let images = self.data.train.len();
        let ends = loop {
            let told = self.halt(halts, &mut writer, every, report)?;
            if told.is_some() {
                break told;
            }
            if let Some(points) = &mut points {
                self.keep_point(points, report)?;
            }
            let Next::Step(step) = self.before()? else { break self.halt_in_the_end(halts, &mut writer, report)? };
            self.reach_epoch(self.job.place(step, images).0, folder, report)?;
            let (done, trained) = self.step(Turn { step, lr: self.schedule.lr(self.job.scheduled(step, images)) })?;
            self.open.images += trained.images;
            self.open.loss_sum += trained.score.loss;
            self.open.correct += trained.score.correct;
            self.unreported.add(done, report);
            let verify = self.job.verify_every.is_some_and(|every| self.progress.done.is_multiple_of(every));
            if verify && self.strategy.replicas_equal() {
                self.leaving_out(Self::verify)?;
            }
            if let Some(spans) = self.recorder.take_spans() {
                self.recorder.clock.pausing(|| report(Report::Spans(spans)));
            }
        };
        halts.close();
        self.world.unlabel();
        self.unreported.report(report);
        let finishes = ends != Some(Then::Leave);
        self.interrupted = ends.is_some();
        if finishes {
            if !self.interrupted {
                // Where workers share the steps, a slow one may not have come so far.
                self.reach_epoch(self.job.place(self.progress.of - 1, images).0, folder, report)?;
            }
            report(Report::Epoch(self.epoch_so_far()));
            self.strategy.finish(&mut self.world, &mut self.replicas)?;
            report(Report::Closing(Box::new(self.recorder.end(&mut self.world, &self.replicas))));
        } else {
            self.strategy.leave(&mut self.world)?;
            // Nobody closes its connections while another still reads from them.
            self.world.all.meet()?;
        }
        if let Some(writer) = writer {
            writer.finish(report);
        }
        Ok(finishes)
    }

    /// Ends the epochs before this one. Models that wait for a test are written to a folder at once, if there is one.
    fn reach_epoch(
        &mut self,
        epoch: usize,
        folder: Option<&Path>,
        report: &mut dyn FnMut(Report),
    ) -> Result<(), WorkerError> {
        while self.epoch < epoch {
            report(Report::Epoch(self.epoch_so_far()));
            if self.job.test_every.is_some_and(|every| (self.epoch + 1).is_multiple_of(every)) {
                self.keep_snapshot(folder)?;
            }
            self.epoch += 1;
            let Recorder { clock, parts, .. } = &self.recorder;
            let (seconds, parts, bytes_sent) = (clock.seconds(), *parts, self.traffic().payload[0]);
            self.open = Epoch { epoch: self.epoch, seconds, parts, bytes_sent, ..Epoch::default() };
        }
        Ok(())
    }

    /// The epoch that it is in.
    fn epoch_so_far(&self) -> Epoch {
        let Recorder { clock, parts, .. } = &self.recorder;
        Epoch {
            seconds: clock.seconds() - self.open.seconds,
            parts: parts.since(self.open.parts),
            bytes_sent: self.traffic().payload[0] - self.open.bytes_sent,
            ..self.open
        }
    }

    /// What comes before a step's first forward.
    fn before(&mut self) -> Result<Next, WorkerError> {
        self.between = thread_seconds() - self.updated;
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
        // Forward and backward, without what others took of the core.
        let mut computed = [0.0; 2];
        for replica in replicas.iter_mut() {
            let (scale, before) = (replica.scale(weighting), thread_seconds());
            trained += replica.forward(world, recorder, scale)?;
            let (began, middle) = (Instant::now(), thread_seconds());
            strategy.backward(world, replica, scale)?;
            computed = [middle - before, replica.served - middle];
            recorder.backward(began, replica.ready, &replica.model);
            replica.check_statistics()?;
        }
        let updating = thread_seconds();
        recorder.timed(Kind::Optimizer, "optimizer", || strategy.update(world, replicas, turn))?;
        self.updated = thread_seconds();
        if self.job.predict
            && let Some(replica) = replicas.last().filter(|replica| replica.had_whole_batch())
        {
            let [forward, backward] = computed;
            let parts = [self.between + forward, backward, self.updated - updating];
            self.times.add(&replica.model, parts, replica.load_seconds());
        }
        for (label, span) in strategy.take_encoding() {
            recorder.encoded(world.name(label), span);
        }
        self.progress.done += 1;
        let mut step = recorder.end_step(world, replicas, trained);
        self.computed = Duration::from_secs_f64((recorder.parts.compute - before).max(0.0)).saturating_sub(slept);
        step.bytes_sent = self.traffic().payload[0];
        let compressed = self.strategy.compressed();
        let earlier = std::mem::replace(&mut self.compressed, compressed);
        step.compressed = compressed.map(|now| now.since(earlier.unwrap_or_default()));
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
        let (began, before) = (Instant::now(), self.traffic());
        self.world.unlabel();
        let result = work(self);
        self.left_out += self.traffic() - before;
        self.world.take_exchanges();
        self.recorder.clock.leave_out(began);
        result
    }

    /// The chief keeps the model that stands for the job, for a test after the training.
    fn keep_snapshot(&mut self, folder: Option<&Path>) -> Result<(), WorkerError> {
        self.test_steps.push(self.progress.done as u64);
        if self.world.is_chief() {
            let when = self.now();
            let values = self.strategy.view(&mut self.replicas).to_vec();
            let statistics = self.replicas[0].model.statistics_mut().to_vec();
            let snapshot = Snapshot { when, values, statistics };
            if let Some(folder) = folder {
                self.recorder.clock.pausing(|| write_test(folder, &snapshot))?;
            }
            self.snapshots.push(Arc::new(snapshot));
        }
        Ok(())
    }

    /// A test of the model as it is now, without images as yet.
    fn now(&self) -> Tested {
        let (seconds, bytes_sent) = (self.recorder.clock.seconds(), self.traffic().payload[0]);
        Tested { epoch: self.epoch, step: self.progress.done, seconds, bytes_sent, ..Tested::default() }
    }

    /// What this rank has sent and received to keep in step.
    fn traffic(&self) -> Traffic {
        self.earlier + (self.all_traffic() - self.left_out)
    }

    /// From now on it has sent and received so much.
    fn set_traffic(&mut self, traffic: Traffic) {
        (self.earlier, self.left_out) = (traffic, self.all_traffic());
    }

    /// What this process has sent and received.
    fn all_traffic(&self) -> Traffic {
        self.replicas.iter().fold(self.world.traffic(), |sum, replica| sum + replica.traffic())
    }

    /// What a prediction rests on; nothing, if no batch was whole.
    fn basis(&mut self) -> Result<Option<Box<Basis>>, WorkerError> {
        let workers = self.world.workers();
        let (tuning, topology, cores) = (workers.tuning(), workers.topology().clone(), cores::allowed());
        let timings = tune::measure(workers)?;
        let profile = std::mem::take(&mut self.times).profile(&self.replicas[0].model);
        Ok(profile.map(|profile| Box::new(Basis { profile, timings, topology, cores, tuning })))
    }

    /// Tests, and sums up.
    fn finish(mut self) -> Result<Ended, WorkerError> {
        // The last step's loss was that before it.
        if self.replicas[0].model.values_mut().iter().any(|value| !value.is_finite()) {
            return Err(WorkerError::Overflowed { rank: self.world.rank() });
        }
        let (clock, traffic) = (&self.recorder.clock, self.traffic());
        let (seconds, parts) = (clock.seconds(), self.recorder.parts);
        let (seconds_per_step, mean_seconds_per_step) = (clock.median_step(), clock.mean_step());
        let last = self.now();
        let clock_error = self.recorder.clock_error(&Timebase::agree(self.world.all)?);
        let basis = if self.job.predict { self.basis()? } else { None };
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
            sent: self.recorder.sent,
            bytes_sent: traffic.payload[0],
            bytes_received: traffic.payload[1],
            wire_bytes: traffic.wire,
            messages_sent: traffic.messages[0],
            compressed: self.strategy.compressed(),
            basis,
            tests,
            clock_error,
            weights_sha256: sha256(&weights),
            interrupted: self.interrupted,
            ..Outcome::default()
        };
        Ok(Ended::Done(Box::new(outcome), weights))
    }
}
