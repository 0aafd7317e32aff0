//! A trained model as the operators that are quantized: batch norm is folded into the convolution before it, a ReLU is part of
//! the operator before it where that is a convolution or a sum, and every other operator stands alone.

use ringstep_nn::frozen::Fusion;
use ringstep_nn::layers::{AveragePool, Geometry, Inference, MaxPool, Shape};
use ringstep_nn::team::Team;
use ringstep_nn::{Frozen, InferenceLayer, Model};

/// What an operator does.
#[derive(Debug, Clone, PartialEq)]
pub enum Op {
    /// A convolution; a linear layer has filters as large as its input.
    Conv {
        /// Its sizes.
        geometry: Geometry,
        /// Filters. // O,KH,KW,C
        weights: Vec<f32>,
        /// For each filter.
        bias: Vec<f32>,
        /// Whether a ReLU follows.
        rectified: bool,
    },
    /// The rectifier, after something that it cannot be part of.
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

impl Op {
    /// What it is called in reports.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::Conv { geometry, rectified, .. } => match (is_linear(geometry), rectified) {
                (true, true) => "linear+relu",
                (true, false) => "linear",
                (false, true) => "conv+relu",
                (false, false) => "conv",
            },
            Self::Relu => "relu",
            Self::Tanh => "tanh",
            Self::Add { rectified: true } => "add+relu",
            Self::Add { rectified: false } => "add",
            Self::MaxPool { .. } => "max pool",
            Self::AveragePool { .. } => "average pool",
        }
    }
}

/// Whether a convolution's only window is its whole input.
pub fn is_linear(geometry: &Geometry) -> bool {
    geometry.kernel == [geometry.input.height, geometry.input.width] && geometry.padding == [0, 0]
}

/// An operator, and where its inputs come from: 0 is the images, i + 1 what comes out of node i.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// The name of its first layer.
    pub name: String,
    /// What it does.
    pub op: Op,
    /// One, or two for a sum.
    pub inputs: Vec<usize>,
    /// The shape of what comes out.
    pub shape: Shape,
}

/// A model's operators, in an order in which they can be computed.
#[derive(Debug, Clone, PartialEq)]
pub struct Graph {
    /// The shape of an image.
    pub input: Shape,
    /// The last one's output are the logits.
    pub nodes: Vec<Node>,
}

impl Graph {
    /// The operators of a trained model.
    pub fn of(model: &Model) -> Self {
        let layers: Vec<InferenceLayer> = model.inference().collect();
        let mut graph = Self { input: model.input(), nodes: Vec::new() };
        // For each source of the model that of the graph; and how many layers read each, behind layers that do nothing too.
        let (mut sources, mut made) = (vec![0], vec![0]);
        for (index, layer) in layers.iter().enumerate() {
            made.push(if matches!(layer.does, Inference::Same) { made[layer.input] } else { index + 1 });
        }
        let mut readers = vec![0; layers.len() + 1];
        for layer in layers.iter().filter(|layer| !matches!(layer.does, Inference::Same)) {
            std::iter::once(layer.input).chain(layer.shortcut).for_each(|source| readers[made[source]] += 1);
        }
        for layer in layers {
            let (input, shape) = (sources[layer.input], layer.shape);
            let alone = readers[made[layer.input]] == 1;
            let source = match layer.does {
                Inference::Same => input,
                Inference::Conv { geometry, weights, bias } => {
                    graph.push(layer.name, Op::Conv { geometry, weights, bias, rectified: false }, vec![input], shape)
                }
                Inference::Affine { scale, offset, rectified } => {
                    let source = graph.scale(layer.name.clone(), input, alone, &scale, &offset, shape);
                    if rectified { graph.rectify(layer.name, source, true, shape) } else { source }
                }
                Inference::Relu => graph.rectify(layer.name, input, alone, shape),
                Inference::Tanh => graph.push(layer.name, Op::Tanh, vec![input], shape),
                Inference::Add { rectified } => {
                    let other = sources[layer.shortcut.expect("a sum has two inputs")];
                    graph.push(layer.name, Op::Add { rectified }, vec![input, other], shape)
                }
                Inference::MaxPool(pool) => {
                    let before = input.checked_sub(1).map_or(graph.input, |index| graph.nodes[index].shape);
                    let name = format!("{} relu", layer.name);
                    let input = if pool.rectified() { graph.rectify(name, input, alone, before) } else { input };
                    let op = Op::MaxPool { size: pool.size(), stride: pool.stride() };
                    graph.push(layer.name, op, vec![input], shape)
                }
                Inference::AveragePool(pool) => {
                    graph.push(layer.name, Op::AveragePool { size: pool.size() }, vec![input], shape)
                }
            };
            sources.push(source);
        }
        graph
    }

