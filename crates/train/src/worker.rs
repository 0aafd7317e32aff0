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
use ringstep_data::loader::{Loader, Plan};
use ringstep_data::shard::Shard;
use ringstep_nn::optim::Optimizer;
use ringstep_nn::{Model, Phase};
use serde::{Deserialize, Serialize};

use crate::checkpoint::{self, CheckpointError};
use crate::clock::Clock;
use crate::fit::{self, Misfit};
use crate::{Job, Sync};

/// What a rank says while it trains.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub enum Report {
    /// So many steps are done; a few times a second.
    Progress {
        /// Steps since the beginning.
        steps: usize,
    },
    /// An epoch is over.
    Epoch(Epoch),
}

/// One rank's part of an epoch. Times and bytes are those of this epoch alone.
#[derive(Debug, Clone, Default, Serialize, Deserialize, PartialEq)]
pub struct Epoch {
    /// From 0.
    pub epoch: usize,
    /// Images this rank trained on.
    pub images: usize,
    /// Sum of their losses, each as it was when the image was trained on.
    pub loss_sum: f64,
    /// How many were classified rightly then.
    pub correct: usize,
    /// Wall time.
    pub seconds: f64,
    /// Time in forward, backward and optimizer.
    pub compute_seconds: f64,
    /// Time in synchronising gradients.
    pub comm_seconds: f64,
    /// Time in waiting for batches that were not ready.
    pub data_seconds: f64,
    /// Bytes sent to synchronise gradients.
    pub bytes_sent: u64,
    /// Test images that this rank classified after the epoch; 0 if there was no test.
    pub test_images: usize,
    /// How many of them rightly.
    pub test_correct: usize,
}

