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

    /// For up to `batch` images; a window fits in the input.
    pub fn new(input: Shape, size: usize, stride: usize, batch: usize) -> Self {
        let reach = |length: usize| (length - size) / stride + 1;
        let output = Shape::new(reach(input.height), reach(input.width), input.channels);
        Self { size, stride, input, output, places: vec![0; batch * output.len()] }
    }
}

impl Layer for MaxPool {
    fn kind(&self) -> &'static str {
        "max pool"
    }

    fn output(&self) -> Shape {
        self.output
    }

    fn rereads(&self) -> Rereads {
        Rereads { input: false, output: false }
    }

    fn forward(&mut self, pass: Forward<'_>) {
        let (from, to) = (self.input.len(), self.output.len());
        let mut places = std::mem::take(&mut self.places);
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

vectorised! {
    fn largest(pool: &MaxPool, input: &[f32], output: &mut [f32], places: &mut [u8]) {
        let channels = pool.input.channels;
        let outputs = output.chunks_exact_mut(channels).zip(places.chunks_exact_mut(channels));
        for (at, (output, places)) in outputs.enumerate() {
            let (y, x) = (at / pool.output.width * pool.stride, at % pool.output.width * pool.stride);
            let window = |place: usize| {
                &input[((y + place / pool.size) * pool.input.width + x + place % pool.size) * channels..][..channels]
            };
            output.copy_from_slice(window(0));
            places.fill(0);
            for place in 1..pool.size * pool.size {
                for ((output, from), &value) in output.iter_mut().zip(places.iter_mut()).zip(window(place)) {
                    // What is not a number wins, so that it is seen.
                    let wins = value > *output || value.is_nan();
                    *output = if wins { value } else { *output };
                    *from = if wins { place as u8 } else { *from };
                }
            }
        }
    }

    fn send_back(pool: &MaxPool, output_gradient: &[f32], places: &[u8], input_gradient: &mut [f32]) {
        let channels = pool.input.channels;
        // Windows that neither overlap nor leave gaps write every number once.
        let tiled = pool.stride == pool.size
            && (pool.output.height * pool.size, pool.output.width * pool.size) == (pool.input.height, pool.input.width);
        if !tiled {
            input_gradient.fill(0.0);
        }
        let outputs = output_gradient.chunks_exact(channels).zip(places.chunks_exact(channels));
        for (at, (gradient, places)) in outputs.enumerate() {
            let (y, x) = (at / pool.output.width * pool.stride, at % pool.output.width * pool.stride);
            for place in 0..pool.size * pool.size {
                let to = ((y + place / pool.size) * pool.input.width + x + place % pool.size) * channels;
                let to = input_gradient[to..][..channels].iter_mut();
                for ((to, &gradient), &from) in to.zip(gradient).zip(places) {
                    let share = if usize::from(from) == place { gradient } else { 0.0 };
                    *to = if tiled { share } else { *to + share };
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
        for (height, width, size, stride) in [(4, 6, 2, 2), (5, 3, 2, 2), (5, 5, 3, 2), (3, 4, 2, 1), (3, 3, 3, 3)] {
            let shape = Shape::new(height, width, 3);
            check::gradients(&mut MaxPool::new(shape, size, stride, 2), shape, 2, 1e-4, 1e-2);
        }
    }

    #[test]
    fn the_first_of_equals_gets_the_gradient_and_nan_is_passed_on() {
        let pool = MaxPool::new(Shape::new(2, 2, 1), 2, 2, 1);
        let (mut output, mut places) = ([0.0], [9]);
        largest(&pool, &[1.0, 3.0, 3.0, 2.0], &mut output, &mut places);
        assert_eq!((output, places), ([3.0], [1]));
        largest(&pool, &[1.0, f32::NAN, 3.0, 2.0], &mut output, &mut places);
        assert!(output[0].is_nan());
    }
}
