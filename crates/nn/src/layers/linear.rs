//! A fully connected layer.

use super::{Backward, Layer, Shape, Tensor, sum_rows};
use crate::kernels::matmul::{Matrix, multiply, multiply_add};

/// `output = input * weight^T + bias`.
#[derive(Debug)]
pub struct Linear {
    inputs: usize,
    outputs: usize,
}

impl Linear {
    /// From all numbers of an image of this shape to `outputs` numbers.
    pub fn new(input: Shape, outputs: usize) -> Self {
        Self { inputs: input.len(), outputs }
    }
}

impl Layer for Linear {
    fn output(&self) -> Shape {
        Shape::new(1, 1, self.outputs)
    }

    fn tensors(&self) -> Vec<Tensor> {
        let fan_in = self.inputs;
        vec![
            Tensor { name: "weight", shape: vec![self.outputs, self.inputs], fan_in },
            Tensor { name: "bias", shape: vec![self.outputs], fan_in },
        ]
    }

    fn forward(&mut self, parameters: &[f32], input: &[f32], output: &mut [f32]) {
        let (weight, bias) = parameters.split_at(self.outputs * self.inputs); // O,I and O
        for row in output.chunks_exact_mut(self.outputs) {
            row.copy_from_slice(bias);
        }
        let input = Matrix::new(input, input.len() / self.inputs, self.inputs); // N,I
        multiply_add(output, input, Matrix::new(weight, self.outputs, self.inputs).transposed()); // N,O
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let (weight, _) = pass.parameters.split_at(self.outputs * self.inputs);
        let (weight_gradient, bias_gradient) = pass.gradients.split_at_mut(weight.len());
        let images = pass.input.len() / self.inputs;
        let output_gradient = Matrix::new(pass.output_gradient, images, self.outputs); // N,O
        sum_rows(pass.output_gradient, bias_gradient);
        multiply(weight_gradient, output_gradient.transposed(), Matrix::new(pass.input, images, self.inputs));
        if let Some(input_gradient) = pass.input_gradient {
            multiply(input_gradient, output_gradient, Matrix::new(weight, self.outputs, self.inputs));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn gradients_agree_with_differences() {
        let shape = Shape::new(1, 2, 3);
        check::gradients(&mut Linear::new(shape, 4), shape, 3, 0.5, 1e-5);
    }

    #[test]
    fn forward_is_what_it_says() {
        let mut output = [0.0; 2];
        Linear::new(Shape::new(1, 1, 2), 2).forward(&[1.0, 2.0, 3.0, 4.0, 10.0, 20.0], &[5.0, 6.0], &mut output);
        assert_eq!(output, [5.0 + 12.0 + 10.0, 15.0 + 24.0 + 20.0]);
    }
}
