//! DiLoCo (Douillard et al., "DiLoCo: distributed low-communication training of language models", 2023): local SGD whose
//! average is taken for a gradient.
//!
//! ```text
//! w_r <- H steps of rank r alone, beginning at x
//! d   <- x - sum_r (n_r / n) w_r            the outer gradient
//! x   <- x after a step of SGD along d, with Nesterov's momentum
//! ```
//!
//! With a learning rate of 1 and without momentum x is the average, and this is local SGD.

use std::time::Instant;

use ringstep_nn::optim::{Optimizer, Rule};
use ringstep_nn::state::State;
use ringstep_nn::team::Team;

use super::local_sgd::LocalSgd;
use super::{Next, Progress, Strategy, Turn, Weighting};
use crate::error::WorkerError;
use crate::records::Compressed;
use crate::replica::Replica;
use crate::world::World;

/// The model that follows the averages.
#[derive(Debug, Clone)]
pub struct Outer {
    /// x and d above.
    values: Vec<f32>,
    gradient: Vec<f32>,
    optimizer: Optimizer,
    lr: f32,
}

impl Outer {
    /// Begins where the workers do.
    pub fn new(values: Vec<f32>, lr: f32, momentum: f32) -> Self {
        let rule = Rule::Sgd { momentum, nesterov: momentum > 0.0, weight_decay: 0.0 };
        // All numbers follow alike, whatever tensor they belong to.
        let optimizer = Optimizer::for_tensors(rule, values.len(), vec![(0..values.len(), true)]);
        Self { gradient: vec![0.0; values.len()], values, optimizer, lr }
    }

    /// What it remembers from round to round.
    pub fn state(&mut self, state: &mut State<'_>) {
        state.numbers("values", &mut self.values);
        state.within("optimizer", |state| self.optimizer.state(state));
    }

    /// x.
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Takes a step towards the average of the workers' models.
    pub fn follow(&mut self, team: &mut Team, average: &[f32]) {
        for ((gradient, &value), &average) in self.gradient.iter_mut().zip(&self.values).zip(average) {
            *gradient = value - average;
        }
        self.optimizer.step(team, &mut self.values, &self.gradient, self.lr);
    }
}

/// Local SGD with outer steps.
pub struct DiLoCo {
    local: LocalSgd,
    outer: Outer,
}

impl DiLoCo {
    pub fn new(local: LocalSgd, outer: Outer) -> Self {
        Self { local, outer }
    }

    /// The worker's model is the average: from here on it is x.
    fn follow(&mut self, replica: &mut Replica<'_>) {
        let (team, average, _) = replica.model.for_optimizer();
        self.outer.follow(team, average);
        average.copy_from_slice(self.outer.values());
        self.local.anchor(self.outer.values());
    }
}

impl Strategy for DiLoCo {
    fn before(
        &mut self,
        world: &mut World<'_>,
        replicas: &mut [Replica<'_>],
        progress: &Progress,
    ) -> Result<Next, WorkerError> {
        self.local.before(world, replicas, progress)
    }

    fn update(&mut self, world: &mut World<'_>, replicas: &mut [Replica<'_>], turn: Turn) -> Result<(), WorkerError> {
        let replica = &mut replicas[0];
        if self.local.step(world, replica, turn)? {
            self.follow(replica);
        }
        Ok(())
    }

    fn finish(&mut self, world: &mut World<'_>, replicas: &mut [Replica<'_>]) -> Result<(), WorkerError> {
        let replica = &mut replicas[0];
        if self.local.end(world, replica)? {
            self.follow(replica);
        }
        Ok(())
    }

    fn state(&mut self, state: &mut State<'_>) {
        state.within("local", |state| self.local.state(state));
        state.within("outer", |state| self.outer.state(state));
    }

    fn is_common_moment(&self) -> bool {
        self.local.is_common_moment()
    }

    fn compressed(&self) -> Option<Compressed> {
        self.local.compressed()
    }

    fn take_encoding(&mut self) -> Vec<(u16, [Instant; 2])> {
        self.local.take_encoding()
    }

    fn weighting(&self, step: usize) -> Weighting {
        self.local.weighting(step)
    }

    fn replicas_equal(&self) -> bool {
        self.local.replicas_equal()
    }

    fn view<'a>(&'a self, _: &'a mut [Replica<'_>]) -> &'a [f32] {
        self.outer.values()
    }
}
