//! Convolution whose only window is the whole image: a product, and nothing to gather.

use super::super::dense::Dense;
use super::super::{Backward, Forward};
use super::{Algorithm, Geometry};

pub(super) struct Whole(Dense);

impl Whole {
    /// `None` for other convolutions.
    pub fn new(geometry: Geometry) -> Option<Self> {
        let whole = geometry.kernel == [geometry.input.height, geometry.input.width] && geometry.padding == [0, 0];
        whole.then(|| Self(Dense { inputs: geometry.input.len(), outputs: geometry.output.channels }))
    }
}

impl Algorithm for Whole {
    fn name(&self) -> &'static str {
        "whole"
    }

    fn suits(&self, _: usize) -> bool {
        true
    }

    fn adds(&self) -> bool {
        true
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
