//! The layers, one a file: forward stands directly above backward.

mod add;
mod average_pool;
mod batch_norm;
pub(crate) mod conv2d;
mod dense;
mod dropout;
mod linear;
mod max_pool;
mod relu;
mod tanh;

pub use add::Add;
pub use average_pool::AveragePool;
pub(crate) use average_pool::average;
pub use batch_norm::BatchNorm;
pub(crate) use batch_norm::affine;
pub use conv2d::{Conv2d, Geometry};
pub use dropout::Dropout;
pub use linear::Linear;
pub use max_pool::MaxPool;
pub(crate) use max_pool::largest;
pub use relu::Relu;
pub(crate) use relu::rectify;
pub use tanh::Tanh;
pub(crate) use tanh::tangents;

use crate::team::Team;

/// The shape of one image's activation. // H,W,C
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Channels.
    pub channels: usize,
}

impl Shape {
    /// Rows, columns and channels.
    pub const fn new(height: usize, width: usize, channels: usize) -> Self {
        Self { height, width, channels }
    }

    /// Numbers in one image.
    pub const fn len(self) -> usize {
        self.height * self.width * self.channels
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

/// One of a layer's tensors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tensor {
    /// PyTorch's name for it, such as `weight` or `running_mean`.
    pub name: &'static str,
    /// The shape in PyTorch's layout: OIHW for a convolution, [out, in] for a linear layer.
    pub shape: Vec<usize>,
    /// Channels and pixels of what one output sums up: channels come first in PyTorch's layout, last in memory.
    pub window: [usize; 2],
    /// What it is before training.
    pub start: Start,
}

/// What a tensor is before training.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Start {
    /// Evenly between plus and minus one over the root of the number of inputs that an output sums up.
    Uniform {
        /// That number.
        fan_in: usize,
    },
    /// All the same.
    Ones,
    /// All the same.
    Zeros,
}

/// What a layer does in inference, with its weights as they are.
#[derive(Debug, Clone)]
pub enum Inference {
    /// Nothing.
    Same,
    /// A convolution; a fully connected layer has a filter as large as its input.
    Conv {
        /// Its sizes.
        geometry: Geometry,
        /// Its filters. // O,KH,KW,C
        weights: Vec<f32>,
        /// A number for each filter.
        bias: Vec<f32>,
    },
    /// Multiplies each channel by a number and adds another, then cuts off what is below zero if it is rectified.
    Affine {
        /// What channels are multiplied by.
        scale: Vec<f32>,
        /// What is added.
        offset: Vec<f32>,
        /// Whether a ReLU follows.
        rectified: bool,
    },
    /// The rectifier.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// The sum of two inputs.
    Add {
        /// Whether a ReLU follows.
        rectified: bool,
    },
    /// The largest number of each window.
    MaxPool(MaxPool),
    /// The mean of each rectangle.
    AveragePool(AveragePool),
}

/// Which of the numbers of forward a layer's backward reads again; the others' room is used for something else.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rereads {
    /// What forward read.
    pub input: bool,
    /// What forward wrote.
    pub output: bool,
}

/// A step of the network. The model owns the numbers; a layer knows what to do with them.
///
/// `parameters`, `gradients` and `statistics` are the layer's part of the model's flat buffers: its tensors one after
/// the other. What a layer keeps of a batch is allocated by the first pass; a later one allocates nothing.
pub trait Layer: Send {
    /// What it is called in reports.
    fn kind(&self) -> &'static str;

    /// The algorithm it uses for so many images, where there is a choice.
    fn algorithm(&self, _images: usize) -> &'static str {
        ""
    }

    /// The shape of what comes out.
    fn output(&self) -> Shape;

    /// The tensors that are trained, in the order of its part of the buffers.
    fn tensors(&self) -> Vec<Tensor> {
        Vec::new()
    }

    /// The tensors that are not trained but kept with the weights.
    fn statistics(&self) -> Vec<Tensor> {
        Vec::new()
    }

    /// Its sizes, for a layer with weights that is a convolution; a fully connected one has a filter as large as its
    /// input.
    fn geometry(&self) -> Option<Geometry> {
        None
    }

    /// Multiplications and additions of forward for one image, by the definition, whatever the algorithm saves.
    fn operations(&self) -> usize {
        0
    }

    /// Numbers of temporary room that a pass of so many images takes on so many threads.
    fn workspace(&self, _batch: usize, _threads: usize) -> usize {
        0
    }

    /// Bytes that it keeps itself of so many images from forward to backward.
    fn keeps(&self, _batch: usize) -> usize {
        0
    }

    /// What it does once it is not trained any more.
    fn inference(&self, parameters: &[f32], statistics: &[f32]) -> Inference;

    /// Whether backward can add to the gradient of its input, which other layers have read too, instead of overwriting it.
    fn adds(&self) -> bool {
        false
    }

    /// What backward reads again.
    fn rereads(&self) -> Rereads;

    /// Computes `output` from `input` for all images that the slices hold.
    fn forward(&mut self, pass: Forward<'_>);

    /// From the gradient of the loss with respect to the output, computes that with respect to the parameters and,
    /// where somebody wants it, to the input. Comes after `forward` in training, with the same slices.
    fn backward(&mut self, pass: Backward<'_>);
}

/// Replaces numbers by their sums over all ranks, which all call it with as many numbers and in the same order.
pub type Peers = Box<dyn FnMut(&mut [f64]) + Send>;

/// What a layer's forward reads and writes.
pub struct Forward<'a> {
    /// The threads to do it on.
    pub team: &'a mut Team,
    /// The other ranks, if batch norm normalises over their images too.
    pub peers: Option<&'a mut Peers>,
    /// Another number in each step and layer, for a layer that needs randomness.
    pub random: u64,
    /// The layer's parameters.
    pub parameters: &'a [f32],
    /// The layer's statistics.
    pub statistics: &'a mut [f32],
    /// What comes in.
    pub input: &'a [f32],
    /// What comes in by the shortcut; only [`Add`] has one.
    pub shortcut: &'a [f32],
    /// What goes out.
    pub output: &'a mut [f32],
    /// Temporary room.
    pub workspace: &'a mut [f32],
}

/// What a layer's backward reads and writes.
pub struct Backward<'a> {
    /// The threads to do it on.
    pub team: &'a mut Team,
    /// The other ranks, if batch norm normalises over their images too.
    pub peers: Option<&'a mut Peers>,
    /// The same as in forward.
    pub random: u64,
    /// The layer's parameters.
    pub parameters: &'a [f32],
    /// What forward read; empty unless the layer rereads it.
    pub input: &'a [f32],
    /// What forward wrote; empty unless the layer rereads it.
    pub output: &'a [f32],
    /// The gradient with respect to the output.
    pub output_gradient: &'a [f32],
    /// Overwritten with the gradient with respect to the parameters.
    pub gradients: &'a mut [f32],
    /// Overwritten with the gradient with respect to the input; the first layer has nobody to pass it to.
    pub input_gradient: Option<&'a mut [f32]>,
    /// Whether the gradient with respect to the input is added to what is there instead; only for layers that can
    /// ([`Layer::adds`]).
    pub adds: bool,
    /// Overwritten with the gradient with respect to the shortcut.
    pub shortcut_gradient: Option<&'a mut [f32]>,
    /// Temporary room.
    pub workspace: &'a mut [f32],
}

#[cfg(test)]
pub(crate) mod check;
