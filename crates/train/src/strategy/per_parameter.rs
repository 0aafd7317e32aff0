//! One collective a parameter, after backward: what one writes first.

use std::ops::Range;
use std::time::Instant;

use ringstep_comm::overlap::Reduced;
use ringstep_comm::{Algorithm, CollectiveError, Group, Op};
use ringstep_nn::Model;

use super::{Numbers, Pass, Strategy, Synced, how};

/// An all-reduce a parameter, by an algorithm or by whichever the cost model thinks best.
pub struct PerParameter {
    algorithm: Option<Algorithm>,
    /// Of each parameter in the flat buffer, in the order of the layers.
    ranges: Vec<Range<usize>>,
}

impl PerParameter {
    pub fn new(model: &Model, algorithm: Option<Algorithm>) -> Self {
        let trained = model.parameters().iter().filter(|parameter| parameter.trained);
        Self { algorithm, ranges: trained.map(|parameter| parameter.range()).collect() }
    }
}

impl Strategy for PerParameter {
    fn backward(&mut self, group: &mut Group, model: &mut Model, pass: Pass<'_>) -> Result<Synced, CollectiveError> {
        pass.alone(model);
        let ready = Instant::now();
        let mut reductions = Vec::with_capacity(self.ranges.len());
        for range in &self.ranges {
            let began = Instant::now();
            group.all_reduce(&mut model.gradients_mut()[range.clone()], Op::Sum, how(self.algorithm))?;
            reductions.push(Reduced { began, ended: Instant::now() });
        }
        Ok(Synced::new(ready, reductions))
    }

    fn labels(&self, model: &Model) -> Vec<String> {
        let trained = model.parameters().iter().filter(|parameter| parameter.trained);
        trained.map(|parameter| parameter.name.clone()).collect()
    }

    fn predict(&self, numbers: &Numbers, _: &Model) -> f64 {
        self.ranges.iter().map(|range| numbers.all_reduce(self.algorithm, range.len())).sum()
    }
}