/// What a rank has to show at the end.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct Outcome {
    /// Steps taken.
    pub steps: usize,
    /// Wall time of the training.
    pub seconds: f64,
    /// Median time of a step, the first left out.
    pub seconds_per_step: f64,
    /// Time in forward, backward and optimizer.
    pub compute_seconds: f64,
    /// Time in synchronising gradients.
    pub comm_seconds: f64,
    /// Time in waiting for batches that were not ready.
    pub data_seconds: f64,
    /// Bytes sent to synchronise gradients.
    pub bytes_sent: u64,
    /// Test images that this rank classified.
    pub test_images: usize,
    /// How many of them rightly.
    pub test_correct: usize,
    /// Of the weights as a safetensors file.
    pub weights_sha256: String,
}

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
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Trains on this rank's part of the data. Returns what it did, and the final weights as a safetensors file.
pub fn run(
    job: &Job,
    init: Option<&Path>,
    data: &Dataset,
    group: &mut Group,
    report: &mut dyn FnMut(Report),
) -> Result<(Outcome, Vec<u8>), WorkerError> {
    let canvas = fit::fit(&job.model, data)?;
    let shard = job.shard(group.rank(), data.train.len());
    let total_steps = job.steps(data.train.len());
    // The first batches are filled while the ranks get ready.
    let mut loader = start_loader(Plan {
        images: Arc::clone(&data.train),
        shard: shard.clone(),
        steps: total_steps,
        canvas: canvas.clone(),
        augment: job.augment,
        seed: job.seed,
    })?;
    let mut model = job.model.build(job.batch.max(EVALUATION_BATCH), job.threads);
    match init {
        Some(path) => checkpoint::load(&mut model, path)?,
        None => model.initialise(job.seed),
    }
    group.broadcast(model.values_mut(), 0)?;
    group.broadcast(model.statistics_mut(), 0)?;
    model.set_label_smoothing(job.label_smoothing);
    model.set_dropout_seed(job.seed.wrapping_add((group.rank() as u64) << 32));
    let mut optimizer = Optimizer::new(job.rule, &mut model);
    let schedule = job.schedule(data.train.len());
    let mut strategy = job.sync.strategy();
    if job.sync == Sync::AllReduce(None) {
        tune::measure(group)?;
    }
    group.barrier()?;

    let setup_bytes = group.bytes_sent();
    let mut clock = Clock::start();
    let mut progress_due = Instant::now() + PROGRESS_INTERVAL;
    let mut steps = 0;
    for epoch in 0.. {
        let mut record = EpochRecorder::new(epoch, &clock, group);
        for step in 0..shard.steps().min(total_steps - steps) {
            let batch = clock.loading(|| loader.next()).expect("there is a batch for each step");
            let score = clock.computing(|| {
                let score = model.forward(&batch.images, &batch.labels, Phase::Training);
                model.backward(&batch.images, &batch.labels, 1.0 / shard.step_images(step) as f32);
                score
            });
            if !score.loss.is_finite() {
                let layer = model.first_not_finite(&batch.images, &batch.labels).unwrap_or("the loss").to_owned();
                return Err(WorkerError::Diverged { rank: group.rank(), epoch, step, loss: score.loss, layer });
            }
            clock.communicating(|| strategy.synchronise(group, model.gradients_mut()))?;
            clock.computing(|| {
                let (team, values, gradients) = model.for_optimizer();
                optimizer.step(team, values, gradients, schedule.lr(steps));
            });
            record.add(batch.len(), score);
            clock.end_step();
            steps += 1;
            if Instant::now() >= progress_due {
                progress_due = Instant::now() + PROGRESS_INTERVAL;
                report(Report::Progress { steps });
            }
        }
        let mut record = record.finish(&clock, group);
        let last = steps == total_steps;
        if !last && job.test_every.is_some_and(|every| (epoch + 1).is_multiple_of(every)) {
            let tested = clock.pausing(|| test(&mut model, data, &canvas, group))?;
            (record.test_images, record.test_correct) = tested;
        }
        report(Report::Epoch(record));
        if last {
            break;
        }
    }

    // The last step's loss was that before it.
    if model.values_mut().iter().any(|value| !value.is_finite()) {
        return Err(WorkerError::Overflowed { rank: group.rank() });
    }
    let (seconds, bytes_sent) = (clock.seconds(), group.bytes_sent() - setup_bytes);
    let (test_images, test_correct) = test(&mut model, data, &canvas, group)?;
    let weights = checkpoint::to_bytes(&model);
    let outcome = Outcome {
        steps,
        seconds,
        seconds_per_step: clock.median_step(),
        compute_seconds: clock.compute.as_secs_f64(),
        comm_seconds: clock.communication.as_secs_f64(),
        data_seconds: clock.data.as_secs_f64(),
        bytes_sent,
        test_images,
        test_correct,
        weights_sha256: sha256(&weights),
    };
    Ok((outcome, weights))
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
    let shard = Shard { images: images.len(), rank, world, batch, shuffle: None };
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
    compute: Duration,
    communication: Duration,
    data: Duration,
}

impl EpochRecorder {
    fn new(epoch: usize, clock: &Clock, group: &mut Group) -> Self {
        let sums = Epoch { epoch, seconds: clock.seconds(), bytes_sent: group.bytes_sent(), ..Epoch::default() };
        Self { sums, compute: clock.compute, communication: clock.communication, data: clock.data }
    }

    fn add(&mut self, images: usize, score: ringstep_nn::Score) {
        self.sums.images += images;
        self.sums.loss_sum += score.loss;
        self.sums.correct += score.correct;
    }

    fn finish(self, clock: &Clock, group: &mut Group) -> Epoch {
        Epoch {
            seconds: clock.seconds() - self.sums.seconds,
            compute_seconds: (clock.compute - self.compute).as_secs_f64(),
            comm_seconds: (clock.communication - self.communication).as_secs_f64(),
            data_seconds: (clock.data - self.data).as_secs_f64(),
            bytes_sent: group.bytes_sent() - self.sums.bytes_sent,
            ..self.sums
        }
    }
}
