//! What workers and servers take of memory, before there are any.

use ringstep_nn::NetworkError;
use ringstep_nn::memory::Memory;
use ringstep_nn::optim::Rule;

use crate::compress::Compression;
use crate::evaluate;
use crate::job::Design;
use crate::{Job, SyncMethod};

/// The bytes that a worker takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Need {
    /// Its model, or all of them where it trains several.
    pub model: Memory,
    /// What optimizers and compression remember, what is added up over the batches of a step, and what else it takes to stay in
    /// step.
    pub optimizer: usize,
    /// The batches that it has or that are on their way to it.
    pub batches: usize,
    /// The copies of its state that are kept, or on their way to a file.
    pub states: usize,
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
            states: 0,
            testing: 0,
            snapshots: 0,
        })
    }

    /// The same with so many copies of the state.
    pub fn with_states(self, copies: usize) -> Self {
        Self { states: copies.saturating_mul(self.model.parameters + self.optimizer), ..self }
    }

    /// All of it, on a rank other than 0.
    pub fn total(&self) -> usize {
        self.model.total() + self.optimizer + self.batches + self.states + self.testing
    }
}

impl Job {
    /// What each of its workers takes, beside the images, of which there are so many to train on.
    pub fn need(&self, images: usize) -> Result<Need, NetworkError> {
        let mut need = Need::new(&self.model, self.batch, self.threads, self.rule)?;
        if self.accumulate > 1 {
            need.optimizer += need.model.gradients;
        }
        let (one, learners) = (need.model, self.sync.learners());
        need.model = Memory {
            parameters: learners * one.parameters,
            gradients: learners * one.gradients,
            activations: learners * one.activations,
            workspace: learners * one.workspace,
        };
        need.optimizer = learners * need.optimizer + self.sync.holds() * one.gradients;
        need.batches *= learners;
        need.optimizer += self.compress.map_or(0, Compression::remembers) * one.gradients;
        // The model that differences are from.
        if self.compress.is_some() && self.sync.round().is_some() {
            need.optimizer += one.gradients;
        }
        // Weights as they are, in panels, and transformed from nine to thirty-six numbers.
        let tested = self.model.network().memory(evaluate::BATCH, self.threads)?;
        need.testing = 6 * tested.parameters + tested.activations + tested.workspace;
        need.snapshots = self.tests_before_the_last(images).saturating_mul(one.parameters);
        Ok(need)
    }
}

impl Job {
    /// The bytes that all of its servers take together, each a part of it; none without servers.
    pub fn need_of_servers(&self) -> Result<usize, NetworkError> {
        let servers = self.sync.servers(self.workers);
        if servers == 0 {
            return Ok(0);
        }
        let shards = self.model.network().memory(1, 1)?.gradients;
        let (models, gradients) = match self.sync {
            // Every worker's gradients of all clocks that may be open, their sum, and what those see who are ahead.
            SyncMethod::Stale { staleness, .. } => {
                (if staleness > 0 { 2 } else { 1 }, self.workers.saturating_mul(staleness.saturating_add(1)))
            }
            _ => (1, self.workers),
        };
        let held = models * (1 + self.rule.remembers()) + 1;
        // In the beginning each has the whole model.
        Ok(shards.saturating_mul(held.saturating_add(gradients)).saturating_add(servers * shards))
    }
}

#[cfg(test)]
mod tests {
    use ringstep_nn::Architecture;

    use super::*;
    use crate::compress::Method;
    use crate::job::Length;
    use crate::strategy::Servers;

    #[test]
    fn what_the_optimizer_remembers_is_counted() {
        let lenet5 = Design::new("lenet5", Architecture::LeNet5.network()).unwrap();
        let mut job = Job::new(lenet5, SyncMethod::Single, 1, 200, Length::Epochs(1));
        let parameters = 61_706 * 4;
        assert_eq!(job.need(1000).unwrap().optimizer, 0);
        assert_eq!(job.need(1000).unwrap().batches, 3 * 200 * 32 * 32 * 4);
        job.rule = Rule::Adam { betas: [0.9, 0.999], weight_decay: 0.0 };
        assert_eq!(job.need(1000).unwrap().optimizer, 2 * parameters);
        let (without, with) = (job.need(1000).unwrap(), job.need(1000).unwrap().with_states(4));
        assert_eq!((without.states, with.total() - without.total()), (0, 4 * 3 * parameters));
        job.accumulate = 2;
        assert_eq!(job.need(1000).unwrap().optimizer, 3 * parameters);
        job.compress = Some(Compression::new(Method::Sign));
        assert_eq!(job.need(1000).unwrap().optimizer, 4 * parameters);
    }

    /// With momentum: parameters and velocity, a sum, four gradients; with staleness also a view, and more gradients.
    #[test]
    fn servers_need_room_for_the_gradients_of_all_workers() {
        let lenet5 = Design::new("lenet5", Architecture::LeNet5.network()).unwrap();
        let rule = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let need = |sync| {
            let job = Job { rule, ..Job::new(lenet5.clone(), sync, 4, 20, Length::Epochs(1)) };
            job.need_of_servers().unwrap() / (61_706 * 4)
        };
        assert_eq!(need(SyncMethod::DataParallel), 0);
        assert_eq!(need(SyncMethod::ParameterServer { servers: Servers::Apart(2) }), 2 + 2 + 1 + 4);
        assert_eq!(need(SyncMethod::Stale { servers: Servers::Apart(2), staleness: 0 }), 2 + 2 + 1 + 4);
        assert_eq!(need(SyncMethod::Stale { servers: Servers::Apart(1), staleness: 3 }), 1 + 4 + 1 + 16);
        assert_eq!(
            need(SyncMethod::Async { servers: Servers::Apart(3), period: 0.0, staleness_aware: true }),
            3 + 2 + 1 + 4
        );
    }

    #[test]
    fn replicas_and_what_holds_them_together_are_counted() {
        let lenet5 = Design::new("lenet5", Architecture::LeNet5.network()).unwrap();
        let job = Job {
            test_every: Some(1),
            rule: Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
            ..Job::new(lenet5, SyncMethod::Single, 1, 20, Length::Epochs(7))
        };
        let sma = |learners| SyncMethod::Sma { learners, pull: None, momentum: 0.9, algorithm: None };
        let [alone, one, three] =
            [SyncMethod::Single, sma(1), sma(3)].map(|sync| Job { sync, ..job.clone() }.need(1000).unwrap());
        let parameters = 61_706 * 4;
        assert_eq!(three.model.total(), 3 * alone.model.total());
        assert_eq!(three.batches, 3 * alone.batches);
        assert_eq!([alone.optimizer, one.optimizer, three.optimizer], [1, 1 + 4, 3 + 4].map(|n| n * parameters));
        // One model is tested, however many there are.
        assert_eq!((three.testing, three.snapshots), (alone.testing, alone.snapshots));
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
