//! What all ranks together did.

use serde::{Deserialize, Serialize};

use crate::Job;
use crate::accounts::StepSummary;
use crate::records::{Epoch, Outcome, Tested};

/// One run, as `--json` prints it and `summary.json` holds it.
#[derive(Debug, Clone, Serialize, Deserialize, PartialEq)]
pub struct Summary {
    /// The way of synchronising.
    pub sync: String,
    /// The collective behind it, or `none`.
    pub algorithm: String,
    /// How many ranks there were.
    pub workers: usize,
    /// The instructions that they computed with, a list if they differ.
    pub instructions: String,
    /// Epochs begun.
    pub epochs: usize,
    /// Steps taken.
    pub steps: usize,
    /// Loss of the last epoch.
    pub train_loss: f64,
    /// Accuracy of the last epoch, as a fraction.
    pub train_accuracy: f64,
    /// Accuracy of the final weights on the test images, as a fraction.
    pub test_accuracy: f64,
    /// Wall time of the training, mean over the ranks.
    pub seconds: f64,
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
    /// Time in which exchanges went on behind computation, mean over the ranks.
    pub hidden_seconds: f64,
    /// Time in waiting for batches that were not ready, mean over the ranks.
    pub data_seconds: f64,
    /// Bytes that the busiest rank sent to synchronise gradients.
    pub bytes_sent: u64,
    /// Messages that the busiest rank sent for that.
    pub messages_sent: u64,
    /// For each epoch the mean over its images of the loss each had when it was trained on.
    pub epoch_losses: Vec<f64>,
    /// For each epoch the share of its images that were classified rightly then.
    pub epoch_accuracies: Vec<f64>,
    /// For each epoch the accuracy on the test images after it, where there was a test.
    pub epoch_test_accuracies: Vec<Option<f64>>,
    /// Of `model.safetensors`.
    pub weights_sha256: String,
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

/// Sums a run up from what each rank said.
pub fn sum_up(job: &Job, all: &[RankRecord], steps: &[StepSummary]) -> Result<Summary, OutOfStep> {
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
    let of_ranks = || ranks.iter().flat_map(|rank| &rank.epochs);
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
    let mut epoch_test_accuracies: Vec<Option<f64>> = vec![None; epochs];
    let mut test_accuracy = 0.0;
    for (test, Tested { epoch, .. }) in ranks[0].outcome.tests.iter().enumerate() {
        let over_ranks = |part: fn(&Tested) -> usize| ranks.iter().map(|rank| part(&rank.outcome.tests[test])).sum();
        let (images, correct): (usize, usize) = (over_ranks(|test| test.images), over_ranks(|test| test.correct));
        test_accuracy = correct as f64 / images as f64;
        epoch_test_accuracies[*epoch] = Some(test_accuracy);
    }

    let outcomes = || ranks.iter().map(|rank| &rank.outcome);
    let mean = |time: fn(&Outcome) -> f64| outcomes().map(time).sum::<f64>() / ranks.len() as f64;
    let mut instructions: Vec<&str> = outcomes().map(|outcome| outcome.instructions.as_str()).collect();
    instructions.sort_unstable();
    instructions.dedup();
    let over_steps = |part: fn(&StepSummary) -> f64| steps.iter().map(part).sum::<f64>();
    let compute_seconds = mean(|outcome| outcome.parts.compute);
    let predicted_comm = ranks[0].outcome.predicted_comm;
    Ok(Summary {
        sync: job.sync.name().to_owned(),
        algorithm: job.sync.algorithm_name().to_owned(),
        workers: job.workers,
        instructions: instructions.join(", "),
        epochs,
        steps: steps.len(),
        train_loss: epoch_losses[epochs - 1],
        train_accuracy: epoch_accuracies[epochs - 1],
        test_accuracy,
        seconds: mean(|outcome| outcome.seconds),
        seconds_per_step: mean(|outcome| outcome.seconds_per_step),
        mean_seconds_per_step: mean(|outcome| outcome.mean_seconds_per_step),
        predicted_seconds_per_step: predicted_comm.map(|comm| compute_seconds / steps.len() as f64 + comm),
        compute_seconds,
        comm_seconds: mean(|outcome| outcome.parts.comm),
        waiting_seconds: over_steps(|step| step.waiting),
        hidden_seconds: over_steps(|step| step.hidden),
        data_seconds: mean(|outcome| outcome.parts.data),
        bytes_sent: all.iter().map(|rank| rank.outcome.bytes_sent).max().unwrap_or(0),
        messages_sent: all.iter().map(|rank| rank.outcome.messages_sent).max().unwrap_or(0),
        epoch_losses,
        epoch_accuracies,
        epoch_test_accuracies,
        weights_sha256: expected.clone(),
    })
}
