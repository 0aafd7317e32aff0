//! Each operator in plain integers, as TFLite's reference kernels compute it: what the fast kernels are held against.
//!
//! Activations are N,H,W,C, filters O,KH,KW,C. Nothing here is a float but the scales that the constants of an operator are made
//! from.

use ringstep_nn::integer::FixedPoint;
use ringstep_nn::layers::{Geometry, Shape};

use crate::grid::{Bits, Grid};

/// A sum of 32 bits becomes a byte: multiplied, moved to the zero point, and cut off at both ends.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Requantize {
    /// For each filter input scale times weight scale over output scale.
    pub factors: Vec<FixedPoint>,
    /// The integer that stands for zero.
    pub zero_point: i32,
    /// The smallest and the largest integer that may come out: with a ReLU none is below the zero point.
    pub limits: [i32; 2],
}

impl Requantize {
    /// Between these grids; a ReLU follows if it is `rectified`.
    pub fn new(input: Grid, weights: &[f32], output: Grid, rectified: bool, bits: Bits) -> Self {
        let factor =
            |&scale: &f32| FixedPoint::new(f64::from(input.scale) * f64::from(scale) / f64::from(output.scale));
        let factors = weights.iter().map(factor).collect();
        Self { factors, zero_point: output.zero_point, limits: limits(output, rectified, bits) }
    }

    fn byte(&self, filter: usize, sum: i32) -> i8 {
        let number = self.factors[filter].times(sum).saturating_add(self.zero_point);
        number.clamp(self.limits[0], self.limits[1]) as i8
    }
}

/// The smallest and the largest integer that may come out of an operator.
pub fn limits(output: Grid, rectified: bool, bits: Bits) -> [i32; 2] {
    let [least, most] = bits.activations();
    [if rectified { least.max(output.zero_point) } else { least }, most]
}

/// A convolution or, with filters as large as the image, a linear layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Conv {
    /// Its sizes.
    pub geometry: Geometry,
    /// Filters. // O,KH,KW,C
    pub weights: Vec<i8>,
    /// For each filter.
    pub bias: Vec<i32>,
    /// The input's integer for zero, which is also what stands around the image.
    pub input_zero: i32,
    /// What becomes of the sums.
    pub requantize: Requantize,
}

impl Conv {
    /// For as many images as the slices hold.
    pub fn forward(&self, input: &[i8], output: &mut [i8]) {
        let Geometry { input: from, output: to, kernel, stride, padding } = self.geometry;
        let window = kernel[0] * kernel[1] * from.channels;
        for (image, output) in input.chunks_exact(from.len()).zip(output.chunks_exact_mut(to.len())) {
            for (position, pixel) in output.chunks_exact_mut(to.channels).enumerate() {
                let (y, x) = (position / to.width * stride[0], position % to.width * stride[1]);
                for (filter, out) in pixel.iter_mut().enumerate() {
                    let weights = &self.weights[filter * window..][..window];
                    let mut sum = self.bias[filter];
                    for (tap, weights) in weights.chunks_exact(from.channels).enumerate() {
                        let row = (y + tap / kernel[1]).checked_sub(padding[0]).filter(|&row| row < from.height);
                        let column =
                            (x + tap % kernel[1]).checked_sub(padding[1]).filter(|&column| column < from.width);
                        // What is around the image stands for zero.
                        let (Some(row), Some(column)) = (row, column) else { continue };
                        let numbers = &image[(row * from.width + column) * from.channels..][..from.channels];
                        for (&number, &weight) in numbers.iter().zip(weights) {
                            sum += (i32::from(number) - self.input_zero) * i32::from(weight);
                        }
                    }
                    *out = self.requantize.byte(filter, sum);
                }
            }
        }
    }
}

/// The sum of two activations whose grids differ from each other's and from the sum's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Add {
    /// The integers of both that stand for zero.
    pub zero_points: [i32; 2],
    /// Half of each scale over the larger of both.
    pub inputs: [FixedPoint; 2],
    /// From the common scale to the sum's.
    pub output: FixedPoint,
    /// The sum's integer for zero.
    pub zero_point: i32,
    /// The smallest and the largest integer that may come out.
    pub limits: [i32; 2],
}

