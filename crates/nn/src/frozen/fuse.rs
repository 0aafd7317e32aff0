//! From a model's layers to the steps of a frozen one.

use super::{Node, Step};
use crate::described::InferenceLayer;
use crate::layers::conv2d::frozen::{Activation, FrozenConv};
use crate::layers::{Inference, Shape};

/// What becomes part of the step before it, where that is possible; batch norm always does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fusion {
    /// Activations, sums and max pooling.
    All,
    /// All but max pooling, which is a step of its own.
    ElementByElement,
    /// Rectifiers alone: what is computed in integers is rounded after every other step.
    Rectifiers,
}

/// The steps so far, and what became of each layer.
struct Steps {
    nodes: Vec<Node>,
    /// For each source of the model (0 is the images, i + 1 what comes out of layer i) that of the frozen one.
    sources: Vec<usize>,
    /// For each source of the model, how many layers read it, or the same numbers behind a layer that does nothing.
    readers: Vec<usize>,
}

/// Layers as steps, with those that can be done in one put together.
pub(super) fn fuse(layers: Vec<InferenceLayer>, input: Shape, fusion: Fusion) -> Vec<Node> {
    // Where a source's numbers are made: layers that do nothing pass them on.
    let mut made: Vec<usize> = vec![0];
    for (index, layer) in layers.iter().enumerate() {
        made.push(if matches!(layer.does, Inference::Same) { made[layer.input] } else { index + 1 });
    }
    let mut readers = vec![0; layers.len() + 1];
    for layer in layers.iter().filter(|layer| !matches!(layer.does, Inference::Same)) {
        readers[made[layer.input]] += 1;
        layer.shortcut.iter().for_each(|&shortcut| readers[made[shortcut]] += 1);
    }
    let readers = made.iter().map(|&source| readers[source]).collect();
    let mut steps = Steps { nodes: Vec::new(), sources: vec![0], readers };
    for layer in layers {
        let (name, shape, input) = (layer.name, layer.shape, layer.input);
        let source = match layer.does {
            Inference::Same => steps.sources[input],
            Inference::Conv { geometry, weights, bias } => {
                let conv = FrozenConv::new(geometry, weights, bias);
                steps.push(name, Step::Conv(conv), input, None, shape)
            }
            Inference::Affine { scale, offset, rectified } => {
                let plain = |conv: &FrozenConv| conv.activation == Activation::None;
                match steps.conv_before(input, plain) {
                    Some((index, conv)) if steps.nodes[index].other.is_none() => {
                        let mut conv = conv.scaled(&scale, &offset);
                        conv.activation = if rectified { Activation::Relu } else { Activation::None };
                        steps.replace(index, conv, shape)
                    }
                    _ => {
                        let floor = if rectified { 0.0 } else { f32::NEG_INFINITY };
                        steps.push(name, Step::Affine { scale, offset, floor }, input, None, shape)
                    }
                }
            }
            Inference::Relu => steps.activate(name, Activation::Relu, Step::Relu, input, shape),
            Inference::Tanh if fusion == Fusion::Rectifiers => steps.push(name, Step::Tanh, input, None, shape),
            Inference::Tanh => steps.activate(name, Activation::Tanh, Step::Tanh, input, shape),
            Inference::Add { rectified } => {
                let shortcut = layer.shortcut.expect("a sum has two inputs");
                steps.add(name, [input, shortcut], rectified, shape, fusion)
            }
            Inference::MaxPool(pool) => {
                let rectified = !pool.rectified() || steps.rectify(input);
                let fuses = fusion == Fusion::All && pool.halves() && rectified;
                match steps.conv_before(input, |_| fuses) {
                    Some((index, mut conv)) => {
                        conv.pool = true;
                        steps.replace(index, conv, shape)
                    }
                    None => steps.push(name, Step::MaxPool(pool), input, None, shape),
                }
            }
            Inference::AveragePool(pool) => steps.push(name, Step::AveragePool(pool), input, None, shape),
        };
        steps.sources.push(source);
    }
    if steps.nodes.is_empty() {
        // All layers do nothing in inference; somebody must hand the images on.
        let (scale, offset) = (vec![1.0; input.channels], vec![0.0; input.channels]);
        steps.push("output".into(), Step::Affine { scale, offset, floor: f32::NEG_INFINITY }, 0, None, input);
    }
    steps.nodes
}

