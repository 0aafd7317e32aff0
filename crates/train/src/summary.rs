//! What all ranks together did.

use serde::{Deserialize, Serialize};

use crate::Job;
use crate::accounts::{Accounts, Shares, Total};
use crate::content::Sent;
use crate::records::{Compressed, Epoch, Nanoseconds, Outcome, Tested};
use crate::slow::Slow;

/// One run, as `--json` prints it and `summary.json` holds it.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct Summary {
    /// The row's name.
    pub name: String,
    /// The way of synchronising.
    pub sync: String,
    /// The collective behind it, or `none`.
    pub algorithm: String,
    /// The compression, if there is one.
    pub compress: Option<String>,
    /// The workers that were made slow, as on the command line.
    pub slow: Vec<String>,
    /// How many ranks trained.
    pub workers: usize,
    /// How many held the parameters for them.
    pub servers: usize,
    /// Whether the same job gives the same bits again.
    pub repeatable: bool,
    /// The instructions that they computed with, a list if they differ.
    pub instructions: String,
    /// Whether it was told to end before its last step.
    pub interrupted: bool,
    /// Epochs begun.
    pub epochs: usize,
    /// Steps taken, mean over the workers where each takes its own.
    pub steps: usize,
    /// Loss of the last epoch.
    pub train_loss: f64,
    /// Accuracy of the last epoch, as a fraction.
    pub train_accuracy: f64,
    /// Accuracy of the final weights on the test images, as a fraction.
    pub test_accuracy: f64,
    /// Wall time of the training, mean over the ranks.
    pub seconds: f64,
    /// Seconds of training until a test first reached the accuracy that was asked for, if one did.
    pub time_to_target: Option<f64>,
    /// Images of all workers, over the time until the last of them was through with its last step.
    pub images_per_second: f64,
    /// The same for each worker alone.
    pub rank_images_per_second: Vec<f64>,
    /// By rank, how many steps a worker took in a second; behind the workers, those that a server's parameters took.
    pub rank_updates_per_second: Vec<f64>,
    /// Median time of a step without the first, mean over the ranks.
    pub seconds_per_step: f64,
    /// Mean time of a step without the first, mean over the ranks.
    pub mean_seconds_per_step: f64,
    /// What a step should take: its computation as measured, and the communication that the cost model expects to be
    /// exposed; if it was asked.
    pub predicted_seconds_per_step: Option<f64>,
    /// Time in forward, backward and optimizer, mean over the ranks.
    pub compute_seconds: f64,
    /// Time in synchronising while nothing else was done, with the waiting in it, mean over the ranks.
    pub comm_seconds: f64,
    /// The part of it that was spent waiting for other ranks to come to an exchange, mean over the ranks.
    pub waiting_seconds: f64,
    /// By rank, servers too, the time in which it did nothing but wait for others.
    pub wait_seconds: Vec<f64>,
    /// Time in which exchanges went on behind computation, mean over the ranks.
    pub hidden_seconds: f64,
    /// Time in waiting for batches that were not ready, mean over the ranks.
    pub data_seconds: f64,
    /// Time in encoding and decoding: the mean over the workers and what the busiest server took, since steps wait for both.
    pub encode_seconds: f64,
    /// By rank, servers too, the time in encoding and decoding.
    pub rank_encode_seconds: Vec<f64>,
    /// Seconds by which moments of different ranks may be off.
    pub clock_error: f64,
    /// How often parameters that a worker read lacked so many steps of others, from 0, as servers saw it.
    pub staleness_histogram: Vec<u64>,
    /// Bytes that the busiest rank sent to synchronise gradients.
    pub bytes_sent: u64,
    /// Bytes that it would have sent without compression.
    pub bytes_dense: u64,
    /// Bytes that the busiest rank received.
    pub bytes_received: u64,
    /// Bytes that the busiest rank put on the way, with headers and padding.
    pub wire_bytes_sent: u64,
    /// Bytes that the busiest rank took from there.
    pub wire_bytes_received: u64,
    /// Bytes that all ranks together put on the way, by what they are.
    pub sent: Sent,
    /// By rank: bytes of data sent and received, and what these took on the way.
    pub rank_bytes: Vec<[u64; 4]>,
    /// How much compression left out, relative to what there was to send, if there was one.
    pub compression_error: Option<f64>,
    /// Messages that the busiest rank sent for that.
    pub messages_sent: u64,
    /// For each epoch the mean over its images of the loss each had when it was trained on.
    pub epoch_losses: Vec<f64>,
    /// For each epoch the share of its images that were classified rightly then.
    pub epoch_accuracies: Vec<f64>,
    /// For each epoch the accuracy on the test images after it, where there was a test.
    pub epoch_test_accuracies: Vec<Option<f64>>,
    /// All tests, in the order of the training; the last one is that of the final weights.
    pub tests: Vec<Test>,
    /// Of `model.safetensors`.
    pub weights_sha256: String,
    /// How often it went on after ranks had failed.
    #[serde(default)]
    pub restarts: Vec<Restart>,
}

