//! The layers, one a file: forward stands directly above backward.

mod average_pool;
mod conv2d;
mod linear;
mod tanh;

pub use average_pool::AveragePool;
pub use conv2d::Conv2d;
pub use linear::Linear;
pub use tanh::Tanh;

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
    /// `weight` or `bias`.
    pub name: &'static str,
    /// The shape in PyTorch's layout: OIHW for a convolution, [out, in] for a linear layer.
    pub shape: Vec<usize>,
    /// How many inputs one output sums up; decides how large its initial values are.
    pub fan_in: usize,
}

/// A step of the network. The model owns the numbers; a layer knows what to do with them.
///
/// `parameters` and `gradients` are the layer's part of the model's flat buffers: its tensors one after the other.
pub trait Layer: Send {
    /// The shape of what comes out.
    fn output(&self) -> Shape;

    /// The layer's tensors, in the order of its part of the buffers.
    fn tensors(&self) -> Vec<Tensor> {
        Vec::new()
    }

    /// Computes `output` from `input` for all images that the slices hold.
    fn forward(&mut self, parameters: &[f32], input: &[f32], output: &mut [f32]);

    /// From the gradient of the loss with respect to the output, computes that with respect to the parameters and,
    /// where somebody wants it, to the input. Comes after `forward` with the same slices.
    fn backward(&mut self, pass: Backward<'_>);
}

/// What a layer's backward reads and writes.
pub struct Backward<'a> {
    /// The layer's parameters.
    pub parameters: &'a [f32],
    /// What forward read.
    pub input: &'a [f32],
    /// What forward wrote.
    pub output: &'a [f32],
    /// The gradient with respect to the output.
    pub output_gradient: &'a [f32],
    /// Overwritten with the gradient with respect to the parameters.
    pub gradients: &'a mut [f32],
    /// Overwritten with the gradient with respect to the input; the first layer has nobody to pass it to.
    pub input_gradient: Option<&'a mut [f32]>,
}

/// Adds up the rows of a matrix: the gradient of a bias.
fn sum_rows(matrix: &[f32], sum: &mut [f32]) {
    sum.fill(0.0);
    for row in matrix.chunks_exact(sum.len()) {
        for (sum, value) in sum.iter_mut().zip(row) {
            *sum += value;
        }
    }
}

#[cfg(test)]
mod check {
    //! Backward against differences of forward.

    use super::*;

    /// Numbers between -1 and 1 without a pattern.
    pub fn noise(length: usize, seed: u32) -> Vec<f32> {
        let mut state = seed.wrapping_mul(2_654_435_761).max(1);
        std::iter::repeat_with(|| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            state as f32 / u32::MAX as f32 * 2.0 - 1.0
        })
        .take(length)
        .collect()
    }

    /// For the loss `sum(c * output)` with fixed c, compares every gradient with a central difference of width `2h`.
    pub fn gradients(layer: &mut dyn Layer, input_shape: Shape, batch: usize, h: f32, tolerance: f64) {
        let parameter_count = layer.tensors().iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum();
        let parameters = noise(parameter_count, 1);
        let input = noise(batch * input_shape.len(), 2);
        let direction = noise(batch * layer.output().len(), 3);

        let mut output = vec![0.0; direction.len()];
        layer.forward(&parameters, &input, &mut output);
        let mut gradients = vec![f32::NAN; parameters.len()];
        let mut input_gradient = vec![f32::NAN; input.len()];
        layer.backward(Backward {
            parameters: &parameters,
            input: &input,
            output: &output,
            output_gradient: &direction,
            gradients: &mut gradients,
            input_gradient: Some(&mut input_gradient),
        });

        let mut loss = |parameters: &[f32], input: &[f32]| -> f64 {
            let mut output = vec![0.0; direction.len()];
            layer.forward(parameters, input, &mut output);
            output.iter().zip(&direction).map(|(&y, &c)| f64::from(y) * f64::from(c)).sum()
        };
        let compare = |what: &str, at: usize, gradient: f32, difference: f64| {
            let error = (difference - f64::from(gradient)).abs();
            assert!(error <= tolerance * difference.abs().max(1.0), "{what} {at}: {gradient} is not {difference}");
        };
        let shifted = |values: &[f32], at: usize, by: f32| {
            let mut values = values.to_vec();
            values[at] += by;
            values
        };
        for (at, &gradient) in gradients.iter().enumerate() {
            let mut side = |by| loss(&shifted(&parameters, at, by), &input);
            compare("parameter", at, gradient, (side(h) - side(-h)) / (2.0 * f64::from(h)));
        }
        for (at, &gradient) in input_gradient.iter().enumerate() {
            let mut side = |by| loss(&parameters, &shifted(&input, at, by));
            compare("input", at, gradient, (side(h) - side(-h)) / (2.0 * f64::from(h)));
        }
    }
}
