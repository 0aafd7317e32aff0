//! One collective a parameter, after backward: what one writes first.

use std::ops::Range;

use ringstep_comm::Algorithm;
use ringstep_nn::Model;
use ringstep_nn::optim::Rule;

use super::reducer::Reducer;
use super::{CostInputs, Next, Progress, Strategy};
use crate::Job;
use crate::error::WorkerError;
use crate::records::Compressed;
use crate::replica::Replica;
use crate::world::World;

/// An all-reduce a parameter, by an algorithm or by whichever the cost model thinks best.
pub struct PerParameter {
    algorithm: Option<Algorithm>,
    /// Where each parameter stands in the flat buffer, in the order of the layers.
    parameters: Vec<Range<usize>>,
    reducer: Reducer,
}

impl PerParameter {
    /// For a job on so many images.
    pub fn new(
        (job, images): (&Job, usize),
        model: &Model,
        algorithm: Option<Algorithm>,
        world: &mut World<'_>,
    ) -> Self {
        let trained = model.parameters().iter().filter(|parameter| parameter.trained);
        let slices: Vec<_> = trained.map(|parameter| (parameter.name.clone(), parameter.range())).collect();
        let parameters = slices.iter().map(|(_, range)| range.clone()).collect();
        Self { algorithm, parameters, reducer: Reducer::new((job, images), algorithm, model, slices, world) }
    }
}

impl Strategy for PerParameter {
    fn before(&mut self, _: &mut World<'_>, _: &mut [Replica<'_>], progress: &Progress) -> Result<Next, WorkerError> {
        self.reducer.begin_step(progress.done);
        Ok(progress.next())
    }

    fn backward(&mut self, world: &mut World<'_>, replica: &mut Replica<'_>, scale: f32) -> Result<(), WorkerError> {
        replica.backward(scale);
        for (parameter, range) in self.parameters.iter().enumerate() {
            let gradient = &mut replica.model.gradients_mut()[range.clone()];
            self.reducer.sum(world.workers(), parameter, gradient)?;
        }
        Ok(())
    }

    fn rule(&self, rule: Rule, _: usize) -> Option<Rule> {
        Some(self.reducer.rule(rule))
    }

    fn compressed(&self) -> Option<Compressed> {
        self.reducer.compressed()
    }

    fn predict(&self, inputs: &CostInputs, _: &Model) -> Option<f64> {
        let seconds = || self.parameters.iter().map(|range| inputs.all_reduce(self.algorithm, range.len())).sum();
        (!self.reducer.compresses()).then(seconds)
    }
}
