//! Max pooling, with the ReLU before it if there is one.

use ringstep_cpu::{Level, Simd, Vector as _, kernels};

use super::{Backward, Forward, Inference, Layer, Rereads, Shape};
use crate::team::Units;

/// Each output is the largest number of a `size` x `size` window; windows begin `stride` apart.
///
/// What is the largest of rectified numbers is the largest of the numbers and zero: a ReLU before the pool costs nothing.
#[derive(Debug, Clone)]
pub struct MaxPool {
    size: usize,
    stride: usize,
    rectified: bool,
    input: Shape,
    output: Shape,
    /// Which place of its window each output came from, the first of equals. // N,OH,OW,C
    places: Vec<u8>,
}

/// The place of a zero that no number of the window is greater than.
const NOWHERE: u8 = u8::MAX;

impl MaxPool {
    /// The largest window whose places, and none of them, can be told by a byte.
    pub const LARGEST: usize = 15;

    /// A window fits in the input.
    pub fn new(input: Shape, size: usize, stride: usize, rectified: bool) -> Self {
        let fits = (1..=input.height.min(input.width).min(Self::LARGEST)).contains(&size) && stride > 0;
        assert!(fits, "a window of {size} every {stride} in {input:?}");
        let reach = |length: usize| (length - size) / stride + 1;
        let output = Shape::new(reach(input.height), reach(input.width), input.channels);
        Self { size, stride, rectified, input, output, places: Vec::new() }
    }

    /// Whether it leaves the largest number of each square of 2x2.
    pub(crate) fn halves(&self) -> bool {
        (self.size, self.stride) == (2, 2)
    }

    /// How wide and high a window is.
    pub fn size(&self) -> usize {
        self.size
    }

    /// How far apart windows begin.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// Whether zero stands for what is less.
    pub fn rectified(&self) -> bool {
        self.rectified
    }

    /// What an output is before any number of its window is looked at, and the place of that.
    fn least(&self) -> (f32, u8) {
        if self.rectified { (0.0, NOWHERE) } else { (f32::NEG_INFINITY, 0) }
    }

    /// Few channels fill no wide vector.
    fn level(&self, level: Level) -> Level {
        if self.input.channels < 16 { level.at_most_eight_lanes() } else { level }
    }
}

impl Layer for MaxPool {
    fn kind(&self) -> &'static str {
        if self.rectified { "max pool+relu" } else { "max pool" }
    }

    fn output(&self) -> Shape {
        self.output
    }

    fn keeps(&self, batch: usize) -> usize {
        batch * self.output.len()
    }

    fn inference(&self, _: &[f32], _: &[f32]) -> Inference {
        Inference::MaxPool(Self { places: Vec::new(), ..*self })
    }

    fn rereads(&self) -> Rereads {
        Rereads { input: false, output: false }
    }

    fn forward(&mut self, pass: Forward<'_>) {
        let (from, to) = (self.input.len(), self.output.len());
        let level = self.level(pass.team.level());
        let mut places = std::mem::take(&mut self.places);
        places.resize(places.len().max(pass.output.len()), 0);
        let parts = (Units::new(pass.output, to), Units::new(&mut places, to));
        pass.team.deal(pass.input.len() / from, parts, |range, (output, places)| {
            let images = output.chunks_exact_mut(to).zip(places.chunks_exact_mut(to));
            for (image, (output, places)) in range.zip(images) {
                largest(level, self, &pass.input[image * from..][..from], output, Some(places));
            }
        });
        self.places = places;
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let Some(input_gradient) = pass.input_gradient else { return };
        let (from, to) = (self.input.len(), self.output.len());
        let level = self.level(pass.team.level());
        pass.team.deal(input_gradient.len() / from, Units::new(input_gradient, from), |range, gradient| {
            for (image, gradient) in range.zip(gradient.chunks_exact_mut(from)) {
                let part = image * to..(image + 1) * to;
                send_back(level, self, &pass.output_gradient[part.clone()], &self.places[part], gradient);
            }
        });
    }
}

