//! What one rank does, from the first weights to the last. The same for one rank and for many.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ringstep_comm::{CollectiveError, Group, tune};
use ringstep_data::Dataset;
use ringstep_data::augment::Augment;
use ringstep_data::canvas::Canvas;
use ringstep_data::file::sha256;
use ringstep_data::loader::{Batch, Loader, Plan};
use ringstep_data::shard::{Deal, Shard};
use ringstep_nn::optim::Optimizer;
use ringstep_nn::{Model, Phase, Score};

use crate::batch_norm::{BatchNorm, Together};
use crate::checkpoint::{self, CheckpointError};
use crate::clock::Clock;
use crate::feed::Feed;
use crate::fit::{self, Misfit};
use crate::records::{Epoch, Outcome, Parts, Report, Step};
use crate::strategy::{Numbers, Pass, add};
use crate::timebase::Timebase;
use crate::trace::{Kind, Tracer};
use crate::verify::{Difference, first_difference};
use crate::{Job, Sync};

/// Why a rank stopped before the end.
#[derive(Debug, thiserror::Error)]
pub enum WorkerError {
    /// Another rank is gone, silent or out of step.
    #[error(transparent)]
    Collective(#[from] CollectiveError),
    /// The initial weights do not fit.
    #[error(transparent)]
    Checkpoint(#[from] CheckpointError),
    /// The model cannot take the images.
    #[error(transparent)]
    Misfit(#[from] Misfit),
    /// The system gives no thread to load images on.
    #[error("rank {rank}: no thread to load images: {error}")]
    NoLoader {
        /// The rank without one.
        rank: usize,
        /// What the system said.
        error: io::Error,
    },
    /// Training has run away.
    #[error(
        "rank {rank}: the loss is {loss} in step {step} of epoch {epoch}, first seen in layer {layer}: training diverged, \
         a smaller lr may help"
    )]
    Diverged {
        /// The rank that saw it.
        rank: usize,
        /// From 0.
        epoch: usize,
        /// Within the epoch, from 0.
        step: usize,
        /// Not a number, or infinite.
        loss: f64,
        /// The first layer whose weights or output are not finite.
        layer: String,
    },
    /// Replicas that should be equal are not.
    #[error(
        "rank {rank}: after step {step}, {tensor} is not the same everywhere: {} from rank 0's", differ(.ranks)
    )]
    OutOfStep {
        /// The rank that noticed; all do.
        rank: usize,
        /// Steps done.
        step: usize,
        /// The first tensor that differs, in the order of the layers.
        tensor: String,
        /// Whose differ from rank 0's.
        ranks: Vec<usize>,
    },
    /// Training has run away in its last step.
    #[error("rank {rank}: the final weights are not finite: training diverged, a smaller lr may help")]
    Overflowed {
        /// The rank that saw it.
        rank: usize,
    },
}

/// A batch for evaluation, where nothing depends on its size but speed.
const EVALUATION_BATCH: usize = 100;
/// How often a rank says how far it is.
const REPORT_INTERVAL: Duration = Duration::from_millis(100);

/// "rank 2 differs", "ranks 1, 3 differ".
fn differ(ranks: &[usize]) -> String {
    let list = ranks.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
    if ranks.len() == 1 { format!("rank {list} differs") } else { format!("ranks {list} differ") }
}

