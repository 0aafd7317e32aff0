//! DataParallel: rank 0 alone holds the model. Each step it hands a copy to the others, deals its batch out, and collects
//! the gradients; what `torch.nn.DataParallel` does with the devices of one process.

use ringstep_comm::{CollectiveError, Op};
use ringstep_nn::Model;
use ringstep_nn::optim::Rule;

use super::{Next, Progress, Strategy};
use crate::content::Content;
use crate::error::WorkerError;
use crate::feed::Source;
use crate::replica::Replica;
use crate::world::{CHIEF, World};

/// The chief holds the model.
pub struct DataParallel {
    replicate: u16,
    statistics: u16,
    gradients: u16,
}

impl DataParallel {
    pub fn new(world: &mut World<'_>) -> Self {
        Self {
            replicate: world.label("replicate", Content::Parameters),
            statistics: world.label("statistics", Content::Statistics),
            gradients: world.label("gradients to rank 0", Content::Gradients),
        }
    }

    /// Gives everybody the chief's parameters.
    fn replicate(&self, world: &mut World<'_>, model: &mut Model) -> Result<(), CollectiveError> {
        world.workers_for(self.replicate).broadcast(model.values_mut(), CHIEF)
    }
}

impl Strategy for DataParallel {
    fn before(
        &mut self,
        world: &mut World<'_>,
        replicas: &mut [Replica<'_>],
        progress: &Progress,
    ) -> Result<Next, WorkerError> {
        let next = progress.next();
        if next != Next::End {
            let model = &mut replicas[0].model;
            self.replicate(world, model)?;
            if model.has_statistics() {
                world.workers_for(self.statistics).broadcast(model.statistics_mut(), CHIEF)?;
            }
        }
        Ok(next)
    }

    fn backward(&mut self, world: &mut World<'_>, replica: &mut Replica<'_>, scale: f32) -> Result<(), WorkerError> {
        replica.backward(scale);
        Ok(world.workers_for(self.gradients).reduce(replica.model.gradients_mut(), Op::Sum, CHIEF)?)
    }

    fn finish(&mut self, world: &mut World<'_>, replicas: &mut [Replica<'_>]) -> Result<(), WorkerError> {
        Ok(self.replicate(world, &mut replicas[0].model)?)
    }

    fn source(&self) -> Source {
        Source::DealtBy(CHIEF)
    }

    fn rule(&self, rule: Rule, rank: usize) -> Option<Rule> {
        (rank == CHIEF).then_some(rule)
    }

    /// The chief has taken a step of which the others do not know yet.
    fn replicas_equal(&self) -> bool {
        false
    }
}
