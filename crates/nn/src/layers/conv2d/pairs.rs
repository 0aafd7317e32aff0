//! Convolution of maps that are hardly larger than a pixel: a product for each pair of pixels.
//!
//! On a map of 2x2 with a border of zeros, a filter of 3x3 meets four pixels at each position, and what else it has meets
//! zeros. So the rows of the products are images: at each output pixel the sum, over the weights that meet a pixel, of that
//! pixel's channels times these weights. Nothing is gathered and nothing is transformed, and there are no more
//! multiplications than Winograd's algorithm would have.

use std::ops::Range;

use super::super::{Backward, Forward};
use super::{Algorithm, Geometry};
use crate::kernels::matmul::{Store, padded_stride, product};
use crate::kernels::matrix::{ByColumns, Matrix, MatrixMut};
use crate::kernels::pack::{PANEL, Panels, copy_columns, panels_len};
use crate::kernels::rows::add_to_rows;
use crate::kernels::transpose::transpose_into;
use crate::team::{Shares, Units};

/// The largest map, across and down, for which it is worth it.
const LARGEST: usize = 2;
/// The most weights of a filter and channel.
const MOST_TAPS: usize = 9;
/// The fewest images: rows of a product that fill a tile.
const FEWEST: usize = 8;

pub(super) struct Pairs {
    geometry: Geometry,
}

/// A line of weights of the filters, and the pixels that they meet at an output pixel.
pub(super) struct Meeting {
    /// Weights, counted within a filter.
    pub taps: Range<usize>,
    /// The first input pixel; the others follow it.
    pub pixel: usize,
}

impl Pairs {
    /// `None` if it cannot do such a convolution, or others do it better.
    pub fn new(geometry: Geometry) -> Option<Self> {
        let Geometry { input, output, kernel, stride, .. } = geometry;
        let suits = output.height.max(output.width) <= LARGEST
            && kernel[0] * kernel[1] <= MOST_TAPS
            && input.channels.min(output.channels) >= PANEL
            && stride == [1, 1];
        suits.then_some(Self { geometry })
    }

    /// What the filters meet at an output pixel, line by line.
    pub fn meetings(&self, output_pixel: usize) -> impl Iterator<Item = Meeting> {
        let Geometry { input, output, kernel: [tall, wide], padding, .. } = self.geometry;
        let [y, x] = [output_pixel / output.width, output_pixel % output.width];
        let left = padding[1].saturating_sub(x);
        let right = wide.min((input.width + padding[1]).saturating_sub(x)).max(left);
        (0..tall).filter_map(move |ky| {
            let row = (y + ky).checked_sub(padding[0]).filter(|&row| row < input.height)?;
            (left < right).then(|| Meeting {
                taps: ky * wide + left..ky * wide + right,
                pixel: row * input.width + x + left - padding[1],
            })
        })
    }

    /// The same, weight by weight: its number, and the pixel.
    fn pairs(&self, output_pixel: usize) -> impl Iterator<Item = (usize, usize)> {
        self.meetings(output_pixel).flat_map(|Meeting { taps, pixel }| taps.zip(pixel..))
    }

    /// Sizes that all passes use: channels, filters, weights of a filter and channel, output pixels.
    fn sizes(&self) -> [usize; 4] {
        let Geometry { input, output, kernel, .. } = self.geometry;
        [input.channels, output.channels, kernel[0] * kernel[1], self.geometry.positions()]
    }
}