/// Ranks have failed, and the others went on.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct Restart {
    /// What happened.
    pub cause: String,
    /// The ranks that were lost, by the numbers that they had.
    pub lost: Vec<usize>,
    /// How many workers went on.
    pub workers: usize,
    /// After which step.
    pub step: usize,
    /// How many steps had to be done again.
    pub steps_lost: usize,
    /// Seconds from when it was noticed until the first step afterwards was reported.
    pub seconds: f64,
}

/// A test of the model as it was at some moment of the training.
#[derive(Debug, Clone, Copy, Serialize, Deserialize, PartialEq)]
pub struct Test {
    /// The last epoch before it, from 0.
    pub epoch: usize,
    /// Steps that rank 0 had done.
    pub step: usize,
    /// Seconds of training by then.
    pub seconds: f64,
    /// Bytes that the busiest rank had sent by then.
    pub bytes: u64,
    /// The share of the test images that it classified rightly.
    pub accuracy: f64,
}

/// All that a rank said, but for its steps.
#[derive(Debug, Clone)]
pub struct RankRecord {
    /// Its epochs.
    pub epochs: Vec<Epoch>,
    /// How it ended.
    pub outcome: Outcome,
}

/// Two ranks ended with different weights.
#[derive(Debug, thiserror::Error)]
#[error("rank {rank} ended with other weights than rank 0 ({own}, not {expected}): the replicas are out of step")]
pub struct OutOfStep {
    /// The rank that differs.
    pub rank: usize,
    /// The sha256 of its weights.
    pub own: String,
    /// The sha256 of rank 0's.
    pub expected: String,
}

