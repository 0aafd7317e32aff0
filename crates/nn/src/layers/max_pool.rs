//! Max pooling.

use super::{Backward, Forward, Layer, Rereads, Shape};
use crate::kernels::simd::vectorised;
use crate::team::Units;

/// Each output is the largest number of a `size` x `size` window; windows begin `stride` apart.
#[derive(Debug)]
pub struct MaxPool {
    size: usize,
    stride: usize,
    input: Shape,
    output: Shape,
    /// Which place of its window each output came from, the first of equals. // N,OH,OW,C
    places: Vec<u8>,
}

impl MaxPool {
    /// The largest window whose places can be told by a byte.
    pub const LARGEST: usize = 16;

    /// A window fits in the input.
    pub fn new(input: Shape, size: usize, stride: usize) -> Self {
        let reach = |length: usize| (length - size) / stride + 1;
        let output = Shape::new(reach(input.height), reach(input.width), input.channels);
        Self { size, stride, input, output, places: Vec::new() }
    }
}

impl Layer for MaxPool {
    fn kind(&self) -> &'static str {
        "max pool"
    }

    fn output(&self) -> Shape {
        self.output
    }

    fn keeps(&self, batch: usize) -> usize {
        batch * self.output.len()
    }

    fn rereads(&self) -> Rereads {
        Rereads { input: false, output: false }
    }

    fn forward(&mut self, pass: Forward<'_>) {
        let (from, to) = (self.input.len(), self.output.len());
        let mut places = std::mem::take(&mut self.places);
        places.resize(places.len().max(pass.output.len()), 0);
        let parts = (Units::new(pass.output, to), Units::new(&mut places, to));
        pass.team.deal(pass.input.len() / from, parts, |range, (output, places)| {
            let images = output.chunks_exact_mut(to).zip(places.chunks_exact_mut(to));
            for (image, (output, places)) in range.zip(images) {
                largest(self, &pass.input[image * from..][..from], output, places);
            }
        });
        self.places = places;
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let Some(input_gradient) = pass.input_gradient else { return };
        let (from, to) = (self.input.len(), self.output.len());
        pass.team.deal(input_gradient.len() / from, Units::new(input_gradient, from), |range, gradient| {
            for (image, gradient) in range.zip(gradient.chunks_exact_mut(from)) {
                let part = image * to..(image + 1) * to;
                send_back(self, &pass.output_gradient[part.clone()], &self.places[part], gradient);
            }
        });
    }
}

/// Channels that are handled at once. Where there are fewer, what is written beyond a pixel belongs to the next one, whose
/// turn is later.
const LANES: usize = 8;

// The loops are written for any size, and compiled once more for the one that nearly everybody uses.
vectorised! {
    fn largest(pool: &MaxPool, input: &[f32], output: &mut [f32], places: &mut [u8]) {
        match (pool.size, pool.stride) {
            (2, 2) => largest_sized(pool, 2, 2, input, output, places),
            (size, stride) => largest_sized(pool, size, stride, input, output, places),
        }
    }

    fn send_back(pool: &MaxPool, output_gradient: &[f32], places: &[u8], input_gradient: &mut [f32]) {
        let (size, output) = (pool.size, pool.output);
        // Windows that neither overlap nor leave gaps write every number once.
        let tiled = pool.stride == size
            && (output.height * size, output.width * size) == (pool.input.height, pool.input.width);
        match (tiled, size) {
            (true, 2) => send_back_tiled(pool, 2, output_gradient, places, input_gradient),
            (true, _) => send_back_tiled(pool, size, output_gradient, places, input_gradient),
            (false, _) => {
                input_gradient.fill(0.0);
                let channels = pool.input.channels;
                for (at, (&gradient, &place)) in output_gradient.iter().zip(places).enumerate() {
                    let (pixel, channel, place) = (at / channels, at % channels, usize::from(place));
                    let y = pixel / output.width * pool.stride + place / size;
                    let x = pixel % output.width * pool.stride + place % size;
                    input_gradient[(y * pool.input.width + x) * channels + channel] += gradient;
                }
            }
        }
    }
}

#[inline(always)]
fn largest_sized(pool: &MaxPool, size: usize, stride: usize, input: &[f32], output: &mut [f32], places: &mut [u8]) {
    let channels = pool.input.channels;
    let line = pool.input.width * channels;
    for y in 0..pool.output.height {
        for x in 0..pool.output.width {
            for first in (0..channels).step_by(LANES) {
                let from = y * stride * line + x * stride * channels + first;
                let to = (y * pool.output.width + x) * channels + first;
                let end = from + (size - 1) * (line + channels) + LANES;
                if end <= input.len() && to + LANES <= output.len() {
                    let (best, place) = largest_of::<LANES>(&input[from..end], size, line, channels);
                    output[to..][..LANES].copy_from_slice(&best);
                    places[to..][..LANES].copy_from_slice(&place.map(|place| place as u8));
                } else {
                    let lanes = LANES.min(channels - first);
                    largest_one_by_one(pool, &input[from..], &mut output[to..][..lanes], &mut places[to..][..lanes]);
                }
            }
        }
    }
}

