//! One collective a parameter, after backward: what one writes first.

use std::ops::Range;
use std::time::Instant;

use ringstep_comm::Algorithm;
use ringstep_nn::optim::Rule;
use ringstep_nn::state::State;
use ringstep_nn::{Model, Parameter};

use super::reducer::Reducer;
use super::{Next, Progress, Strategy};
use crate::Job;
use crate::content::Content;
use crate::error::WorkerError;
use crate::records::Compressed;
use crate::replica::Replica;
use crate::world::World;

/// An all-reduce a parameter, by an algorithm or by whichever the cost model thinks best.
pub struct PerParameter {
    /// Where each parameter stands in the flat buffer, in the order of the layers.
    parameters: Vec<Range<usize>>,
    reducer: Reducer,
}

/// Where each trained parameter stands in the flat buffer, in the order of the layers.
pub fn in_order(parameters: &[Parameter]) -> impl Iterator<Item = Range<usize>> + '_ {
    parameters.iter().filter(|parameter| parameter.trained).map(Parameter::range)
}

impl PerParameter {
    /// For a job on so many images.
    pub fn new(
        (job, images): (&Job, usize),
        model: &Model,
        algorithm: Option<Algorithm>,
        world: &mut World<'_>,
    ) -> Self {
        let trained = || model.parameters().iter().filter(|parameter| parameter.trained);
        let slices = trained().map(|parameter| (parameter.name.clone(), parameter.range())).collect();
        let parameters = in_order(model.parameters()).collect();
        let reducer = Reducer::new((job, images), algorithm, model, slices, Content::Gradients, world);
        Self { parameters, reducer }
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

    fn state(&mut self, state: &mut State<'_>) {
        self.reducer.state(state);
    }

    fn compressed(&self) -> Option<Compressed> {
        self.reducer.compressed()
    }

    fn take_encoding(&mut self) -> Vec<(u16, [Instant; 2])> {
        self.reducer.take_encoding()
    }
}
