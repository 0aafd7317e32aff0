//! A model in integers: its weights, and a grid for every activation.

use ringstep_nn::layers::{Geometry, Shape};

use crate::calibrate::{Calibration, Histogram, Moments};
use crate::error::QuantError;
use crate::graph::{Graph, Op};
use crate::grid::{Bits, Grid};
use crate::survey::Survey;

/// Whether a layer's weights have one scale, or each filter its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Granularity {
    /// Each filter its own.
    Channel,
    /// One.
    Tensor,
}

impl Granularity {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Channel, Self::Tensor];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Channel => "channel",
            Self::Tensor => "tensor",
        }
    }
}

/// How a model is quantized.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recipe {
    /// Bits of weights and activations.
    pub bits: Bits,
    /// Scales of weights.
    pub granularity: Granularity,
    /// Ranges of activations; `3-sigma` and `mse` also say those of weights, which otherwise are the largest.
    pub calibration: Calibration,
}

/// What an operator does to integers.
#[derive(Debug, Clone, PartialEq)]
pub enum IntegerOp {
    /// A convolution or a linear layer.
    Conv {
        /// Its sizes.
        geometry: Geometry,
        /// Filters. // O,KH,KW,C
        weights: Vec<i8>,
        /// For each filter.
        scales: Vec<f32>,
        /// For each filter, at the scale of its products.
        bias: Vec<i32>,
        /// Whether a ReLU follows.
        rectified: bool,
    },
    /// The rectifier.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// The sum of two activations.
    Add {
        /// Whether a ReLU follows.
        rectified: bool,
    },
    /// The largest number of each window.
    MaxPool {
        /// How wide and high a window is.
        size: usize,
        /// How far apart windows begin.
        stride: usize,
    },
    /// The mean of each rectangle.
    AveragePool {
        /// Height and width of a rectangle.
        size: [usize; 2],
    },
}

/// An operator, where its inputs come from, and what the integers that come out stand for.
#[derive(Debug, Clone, PartialEq)]
pub struct IntegerNode {
    /// The name of its first layer.
    pub name: String,
    /// What it does.
    pub op: IntegerOp,
    /// 0 is the images, i + 1 what comes out of node i.
    pub inputs: Vec<usize>,
    /// The shape of what comes out.
    pub shape: Shape,
    /// What integers stand for.
    pub grid: Grid,
}

/// A model in integers.
#[derive(Debug, Clone, PartialEq)]
pub struct Quantized {
    /// The shape of an image.
    pub input: Shape,
    /// What the integers of images stand for.
    pub input_grid: Grid,
    /// Bits of weights and activations.
    pub bits: Bits,
    /// The last one's output are the logits.
    pub nodes: Vec<IntegerNode>,
}

/// The most products of a sum: so many of the largest, and the largest bias, fit in 32 bits.
const MOST_PRODUCTS: usize = 50_000;
/// A bias is at most this, so that it leaves room for the products.
const LARGEST_BIAS: f64 = (1 << 28) as f64;
/// The least factor from sums to outputs. It bounds the shift, and so what is added before it.
const LEAST_FACTOR: f64 = 1.0 / (1 << 20) as f64;
/// Beyond this the tangent of a hyperbola is one, as far as a byte can tell.
const TANH_REACH: f32 = 4.0;

impl Quantized {
    /// Quantizes a model whose activations have been surveyed.
    pub fn new(graph: &Graph, survey: &Survey, recipe: Recipe) -> Result<Self, QuantError> {
        let Recipe { bits, calibration, .. } = recipe;
        let values = 1 << bits.count();
        let grid = |source: usize, reach: f32| {
            let [low, high] = survey.histograms[source].range(calibration, values);
            Grid::spanning(low.max(-reach), high.min(reach), bits)
        };
        let input_grid = grid(0, f32::INFINITY);
        let mut quantized = Self { input: graph.input, input_grid, bits, nodes: Vec::new() };
        for (index, node) in graph.nodes.iter().enumerate() {
            let input = quantized.grid_of(node.inputs[0]);
            let readers: Vec<_> = graph.nodes.iter().filter(|reader| reader.inputs.contains(&(index + 1))).collect();
            let before_tanh = !readers.is_empty() && readers.iter().all(|reader| reader.op == Op::Tanh);
            let own = grid(index + 1, if before_tanh { TANH_REACH } else { f32::INFINITY });
            let (op, grid) = match &node.op {
                Op::Conv { geometry, weights, bias, rectified } => {
                    let scales = weight_scales(&node.name, geometry, weights, bias, [input, own], recipe)?;
                    let weights = quantize_weights(weights, &scales, bits);
                    let bias = quantize_bias(bias, &scales, input);
                    (IntegerOp::Conv { geometry: *geometry, weights, scales, bias, rectified: *rectified }, own)
                }
                // What neither adds nor multiplies keeps its grid.
                Op::Relu => (IntegerOp::Relu, input),
                &Op::MaxPool { size, stride } => (IntegerOp::MaxPool { size, stride }, input),
                &Op::AveragePool { size } => (IntegerOp::AveragePool { size }, input),
                // The specification says so.
                Op::Tanh => (IntegerOp::Tanh, Grid { scale: 2.0 / values as f32, zero_point: 0 }),
                &Op::Add { rectified } => (IntegerOp::Add { rectified }, own),
            };
            let (name, inputs, shape) = (node.name.clone(), node.inputs.clone(), node.shape);
            quantized.nodes.push(IntegerNode { name, op, inputs, shape, grid });
        }
        Ok(quantized)
    }

