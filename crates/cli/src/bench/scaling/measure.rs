//! What a training of two epochs says about its second.

use ringstep_nn::Network;
use ringstep_train::SyncMethod;
use ringstep_train::accounts::StepSummary;
use ringstep_train::content::Sent;
use ringstep_train::strategy::Round;
use ringstep_train::summary::Summary;

use super::cells::Size;
use super::formulas::{self, Split};
use crate::train::Row;

/// The first epoch warms up, the second is measured.
pub const EPOCHS: usize = 2;

/// An epoch of so many workers. Times are means over them, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Measured {
    pub size: Size,
    /// Steps of the epoch.
    pub steps: usize,
    /// Time without the loading of data, and what it went to.
    pub split: Split,
    /// Time with the loading of data.
    pub with_data: f64,
    /// Communication that went on beside the computation.
    pub hidden: f64,
    /// Bytes that were summed over the workers, if that can be counted.
    pub reduced: Option<f64>,
    /// Bytes that all workers together sent.
    pub sent: Sent,
    /// The time that was predicted, if it could be.
    pub predicted: Option<f64>,
}

impl Measured {
    /// Of a training on so many images.
    pub fn of(row: &Row, size: Size, images: usize) -> Self {
        let job = &row.run.job;
        let steps = job.steps_an_epoch(images);
        // Where workers have steps of their own, each tells of one worker.
        let told_by = if job.sync.lets_workers_differ() { job.workers as f64 } else { 1.0 };
        let second = || row.steps.iter().filter(|step| step.step >= steps);
        let sum = |part: fn(&StepSummary) -> f64| second().map(part).sum::<f64>() / told_by;
        let with_data = sum(|step| step.seconds);
        let split = Split {
            seconds: with_data - sum(|step| step.data),
            compute: sum(|step| step.compute),
            exposed: sum(|step| step.exposed),
            waiting: sum(|step| step.waiting),
        };
        let reduced = all_reduces(job.sync, steps).map(|count| count * gradient_bytes(job.model.network()) as f64);
        Self {
            size,
            steps,
            split,
            with_data,
            hidden: sum(|step| step.hidden),
            reduced: reduced.filter(|_| job.workers > 1),
            sent: an_epoch(row.summary.sent),
            predicted: predicted(&row.summary, steps),
        }
    }

    /// All communication, hidden or not.
    pub fn comm(&self) -> f64 {
        self.split.exposed + self.hidden
    }

    /// Bytes a second of the all-reduces.
    pub fn bandwidth(&self) -> Option<f64> {
        formulas::bandwidth(self.size.workers, self.reduced?, self.comm())
    }

    /// Time of a step, without the loading of data.
    pub fn step_seconds(&self) -> f64 {
        self.split.seconds / self.steps as f64
    }
}

/// What an epoch should have taken.
fn predicted(summary: &Summary, steps: usize) -> Option<f64> {
    Some(summary.predicted_seconds_per_step? * steps as f64)
}

/// Both epochs send as much.
fn an_epoch(sent: Sent) -> Sent {
    let half = |bytes: u64| bytes / EPOCHS as u64;
    Sent {
        gradients: half(sent.gradients),
        parameters: half(sent.parameters),
        statistics: half(sent.statistics),
        images: half(sent.images),
        control: half(sent.control),
    }
}

/// Bytes of a model's gradients.
pub fn gradient_bytes(network: &Network) -> usize {
    let parameters = network.parameters().expect("its layers are checked");
    parameters
        .iter()
        .filter(|parameter| parameter.trained)
        .map(|parameter| parameter.range().len() * size_of::<f32>())
        .sum()
}

/// How often an epoch of so many steps sums up as many numbers as there are gradients: by an all-reduce, or by what comes to
/// the same, as gradients to one rank and parameters back.
fn all_reduces(sync: SyncMethod, steps: usize) -> Option<f64> {
    match (sync, sync.round()) {
        (SyncMethod::Single | SyncMethod::None | SyncMethod::PostLocalSgd { .. }, _) => None,
        (_, Some(Round::Every(every))) => Some(steps as f64 / every as f64),
        (_, Some(Round::EveryEpoch)) => Some(1.0),
        (_, Some(Round::Period(_))) => None,
        (_, None) => Some(steps as f64),
    }
}

#[cfg(test)]
mod tests {
    use ringstep_nn::Architecture;

    use super::*;

    #[test]
    fn gradients_are_those_of_trained_parameters() {
        assert_eq!(gradient_bytes(&Architecture::LeNet5.network()), 61_706 * 4);
    }

    #[test]
    fn models_that_are_averaged_now_and_then_are_summed_as_often() {
        let local = |round| SyncMethod::LocalSgd { round, algorithm: None };
        assert_eq!(all_reduces(SyncMethod::GatherScatter, 64), Some(64.0));
        assert_eq!(all_reduces(local(Round::Every(8)), 64), Some(8.0));
        assert_eq!(all_reduces(local(Round::EveryEpoch), 64), Some(1.0));
        assert_eq!(all_reduces(SyncMethod::None, 64), None);
    }
}
