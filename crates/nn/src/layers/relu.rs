//! The rectifier, element by element.

use super::{Backward, Forward, Layer, Rereads, Shape};
use crate::kernels::simd::vectorised;
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

    fn rereads(&self) -> Rereads {
        Rereads { input: false, output: true }
    }

    fn forward(&mut self, pass: Forward<'_>) {
        pass.team
            .deal(pass.output.len(), Units::new(pass.output, 1), |range, output| rectify(output, &pass.input[range]));
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let Some(input_gradient) = pass.input_gradient else { return };
        pass.team.deal(input_gradient.len(), Units::new(input_gradient, 1), |range, gradient| {
            pass_on_where_positive(gradient, &pass.output_gradient[range.clone()], &pass.output[range]);
        });
    }
}

vectorised! {
    fn rectify(output: &mut [f32], input: &[f32]) {
        for (output, &input) in output.iter_mut().zip(input) {
            // Not `max`, which would turn NaN into 0.
            *output = if input < 0.0 { 0.0 } else { input };
        }
    }

    pub(super) fn pass_on_where_positive(gradient: &mut [f32], output_gradient: &[f32], output: &[f32]) {
        for ((gradient, &output_gradient), &output) in gradient.iter_mut().zip(output_gradient).zip(output) {
            *gradient = if output > 0.0 { output_gradient } else { 0.0 };
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
        check::gradients(&mut Relu::new(shape), shape, 2, 1e-4, 1e-2);
    }

    #[test]
    fn negative_is_zero_and_nan_stays() {
        let mut output = [1.0; 3];
        rectify(&mut output, &[-1.0, 2.0, f32::NAN]);
        assert_eq!(output[..2], [0.0, 2.0]);
        assert!(output[2].is_nan());
    }
}
