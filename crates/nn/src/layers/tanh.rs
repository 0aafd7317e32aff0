//! The hyperbolic tangent, element by element.

use ringstep_cpu::{along, kernels};

use super::{Backward, Forward, Inference, Layer, Rereads, Shape};
use crate::kernels::tanh::tanh;
use crate::team::Units;

/// `output = tanh(input)`.
#[derive(Debug)]
pub struct Tanh {
    shape: Shape,
}

impl Tanh {
    /// For activations of this shape.
    pub fn new(shape: Shape) -> Self {
        Self { shape }
    }
}

impl Layer for Tanh {
    fn kind(&self) -> &'static str {
        "tanh"
    }

    fn output(&self) -> Shape {
        self.shape
    }

    fn inference(&self, _: &[f32], _: &[f32]) -> Inference {
        Inference::Tanh
    }

    fn rereads(&self) -> Rereads {
        Rereads { input: false, output: true }
    }

    fn forward(&mut self, pass: Forward<'_>) {
        let level = pass.team.level();
        pass.team.deal(pass.output.len(), Units::new(pass.output, 1), |range, output| {
            tangents(level, output, &pass.input[range]);
        });
    }

    // tanh' = 1 - tanh^2
    fn backward(&mut self, pass: Backward<'_>) {
        let Some(input_gradient) = pass.input_gradient else { return };
        let level = pass.team.level();
        pass.team.deal(input_gradient.len(), Units::new(input_gradient, 1), |range, gradient| {
            slopes(level, gradient, &pass.output_gradient[range.clone()], &pass.output[range]);
        });
    }
}

kernels! {
    pub(crate) fn tangents<S>(simd: S, output: &mut [f32], input: &[f32]) {
        along!(simd, output.len(), |at| {
            at.store(output, tanh(simd, at.load(input)));
        });
    }

    fn slopes<S>(simd: S, gradient: &mut [f32], output_gradient: &[f32], output: &[f32]) {
        along!(simd, gradient.len(), |at| {
            let output = at.load(output);
            at.store(gradient, at.load(output_gradient) * (simd.splat(1.0) - output * output));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn gradients_agree_with_differences() {
        let shape = Shape::new(2, 3, 4);
        check::gradients(&mut Tanh::new(shape), shape, 2, 1e-2, 1e-4);
    }
}
