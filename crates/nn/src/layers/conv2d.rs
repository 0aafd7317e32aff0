//! Two-dimensional convolution, as one matrix product over all images.
//!
//! Each output position's window is copied into a row of a matrix ("im2col"); NHWC makes that a few contiguous copies.
//! The rows times the filters give the outputs, and backward takes the same road in the other direction.

use super::{Backward, Layer, Shape, Tensor, sum_rows};
use crate::kernels::matmul::{Matrix, multiply, multiply_add};

/// Square filters, stride 1, no padding.
#[derive(Debug)]
pub struct Conv2d {
    kernel: usize,
    input: Shape,
    output: Shape,
    /// The windows of the last forward, which backward needs again. // N,OH,OW,K,K,C
    windows: Vec<f32>,
    /// Their gradients; empty for a first layer, whose input gradient nobody wants.
    window_gradients: Vec<f32>,
}

impl Conv2d {
    /// `filters` filters of `kernel` x `kernel`, for up to `batch` images at once.
    pub fn new(input: Shape, filters: usize, kernel: usize, batch: usize) -> Self {
        let output = Shape::new(input.height + 1 - kernel, input.width + 1 - kernel, filters);
        let windows = vec![0.0; batch * output.height * output.width * kernel * kernel * input.channels];
        Self { kernel, input, output, windows, window_gradients: Vec::new() }
    }

    /// Numbers in a window, and in a filter.
    fn window(&self) -> usize {
        self.kernel * self.kernel * self.input.channels
    }

    /// Windows in a batch.
    fn positions(&self, input: &[f32]) -> usize {
        input.len() / self.input.len() * self.output.height * self.output.width
    }
}

/// Calls `visit` with the offset of each row of each window, and that of the same numbers in the images.
fn for_each_window_row(kernel: usize, input: Shape, output: Shape, images: usize, mut visit: impl FnMut(usize, usize)) {
    let row = kernel * input.channels;
    let mut in_windows = 0;
    for image in 0..images {
        for y in 0..output.height {
            for x in 0..output.width {
                for ky in 0..kernel {
                    visit(in_windows, ((image * input.height + y + ky) * input.width + x) * input.channels);
                    in_windows += row;
                }
            }
        }
    }
}

impl Layer for Conv2d {
    fn output(&self) -> Shape {
        self.output
    }

    fn tensors(&self) -> Vec<Tensor> {
        let (filters, channels, kernel) = (self.output.channels, self.input.channels, self.kernel);
        let fan_in = self.window();
        vec![
            Tensor { name: "weight", shape: vec![filters, channels, kernel, kernel], fan_in },
            Tensor { name: "bias", shape: vec![filters], fan_in },
        ]
    }

    fn forward(&mut self, parameters: &[f32], input: &[f32], output: &mut [f32]) {
        let (filters, window, positions) = (self.output.channels, self.window(), self.positions(input));
        let (weight, bias) = parameters.split_at(filters * window); // O,K,K,C and O
        let windows = &mut self.windows[..positions * window];
        let row = self.kernel * self.input.channels;
        for_each_window_row(self.kernel, self.input, self.output, input.len() / self.input.len(), |to, from| {
            windows[to..to + row].copy_from_slice(&input[from..from + row]);
        });
        for position in output.chunks_exact_mut(filters) {
            position.copy_from_slice(bias);
        }
        let weight = Matrix::new(weight, filters, window);
        multiply_add(output, Matrix::new(windows, positions, window), weight.transposed()); // N*OH*OW,O
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let (filters, window, positions) = (self.output.channels, self.window(), self.positions(pass.input));
        let (weight, _) = pass.parameters.split_at(filters * window);
        let (weight_gradient, bias_gradient) = pass.gradients.split_at_mut(filters * window);
        let output_gradient = Matrix::new(pass.output_gradient, positions, filters); // N*OH*OW,O

        sum_rows(pass.output_gradient, bias_gradient);
        let windows = Matrix::new(&self.windows[..positions * window], positions, window);
        multiply(weight_gradient, output_gradient.transposed(), windows); // O,K*K*C

        let Some(input_gradient) = pass.input_gradient else { return };
        self.window_gradients.resize(self.windows.len(), 0.0);
        let window_gradients = &mut self.window_gradients[..positions * window];
        multiply(window_gradients, output_gradient, Matrix::new(weight, filters, window));
        input_gradient.fill(0.0);
        let row = self.kernel * self.input.channels;
        for_each_window_row(self.kernel, self.input, self.output, pass.input.len() / self.input.len(), |from, to| {
            let gradients = &window_gradients[from..from + row];
            for (sum, gradient) in input_gradient[to..to + row].iter_mut().zip(gradients) {
                *sum += gradient;
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    /// The definition, loop by loop.
    fn reference(parameters: &[f32], input: &[f32], shape: Shape, filters: usize, kernel: usize) -> Vec<f32> {
        let (height, width) = (shape.height + 1 - kernel, shape.width + 1 - kernel);
        let mut output = Vec::new();
        for image in input.chunks_exact(shape.len()) {
            for y in 0..height {
                for x in 0..width {
                    for filter in 0..filters {
                        let mut sum = parameters[filters * kernel * kernel * shape.channels + filter];
                        for ky in 0..kernel {
                            for kx in 0..kernel {
                                for channel in 0..shape.channels {
                                    let weight = ((filter * kernel + ky) * kernel + kx) * shape.channels + channel;
                                    let pixel = ((y + ky) * shape.width + x + kx) * shape.channels + channel;
                                    sum += parameters[weight] * image[pixel];
                                }
                            }
                        }
                        output.push(sum);
                    }
                }
            }
        }
        output
    }

    #[test]
    fn forward_agrees_with_the_definition() {
        for (height, width, channels, filters, kernel, batch) in
            [(5, 5, 1, 1, 5, 1), (7, 9, 3, 4, 3, 2), (6, 5, 2, 7, 1, 3), (12, 12, 6, 16, 5, 2)]
        {
            let shape = Shape::new(height, width, channels);
            let mut layer = Conv2d::new(shape, filters, kernel, batch);
            let parameters = check::noise(filters * (kernel * kernel * channels + 1), 4);
            let input = check::noise(batch * shape.len(), 5);
            let mut output = vec![0.0; batch * layer.output().len()];
            layer.forward(&parameters, &input, &mut output);
            for (fast, plain) in output.iter().zip(reference(&parameters, &input, shape, filters, kernel)) {
                assert!((fast - plain).abs() < 1e-4, "{fast} is not {plain}");
            }
        }
    }

    #[test]
    fn gradients_agree_with_differences() {
        for (height, width, channels, filters, kernel) in [(4, 5, 2, 3, 3), (3, 3, 1, 2, 1), (5, 5, 2, 2, 5)] {
            let shape = Shape::new(height, width, channels);
            // Room for more images than there are: a part of a batch must work too.
            check::gradients(&mut Conv2d::new(shape, filters, kernel, 4), shape, 2, 0.5, 1e-5);
        }
    }
}