impl Algorithm for Pairs {
    fn name(&self) -> &'static str {
        "pairs of pixels"
    }

    fn suits(&self, images: usize) -> bool {
        images >= FEWEST
    }

    fn adds(&self) -> bool {
        true
    }

    fn workspace(&self, batch: usize, threads: usize) -> usize {
        let [channels, filters, taps, positions] = self.sizes();
        let pixels = self.geometry.input.height * self.geometry.input.width;
        let forward = batch * padded_stride(self.geometry.input.len()) + threads * taps * panels_len(channels, PANEL);
        let share = taps * panels_len(filters, PANEL) + pixels * panels_len(batch, PANEL);
        forward.max(positions * batch * padded_stride(filters) + threads * share)
    }

    fn forward(&mut self, pass: Forward<'_>, bias: Option<&[f32]>) {
        let ([channels, filters, taps, positions], level) = (self.sizes(), pass.team.level());
        let (image, window) = (self.geometry.input.len(), self.geometry.window());
        let images = pass.input.len() / image;
        // Many images are read at once: they have some room between them.
        let stride = padded_stride(image);
        let (padded, shares) = pass.workspace.split_at_mut(images * stride);
        pass.team.deal(images, Units::new(padded, stride), |range, padded| {
            for (index, to) in range.zip(padded.chunks_exact_mut(stride)) {
                to[..image].copy_from_slice(&pass.input[index * image..][..image]);
            }
        });
        let padded = &*padded;
        let output = ByColumns::new(MatrixMut::new(pass.output, images * positions, filters), PANEL);
        let share = taps * panels_len(channels, PANEL);
        let parts = (output, Shares::new(shares, share));
        pass.team.deal(filters.div_ceil(PANEL), parts, |range, (mut output, panel)| {
            for (index, first) in range.map(|panel| panel * PANEL).enumerate() {
                let count = PANEL.min(filters - first);
                transpose_into(level, panel, PANEL, &pass.parameters[first * window..], window, count, window);
                let weights = Panels::new(panel, window, count);
                let mut output = output.columns(index * PANEL, count);
                for position in 0..positions {
                    let mut store = Store::Overwrite;
                    for Meeting { taps, pixel } in self.meetings(position) {
                        let depth = taps.len() * channels;
                        let left = Matrix::strided(&padded[pixel * channels..], images, depth, stride);
                        let right = weights.rows(taps.start * channels..taps.end * channels);
                        product(level, output.every(position, positions, images), store, left, right);
                        store = Store::Accumulate;
                    }
                    if store == Store::Overwrite {
                        (0..images).for_each(|row| output.part(row * positions + position, 0, count).fill(0.0));
                    }
                }
                if let Some(bias) = bias {
                    for row in 0..images * positions {
                        add_to_rows(level, output.part(row, 0, count), &bias[first..first + count]);
                    }
                }
            }
        });
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let ([channels, filters, taps, positions], level) = (self.sizes(), pass.team.level());
        let (image, window) = (self.geometry.input.len(), self.geometry.window());
        let pixels = self.geometry.input.height * self.geometry.input.width;
        let images = pass.input.len() / image;
        // The outputs' gradients pixel by pixel, with room between the rows: one of the products reads them across.
        let stride = padded_stride(filters);
        let (spread, shares) = pass.workspace.split_at_mut(positions * images * stride);
        pass.team.deal(positions * images, Units::new(spread, stride), |range, rows| {
            for (row, to) in range.zip(rows.chunks_exact_mut(stride)) {
                let (position, index) = (row / images, row % images);
                to[..filters]
                    .copy_from_slice(&pass.output_gradient[(index * positions + position) * filters..][..filters]);
            }
        });
        let output_gradient =
            |position: usize| Matrix::strided(&spread[position * images * stride..], images, filters, stride);

        let gradients = ByColumns::new(MatrixMut::new(pass.gradients, filters * taps, channels), PANEL);
        let input_gradient = pass
            .input_gradient
            .map(|gradient| ByColumns::new(MatrixMut::new(gradient, images * pixels, channels), PANEL));
        let [of_weights, of_pixels] = [panels_len(filters, PANEL), panels_len(images, PANEL)];
        let parts = (gradients, input_gradient, Shares::new(shares, taps * of_weights + pixels * of_pixels));
        pass.team.deal(channels.div_ceil(PANEL), parts, |range, (mut gradients, mut input_gradient, share)| {
            let (weights, inputs) = share.split_at_mut(taps * of_weights);
            for (index, first) in range.map(|panel| panel * PANEL).enumerate() {
                let count = PANEL.min(channels - first);
                // weight' = output'^T * input, a product for each pair of pixels.
                for (pixel, panel) in inputs.chunks_exact_mut(of_pixels.max(1)).enumerate().take(pixels) {
                    copy_columns(level, panel, &pass.input[pixel * channels + first..], image, count);
                }
                let mut gradients = gradients.columns(index * PANEL, count);
                let mut met = [Store::Overwrite; MOST_TAPS];
                for position in 0..positions {
                    for (tap, pixel) in self.pairs(position) {
                        let right = Panels::new(&inputs[pixel * of_pixels..], images, count);
                        let out = gradients.every(tap, taps, filters);
                        product(level, out, met[tap], output_gradient(position).transposed(), right);
                        met[tap] = Store::Accumulate;
                    }
                }
                for tap in (0..taps).filter(|&tap| met[tap] == Store::Overwrite) {
                    (0..filters).for_each(|filter| gradients.part(filter * taps + tap, 0, count).fill(0.0));
                }
                // input' = output' * weight, a product for each pair of pixels.
                let Some(input_gradient) = &mut input_gradient else { continue };
                for (tap, panel) in weights.chunks_exact_mut(of_weights).enumerate() {
                    copy_columns(level, panel, &pass.parameters[tap * channels + first..], window, count);
                }
                let mut input_gradient = input_gradient.columns(index * PANEL, count);
                if !pass.adds {
                    (0..images * pixels).for_each(|row| input_gradient.part(row, 0, count).fill(0.0));
                }
                for position in 0..positions {
                    for (tap, pixel) in self.pairs(position) {
                        let right = Panels::new(&weights[tap * of_weights..], filters, count);
                        let out = input_gradient.every(pixel, pixels, images);
                        product(level, out, Store::Accumulate, output_gradient(position), right);
                    }
                }
            }
        });
    }
}