/// Trains on this rank's part of the data. Returns what it did, and the final weights as a safetensors file.
pub fn run(
    job: &Job,
    init: Option<&Path>,
    data: &Dataset,
    group: &mut Group,
    report: &mut dyn FnMut(Report),
) -> Result<(Outcome, Vec<u8>), WorkerError> {
    let canvas = fit::fit(&job.model, data)?;
    let (images, rank) = (data.train.len(), group.rank());
    // The first batches are filled while the ranks get ready.
    let mut feed = start_feed(job, data, &canvas, rank)?;
    let mut model = job.model.build(job.batch.max(EVALUATION_BATCH), job.threads);
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
    let mut strategy = job.sync.strategy(&model, group);
    let mut optimizer = strategy.steps_on(rank).then(|| Optimizer::new(job.rule, &mut model));
    let (schedule, total_steps) = (job.schedule(images), job.steps(images));
    let shard = job.shard(rank, images);
    let mut accumulated = vec![0.0; if job.accumulate > 1 { model.gradients_mut().len() } else { 0 }];
    let timebase = Timebase::agree(group)?;
    let mut tracer = Tracer::new(timebase, job.trace_steps, strategy.labels(&model));
    group.barrier()?;

    let sent_before = (group.bytes_sent(), group.messages_sent());
    let mut clock = Clock::start();
    let mut report_due = Instant::now() + REPORT_INTERVAL;
    let mut recent = Vec::new();
    let mut steps = 0;
    for epoch in 0.. {
        let mut record = EpochRecorder::new(epoch, &clock, group);
        for step in 0..job.steps_an_epoch(images).min(total_steps - steps) {
            let before = Parts::of(&clock);
            if job.sync == Sync::DataParallel || job.batch_norm == BatchNorm::Broadcast {
                let began = Instant::now();
                clock.communicating(|| {
                    strategy.replicate(group, &mut model)?;
                    group.broadcast(model.statistics_mut(), 0)
                })?;
                tracer.since(steps, Kind::Communication, "replicate", began);
            }

            let batches = job.batches(step, images);
            let scale = 1.0 / batches.clone().map(|batch| shard.step_images(batch)).sum::<usize>() as f32;
            let (mut score, mut trained) = (Score::default(), 0);
            let mut synced = None;
            for number in batches.clone() {
                let began = Instant::now();
                let batch = feed.next(&mut clock, group, shard.step_images(number), canvas.len())?;
                tracer.since(steps, Kind::Data, "data", began);
                let began = Instant::now();
                let Score { loss, correct } =
                    clock.computing(|| model.forward(&batch.images, &batch.labels, Phase::Training));
                tracer.since(steps, Kind::Forward, "forward", began);
                if let Some(together) = &together {
                    together.check()?;
                }
                if !loss.is_finite() {
                    let layer = model.first_not_finite(&batch.images, &batch.labels).unwrap_or("the loss").to_owned();
                    return Err(WorkerError::Diverged { rank, epoch, step, loss, layer });
                }
                score.loss += loss;
                score.correct += correct;
                trained += batch.len();

                let began = Instant::now();
                let (first, last) = (number == batches.start, number + 1 == batches.end);
                if last {
                    let accumulated = if first { &[][..] } else { &accumulated[..] };
                    let pass = Pass { images: &batch.images, labels: &batch.labels, scale, accumulated };
                    let times = strategy.backward(group, &mut model, pass)?;
                    clock.synchronising(began, &times);
                    tracer.reductions(steps, &times);
                    synced = Some(times);
                } else {
                    clock.computing(|| {
                        model.backward(&batch.images, &batch.labels, scale);
                        match first {
                            true => accumulated.copy_from_slice(model.gradients_mut()),
                            false => add(&mut accumulated, model.gradients_mut()),
                        }
                    });
                }
                tracer.backward(steps, &model);
                if let Some(together) = &together {
                    together.check()?;
                }
            }
            let began = Instant::now();
            if let Some(optimizer) = &mut optimizer {
                clock.computing(|| {
                    let (team, values, gradients) = model.for_optimizer();
                    optimizer.step(team, values, gradients, schedule.lr(steps));
                });
            }
            tracer.since(steps, Kind::Optimizer, "optimizer", began);
            record.add(trained, score);
            let ready = timebase.seconds(synced.expect("a step has a last batch").ready);
            let (seconds, parts) = (clock.end_step(), Parts::of(&clock).since(before));
            recent.push(Step { step: steps, images: trained, loss_sum: score.loss, seconds, ready, parts });
            steps += 1;

            if job.verify_every.is_some_and(|every| steps.is_multiple_of(every)) {
                clock.pausing(|| verify(job, steps, &mut model, group))?;
            }
            if let Some(spans) = tracer.take() {
                clock.pausing(|| report(Report::Spans(spans)));
            }
            if Instant::now() >= report_due || steps == total_steps {
                report_due = Instant::now() + REPORT_INTERVAL;
                report(Report::Steps(std::mem::take(&mut recent)));
            }
        }
        let mut record = record.finish(&clock, group);
        let last = steps == total_steps;
        if !last && job.test_every.is_some_and(|every| (epoch + 1).is_multiple_of(every)) {
            let tested = clock.pausing(|| {
                strategy.replicate(group, &mut model)?;
                test(&mut model, data, &canvas, group)
            })?;
            (record.test_images, record.test_correct) = tested;
        }
        report(Report::Epoch(record));
        if last {
            break;
        }
    }

    // The last step's loss was that before it.
    if model.values_mut().iter().any(|value| !value.is_finite()) {
        return Err(WorkerError::Overflowed { rank });
    }
    let seconds = clock.seconds();
    let (joint_bytes, joint_messages) = together.as_ref().map_or((0, 0), Together::sent);
    let bytes_sent = group.bytes_sent() - sent_before.0 + joint_bytes;
    let messages_sent = group.messages_sent() - sent_before.1 + joint_messages;
    let predicted_comm = match job.predict {
        true => {
            let (tuning, hosts, shared) = (tune::measure(group)?, group.hosts(), group.can_be_direct());
            Some(strategy.predict(&Numbers { tuning, hosts, shared }, &model))
        }
        false => None,
    };
    strategy.replicate(group, &mut model)?;
    let (test_images, test_correct) = test(&mut model, data, &canvas, group)?;
    let weights = checkpoint::to_bytes(&model);
    let outcome = Outcome {
        steps,
        seconds,
        seconds_per_step: clock.median_step(),
        mean_seconds_per_step: clock.mean_step(),
        parts: Parts::of(&clock),
        bytes_sent,
        messages_sent,
        predicted_comm,
        test_images,
        test_correct,
        weights_sha256: sha256(&weights),
    };
    Ok((outcome, weights))
}

