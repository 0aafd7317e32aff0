//! Convolution with 3x3 filters by Winograd's minimal filtering (Lavin and Gray, "Fast algorithms for convolutional
//! neural networks", CVPR 2016).
//!
//! The output is cut into tiles of 4 x 4; each depends on a window of 6 x 6 inputs. With the fixed matrices A, B
//! and G of `F(4 x 4, 3 x 3)`, window d and filter g give the tile
//!
//! ```text
//! Y = A^T [ (G g G^T) . (B^T d B) ] A
//! ```
//!
//! where `.` multiplies element by element. Summed over the channels, each of the 36 elements ("frequencies") is a
//! matrix product of tiles x channels by channels x filters: a quarter of the multiplications of the definition.
//!
//! Backward is the adjoint of each of these maps, in reverse order. With `D = A Y' A^T`:
//!
//! ```text
//! d' = B [ (G g G^T) . D ] B^T        g' = G^T [ (B^T d B) . D ] G
//! ```
//!
//! Nothing large is kept: a block of tiles is transformed by all threads, then each thread takes some panels of filters
//! (in backward: of channels), transforms these, multiplies, and transforms back, all within its cache.

use super::super::{Backward, Forward};
use super::passes::{
    Channels, add_windows, inverse_filters, inverse_tiles, spread_tiles, transform_filters,
    transform_filters_transposed, transform_windows,
};
use super::tiling::Tiling;
use super::transforms::{FREQUENCIES, TAPS};
use super::{Algorithm, Geometry};
use crate::kernels::matmul::{Store, padded_stride, product};
use crate::kernels::matrix::{ByColumns, Matrix, MatrixMut};
use crate::kernels::pack::{PANEL, Panels};
use crate::team::{Shares, Units};

/// Tiles that are handled at once: enough that transforming the filters again for each block costs little, few enough
/// that a block stays in the cache.
const BLOCK: usize = 128;

/// Numbers from one frequency to the next, for rows x columns of each. Without the gap, the same place of all frequencies
/// would often fall on the same lines of the cache, and a transform writes to all of them in turn.
pub(super) fn plane(rows: usize, columns: usize) -> usize {
    const GAP: usize = 16;
    rows * columns + GAP
}

/// Below this many tiles in a batch, transforming filters costs more than it saves.
const FEWEST: usize = 12;

pub(super) struct Winograd {
    geometry: Geometry,
    tiling: Tiling,
}

impl Winograd {
    /// `None` if it cannot do such a convolution.
    pub fn new(geometry: Geometry) -> Option<Self> {
        let whole = |channels: usize| channels.is_multiple_of(PANEL);
        let suits = geometry.kernel == [TAPS; 2]
            && geometry.stride == [1, 1]
            && whole(geometry.input.channels)
            && whole(geometry.output.channels);
        suits.then(|| Self { geometry, tiling: Tiling::new(&geometry) })
    }

    /// Whole images of a block.
    fn images(&self, batch: usize) -> usize {
        (BLOCK / self.tiling.per_image()).clamp(1, batch.max(1))
    }

    fn sizes(&self) -> [usize; 2] {
        [self.geometry.input.channels, self.geometry.output.channels]
    }
}

