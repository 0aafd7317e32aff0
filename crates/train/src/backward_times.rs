//! How long a model's backward takes, layer by layer: what predictions of overlap rest on.

use ringstep_nn::Model;

/// How long each layer's backward takes in a step with a whole batch.
#[derive(Default)]
pub(crate) struct BackwardTimes {
    sums: Vec<f64>,
    steps: usize,
}

impl BackwardTimes {
    /// Adds the model's last backward; shorter batches count only while there are no others.
    pub fn add(&mut self, model: &Model, whole: bool) {
        if whole || self.steps == 0 {
            let seconds = model.timeline().map(|layer| layer.backward.took.as_secs_f64());
            match self.steps {
                0 => self.sums = seconds.collect(),
                _ => self.sums.iter_mut().zip(seconds).for_each(|(sum, seconds)| *sum += seconds),
            }
            self.steps += 1;
        }
    }

    /// Where each layer's gradients end in the flat buffer, and the seconds of its backward; last layer first.
    pub fn means(&self, model: &Model) -> Vec<(usize, f64)> {
        let seconds = self.sums.iter().map(|sum| sum / self.steps as f64);
        let ends = model.timeline().map(|layer| layer.gradients_end);
        let mut layers: Vec<(usize, f64)> = ends.zip(seconds).collect();
        layers.reverse();
        layers
    }
}
