//! Average pooling over squares that do not overlap.

use super::{Backward, Layer, Shape};

/// Each output is the mean of a `size` x `size` square of inputs; rows and columns that fill no square are left out.
#[derive(Debug)]
pub struct AveragePool {
    size: usize,
    input: Shape,
    output: Shape,
}

impl AveragePool {
    /// For inputs of this shape.
    pub fn new(input: Shape, size: usize) -> Self {
        Self { size, input, output: Shape::new(input.height / size, input.width / size, input.channels) }
    }

    /// Calls `visit` with the offsets of each output's and each of its inputs' channels.
    fn for_each_pair(&self, images: usize, mut visit: impl FnMut(usize, usize)) {
        let (input, output) = (self.input, self.output);
        for image in 0..images {
            for y in 0..output.height * self.size {
                for x in 0..output.width * self.size {
                    let from = ((image * input.height + y) * input.width + x) * input.channels;
                    let to = (image * output.height + y / self.size) * output.width + x / self.size;
                    visit(to * output.channels, from);
                }
            }
        }
    }
}

impl Layer for AveragePool {
    fn output(&self) -> Shape {
        self.output
    }

    fn forward(&mut self, _: &[f32], input: &[f32], output: &mut [f32]) {
        let share = 1.0 / (self.size * self.size) as f32;
        let channels = self.input.channels;
        output.fill(0.0);
        self.for_each_pair(input.len() / self.input.len(), |to, from| {
            for (output, input) in output[to..to + channels].iter_mut().zip(&input[from..from + channels]) {
                *output += share * input;
            }
        });
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let Some(input_gradient) = pass.input_gradient else { return };
        let share = 1.0 / (self.size * self.size) as f32;
        let channels = self.input.channels;
        input_gradient.fill(0.0);
        self.for_each_pair(pass.input.len() / self.input.len(), |to, from| {
            let output_gradient = &pass.output_gradient[to..to + channels];
            for (gradient, output_gradient) in input_gradient[from..from + channels].iter_mut().zip(output_gradient) {
                *gradient = share * output_gradient;
            }
        });
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
        }
    }

    #[test]
    fn a_square_becomes_its_mean() {
        let mut output = [0.0];
        AveragePool::new(Shape::new(2, 2, 1), 2).forward(&[], &[1.0, 2.0, 3.0, 6.0], &mut output);
        assert_eq!(output, [3.0]);
    }
}
