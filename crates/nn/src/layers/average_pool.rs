//! Average pooling over squares that do not overlap, and over whole maps.

use super::{Backward, Forward, Layer, Rereads, Shape};
use crate::kernels::simd::vectorised;
use crate::team::{Shares, Units};

/// Each output is the mean of a rectangle of inputs; rows and columns that fill none are left out.
#[derive(Debug)]
pub struct AveragePool {
    size: [usize; 2],
    input: Shape,
    output: Shape,
}

impl AveragePool {
    /// Squares of `size` x `size`.
    pub fn new(input: Shape, size: usize) -> Self {
        Self::rectangles(input, [size; 2])
    }

    /// The whole map becomes one number a channel.
    pub fn global(input: Shape) -> Self {
        Self::rectangles(input, [input.height, input.width])
    }

    /// Numbers of a line of the input.
    fn line(&self) -> usize {
        self.input.width * self.input.channels
    }

    fn rectangles(input: Shape, size: [usize; 2]) -> Self {
        Self { size, input, output: Shape::new(input.height / size[0], input.width / size[1], input.channels) }
    }
}

impl Layer for AveragePool {
    fn kind(&self) -> &'static str {
        "average pool"
    }

    fn output(&self) -> Shape {
        self.output
    }

    fn rereads(&self) -> Rereads {
        Rereads { input: false, output: false }
    }

    fn workspace(&self, _: usize, threads: usize) -> usize {
        threads * self.line()
    }

    fn forward(&mut self, pass: Forward<'_>) {
        let (from, to) = (self.input.len(), self.output.len());
        let parts = (Units::new(pass.output, to), Shares::new(pass.workspace, self.line()));
        pass.team.deal(pass.input.len() / from, parts, |range, (output, line)| {
            for (image, output) in range.zip(output.chunks_exact_mut(to)) {
                average(self, &pass.input[image * from..][..from], output, line);
            }
        });
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let Some(input_gradient) = pass.input_gradient else { return };
        let (from, to) = (self.input.len(), self.output.len());
        let parts = (Units::new(input_gradient, from), Shares::new(pass.workspace, self.line()));
        pass.team.deal(pass.output_gradient.len() / to, parts, |range, (gradient, line)| {
            for (image, gradient) in range.zip(gradient.chunks_exact_mut(from)) {
                spread(self, &pass.output_gradient[image * to..][..to], gradient, line);
            }
        });
    }
}

// Lines of an image are long, pixels of few channels short: down goes line by line, across only once a line.
vectorised! {
    fn average(pool: &AveragePool, input: &[f32], output: &mut [f32], line: &mut [f32]) {
        let ([tall, wide], channels) = (pool.size, pool.input.channels);
        let share = 1.0 / (tall * wide) as f32;
        let lines = input.chunks_exact(tall * pool.line()).zip(output.chunks_exact_mut(pool.output.width * channels));
        for (input, output) in lines {
            let (first, others) = input.split_at(pool.line());
            line.copy_from_slice(first);
            for other in others.chunks_exact(pool.line()) {
                for (sum, value) in line.iter_mut().zip(other) {
                    *sum += value;
                }
            }
            for (output, pixels) in output.chunks_exact_mut(channels).zip(line.chunks_exact(wide * channels)) {
                for (channel, output) in output.iter_mut().enumerate() {
                    let mut sum = 0.0;
                    for pixel in 0..wide {
                        sum += pixels[pixel * channels + channel];
                    }
                    *output = share * sum;
                }
            }
        }
    }

    fn spread(pool: &AveragePool, output_gradient: &[f32], input_gradient: &mut [f32], line: &mut [f32]) {
        let ([tall, wide], channels) = (pool.size, pool.input.channels);
        let share = 1.0 / (tall * wide) as f32;
        line.fill(0.0);
        let mut lines = input_gradient.chunks_exact_mut(pool.line());
        for gradient in output_gradient.chunks_exact(pool.output.width * channels) {
            for (pixels, gradient) in line.chunks_exact_mut(wide * channels).zip(gradient.chunks_exact(channels)) {
                for pixel in pixels.chunks_exact_mut(channels) {
                    for (to, gradient) in pixel.iter_mut().zip(gradient) {
                        *to = share * gradient;
                    }
                }
            }
            for to in lines.by_ref().take(tall) {
                to.copy_from_slice(line);
            }
        }
        lines.for_each(|left_out| left_out.fill(0.0));
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn gradients_agree_with_differences() {
        for (height, width, size) in [(4, 6, 2), (5, 3, 2), (3, 3, 3)] {
            let shape = Shape::new(height, width, 3);
            check::gradients(&mut AveragePool::new(shape, size), shape, 2, 0.5, 1e-5);
            check::gradients(&mut AveragePool::global(shape), shape, 2, 0.5, 1e-5);
        }
    }

    #[test]
    fn a_square_becomes_its_mean() {
        let mut output = [0.0];
        average(&AveragePool::global(Shape::new(2, 2, 1)), &[1.0, 2.0, 3.0, 6.0], &mut output, &mut [0.0; 2]);
        assert_eq!(output, [3.0]);
    }
}
