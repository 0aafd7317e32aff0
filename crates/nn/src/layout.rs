//! Where a model's numbers live: tensors in the flat buffers, activations and their gradients in the arena.

use std::ops::Range;
use std::time::{Duration, Instant};

use crate::layers::{Shape, Start, Tensor};
use crate::network::Wired;
use crate::plan::{Need, plan};

/// A tensor of a model.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// PyTorch's name for it, such as `conv1.weight`.
    pub name: String,
    /// Its shape in PyTorch's layout: OIHW for a convolution, [out, in] for a linear layer.
    pub shape: Vec<usize>,
    /// Whether it is trained; batch norm's running statistics are not.
    pub trained: bool,
    window: [usize; 2],
    pub(crate) start: Start,
    /// Where it stands in the flat buffer of the values, or of the statistics.
    pub(crate) range: Range<usize>,
}

impl Parameter {
    /// Where it stands in the flat buffers of values and gradients, or in that of the statistics if it is not trained.
    pub fn range(&self) -> Range<usize> {
        self.range.clone()
    }

    /// For each element in PyTorch's layout its place in the flat buffer: channels last, as the activations have them.
    pub(crate) fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let ([channels, area], start) = (self.window, self.range.start);
        (0..self.range.len()).map(move |index| {
            let (output, channel, at) = (index / (channels * area), index / area % channels, index % area);
            start + (output * area + at) * channels + channel
        })
    }
}

/// When a layer's last pass went on.
#[derive(Debug, Clone, Copy)]
pub struct Timing {
    /// Its beginning.
    pub began: Instant,
    /// How long it took.
    pub took: Duration,
}

impl Timing {
    fn never() -> Self {
        Self { began: Instant::now(), took: Duration::ZERO }
    }

    /// From then until now.
    pub(crate) fn since(began: Instant) -> Self {
        Self { began, took: began.elapsed() }
    }
}

/// Where a layer's backward puts the gradient of something that it has read. Others may have read it too: the first of them in
/// backward sets the gradient, and all others add to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Destination {
    /// Nobody wants that of the images.
    Nowhere,
    /// It overwrites what is there.
    Set,
    /// The layer adds to what is there.
    Add,
    /// The layer cannot add: it writes to this place, which is then added.
    Aside(Range<usize>),
}

/// A layer of a model, and the places of its numbers.
pub(crate) struct Node {
    pub wired: Wired,
    pub shape: Shape,
    /// Its part of the values and gradients.
    pub values: Range<usize>,
    pub statistics: Range<usize>,
    /// Places in the arena for a whole batch; empty where there is nothing to keep.
    pub output: Range<usize>,
    pub output_gradient: Range<usize>,
    /// Where the gradients of input and shortcut go.
    pub input_gradient: Destination,
    pub shortcut_gradient: Destination,
    pub forward: Timing,
    pub backward: Timing,
}

impl Node {
    /// Without places as yet.
    pub fn new(wired: Wired) -> Self {
        Self {
            shape: wired.step.output(),
            wired,
            values: 0..0,
            statistics: 0..0,
            output: 0..0,
            output_gradient: 0..0,
            input_gradient: Destination::Nowhere,
            shortcut_gradient: Destination::Nowhere,
            forward: Timing::never(),
            backward: Timing::never(),
        }
    }
}

/// Lays the tensors out, last layer first, and lists them in the order of the layers.
pub(crate) fn lay_out(nodes: &mut [Node]) -> (Vec<Parameter>, usize, usize) {
    let (mut values, mut statistics) = (0, 0);
    let mut parameters = Vec::new();
    for node in nodes.iter_mut().rev() {
        let name = &node.wired.name;
        let list = |tensors: Vec<Tensor>, trained: bool, end: &mut usize| -> Vec<Parameter> {
            let parameter = |tensor: Tensor| {
                let range = *end..*end + tensor.shape.iter().product::<usize>();
                *end = range.end;
                let Tensor { shape, window, start, .. } = tensor;
                Parameter { name: format!("{name}.{}", tensor.name), shape, trained, window, start, range }
            };
            tensors.into_iter().map(parameter).collect()
        };
        let starts = (values, statistics);
        let mut of_layer = list(node.wired.step.tensors(), true, &mut values);
        of_layer.extend(list(node.wired.step.statistics(), false, &mut statistics));
        (node.values, node.statistics) = (starts.0..values, starts.1..statistics);
        parameters.splice(0..0, of_layer);
    }
    (parameters, values, statistics)
}

/// Gives activations and gradients their places in the arena; returns its size. Forward of layer i is moment i, its
/// backward as far from the end.
pub(crate) fn place(nodes: &mut [Node], batch: usize) -> usize {
    let count = nodes.len();
    let (forward, backward) = (|index: usize| index, |index: usize| 2 * count - 1 - index);
    let consumers = |nodes: &[Node], index: usize| -> Vec<usize> {
        let reads = |node: &Node| node.wired.input == index + 1 || node.wired.shortcut == Some(index + 1);
        (0..count).filter(|&consumer| reads(&nodes[consumer])).collect()
    };
    let mut needs = Vec::new();
    for (index, node) in nodes.iter().enumerate() {
        let size = batch * node.shape.len();
        let readers = consumers(nodes, index);
        let own = if node.wired.step.rereads().output { backward(index) } else { forward(index) };
        let last_read = readers.iter().map(|&reader| {
            let again = nodes[reader].wired.input == index + 1 && nodes[reader].wired.step.rereads().input;
            if again { backward(reader) } else { forward(reader) }
        });
        // Nobody but the loss reads the last layer's output, when backward begins.
        let until = last_read.max().unwrap_or(count).max(own);
        needs.push(Need { size, from: forward(index), until });
        // The first to write a gradient is its last reader in forward; the loss writes the last one.
        let first_write = readers.last().map_or(count, |&reader| backward(reader));
        needs.push(Need { size, from: first_write, until: backward(index) });
    }
    let mut asides = Vec::new();
    let mut written = vec![false; count];
    for reader in (0..count).rev() {
        let wired = &nodes[reader].wired;
        let sources = [Some(wired.input), wired.shortcut];
        let can_add = [wired.step.adds(), false];
        let destinations = [0, 1].map(|operand| match sources[operand] {
            None | Some(0) => Destination::Nowhere,
            Some(source) if !std::mem::replace(&mut written[source - 1], true) => Destination::Set,
            Some(_) if can_add[operand] => Destination::Add,
            Some(source) => {
                asides.push((reader, operand));
                let size = batch * nodes[source - 1].shape.len();
                needs.push(Need { size, from: backward(reader), until: backward(reader) });
                Destination::Aside(0..0)
            }
        });
        [nodes[reader].input_gradient, nodes[reader].shortcut_gradient] = destinations;
    }
    let (places, arena) = plan(&needs);
    for (node, pair) in nodes.iter_mut().zip(places.chunks_exact(2)) {
        (node.output, node.output_gradient) = (pair[0].clone(), pair[1].clone());
    }
    for (&(reader, operand), place) in asides.iter().zip(&places[2 * count..]) {
        let node = &mut nodes[reader];
        let destination = if operand == 0 { &mut node.input_gradient } else { &mut node.shortcut_gradient };
        *destination = Destination::Aside(place.clone());
    }
    arena
}