// The loops are written for any size, and compiled once more for the one that nearly everybody uses. Where channels do not
// fill a vector, what is written beyond a pixel belongs to the next one, whose turn is later.
kernels! {
    /// The largest number of each window, and which place of its window it came from, if that is wanted.
    pub(crate) fn largest<S>(simd: S, pool: &MaxPool, input: &[f32], output: &mut [f32], places: Option<&mut [u8]>) {
        match (pool.size, pool.stride) {
            (2, 2) => largest_sized(simd, pool, 2, 2, input, output, places),
            (size, stride) => largest_sized(simd, pool, size, stride, input, output, places),
        }
    }

    fn send_back<S>(simd: S, pool: &MaxPool, output_gradient: &[f32], places: &[u8], input_gradient: &mut [f32]) {
        let (size, output) = (pool.size, pool.output);
        // Windows that neither overlap nor leave gaps write every number once.
        let tiled = pool.stride == size
            && (output.height * size, output.width * size) == (pool.input.height, pool.input.width);
        match (tiled, size) {
            (true, 2) => send_back_tiled(simd, pool, 2, output_gradient, places, input_gradient),
            (true, _) => send_back_tiled(simd, pool, size, output_gradient, places, input_gradient),
            (false, _) => {
                input_gradient.fill(0.0);
                let channels = pool.input.channels;
                let sent = output_gradient.iter().zip(places).enumerate();
                for (at, (&gradient, &place)) in sent.filter(|&(_, (_, &place))| place != NOWHERE) {
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
#[allow(unsafe_code)]
fn largest_sized<S: Simd>(
    simd: S,
    pool: &MaxPool,
    size: usize,
    stride: usize,
    input: &[f32],
    output: &mut [f32],
    mut places: Option<&mut [u8]>,
) {
    let channels = pool.input.channels;
    let line = pool.input.width * channels;
    let (least, nowhere) = pool.least();
    assert!(input.len() == pool.input.height * line);
    assert!(places.as_ref().is_none_or(|places| places.len() == output.len()));
    for y in 0..pool.output.height {
        for x in 0..pool.output.width {
            for first in (0..channels).step_by(S::LANES) {
                let from = y * stride * line + x * stride * channels + first;
                let to = (y * pool.output.width + x) * channels + first;
                let end = from + (size - 1) * (line + channels) + S::LANES;
                if end <= input.len() && to + S::LANES <= output.len() {
                    // SAFETY: the condition.
                    unsafe {
                        let window = input.as_ptr().add(from);
                        let (mut best, mut place) = (simd.splat(least), simd.splat(f32::from(nowhere)));
                        for at in 0..size * size {
                            let value = simd.load(window.add(at / size * line + at % size * channels));
                            let here = simd.splat(at as f32);
                            place = value.where_greater(best, here, place);
                            best = value.where_greater(best, value, best);
                            // What is not a number wins, so that it is seen.
                            place = value.where_equal(value, place, here);
                            best = value.where_equal(value, best, value);
                        }
                        simd.store(output.as_mut_ptr().add(to), best);
                        if let Some(places) = &mut places {
                            simd.store_bytes(places.as_mut_ptr().add(to), place);
                        }
                    }
                } else {
                    let part = to..to + S::LANES.min(channels - first);
                    let places = places.as_deref_mut().map(|places| &mut places[part.clone()]);
                    largest_one_by_one(pool, &input[from..], &mut output[part], places);
                }
            }
        }
    }
}

/// At the end of an image, where no vector is left. Not inlined: the loops around it shall be short.
#[cold]
#[inline(never)]
fn largest_one_by_one(pool: &MaxPool, windows: &[f32], output: &mut [f32], mut places: Option<&mut [u8]>) {
    let (size, channels) = (pool.size, pool.input.channels);
    for (channel, output) in output.iter_mut().enumerate() {
        let (least, mut place) = pool.least();
        *output = least;
        for at in 0..size * size {
            let value = windows[(at / size * pool.input.width + at % size) * channels + channel];
            if value > *output || value.is_nan() {
                (*output, place) = (value, at as u8);
            }
        }
        if let Some(places) = &mut places {
            places[channel] = place;
        }
    }
}

/// At the end of an image, as in forward.
#[cold]
#[inline(never)]
fn shares_one_by_one(to: &mut [f32], gradients: &[f32], largest: &[u8], place: usize) {
    for ((to, &gradient), &largest) in to.iter_mut().zip(gradients).zip(largest) {
        *to = if usize::from(largest) == place { gradient } else { 0.0 };
    }
}

#[inline(always)]
#[allow(unsafe_code)]
fn send_back_tiled<S: Simd>(
    simd: S,
    pool: &MaxPool,
    size: usize,
    output_gradient: &[f32],
    places: &[u8],
    input_gradient: &mut [f32],
) {
    let (channels, width) = (pool.input.channels, pool.output.width);
    assert_eq!(output_gradient.len(), places.len());
    // Where they do not fill the lanes, the last channels come first: what they write beyond a pixel is overwritten by the
    // first channels of the next.
    let (chunks, whole) = (channels.div_ceil(S::LANES), channels.is_multiple_of(S::LANES));
    for y in 0..pool.input.height {
        for x in 0..width {
            for chunk in 0..chunks {
                let first = if whole { chunk } else { chunks - 1 - chunk } * S::LANES;
                let from = (y / size * width + x) * channels + first;
                let to = (y * width + x) * size * channels + first;
                let place = y % size * size;
                if from + S::LANES <= places.len() && to + (size - 1) * channels + S::LANES <= input_gradient.len() {
                    // SAFETY: the condition.
                    unsafe {
                        let gradient = simd.load(output_gradient.as_ptr().add(from));
                        let largest = simd.load_bytes(places.as_ptr().add(from));
                        for dx in 0..size {
                            let share = largest.where_equal(simd.splat((place + dx) as f32), gradient, simd.zero());
                            simd.store(input_gradient.as_mut_ptr().add(to + dx * channels), share);
                        }
                    }
                } else {
                    let lanes = S::LANES.min(channels - first);
                    let (gradients, places) = (&output_gradient[from..][..lanes], &places[from..][..lanes]);
                    for dx in 0..size {
                        let to = &mut input_gradient[to + dx * channels..][..lanes];
                        shares_one_by_one(to, gradients, places, place + dx);
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
            for rectified in [false, true] {
                check::gradients(&mut MaxPool::new(shape, size, stride, rectified), shape, 2, 1e-4, 1e-2);
            }
        }
    }

    #[test]
    fn the_first_of_equals_gets_the_gradient_and_nan_is_passed_on() {
        let pool = MaxPool::new(Shape::new(2, 2, 1), 2, 2, false);
        for level in Level::available() {
            let (mut output, mut places) = ([0.0], [9]);
            largest(level, &pool, &[1.0, 3.0, 3.0, 2.0], &mut output, Some(&mut places));
            assert_eq!((output, places), ([3.0], [1]));
            largest(level, &pool, &[1.0, f32::NAN, 3.0, 2.0], &mut output, Some(&mut places));
            assert!(output[0].is_nan());
        }
    }

    #[test]
    fn no_number_below_zero_gets_a_gradient_where_a_relu_came_before() {
        let pool = MaxPool::new(Shape::new(2, 4, 1), 2, 2, true);
        for level in Level::available() {
            let (mut output, mut places, mut gradient) = ([9.0; 2], [9; 2], [9.0; 8]);
            largest(level, &pool, &[-1.0, 0.0, -1.0, 2.0, -0.0, -3.0, 1.0, 2.0], &mut output, Some(&mut places));
            assert_eq!((output, places), ([0.0, 2.0], [NOWHERE, 1]));
            send_back(level, &pool, &[5.0, 7.0], &places, &mut gradient);
            assert_eq!(gradient, [0.0, 0.0, 0.0, 7.0, 0.0, 0.0, 0.0, 0.0]);
            largest(level, &pool, &[f32::NAN; 8], &mut output, Some(&mut places));
            assert!(output[0].is_nan() && output[1].is_nan());
        }
    }
}