/// Sums the run of this name up from what each rank said, and from the epochs of workers that were lost on the way. `target` is the accuracy to which the time is wanted.
pub fn sum_up(
    name: &str,
    job: &Job,
    all: &[RankRecord],
    accounts: &Accounts,
    departed: &[Epoch],
    target: Option<f64>,
) -> Result<Summary, OutOfStep> {
    // Servers have traffic to show, and nothing else.
    let ranks = &all[..job.workers];
    let expected = &ranks[0].outcome.weights_sha256;
    for (rank, RankRecord { outcome, .. }) in ranks.iter().enumerate() {
        if outcome.weights_sha256 != *expected {
            let own = outcome.weights_sha256.clone();
            return Err(OutOfStep { rank, own, expected: expected.clone() });
        }
    }
    // Workers that are not in step need not have had images of the same epochs.
    let of_ranks = || ranks.iter().flat_map(|rank| &rank.epochs).chain(departed);
    let epochs = of_ranks().map(|epoch| epoch.epoch + 1).max().unwrap_or(0);
    let over_ranks = |epoch: usize, part: fn(&Epoch) -> f64| -> f64 {
        of_ranks().filter(|of_rank| of_rank.epoch == epoch).map(part).sum()
    };
    let per_image = |part: fn(&Epoch) -> f64| -> Vec<f64> {
        (0..epochs).map(|epoch| over_ranks(epoch, part) / over_ranks(epoch, |epoch| epoch.images as f64)).collect()
    };
    let epoch_losses = per_image(|epoch| epoch.loss_sum);
    let epoch_accuracies = per_image(|epoch| epoch.correct as f64);

    // All ranks have classified their parts with the same models.
    let busiest = |part: fn(&Outcome) -> u64| all.iter().map(|rank| part(&rank.outcome)).max().unwrap_or(0);
    let bytes_sent = busiest(|outcome| outcome.bytes_sent);
    let mut tests = Vec::new();
    for (test, &Tested { epoch, step, seconds, .. }) in ranks[0].outcome.tests.iter().enumerate() {
        let over_ranks = |part: fn(&Tested) -> usize| ranks.iter().map(|rank| part(&rank.outcome.tests[test])).sum();
        let (images, correct): (usize, usize) = (over_ranks(|test| test.images), over_ranks(|test| test.correct));
        let last = test + 1 == ranks[0].outcome.tests.len();
        let bytes = if last { bytes_sent } else { accounts.bytes_after(step) };
        tests.push(Test { epoch, step, seconds, bytes, accuracy: correct as f64 / images as f64 });
    }
    let mut epoch_test_accuracies: Vec<Option<f64>> = vec![None; epochs];
    for test in &tests {
        epoch_test_accuracies[test.epoch] = Some(test.accuracy);
    }
    let reached = |target: f64| tests.iter().find(|test| test.accuracy >= target).map(|test| test.seconds);

    let outcomes = || ranks.iter().map(|rank| &rank.outcome);
    let mean = |time: fn(&Outcome) -> f64| outcomes().map(time).sum::<f64>() / ranks.len() as f64;
    let mut instructions: Vec<&str> = outcomes().map(|outcome| outcome.instructions.as_str()).collect();
    instructions.sort_unstable();
    instructions.dedup();
    let totals = &accounts.ranks[..job.workers];
    let a_second = |count: usize, seconds: f64| if seconds > 0.0 { count as f64 / seconds } else { 0.0 };
    let images: usize = totals.iter().map(|total| total.images).sum();
    let longest = totals.iter().map(Total::seconds).fold(0.0, f64::max);
    let steps = totals.iter().map(|total| total.steps).sum::<usize>() / job.workers;
    let updates = totals.iter().map(|total| a_second(total.own_steps(), total.seconds()));
    let server_updates =
        all[job.workers..].iter().map(|RankRecord { outcome, .. }| a_second(outcome.steps, outcome.seconds));
    let mut staleness_histogram = Vec::new();
    for observed in all.iter().map(|rank| &rank.outcome.staleness) {
        staleness_histogram.resize(observed.len().max(staleness_histogram.len()), 0);
        staleness_histogram.iter_mut().zip(observed).for_each(|(sum, count)| *sum += count);
    }
    let compressed: Option<Compressed> = outcomes().map(|outcome| outcome.compressed).sum();
    let encode_seconds =
        |rank: &RankRecord| rank.outcome.compressed.map_or(0.0, |compressed| compressed.encode_seconds);
    let encoding: Vec<f64> = all.iter().map(encode_seconds).collect();
    let mean_wait = |part: fn(&Shares) -> Nanoseconds| {
        totals.iter().map(|total| part(&total.shares)).sum::<Nanoseconds>() as f64 / 1e9 / job.workers as f64
    };
    let compute_seconds = mean(|outcome| outcome.parts.compute);
    Ok(Summary {
        name: name.to_owned(),
        sync: job.sync.name().to_owned(),
        algorithm: job.sync.algorithm_name().to_owned(),
        compress: job.compress.map(|compression| compression.method.name().to_owned()),
        slow: job.slow.iter().map(Slow::to_string).collect(),
        workers: job.workers,
        servers: all.len() - job.workers,
        repeatable: job.sync.repeats(),
        instructions: instructions.join(", "),
        interrupted: ranks.iter().any(|rank| rank.outcome.interrupted),
        epochs,
        steps,
        train_loss: epoch_losses[epochs - 1],
        train_accuracy: epoch_accuracies[epochs - 1],
        test_accuracy: tests.last().map_or(0.0, |test| test.accuracy),
        seconds: mean(|outcome| outcome.seconds),
        time_to_target: target.and_then(reached),
        images_per_second: a_second(images, longest),
        rank_images_per_second: totals.iter().map(|total| a_second(total.images, total.seconds())).collect(),
        rank_updates_per_second: updates.chain(server_updates).collect(),
        seconds_per_step: mean(|outcome| outcome.seconds_per_step),
        mean_seconds_per_step: mean(|outcome| outcome.mean_seconds_per_step),
        predicted_seconds_per_step: None,
        compute_seconds,
        comm_seconds: mean(|outcome| outcome.parts.comm),
        waiting_seconds: mean_wait(|shares| shares.waiting),
        wait_seconds: accounts.ranks.iter().map(|total| total.shares.waiting as f64 / 1e9).collect(),
        hidden_seconds: mean_wait(|shares| shares.hidden),
        data_seconds: mean(|outcome| outcome.parts.data),
        encode_seconds: encoding[..job.workers].iter().sum::<f64>() / job.workers as f64
            + encoding[job.workers..].iter().copied().fold(0.0, f64::max),
        rank_encode_seconds: encoding,
        clock_error: all.iter().map(|rank| rank.outcome.clock_error).fold(0.0, f64::max),
        staleness_histogram,
        bytes_sent,
        bytes_dense: busiest(|outcome| {
            outcome.compressed.map_or(outcome.bytes_sent, |compressed| compressed.bytes_dense)
        }),
        bytes_received: busiest(|outcome| outcome.bytes_received),
        wire_bytes_sent: busiest(|outcome| outcome.wire_bytes[0]),
        wire_bytes_received: busiest(|outcome| outcome.wire_bytes[1]),
        sent: all.iter().map(|rank| rank.outcome.sent).sum(),
        rank_bytes: all.iter().map(|rank| rank.outcome.bytes()).collect(),
        compression_error: compressed.map(|compressed| compressed.error()),
        messages_sent: busiest(|outcome| outcome.messages_sent),
        epoch_losses,
        epoch_accuracies,
        epoch_test_accuracies,
        tests,
        weights_sha256: expected.clone(),
        restarts: Vec::new(),
    })
}
