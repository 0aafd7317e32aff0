//! How workers stay in step, one way a file.

mod buckets;
pub mod central;
mod data_parallel;
mod ddp;
mod diloco;
mod local_sgd;
mod method;
mod none;
mod per_parameter;
mod post_local_sgd;
pub(crate) mod reducer;
pub mod server;
mod sma;

use std::io;
use std::time::Instant;

use ringstep_comm::{Algorithm, How};
use ringstep_cpu::Level;
use ringstep_nn::kernels::rows::add_slice;
use ringstep_nn::optim::Rule;
use ringstep_nn::state::State;

pub use self::buckets::{Buckets, best_size};
pub use self::diloco::Outer;
pub use self::local_sgd::{Round, weight_in_average};
pub use self::method::{AUTO, Servers, SyncMethod};
pub use self::per_parameter::in_order;
pub use self::reducer::{Exchange, exchanges};
use crate::error::WorkerError;
use crate::feed::Source;
use crate::records::Compressed;
use crate::replica::Replica;
use crate::world::World;

/// How workers stay in step. The training loop calls the first three in this order in every step, the fourth in the end,
/// and knows no more. What is not said otherwise is plain training of one rank.
pub(crate) trait Strategy {
    /// Before all steps: gets the threads that it needs.
    fn prepare(&self, _: &mut World<'_>) -> io::Result<()> {
        Ok(())
    }

    /// Before a step's first forward: gets the parameters, where a rank does not keep its own in step. Says which step of
    /// the job comes now, or that there is none left.
    fn before(
        &mut self,
        _world: &mut World<'_>,
        _replicas: &mut [Replica<'_>],
        progress: &Progress,
    ) -> Result<Next, WorkerError> {
        Ok(progress.next())
    }

    /// The last backward of a replica's step; its gradients are multiplied by `scale`.
    fn backward(&mut self, _world: &mut World<'_>, replica: &mut Replica<'_>, scale: f32) -> Result<(), WorkerError> {
        replica.backward(scale);
        Ok(())
    }

    /// After the backward of all replicas: new parameters.
    fn update(&mut self, _world: &mut World<'_>, replicas: &mut [Replica<'_>], turn: Turn) -> Result<(), WorkerError> {
        replicas.iter_mut().for_each(|replica| replica.optimize(turn.lr));
        Ok(())
    }

    /// After the last step: leaves one final model, the same bits in every worker's first replica.
    fn finish(&mut self, _world: &mut World<'_>, _replicas: &mut [Replica<'_>]) -> Result<(), WorkerError> {
        Ok(())
    }

    /// What the gradients of a step of the job are the mean over.
    fn weighting(&self, _step: usize) -> Weighting {
        Weighting::WholeStep
    }

    /// Where a rank's images come from.
    fn source(&self) -> Source {
        Source::Own
    }

    /// How the replicas of a rank follow their gradients, if they do.
    fn rule(&self, rule: Rule, _rank: usize) -> Option<Rule> {
        Some(rule)
    }

    /// Whether all workers have the same parameters right now, after [`Strategy::update`].
    fn replicas_equal(&self) -> bool {
        true
    }

    /// The parameters that stand for the job right now, on the chief.
    fn view<'a>(&'a self, replicas: &'a mut [Replica<'_>]) -> &'a [f32] {
        replicas[0].model.values_mut()
    }

    /// What it remembers from step to step, between two steps.
    fn state(&mut self, _: &mut State<'_>) {}

    /// Whether all workers come to this moment between two steps of their own, each of them as often as the others.
    fn is_common_moment(&self) -> bool {
        true
    }

    /// Before a rank's state is saved under a name: those that are not saved beside it do so now.
    fn before_saving(&mut self, _: &mut World<'_>, _: &mut [Replica<'_>], _name: usize) -> Result<(), WorkerError> {
        Ok(())
    }

    /// Instead of [`Strategy::finish`], where the training ends before its last step and will go on later.
    fn leave(&mut self, _: &mut World<'_>) -> Result<(), WorkerError> {
        Ok(())
    }

    /// What compression has done so far, if there is one.
    fn compressed(&self) -> Option<Compressed> {
        None
    }

    /// When numbers were encoded or decoded since the last time, each with what they are about.
    fn take_encoding(&mut self) -> Vec<(u16, [Instant; 2])> {
        Vec::new()
    }
}

/// Which step comes now. Learning rate, epochs and tests go by it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Next {
    /// This one, counted from 0.
    Step(usize),
    /// None: the job is done.
    End,
}

/// How far a rank has come.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Progress {
    /// Steps that it has done.
    pub done: usize,
    /// Steps of the job.
    pub of: usize,
}

impl Progress {
    /// The step after those that are done.
    pub fn next(&self) -> Next {
        if self.done < self.of { Next::Step(self.done) } else { Next::End }
    }
}

/// A step of the job, and its learning rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Turn {
    pub step: usize,
    pub lr: f32,
}

/// What a rank's gradient is the mean over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Weighting {
    /// The images of all ranks in this step, so that the sum over the ranks is the mean over all images, also where ranks
    /// have different numbers of them.
    WholeStep,
    /// This replica's own images.
    OwnImages,
}

/// Adds numbers where there are some.
pub(crate) fn add(to: &mut [f32], numbers: &[f32]) {
    let count = to.len().min(numbers.len());
    add_slice(Level::best(), &mut to[..count], &numbers[..count]);
}

/// One worker: nobody to keep in step with.
struct Single;

impl Strategy for Single {}

fn how(algorithm: Option<Algorithm>) -> How {
    How { algorithm, deterministic: false }
}