/// What this rank trains on; in DataParallel rank 0 loads for all.
fn start_feed(job: &Job, data: &Dataset, canvas: &Canvas, rank: usize) -> Result<Feed, WorkerError> {
    let images = data.train.len();
    let start = |shard| {
        start_loader(Plan {
            images: Arc::clone(&data.train),
            shard,
            steps: job.batches_in_all(images),
            canvas: canvas.clone(),
            augment: job.augment,
            seed: job.seed,
        })
    };
    if job.sync != Sync::DataParallel {
        return Ok(Feed::Own(start(job.shard(rank, images))?));
    }
    let whole = Shard { world: 1, batch: job.workers * job.batch, ..job.shard(0, images) };
    let loader = (rank == 0).then(|| start(whole)).transpose()?;
    Ok(Feed::Dealt { loader, whole: Batch::default(), part: Batch::default() })
}

/// Ends the run if ranks differ.
fn verify(job: &Job, step: usize, model: &mut Model, group: &mut Group) -> Result<(), WorkerError> {
    // In DataParallel only rank 0 has taken the step as yet; statistics of their own are meant to differ.
    if job.sync == Sync::DataParallel {
        return Ok(());
    }
    let with_statistics = job.batch_norm == BatchNorm::Sync;
    match first_difference(model, group, with_statistics)? {
        None => Ok(()),
        Some(Difference { tensor, ranks }) => Err(WorkerError::OutOfStep { rank: group.rank(), step, tensor, ranks }),
    }
}

fn start_loader(plan: Plan) -> Result<Loader, WorkerError> {
    let rank = plan.shard.rank;
    Loader::start(plan).map_err(|error| WorkerError::NoLoader { rank, error })
}

/// Classifies this rank's part of the test images: how many there were, and how many it got right. Batch norm's running
/// statistics differ from rank to rank; from here on all have those of rank 0.
fn test(model: &mut Model, data: &Dataset, canvas: &Canvas, group: &mut Group) -> Result<(usize, usize), WorkerError> {
    group.broadcast(model.statistics_mut(), 0)?;
    let images = Arc::clone(&data.test);
    let (rank, world, batch) = (group.rank(), group.world(), model.batch());
    let shard = Shard { images: images.len(), rank, world, batch, shuffle: None, deal: Deal::Strided };
    let steps = shard.steps();
    let mut loader =
        start_loader(Plan { images, shard, steps, canvas: canvas.clone(), augment: Augment::default(), seed: 0 })?;
    let (mut count, mut correct) = (0, 0);
    while let Some(batch) = loader.next() {
        count += batch.len();
        correct += model.forward(&batch.images, &batch.labels, Phase::Evaluation).correct;
    }
    Ok((count, correct))
}

/// Adds an epoch up, from the readings at its beginning.
struct EpochRecorder {
    sums: Epoch,
}

impl EpochRecorder {
    fn new(epoch: usize, clock: &Clock, group: &mut Group) -> Self {
        let (seconds, parts, bytes_sent) = (clock.seconds(), Parts::of(clock), group.bytes_sent());
        Self { sums: Epoch { epoch, seconds, parts, bytes_sent, ..Epoch::default() } }
    }

    fn add(&mut self, images: usize, score: Score) {
        self.sums.images += images;
        self.sums.loss_sum += score.loss;
        self.sums.correct += score.correct;
    }

    fn finish(self, clock: &Clock, group: &mut Group) -> Epoch {
        Epoch {
            seconds: clock.seconds() - self.sums.seconds,
            parts: Parts::of(clock).since(self.sums.parts),
            bytes_sent: group.bytes_sent() - self.sums.bytes_sent,
            ..self.sums
        }
    }
}