impl Algorithm for Winograd {
    fn name(&self) -> &'static str {
        "winograd"
    }

    fn suits(&self, images: usize) -> bool {
        images * self.tiling.per_image() >= FEWEST
    }

    fn adds(&self) -> bool {
        true
    }

    fn workspace(&self, batch: usize, threads: usize) -> usize {
        let ([channels, filters], tiles) = (self.sizes(), self.images(batch) * self.tiling.per_image());
        let forward = plane(tiles, padded_stride(channels)) + threads * (plane(channels, PANEL) + plane(tiles, PANEL));
        let share = plane(filters, PANEL) + 2 * plane(tiles, PANEL);
        let backward =
            plane(tiles, padded_stride(filters)) + channels / PANEL * plane(filters, PANEL) + threads * share;
        FREQUENCIES * forward.max(backward)
    }

    fn forward(&mut self, pass: Forward<'_>, bias: Option<&[f32]>) {
        let ([channels, filters], tiling, level) = (self.sizes(), &self.tiling, pass.team.level());
        let batch = pass.input.len() / self.geometry.input.len();
        for first in (0..batch).step_by(self.images(batch)) {
            let images = self.images(batch).min(batch - first);
            let tiles = images * tiling.per_image();
            let input = &pass.input[first * self.geometry.input.len()..];
            let output = &mut pass.output[first * self.geometry.output.len()..][..images * self.geometry.output.len()];

            // V = B^T d B, a matrix of tiles x channels for each frequency, with room between its rows, since many of them
            // are read at once; a thread takes some tiles of each. // F,T,C
            let stride = padded_stride(channels);
            let of_windows = plane(tiles, stride);
            let (transformed, shares) = pass.workspace.split_at_mut(FREQUENCIES * of_windows);
            let rows = MatrixMut::strided(transformed, FREQUENCIES, tiles * stride, of_windows);
            pass.team.deal(tiles, ByColumns::new(rows, stride), |range, mut rows| {
                let from = Channels { maps: input, all: channels, range: (0, channels) };
                transform_windows(level, tiling, range, from, &mut rows, stride);
            });
            let transformed = &*transformed;

            let pixels = images * self.geometry.positions();
            let output = ByColumns::new(MatrixMut::new(output, pixels, filters), PANEL);
            let (of_filter, of_sums) = (plane(channels, PANEL), plane(tiles, PANEL));
            let share = FREQUENCIES * (of_filter + of_sums);
            pass.team.deal(filters / PANEL, (output, Shares::new(shares, share)), |range, (mut output, share)| {
                let (filter, sums) = share.split_at_mut(FREQUENCIES * of_filter);
                for (index, panel) in range.enumerate() {
                    // U = G g G^T for the filters of a panel. // F,C,PANEL
                    let weights = &pass.parameters[panel * PANEL * self.geometry.window()..];
                    transform_filters(level, weights, channels, filter, of_filter);
                    // M = V U, a product for each frequency. // F,T,PANEL
                    for frequency in 0..FREQUENCIES {
                        let left = Matrix::strided(&transformed[frequency * of_windows..], tiles, channels, stride);
                        let right = Panels::new(&filter[frequency * of_filter..], channels, PANEL);
                        let sums = MatrixMut::new(&mut sums[frequency * of_sums..], tiles, PANEL);
                        product(level, sums, Store::Overwrite, left, right);
                    }
                    // Y = A^T M A
                    let bias = bias.map(|bias| &bias[panel * PANEL..][..PANEL]);
                    let mut output = output.columns(index * PANEL, PANEL);
                    inverse_tiles(level, tiling, 0..tiles, sums, of_sums, bias, &mut output);
                }
            });
        }
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let ([channels, filters], tiling, level) = (self.sizes(), &self.tiling, pass.team.level());
        let batch = pass.input.len() / self.geometry.input.len();
        let stride = padded_stride(filters);
        let of_filter = plane(filters, PANEL);
        let mut input_gradient = pass.input_gradient;
        let (sums, workspace) = pass.workspace.split_at_mut(channels / PANEL * FREQUENCIES * of_filter);
        for first in (0..batch).step_by(self.images(batch)) {
            let images = self.images(batch).min(batch - first);
            let tiles = images * tiling.per_image();
            let input = &pass.input[first * self.geometry.input.len()..];
            let output_gradient = &pass.output_gradient[first * self.geometry.output.len()..];

            // D = A Y' A^T, with room between its rows: one of the products reads it across. // F,T,O
            let of_tiles = plane(tiles, stride);
            let (transformed, shares) = workspace.split_at_mut(FREQUENCIES * of_tiles);
            let rows = MatrixMut::strided(transformed, FREQUENCIES, tiles * stride, of_tiles);
            pass.team.deal(tiles, ByColumns::new(rows, stride), |range, mut rows| {
                spread_tiles(level, tiling, range, output_gradient, &mut rows, stride);
            });
            let spread = |frequency: usize| {
                Matrix::strided(&transformed[frequency * of_tiles..(frequency + 1) * of_tiles], tiles, filters, stride)
            };

            let of_windows = plane(tiles, PANEL);
            let share = FREQUENCIES * (of_filter + 2 * of_windows);
            let (is_first, is_last) = (first == 0, first + images == batch);
            let store = if is_first { Store::Overwrite } else { Store::Accumulate };
            // The filters' gradients as rows of channels: a panel of channels is a range of columns.
            let gradients = ByColumns::new(MatrixMut::new(pass.gradients, filters * TAPS * TAPS, channels), PANEL);
            let pixels = images * self.geometry.input.height * self.geometry.input.width;
            let input_part = input_gradient.as_deref_mut().map(|gradient| {
                let gradient = &mut gradient[first * self.geometry.input.len()..][..pixels * channels];
                ByColumns::new(MatrixMut::new(gradient, pixels, channels), PANEL)
            });
            let parts = (gradients, input_part, Units::new(sums, FREQUENCIES * of_filter), Shares::new(shares, share));
            pass.team.deal(channels / PANEL, parts, |range, (mut gradients, mut input_gradient, sums, share)| {
                let (windows, share) = share.split_at_mut(FREQUENCIES * of_windows);
                let (window_gradients, filter) = share.split_at_mut(FREQUENCIES * of_windows);
                for (index, panel) in range.enumerate() {
                    let (column, channel) = (index * PANEL, panel * PANEL);
                    // The panel of V again. // F,T,PANEL
                    let from = Channels { maps: input, all: channels, range: (channel, channel + PANEL) };
                    let mut rows = MatrixMut::strided(windows, FREQUENCIES, tiles * PANEL, of_windows);
                    transform_windows(level, tiling, 0..tiles, from, &mut rows, PANEL);
                    // U' = V^T . D, transposed: filters x channels. If all tiles are in one block, one place does for all
                    // panels, and stays in the cache. // F,O,PANEL
                    let place = if is_first && is_last { 0 } else { index };
                    let sums = &mut sums[place * FREQUENCIES * of_filter..][..FREQUENCIES * of_filter];
                    for frequency in 0..FREQUENCIES {
                        let right = Panels::new(&windows[frequency * of_windows..], tiles, PANEL);
                        let out = MatrixMut::new(&mut sums[frequency * of_filter..], filters, PANEL);
                        product(level, out, store, spread(frequency).transposed(), right);
                    }
                    if is_last {
                        // g' = G^T U' G
                        inverse_filters(level, sums, of_filter, &mut gradients.columns(column, PANEL));
                    }
                    let Some(input_gradient) = &mut input_gradient else { continue };
                    // V' = D U^T // F,T,PANEL
                    transform_filters_transposed(level, pass.parameters, channels, channel, filter, of_filter);
                    for frequency in 0..FREQUENCIES {
                        let right = Panels::new(&filter[frequency * of_filter..], filters, PANEL);
                        let out = MatrixMut::new(&mut window_gradients[frequency * of_windows..], tiles, PANEL);
                        product(level, out, Store::Overwrite, spread(frequency), right);
                    }
                    // d' = B V' B^T, added up where windows overlap.
                    let mut input_gradient = input_gradient.columns(column, PANEL);
                    if !pass.adds {
                        (0..pixels).for_each(|pixel| input_gradient.part(pixel, 0, PANEL).fill(0.0));
                    }
                    add_windows(level, tiling, 0..tiles, window_gradients, of_windows, &mut input_gradient);
                }
            });
        }
    }
}