/// At the end of an image, where fewer than [`LANES`] numbers are left. Not inlined: the loops around it shall be short.
#[cold]
#[inline(never)]
fn largest_one_by_one(pool: &MaxPool, windows: &[f32], output: &mut [f32], places: &mut [u8]) {
    let channels = pool.input.channels;
    for (channel, (output, to)) in output.iter_mut().zip(places).enumerate() {
        let ([best], [place]) = largest_of(&windows[channel..], pool.size, pool.input.width * channels, channels);
        (*output, *to) = (best, place as u8);
    }
}

/// The largest numbers of a window for neighbouring channels, and where they were.
#[inline(always)]
fn largest_of<const LANES: usize>(
    window: &[f32],
    size: usize,
    line: usize,
    channels: usize,
) -> ([f32; LANES], [i32; LANES]) {
    let mut best: [f32; LANES] = *window.first_chunk().expect("a window");
    let mut places = [0; LANES];
    for dy in 0..size {
        for dx in 0..size {
            let values: &[f32; LANES] = window[dy * line + dx * channels..].first_chunk().expect("a window");
            for lane in 0..LANES {
                // What is not a number wins, so that it is seen.
                let wins = values[lane] > best[lane] || values[lane].is_nan();
                best[lane] = if wins { values[lane] } else { best[lane] };
                places[lane] = if wins { (dy * size + dx) as i32 } else { places[lane] };
            }
        }
    }
    (best, places)
}

/// What a place of a window gets: the gradient if the number there was the largest, otherwise nothing.
#[inline(always)]
fn share_of(gradient: f32, largest: u8, place: u8) -> f32 {
    // By bits, since the compiler makes a branch of a condition.
    f32::from_bits(gradient.to_bits() & u32::from(largest == place).wrapping_neg())
}

#[inline(always)]
fn shares_of(gradients: &[f32], largest: &[u8], place: u8) -> [f32; LANES] {
    let (gradients, largest): (&[f32; LANES], &[u8; LANES]) =
        (gradients.try_into().expect("lanes"), largest.try_into().expect("lanes"));
    std::array::from_fn(|lane| share_of(gradients[lane], largest[lane], place))
}

/// At the end of an image, as in forward.
#[cold]
#[inline(never)]
fn shares_one_by_one(to: &mut [f32], gradients: &[f32], largest: &[u8], place: u8) {
    for ((to, &gradient), &largest) in to.iter_mut().zip(gradients).zip(largest) {
        *to = share_of(gradient, largest, place);
    }
}

#[inline(always)]
fn send_back_tiled(pool: &MaxPool, size: usize, output_gradient: &[f32], places: &[u8], input_gradient: &mut [f32]) {
    let (channels, width) = (pool.input.channels, pool.output.width);
    // Where they do not fill the lanes, the last channels come first: what they write beyond a pixel is overwritten by the
    // first channels of the next.
    let (chunks, whole) = (channels.div_ceil(LANES), channels.is_multiple_of(LANES));
    for y in 0..pool.input.height {
        for x in 0..width {
            for chunk in 0..chunks {
                let first = if whole { chunk } else { chunks - 1 - chunk } * LANES;
                let from = (y / size * width + x) * channels + first;
                let to = (y * width + x) * size * channels + first;
                let place = |dx: usize| (y % size * size + dx) as u8;
                if from + LANES <= places.len() && to + (size - 1) * channels + LANES <= input_gradient.len() {
                    let (gradients, places) = (&output_gradient[from..][..LANES], &places[from..][..LANES]);
                    for dx in 0..size {
                        let shares = shares_of(gradients, places, place(dx));
                        input_gradient[to + dx * channels..][..LANES].copy_from_slice(&shares);
                    }
                } else {
                    let lanes = LANES.min(channels - first);
                    let (gradients, places) = (&output_gradient[from..][..lanes], &places[from..][..lanes]);
                    for dx in 0..size {
                        let to = &mut input_gradient[to + dx * channels..][..lanes];
                        shares_one_by_one(to, gradients, places, place(dx));
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn gradients_agree_with_differences() {
        let cases = [
            (4, 6, 3, 2, 2),
            (6, 4, 9, 2, 2),
            (4, 4, 16, 2, 2),
            (5, 3, 3, 2, 2),
            (5, 5, 6, 3, 2),
            (3, 4, 3, 2, 1),
            (3, 3, 3, 3, 3),
        ];
        for (height, width, channels, size, stride) in cases {
            let shape = Shape::new(height, width, channels);
            check::gradients(&mut MaxPool::new(shape, size, stride), shape, 2, 1e-4, 1e-2);
        }
    }

    #[test]
    fn the_first_of_equals_gets_the_gradient_and_nan_is_passed_on() {
        let pool = MaxPool::new(Shape::new(2, 2, 1), 2, 2);
        let (mut output, mut places) = ([0.0], [9]);
        largest(&pool, &[1.0, 3.0, 3.0, 2.0], &mut output, &mut places);
        assert_eq!((output, places), ([3.0], [1]));
        largest(&pool, &[1.0, f32::NAN, 3.0, 2.0], &mut output, &mut places);
        assert!(output[0].is_nan());
    }
}
