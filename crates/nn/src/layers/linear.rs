//! A fully connected layer.

use super::dense::Dense;
use super::{Backward, Forward, Geometry, Inference, Layer, Rereads, Shape, Start, Tensor};
use crate::kernels::rows::sum_rows;

/// `output = input * weight^T + bias`.
#[derive(Debug)]
pub struct Linear {
    input: Shape,
    outputs: usize,
    bias: bool,
}

impl Linear {
    /// From all numbers of an image of this shape to `outputs` numbers.
    pub fn new(input: Shape, outputs: usize, bias: bool) -> Self {
        Self { input, outputs, bias }
    }

    fn dense(&self) -> Dense {
        Dense { inputs: self.input.len(), outputs: self.outputs }
    }
}

impl Layer for Linear {
    fn kind(&self) -> &'static str {
        "linear"
    }

    fn output(&self) -> Shape {
        Shape::new(1, 1, self.outputs)
    }

    fn tensors(&self) -> Vec<Tensor> {
        let start = Start::Uniform { fan_in: self.input.len() };
        let window = [self.input.channels, self.input.height * self.input.width];
        let weight = Tensor { name: "weight", shape: vec![self.outputs, self.input.len()], window, start };
        let bias = Tensor { name: "bias", shape: vec![self.outputs], window: [1, 1], start };
        if self.bias { vec![weight, bias] } else { vec![weight] }
    }

    fn geometry(&self) -> Option<Geometry> {
        Geometry::new(self.input, self.outputs, [self.input.height, self.input.width], [1, 1], [0, 0])
    }

    fn operations(&self) -> usize {
        2 * self.input.len() * self.outputs
    }

    fn workspace(&self, batch: usize, _: usize) -> usize {
        self.dense().workspace(batch)
    }

    fn adds(&self) -> bool {
        true
    }

    fn inference(&self, parameters: &[f32], _: &[f32]) -> Inference {
        let (weights, bias) = parameters.split_at(self.outputs * self.input.len());
        let bias = if self.bias { bias.to_vec() } else { vec![0.0; self.outputs] };
        let geometry = self.geometry().expect("its only window is its input");
        Inference::Conv { geometry, weights: weights.to_vec(), bias }
    }

    fn rereads(&self) -> Rereads {
        Rereads { input: true, output: false }
    }

    fn forward(&mut self, pass: Forward<'_>) {
        let (weight, bias) = pass.parameters.split_at(self.outputs * self.input.len());
        self.dense().forward(Forward { parameters: weight, ..pass }, self.bias.then_some(bias));
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let weights = self.outputs * self.input.len();
        let (weight_gradient, bias_gradient) = pass.gradients.split_at_mut(weights);
        if self.bias {
            sum_rows(pass.team.level(), pass.output_gradient, bias_gradient);
        }
        let parameters = &pass.parameters[..weights];
        self.dense().backward(Backward { parameters, gradients: weight_gradient, ..pass });
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn gradients_agree_with_differences() {
        let shape = Shape::new(1, 2, 3);
        for bias in [true, false] {
            check::gradients(&mut Linear::new(shape, 4, bias), shape, 3, 0.5, 1e-5);
        }
    }

    #[test]
    fn forward_is_what_it_says() {
        let shape = Shape::new(1, 1, 2);
        let mut layer = Linear::new(shape, 2, true);
        let mut bench = check::Bench::new(&mut layer, shape, 1, 1);
        bench.parameters = vec![1.0, 2.0, 3.0, 4.0, 10.0, 20.0];
        bench.input = vec![5.0, 6.0];
        assert_eq!(bench.forward(1), [5.0 + 12.0 + 10.0, 15.0 + 24.0 + 20.0]);
    }
}