impl Steps {
    fn push(&mut self, name: String, step: Step, input: usize, other: Option<usize>, shape: Shape) -> usize {
        let (input, other) = (self.sources[input], other.map(|other| self.sources[other]));
        self.nodes.push(Node { name, step, input, other, shape, place: 0..0 });
        self.nodes.len()
    }

    /// The convolution that a source of the model comes from, if nobody else reads that, and nothing is pooled yet.
    fn conv_before(&self, source: usize, suits: impl Fn(&FrozenConv) -> bool) -> Option<(usize, FrozenConv)> {
        let index = self.sources[source].checked_sub(1)?;
        match &self.nodes[index].step {
            Step::Conv(conv) if self.readers[source] == 1 && !conv.pool && suits(conv) => Some((index, conv.clone())),
            _ => None,
        }
    }

    fn replace(&mut self, index: usize, conv: FrozenConv, shape: Shape) -> usize {
        (self.nodes[index].step, self.nodes[index].shape) = (Step::Conv(conv), shape);
        index + 1
    }

    fn activate(&mut self, name: String, activation: Activation, step: Step, input: usize, shape: Shape) -> usize {
        match self.conv_before(input, |conv| conv.activation == Activation::None) {
            Some((index, mut conv)) => {
                conv.activation = activation;
                self.replace(index, conv, shape)
            }
            None => self.push(name, step, input, None, shape),
        }
    }

    /// Whether the ReLU before a pool could become part of a convolution.
    fn rectify(&mut self, source: usize) -> bool {
        let suits = |conv: &FrozenConv| matches!(conv.activation, Activation::None | Activation::Relu);
        let Some((index, mut conv)) = self.conv_before(source, suits) else { return false };
        conv.activation = Activation::Relu;
        self.replace(index, conv, self.nodes[index].shape);
        true
    }

    /// A sum is added to by whichever of its two inputs is made last, if that is a convolution.
    fn add(&mut self, name: String, inputs: [usize; 2], rectified: bool, shape: Shape, fusion: Fusion) -> usize {
        let [one, other] = inputs;
        let (last, earlier) = if self.sources[one] > self.sources[other] { (one, other) } else { (other, one) };
        let plain = |conv: &FrozenConv| conv.activation == Activation::None && fusion != Fusion::Rectifiers;
        match self.conv_before(last, plain) {
            Some((index, mut conv)) if self.nodes[index].other.is_none() && index + 1 == self.nodes.len() => {
                conv.activation = if rectified { Activation::Relu } else { Activation::None };
                self.nodes[index].other = Some(self.sources[earlier]);
                self.replace(index, conv, shape)
            }
            _ => {
                let floor = if rectified { 0.0 } else { f32::NEG_INFINITY };
                self.push(name, Step::Add { floor }, one, Some(other), shape)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::Level;

    use super::super::*;
    use crate::team::Team;
    use crate::{Architecture, Model};

    fn steps(architecture: Architecture, fusion: Fusion) -> usize {
        let model = Model::new(&architecture.network(), 1, Team::new(1, Level::best())).unwrap();
        model.freeze_with(1, 1, fusion).nodes.len()
    }

    #[test]
    fn what_follows_a_convolution_is_part_of_its_step() {
        // Eight convolutions and a linear layer; five of them with a pool.
        assert_eq!(steps(Architecture::Vgg11, Fusion::All), 9);
        assert_eq!(steps(Architecture::Vgg11, Fusion::ElementByElement), 14);
        // Twenty convolutions, the global average and a linear layer: every sum is a convolution's.
        assert_eq!(steps(Architecture::ResNet18, Fusion::All), 22);
        assert_eq!(steps(Architecture::ResNet18, Fusion::Rectifiers), 30);
        // Three convolutions and two linear layers with their tangents, and two average pools.
        assert_eq!(steps(Architecture::LeNet5, Fusion::All), 7);
        assert_eq!(steps(Architecture::LeNet5, Fusion::Rectifiers), 11);
    }
}
