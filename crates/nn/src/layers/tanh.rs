//! The hyperbolic tangent, element by element.

use super::{Backward, Layer, Shape};
use crate::kernels::tanh::tanh;

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
    fn output(&self) -> Shape {
        self.shape
    }

    fn forward(&mut self, _: &[f32], input: &[f32], output: &mut [f32]) {
        for (output, &input) in output.iter_mut().zip(input) {
            *output = tanh(input);
        }
    }

    // tanh' = 1 - tanh^2
    fn backward(&mut self, pass: Backward<'_>) {
        let Some(input_gradient) = pass.input_gradient else { return };
        for ((gradient, &output_gradient), &output) in
            input_gradient.iter_mut().zip(pass.output_gradient).zip(pass.output)
        {
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
