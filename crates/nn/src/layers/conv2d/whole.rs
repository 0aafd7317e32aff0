//! Convolution whose only window is the whole image: a product, and nothing to gather.

use super::super::dense::Dense;
use super::super::{Backward, Forward};
use super::{Algorithm, Geometry};

pub(super) struct Whole(Dense);

impl Whole {
    pub fn suits(geometry: &Geometry) -> bool {
        geometry.kernel == [geometry.input.height, geometry.input.width] && geometry.padding == [0, 0]
    }

    pub fn new(geometry: Geometry) -> Self {
        Self(Dense { inputs: geometry.input.len(), outputs: geometry.output.channels })
    }
}

impl Algorithm for Whole {
    fn name(&self) -> &'static str {
        "whole"
    }

    fn workspace(&self, batch: usize, _: usize) -> usize {
        self.0.workspace(batch)
    }

    fn forward(&mut self, pass: Forward<'_>, bias: Option<&[f32]>) {
        self.0.forward(pass, bias);
    }

    fn backward(&mut self, pass: Backward<'_>) {
        self.0.backward(pass);
    }
}