    fn push(&mut self, name: String, op: Op, inputs: Vec<usize>, shape: Shape) -> usize {
        self.nodes.push(Node { name, op, inputs, shape });
        self.nodes.len()
    }

    /// Batch norm: part of the convolution before it if nobody else reads that, and otherwise one with filters of a number each.
    fn scale(&mut self, name: String, input: usize, alone: bool, scale: &[f32], offset: &[f32], shape: Shape) -> usize {
        let before = input.checked_sub(1).filter(|_| alone).map(|index| &mut self.nodes[index].op);
        if let Some(Op::Conv { geometry, weights, bias, rectified: false }) = before {
            for (filter, &scale) in weights.chunks_exact_mut(geometry.window()).zip(scale) {
                filter.iter_mut().for_each(|weight| *weight *= scale);
            }
            for (bias, (scale, offset)) in bias.iter_mut().zip(scale.iter().zip(offset)) {
                *bias = *bias * scale + offset;
            }
            return input;
        }
        let channels = shape.channels;
        let weights =
            (0..channels * channels).map(|at| if at / channels == at % channels { scale[at / channels] } else { 0.0 });
        let geometry = Geometry::new(shape, channels, [1, 1], [1, 1], [0, 0]).expect("a window of one pixel");
        let op = Op::Conv { geometry, weights: weights.collect(), bias: offset.to_vec(), rectified: false };
        self.push(name, op, vec![input], shape)
    }

    fn rectify(&mut self, name: String, input: usize, alone: bool, shape: Shape) -> usize {
        let before = input.checked_sub(1).filter(|_| alone).map(|index| &mut self.nodes[index].op);
        match before {
            Some(Op::Conv { rectified, .. } | Op::Add { rectified }) => {
                *rectified = true;
                input
            }
            _ => self.push(name, Op::Relu, vec![input], shape),
        }
    }

    /// The shape of a source.
    pub fn shape_of(&self, source: usize) -> Shape {
        source.checked_sub(1).map_or(self.input, |index| self.nodes[index].shape)
    }

    /// The same operators in floats: each is a step of its own, in the same order.
    pub fn frozen(&self, batch: usize, team: Team) -> Frozen {
        let mut layers: Vec<InferenceLayer> = Vec::new();
        let mut sources = vec![0];
        for node in &self.nodes {
            let (input, shape) = (sources[node.inputs[0]], node.shape);
            let (does, rectified) = match &node.op {
                Op::Conv { geometry, weights, bias, rectified } => {
                    (Inference::Conv { geometry: *geometry, weights: weights.clone(), bias: bias.clone() }, *rectified)
                }
                Op::Relu => (Inference::Relu, false),
                Op::Tanh => (Inference::Tanh, false),
                &Op::Add { rectified } => (Inference::Add { rectified }, false),
                &Op::MaxPool { size, stride } => {
                    (Inference::MaxPool(MaxPool::new(self.shape_of(node.inputs[0]), size, stride, false)), false)
                }
                &Op::AveragePool { size } => {
                    (Inference::AveragePool(AveragePool::rectangles(self.shape_of(node.inputs[0]), size)), false)
                }
            };
            let shortcut = node.inputs.get(1).map(|&other| sources[other]);
            layers.push(InferenceLayer { name: node.name.clone(), does, input, shortcut, shape });
            if rectified {
                let input = layers.len();
                let name = format!("{} relu", node.name);
                layers.push(InferenceLayer { name, does: Inference::Relu, input, shortcut: None, shape });
            }
            sources.push(layers.len());
        }
        Frozen::of(layers, self.input, batch, team, Fusion::Rectifiers)
    }

    /// The bytes of its weights and biases as floats.
    pub fn bytes(&self) -> usize {
        let numbers = |node: &Node| match &node.op {
            Op::Conv { weights, bias, .. } => weights.len() + bias.len(),
            _ => 0,
        };
        size_of::<f32>() * self.nodes.iter().map(numbers).sum::<usize>()
    }
}