    /// What the integers of a source stand for.
    pub fn grid_of(&self, source: usize) -> Grid {
        source.checked_sub(1).map_or(self.input_grid, |index| self.nodes[index].grid)
    }

    /// The shape of a source.
    pub fn shape_of(&self, source: usize) -> Shape {
        source.checked_sub(1).map_or(self.input, |index| self.nodes[index].shape)
    }

    /// How many classes it tells apart.
    pub fn classes(&self) -> usize {
        self.nodes.last().map_or(0, |last| last.shape.len())
    }

    /// The bytes of its weights, biases and scales, each weight having as many bits as it needs.
    pub fn bytes(&self) -> usize {
        let of = |node: &IntegerNode| match &node.op {
            IntegerOp::Conv { weights, scales, bias, .. } => {
                (weights.len() * self.bits.count() as usize).div_ceil(8) + 4 * (scales.len() + bias.len())
            }
            _ => 0,
        };
        self.nodes.iter().map(of).sum()
    }
}

/// A scale for each filter.
fn weight_scales(
    name: &str,
    geometry: &Geometry,
    weights: &[f32],
    bias: &[f32],
    [input, output]: [Grid; 2],
    recipe: Recipe,
) -> Result<Vec<f32>, QuantError> {
    let window = geometry.window();
    if window > MOST_PRODUCTS {
        return Err(QuantError::TooLong { name: name.to_owned(), products: window, most: MOST_PRODUCTS });
    }
    if weights.iter().chain(bias).any(|number| !number.is_finite()) {
        return Err(QuantError::NotFinite { name: name.to_owned() });
    }
    let whole = weight_reach(weights, recipe);
    let scale = |(filter, &bias): (&[f32], &f32)| {
        let reach = if recipe.granularity == Granularity::Tensor { whole } else { weight_reach(filter, recipe) };
        // Filters of hardly anything, or with a bias beyond comparison, have a coarser scale than their weights would need.
        let for_bias = f64::from(bias).abs() / (f64::from(input.scale) * LARGEST_BIAS);
        let for_shift = LEAST_FACTOR * f64::from(output.scale) / f64::from(input.scale);
        let scale = (f64::from(reach) / f64::from(recipe.bits.weights())).max(for_bias).max(for_shift);
        (scale as f32).max(f32::MIN_POSITIVE)
    };
    Ok(weights.chunks_exact(window).zip(bias).map(scale).collect())
}

/// The number that the largest integer stands for.
fn weight_reach(weights: &[f32], recipe: Recipe) -> f32 {
    let largest = |[low, high]: [f32; 2]| low.abs().max(high.abs());
    match recipe.calibration {
        Calibration::ThreeSigma => largest(Moments::of(weights).three_sigma()),
        Calibration::Mse => {
            let magnitudes: Vec<f32> = weights.iter().map(|weight| weight.abs()).collect();
            Histogram::of(&magnitudes).range(Calibration::Mse, recipe.bits.weights() as u32 + 1)[1]
        }
        _ => weights.iter().fold(0.0, |most, weight| most.max(weight.abs())),
    }
}

fn quantize_weights(weights: &[f32], scales: &[f32], bits: Bits) -> Vec<i8> {
    let (most, window) = (bits.weights() as f32, weights.len() / scales.len().max(1));
    let filters = weights.chunks_exact(window.max(1)).zip(scales);
    filters
        .flat_map(|(filter, scale)| filter.iter().map(move |weight| (weight / scale).round().clamp(-most, most) as i8))
        .collect()
}

fn quantize_bias(bias: &[f32], scales: &[f32], input: Grid) -> Vec<i32> {
    let scaled = |(&bias, &scale): (&f32, &f32)| f64::from(bias) / (f64::from(input.scale) * f64::from(scale));
    bias.iter().zip(scales).map(|pair| scaled(pair).round() as i32).collect()
}
