//! Average pooling over squares that do not overlap, and over whole maps.

use ringstep_cpu::{Level, Simd, kernels};

use super::{Backward, Forward, Inference, Layer, Rereads, Shape};
use crate::team::Units;

/// Each output is the mean of a rectangle of inputs; rows and columns that fill none are left out.
#[derive(Debug, Clone)]
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

    /// Few channels fill no wide vector.
    fn level(&self, level: Level) -> Level {
        if self.input.channels < 16 { level.at_most_eight_lanes() } else { level }
    }

    /// Height and width of a rectangle.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// Rectangles of this height and width.
    pub fn rectangles(input: Shape, size: [usize; 2]) -> Self {
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

    fn inference(&self, _: &[f32], _: &[f32]) -> Inference {
        Inference::AveragePool(self.clone())
    }

    fn rereads(&self) -> Rereads {
        Rereads { input: false, output: false }
    }

    fn forward(&mut self, pass: Forward<'_>) {
        let (from, to) = (self.input.len(), self.output.len());
        let level = self.level(pass.team.level());
        pass.team.deal(pass.input.len() / from, Units::new(pass.output, to), |range, output| {
            for (image, output) in range.zip(output.chunks_exact_mut(to)) {
                average(level, self, &pass.input[image * from..][..from], output);
            }
        });
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let Some(input_gradient) = pass.input_gradient else { return };
        let (from, to) = (self.input.len(), self.output.len());
        let level = self.level(pass.team.level());
        pass.team.deal(pass.output_gradient.len() / to, Units::new(input_gradient, from), |range, gradient| {
            for (image, gradient) in range.zip(gradient.chunks_exact_mut(from)) {
                spread(level, self, &pass.output_gradient[image * to..][..to], gradient);
            }
        });
    }
}

// The loops are written for any size, and compiled once more for the one that nearly everybody uses, and for LeNet's first.
// Where channels do not fill a vector, what is written beyond a pixel belongs to the next one, whose turn is later.
kernels! {
    pub(crate) fn average<S>(simd: S, pool: &AveragePool, input: &[f32], output: &mut [f32]) {
        match (pool.size, pool.input.channels) {
            ([2, 2], 6) => average_sized(simd, pool, [2, 2], 6, input, output),
            ([2, 2], channels) => average_sized(simd, pool, [2, 2], channels, input, output),
            (size, channels) => average_sized(simd, pool, size, channels, input, output),
        }
    }

    fn spread<S>(simd: S, pool: &AveragePool, output_gradient: &[f32], input_gradient: &mut [f32]) {
        match (pool.size, pool.input.channels) {
            ([2, 2], 6) => spread_sized(simd, pool, [2, 2], 6, output_gradient, input_gradient),
            ([2, 2], channels) => spread_sized(simd, pool, [2, 2], channels, output_gradient, input_gradient),
            (size, channels) => spread_sized(simd, pool, size, channels, output_gradient, input_gradient),
        }
    }
}

#[inline(always)]
#[allow(unsafe_code)]
fn average_sized<S: Simd>(
    simd: S,
    pool: &AveragePool,
    [tall, wide]: [usize; 2],
    channels: usize,
    input: &[f32],
    output: &mut [f32],
) {
    let line = pool.input.width * channels;
    let share = 1.0 / (tall * wide) as f32;
    assert!(input.len() == pool.input.height * line && output.len() == pool.output.len());
    for y in 0..pool.output.height {
        for x in 0..pool.output.width {
            for first in (0..channels).step_by(S::LANES) {
                let from = y * tall * line + x * wide * channels + first;
                let to = (y * pool.output.width + x) * channels + first;
                let last = from + (tall - 1) * line + (wide - 1) * channels;
                if last + S::LANES <= input.len() && to + S::LANES <= output.len() {
                    // SAFETY: the condition.
                    unsafe {
                        let mut sum = simd.zero();
                        for dy in 0..tall {
                            for dx in 0..wide {
                                sum = sum + simd.load(input.as_ptr().add(from + dy * line + dx * channels));
                            }
                        }
                        simd.store(output.as_mut_ptr().add(to), simd.splat(share) * sum);
                    }
                } else {
                    let lanes = S::LANES.min(channels - first);
                    average_one_by_one(pool, &input[from..], share, &mut output[to..][..lanes]);
                }
            }
        }
    }
}

/// At the end of an image, where no vector is left. Not inlined: the loops around it shall be short.
#[cold]
#[inline(never)]
fn average_one_by_one(pool: &AveragePool, rectangles: &[f32], share: f32, output: &mut [f32]) {
    for (channel, output) in output.iter_mut().enumerate() {
        let mut sum = 0.0;
        for dy in 0..pool.size[0] {
            for dx in 0..pool.size[1] {
                sum += rectangles[dy * pool.line() + dx * pool.input.channels + channel];
            }
        }
        *output = share * sum;
    }
}

#[inline(always)]
#[allow(unsafe_code)]
fn spread_sized<S: Simd>(
    simd: S,
    pool: &AveragePool,
    [tall, wide]: [usize; 2],
    channels: usize,
    output_gradient: &[f32],
    input_gradient: &mut [f32],
) {
    let line = pool.input.width * channels;
    let share = 1.0 / (tall * wide) as f32;
    for y in 0..pool.output.height {
        let to = &mut input_gradient[y * tall * line..];
        for x in 0..pool.output.width {
            for pixel in 0..wide {
                for first in (0..channels).step_by(S::LANES) {
                    let from = &output_gradient[(y * pool.output.width + x) * channels + first..];
                    let to = &mut to[(x * wide + pixel) * channels + first..];
                    if from.len() >= S::LANES && to.len() >= S::LANES {
                        // SAFETY: the condition.
                        unsafe { simd.store(to.as_mut_ptr(), simd.splat(share) * simd.load(from.as_ptr())) };
                    } else {
                        for channel in 0..S::LANES.min(channels - first) {
                            to[channel] = share * from[channel];
                        }
                    }
                }
            }
        }
        to[pool.output.width * wide * channels..line].fill(0.0);
        // All lines of a square are equal.
        for other in 1..tall {
            to.copy_within(..line, other * line);
        }
    }
    input_gradient[pool.output.height * tall * line..].fill(0.0);
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn gradients_agree_with_differences() {
        for (height, width, channels, size) in [(4, 6, 3, 2), (5, 3, 9, 2), (3, 3, 8, 3), (7, 9, 6, 2)] {
            let shape = Shape::new(height, width, channels);
            check::gradients(&mut AveragePool::new(shape, size), shape, 2, 0.5, 1e-5);
            check::gradients(&mut AveragePool::global(shape), shape, 2, 0.5, 1e-5);
        }
    }

    #[test]
    fn a_square_becomes_its_mean() {
        let mut output = [0.0];
        average(Level::best(), &AveragePool::global(Shape::new(2, 2, 1)), &[1.0, 2.0, 3.0, 6.0], &mut output);
        assert_eq!(output, [3.0]);
    }
}
