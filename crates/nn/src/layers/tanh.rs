//! The hyperbolic tangent, element by element.

use super::{Backward, Forward, Layer, Rereads, Shape};
use crate::kernels::simd::vectorised;
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

    fn rereads(&self) -> Rereads {
        Rereads { input: false, output: true }
    }

    fn forward(&mut self, pass: Forward<'_>) {
        pass.team.deal(pass.output.len(), Units::new(pass.output, 1), |range, output| {
            tangents(output, &pass.input[range]);
        });
    }

    // tanh' = 1 - tanh^2
    fn backward(&mut self, pass: Backward<'_>) {
        let Some(input_gradient) = pass.input_gradient else { return };
        pass.team.deal(input_gradient.len(), Units::new(input_gradient, 1), |range, gradient| {
            slopes(gradient, &pass.output_gradient[range.clone()], &pass.output[range]);
        });
    }
}

vectorised! {
    fn tangents(output: &mut [f32], input: &[f32]) {
        for (output, &input) in output.iter_mut().zip(input) {
            *output = tanh::<FUSED>(input);
        }
    }

    fn slopes(gradient: &mut [f32], output_gradient: &[f32], output: &[f32]) {
        for ((gradient, &output_gradient), &output) in gradient.iter_mut().zip(output_gradient).zip(output) {
            *gradient = output_gradient * (1.0 - output * output);
        }
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
