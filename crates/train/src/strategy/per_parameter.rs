//! One collective a parameter, after backward: what one writes first.

use std::ops::Range;

use ringstep_comm::{Algorithm, Op};
use ringstep_nn::Model;

use super::{CostInputs, Strategy, how};
use crate::error::WorkerError;
use crate::replica::Replica;
use crate::world::World;

/// An all-reduce a parameter, by an algorithm or by whichever the cost model thinks best.
pub struct PerParameter {
    algorithm: Option<Algorithm>,
    /// Where each parameter stands in the flat buffer, in the order of the layers, and its label.
    parameters: Vec<(Range<usize>, u16)>,
}

impl PerParameter {
    pub fn new(model: &Model, algorithm: Option<Algorithm>, world: &mut World<'_>) -> Self {
        let trained = model.parameters().iter().filter(|parameter| parameter.trained);
        let parameters = trained.map(|parameter| (parameter.range(), world.label(&parameter.name))).collect();
        Self { algorithm, parameters }
    }
}

impl Strategy for PerParameter {
    fn backward(&mut self, world: &mut World<'_>, replica: &mut Replica<'_>, scale: f32) -> Result<(), WorkerError> {
        replica.backward(scale);
        for (range, label) in &self.parameters {
            let gradient = &mut replica.model.gradients_mut()[range.clone()];
            world.workers_for(*label).all_reduce(gradient, Op::Sum, how(self.algorithm))?;
        }
        Ok(())
    }

    fn predict(&self, inputs: &CostInputs, _: &Model) -> Option<f64> {
        Some(self.parameters.iter().map(|(range, _)| inputs.all_reduce(self.algorithm, range.len())).sum())
    }
}
