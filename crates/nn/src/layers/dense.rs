//! Every number that goes in with every number that comes out: a fully connected layer, and a convolution whose only window
//! is the whole image.

use super::{Backward, Forward};
use crate::kernels::matmul::{Store, product};
use crate::kernels::matrix::{Matrix, MatrixMut};
use crate::kernels::pack::{pack, panels_len};
use crate::kernels::rows::add_to_rows;
use crate::team::Units;

/// `output = input * weight^T + bias`. The parameters of its passes are the weights alone. // O,I
#[derive(Debug, Clone, Copy)]
pub(super) struct Dense {
    pub inputs: usize,
    pub outputs: usize,
}

impl Dense {
    pub fn workspace(self, batch: usize) -> usize {
        let Self { inputs, outputs } = self;
        panels_len(inputs, outputs).max(panels_len(outputs, inputs)).max(panels_len(batch, inputs))
    }

    pub fn forward(self, pass: Forward<'_>, bias: Option<&[f32]>) {
        let Self { inputs, outputs } = self;
        let level = pass.team.level();
        let weight = Matrix::new(pass.parameters, outputs, inputs);
        let weight = pack(pass.team, pass.workspace, weight.transposed());
        let images = pass.output.len() / outputs;
        pass.team.deal(images, Units::new(pass.output, outputs), |range, output| {
            let input = Matrix::new(&pass.input[range.start * inputs..], range.len(), inputs); // N,I
            product(level, MatrixMut::new(output, range.len(), outputs), Store::Overwrite, input, weight); // N,O
            if let Some(bias) = bias {
                add_to_rows(level, output, bias);
            }
        });
    }

    pub fn backward(self, pass: Backward<'_>) {
        let Self { inputs, outputs } = self;
        let (images, level) = (pass.input.len() / inputs, pass.team.level());
        if images == 0 {
            return pass.gradients.fill(0.0);
        }
        let input = pack(pass.team, pass.workspace, Matrix::new(pass.input, images, inputs));
        pass.team.deal(outputs, Units::new(pass.gradients, inputs), |range, rows| {
            let columns = Matrix::strided(&pass.output_gradient[range.start..], images, range.len(), outputs);
            product(level, MatrixMut::new(rows, range.len(), inputs), Store::Overwrite, columns.transposed(), input); // O,I
        });
        let Some(input_gradient) = pass.input_gradient else { return };
        let weight = pack(pass.team, pass.workspace, Matrix::new(pass.parameters, outputs, inputs));
        let store = if pass.adds { Store::Accumulate } else { Store::Overwrite };
        pass.team.deal(images, Units::new(input_gradient, inputs), |range, rows| {
            let output_gradient = Matrix::new(&pass.output_gradient[range.start * outputs..], range.len(), outputs);
            product(level, MatrixMut::new(rows, range.len(), inputs), store, output_gradient, weight); // N,I
        });
    }
}