/// Bits that both are shifted to the left by before they are scaled: so many are not lost.
pub const HEADROOM: u32 = 20;

impl Add {
    /// Between these grids; a ReLU follows if it is `rectified`.
    pub fn new(inputs: [Grid; 2], output: Grid, rectified: bool, bits: Bits) -> Self {
        let common = 2.0 * inputs.map(|grid| f64::from(grid.scale)).into_iter().fold(0.0, f64::max);
        Self {
            zero_points: inputs.map(|grid| grid.zero_point),
            inputs: inputs.map(|grid| FixedPoint::new(f64::from(grid.scale) / common)),
            output: FixedPoint::new(common / (f64::from(1 << HEADROOM) * f64::from(output.scale))),
            zero_point: output.zero_point,
            limits: limits(output, rectified, bits),
        }
    }

    /// One of the two inputs at the common scale.
    pub fn scaled(&self, which: usize, number: i8) -> i32 {
        self.inputs[which].times((i32::from(number) - self.zero_points[which]) << HEADROOM)
    }

    /// Number by number.
    pub fn forward(&self, left: &[i8], right: &[i8], output: &mut [i8]) {
        for ((&left, &right), out) in left.iter().zip(right).zip(output) {
            let sum = self.scaled(0, left) + self.scaled(1, right);
            *out = (self.output.times(sum) + self.zero_point).clamp(self.limits[0], self.limits[1]) as i8;
        }
    }
}

/// Windows of an image that are made one number a channel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pool {
    /// Of an image that comes in.
    pub input: Shape,
    /// Of an image that goes out.
    pub output: Shape,
    /// Height and width of a window.
    pub size: [usize; 2],
    /// How far apart windows begin, down and across.
    pub stride: [usize; 2],
}

impl Pool {
    fn forward(&self, input: &[i8], output: &mut [i8], what: impl Fn(&mut dyn Iterator<Item = i8>) -> i8) {
        let (from, to) = (self.input, self.output);
        for (image, output) in input.chunks_exact(from.len()).zip(output.chunks_exact_mut(to.len())) {
            for (index, out) in output.iter_mut().enumerate() {
                let (position, channel) = (index / to.channels, index % to.channels);
                let (y, x) = (position / to.width * self.stride[0], position % to.width * self.stride[1]);
                let places = (0..self.size[0]).flat_map(|row| (0..self.size[1]).map(move |column| (row, column)));
                let mut numbers =
                    places.map(|(row, column)| image[((y + row) * from.width + x + column) * from.channels + channel]);
                *out = what(&mut numbers);
            }
        }
    }

    /// The largest of each window. Scale and zero point stay.
    pub fn largest(&self, input: &[i8], output: &mut [i8]) {
        self.forward(input, output, |numbers| numbers.max().unwrap_or(0));
    }

    /// The mean of each window, rounded to the nearest, ties away from zero. Scale and zero point stay.
    pub fn average(&self, input: &[i8], output: &mut [i8]) {
        self.forward(input, output, |numbers| {
            let (count, sum) = numbers.fold((0, 0), |(count, sum), number| (count + 1, sum + i32::from(number)));
            mean(sum, count)
        });
    }
}

/// A sum over a count, rounded to the nearest, ties away from zero.
pub fn mean(sum: i32, count: i32) -> i8 {
    (if sum > 0 { (sum + count / 2) / count } else { (sum - count / 2) / count }) as i8
}

/// What a function of one number makes of each byte, from -128 on: it is computed once, in floats, and then looked up.
pub fn table(input: Grid, output: Grid, bits: Bits, function: impl Fn(f32) -> f32) -> Vec<i8> {
    (i8::MIN..=i8::MAX).map(|byte| output.quantize(function(input.real(byte)), bits)).collect()
}

/// Looks each number up.
pub fn look_up(table: &[i8], input: &[i8], output: &mut [i8]) {
    for (&number, out) in input.iter().zip(output) {
        *out = table[(i32::from(number) + 128) as usize];
    }
}
