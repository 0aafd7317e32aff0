//! The rectifier, element by element.

use ringstep_cpu::{along, kernels};

use super::{Backward, Forward, Inference, Layer, Rereads, Shape};
use crate::team::Units;

/// `output = max(input, 0)`.
#[derive(Debug)]
pub struct Relu {
    shape: Shape,
}

impl Relu {
    /// For activations of this shape.
    pub fn new(shape: Shape) -> Self {
        Self { shape }
    }
}

impl Layer for Relu {
    fn kind(&self) -> &'static str {
        "relu"
    }

    fn output(&self) -> Shape {
        self.shape
    }

    fn inference(&self, _: &[f32], _: &[f32]) -> Inference {
        Inference::Relu
    }

    fn rereads(&self) -> Rereads {
        Rereads { input: false, output: true }
    }

    fn forward(&mut self, pass: Forward<'_>) {
        let level = pass.team.level();
        pass.team.deal(pass.output.len(), Units::new(pass.output, 1), |range, output| {
            rectify(level, output, &pass.input[range]);
        });
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let Some(input_gradient) = pass.input_gradient else { return };
        let level = pass.team.level();
        pass.team.deal(input_gradient.len(), Units::new(input_gradient, 1), |range, gradient| {
            pass_on_where_positive(level, gradient, &pass.output_gradient[range.clone()], &pass.output[range]);
        });
    }
}

kernels! {
    pub(crate) fn rectify<S>(simd: S, output: &mut [f32], input: &[f32]) {
        along!(simd, output.len(), |at| {
            // The second operand of `max` stays if it is not a number.
            at.store(output, simd.zero().max(at.load(input)));
        });
    }

    pub(super) fn pass_on_where_positive<S>(simd: S, gradient: &mut [f32], output_gradient: &[f32], output: &[f32]) {
        along!(simd, gradient.len(), |at| {
            at.store(gradient, at.load(output).where_greater(simd.zero(), at.load(output_gradient), simd.zero()));
        });
    }
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::Level;

    use super::super::check;
    use super::*;

    #[test]
    fn gradients_agree_with_differences() {
        let shape = Shape::new(2, 3, 4);
        check::gradients(&mut Relu::new(shape), shape, 2, 1e-4, 1e-2);
    }

    #[test]
    fn negative_is_zero_and_nan_stays() {
        for level in Level::available() {
            let mut output = [1.0; 3];
            rectify(level, &mut output, &[-1.0, 2.0, f32::NAN]);
            assert_eq!(output[..2], [0.0, 2.0]);
            assert!(output[2].is_nan());
        }
    }
}
