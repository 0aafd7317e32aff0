//! A quantized model in plain integers, one operator after the other by [`crate::reference`]: what [`crate::engine`] must equal.

use crate::grid::{Bits, Grid};
use crate::model::{IntegerNode, IntegerOp, Quantized};
use crate::reference::{Add, Conv, Pool, Requantize, look_up, table};

/// An operator with its constants.
pub(crate) enum Operator {
    Conv(Conv),
    Add(Add),
    Largest(Pool),
    Average(Pool),
    Table(Vec<i8>),
}

impl Operator {
    /// What a node of a model does to integers.
    pub fn new(model: &Quantized, node: &IntegerNode) -> Self {
        let (bits, input) = (model.bits, model.grid_of(node.inputs[0]));
        let pool = |size: [usize; 2], stride: [usize; 2]| Pool {
            input: model.shape_of(node.inputs[0]),
            output: node.shape,
            size,
            stride,
        };
        match &node.op {
            IntegerOp::Conv { geometry, weights, scales, bias, rectified } => Self::Conv(Conv {
                geometry: *geometry,
                weights: weights.clone(),
                bias: bias.clone(),
                input_zero: input.zero_point,
                requantize: Requantize::new(input, scales, node.grid, *rectified, bits),
            }),
            IntegerOp::Add { rectified } => {
                Self::Add(Add::new([input, model.grid_of(node.inputs[1])], node.grid, *rectified, bits))
            }
            IntegerOp::Relu => Self::Table(function_table(input, node.grid, bits, |number| number.max(0.0))),
            IntegerOp::Tanh => Self::Table(function_table(input, node.grid, bits, f32::tanh)),
            &IntegerOp::MaxPool { size, stride } => Self::Largest(pool([size; 2], [stride; 2])),
            &IntegerOp::AveragePool { size } => Self::Average(pool(size, size)),
        }
    }
}

fn function_table(input: Grid, output: Grid, bits: Bits, function: fn(f32) -> f32) -> Vec<i8> {
    table(input, output, bits, function)
}

/// The logits of images, all in integers. // N,H,W,C to N,classes
pub fn logits(model: &Quantized, images: &[i8]) -> Vec<i8> {
    let count = images.len() / model.input.len();
    let mut made: Vec<Vec<i8>> = Vec::new();
    for node in &model.nodes {
        let input = |which: usize| match node.inputs[which].checked_sub(1) {
            None => images,
            Some(index) => &made[index],
        };
        let mut output = vec![0; count * node.shape.len()];
        match Operator::new(model, node) {
            Operator::Conv(conv) => conv.forward(input(0), &mut output),
            Operator::Add(add) => add.forward(input(0), input(1), &mut output),
            Operator::Largest(pool) => pool.largest(input(0), &mut output),
            Operator::Average(pool) => pool.average(input(0), &mut output),
            Operator::Table(table) => look_up(&table, input(0), &mut output),
        }
        made.push(output);
    }
    made.pop().unwrap_or_default()
}
