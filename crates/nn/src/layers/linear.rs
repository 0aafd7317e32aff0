//! A fully connected layer.

use super::{Backward, Forward, Geometry, Layer, Rereads, Shape, Start, Tensor};
use crate::kernels::matmul::{Matrix, MatrixMut, Mode, Panels, pack, pack_some, panel_width, panels_len, product};
use crate::kernels::rows::{add_to_rows, sum_rows};
use crate::team::Units;

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
        let inputs = self.input.len();
        panels_len(inputs, self.outputs).max(panels_len(self.outputs, inputs)).max(panels_len(batch, inputs))
    }

    fn rereads(&self) -> Rereads {
        Rereads { input: true, output: false }
    }

    fn forward(&mut self, pass: Forward<'_>) {
        let (inputs, outputs) = (self.input.len(), self.outputs);
        let (weight, bias) = pass.parameters.split_at(outputs * inputs); // O,I and O
        let (panels, _) = pass.workspace.split_at_mut(panels_len(inputs, outputs));
        let weight = Matrix::new(weight, outputs, inputs).transposed();
        let panel = inputs * panel_width();
        pass.team.deal(outputs.div_ceil(panel_width()), Units::new(panels, panel), |range, panels| {
            pack_some(panels, weight, range);
        });
        let weight = Panels::new(panels, inputs, outputs);
        let images = pass.output.len() / outputs;
        pass.team.deal(images, Units::new(pass.output, outputs), |range, output| {
            let input = Matrix::new(&pass.input[range.start * inputs..], range.len(), inputs); // N,I
            product(MatrixMut::new(output, range.len(), outputs), Mode::Set, input, weight); // N,O
            if self.bias {
                add_to_rows(output, bias);
            }
        });
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let (inputs, outputs) = (self.input.len(), self.outputs);
        let weight = &pass.parameters[..outputs * inputs];
        let (weight_gradient, bias_gradient) = pass.gradients.split_at_mut(weight.len());
        let images = pass.input.len() / inputs;
        let panels = pass.workspace;
        if self.bias {
            sum_rows(pass.output_gradient, bias_gradient);
        }
        let input = pack(panels, Matrix::new(pass.input, images, inputs));
        pass.team.deal(outputs, Units::new(weight_gradient, inputs), |range, rows| {
            let columns = Matrix::strided(&pass.output_gradient[range.start..], images, range.len(), outputs);
            product(MatrixMut::new(rows, range.len(), inputs), Mode::Set, columns.transposed(), input); // O,I
        });
        let Some(input_gradient) = pass.input_gradient else { return };
        let weight = pack(panels, Matrix::new(weight, outputs, inputs));
        pass.team.deal(images, Units::new(input_gradient, inputs), |range, rows| {
            let output_gradient = Matrix::new(&pass.output_gradient[range.start * outputs..], range.len(), outputs);
            product(MatrixMut::new(rows, range.len(), inputs), Mode::Set, output_gradient, weight); // N,I
        });
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
        assert_eq!(bench.forward(1, true), [5.0 + 12.0 + 10.0, 15.0 + 24.0 + 20.0]);
    }
}
