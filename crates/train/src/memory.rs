//! What a worker takes of memory, before there is one.

use ringstep_nn::NetworkError;
use ringstep_nn::memory::Memory;
use ringstep_nn::optim::Rule;

use crate::Job;
use crate::evaluate;
use crate::job::Design;

/// The bytes that a worker takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Its model.
    pub model: Memory,
    /// What the optimizer remembers, and what is added up over the batches of a step.
    pub optimizer: usize,
    /// The batches that it has or that are on their way to it.
    pub batches: usize,
    /// At most, for the frozen model that it is tested with.
    pub testing: usize,
    /// On rank 0 alone, for the models that are tested after the training.
    pub snapshots: usize,
}

/// Batches that are filled, wait or are used at the same time.
const BATCHES: usize = 3;

impl Need {
    /// For a model with room for `batch` images that is trained on as many.
    pub fn new(design: &Design, batch: usize, threads: usize, rule: Rule) -> Result<Self, NetworkError> {
        let model = design.network().memory(batch, threads)?;
        let image = design.input().len() * size_of::<f32>();
        Ok(Self {
            model,
            optimizer: rule.remembers() * model.gradients,
            batches: BATCHES * batch * image,
            testing: 0,
            snapshots: 0,
        })
    }

    /// All of it, on a rank other than 0.
    pub fn total(&self) -> usize {
        self.model.total() + self.optimizer + self.batches + self.testing
    }
}

impl Job {
    /// What each of its workers takes, beside the images, of which there are so many to train on.
    pub fn need(&self, images: usize) -> Result<Need, NetworkError> {
        let mut need = Need::new(&self.model, self.batch, self.threads, self.rule)?;
        if self.accumulate > 1 {
            need.optimizer += need.model.gradients;
        }
        // Weights as they are, in panels, and transformed from nine to thirty-six numbers.
        let tested = self.model.network().memory(evaluate::BATCH, self.threads)?;
        need.testing = 6 * tested.parameters + tested.activations + tested.workspace;
        need.snapshots = self.tests_before_the_last(images).saturating_mul(need.model.parameters);
        Ok(need)
    }
}

#[cfg(test)]
mod tests {
    use ringstep_nn::Architecture;

    use super::*;
    use crate::SyncMethod;
    use crate::job::Length;

    #[test]
    fn what_the_optimizer_remembers_is_counted() {
        let lenet5 = Design::new("lenet5", Architecture::LeNet5.network()).unwrap();
        let mut job = Job::new(lenet5, SyncMethod::Single, 1, 200, Length::Epochs(1));
        let parameters = 61_706 * 4;
        assert_eq!(job.need(1000).unwrap().optimizer, 0);
        assert_eq!(job.need(1000).unwrap().batches, 3 * 200 * 32 * 32 * 4);
        job.rule = Rule::Adam { betas: [0.9, 0.999], weight_decay: 0.0 };
        assert_eq!(job.need(1000).unwrap().optimizer, 2 * parameters);
        job.accumulate = 2;
        assert_eq!(job.need(1000).unwrap().optimizer, 3 * parameters);
    }

    #[test]
    fn models_that_wait_for_their_tests_are_counted() {
        let lenet5 = Design::new("lenet5", Architecture::LeNet5.network()).unwrap();
        let mut job = Job::new(lenet5, SyncMethod::Single, 1, 200, Length::Epochs(7));
        let snapshots = |job: &Job| job.need(1000).unwrap().snapshots / (61_706 * 4);
        assert_eq!(snapshots(&job), 0);
        job.test_every = Some(2);
        assert_eq!(snapshots(&job), 3);
        // The test of the last epoch is that of the final model, for which nothing is kept.
        job.length = Length::Epochs(6);
        assert_eq!(snapshots(&job), 2);
        job.length = Length::Steps(5 * 2 + 1);
        assert_eq!(snapshots(&job), 1);
        job.length = Length::Epochs(usize::MAX / 5);
        assert_eq!(job.need(1000).unwrap().snapshots, usize::MAX);
    }
}
