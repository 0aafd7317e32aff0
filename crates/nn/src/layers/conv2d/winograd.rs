//! Convolution with 3x3 filters by Winograd's minimal filtering (Lavin and Gray, "Fast algorithms for convolutional
//! neural networks", CVPR 2016).
//!
//! The output is cut into tiles of m x m; each depends on a window of (m+2) x (m+2) inputs. With the fixed matrices A, B
//! and G of `F(m x m, 3 x 3)`, window d and filter g give the tile
//!
//! ```text
//! Y = A^T [ (G g G^T) . (B^T d B) ] A
//! ```
//!
//! where `.` multiplies element by element. Summed over the channels, each of the (m+2)^2 elements ("frequencies") is a
//! matrix product of tiles x channels by channels x filters: for m = 4 a quarter of the multiplications of the
//! definition, for m = 2 four ninths.
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
    Window, add_windows, inverse_filters, inverse_tiles, spread_tiles, transform_filters, transform_filters_transposed,
    transform_windows,
};
use super::transforms::Tile;
use super::{Algorithm, Geometry};
use crate::kernels::matmul::{ByColumns, Matrix, MatrixMut, Mode, Panels, apart, panel_width, product};
use crate::team::{Shares, Units};

/// Tiles that are handled at once: enough that transforming the filters again for each block costs little, few enough
/// that a block stays in the cache.
const BLOCK: usize = 128;
/// Numbers from one frequency to the next, for rows x columns of each. Without the gap, the same place of all frequencies
/// would often fall on the same lines of the cache, and a transform writes to all of them in turn.
fn plane(rows: usize, columns: usize) -> usize {
    const GAP: usize = 16;
    rows * columns + GAP
}

/// Below this many tiles in a batch, transforming filters costs more than it saves.
const FEWEST: usize = 12;

pub(super) struct Winograd {
    geometry: Geometry,
    tile: Tile,
    /// Tiles of an image, down and across.
    tiles: [usize; 2],
}

impl Winograd {
    pub fn suits(geometry: &Geometry, batch: usize) -> bool {
        let divides = |channels: usize| channels.is_multiple_of(panel_width());
        geometry.kernel == [3, 3]
            && geometry.stride == [1, 1]
            && divides(geometry.input.channels)
            && divides(geometry.output.channels)
            && Self::new(*geometry).tiles.iter().product::<usize>() * batch >= FEWEST
    }

    pub fn new(geometry: Geometry) -> Self {
        let output = geometry.output;
        let tile = if output.height.max(output.width) <= 2 { Tile::Two } else { Tile::Four };
        let tiles = [output.height, output.width].map(|length| length.div_ceil(tile.out()));
        Self { geometry, tile, tiles }
    }

    fn frequencies(&self) -> usize {
        self.tile.window().pow(2)
    }

    /// Tiles of an image.
    fn per_image(&self) -> usize {
        self.tiles[0] * self.tiles[1]
    }

    /// Whole images of a block.
    fn images(&self, batch: usize) -> usize {
        (BLOCK / self.per_image()).clamp(1, batch.max(1))
    }

    /// The most tiles of a block.
    fn most_tiles(&self, batch: usize) -> usize {
        self.images(batch) * self.per_image()
    }

    /// The pixels of a map that a tile's window of `size` pixels, beginning `padding` before the tile, covers.
    fn window(&self, tile: usize, height: usize, width: usize, size: usize, padding: [usize; 2]) -> Window {
        let at = tile % self.per_image();
        let [y, x] = [at / self.tiles[1], at % self.tiles[1]].map(|tile| tile * self.tile.out());
        let clip = |start: usize, padding: usize, length: usize| {
            let first = padding.saturating_sub(start).min(size);
            (start + first - padding.min(start + first), first, (length + padding).saturating_sub(start).min(size))
        };
        let (y, top, bottom) = clip(y, padding[0], height);
        let (x, left, right) = clip(x, padding[1], width);
        let image = tile / self.per_image();
        Window {
            pixel: (image * height + y) * width + x,
            width,
            top,
            bottom: bottom.max(top),
            left,
            right: right.max(left),
        }
    }

    fn input_window(&self, tile: usize) -> Window {
        let Geometry { input, padding, .. } = self.geometry;
        self.window(tile, input.height, input.width, self.tile.window(), padding)
    }

    fn output_window(&self, tile: usize) -> Window {
        let output = self.geometry.output;
        self.window(tile, output.height, output.width, self.tile.out(), [0, 0])
    }
}

impl Algorithm for Winograd {
    fn name(&self) -> &'static str {
        match self.tile {
            Tile::Two => "winograd 2x2",
            Tile::Four => "winograd 4x4",
        }
    }

    fn workspace(&self, batch: usize, threads: usize) -> usize {
        let (channels, filters, width) = (self.geometry.input.channels, self.geometry.output.channels, panel_width());
        let (frequencies, tiles) = (self.frequencies(), self.most_tiles(batch));
        let forward = plane(tiles, channels) + threads * (plane(channels, width) + plane(tiles, width));
        let share = plane(filters, width) + 2 * plane(tiles, width);
        let backward = plane(tiles, apart(filters)) + channels / width * plane(filters, width) + threads * share;
        frequencies * forward.max(backward)
    }

    fn forward(&mut self, pass: Forward<'_>, bias: Option<&[f32]>) {
        let (channels, filters, width) = (self.geometry.input.channels, self.geometry.output.channels, panel_width());
        let frequencies = self.frequencies();
        let batch = pass.input.len() / self.geometry.input.len();
        for first in (0..batch).step_by(self.images(batch)) {
            let images = self.images(batch).min(batch - first);
            let tiles = images * self.per_image();
            let input = &pass.input[first * self.geometry.input.len()..];
            let output = &mut pass.output[first * self.geometry.output.len()..][..images * self.geometry.output.len()];

            // V = B^T d B, a matrix of tiles x channels for each frequency; a thread takes some tiles of each. // F,T,C
            let (transformed, shares) = pass.workspace.split_at_mut(frequencies * plane(tiles, channels));
            let rows = MatrixMut::strided(transformed, frequencies, tiles * channels, plane(tiles, channels));
            pass.team.deal(tiles, ByColumns::new(rows, channels), |range, mut rows| {
                for tile in range.clone() {
                    let window = self.input_window(tile);
                    transform_windows(
                        self.tile,
                        input,
                        channels,
                        0,
                        window,
                        &mut rows,
                        (tile - range.start) * channels,
                        channels,
                    );
                }
            });
            let transformed = &*transformed;

            let pixels = images * self.geometry.positions();
            let output = ByColumns::new(MatrixMut::new(output, pixels, filters), width);
            let (of_filter, of_sums) = (plane(channels, width), plane(tiles, width));
            let share = frequencies * (of_filter + of_sums);
            pass.team.deal(filters / width, (output, Shares::new(shares, share)), |range, (mut output, share)| {
                let (filter, sums) = share.split_at_mut(frequencies * of_filter);
                for panel in range.clone() {
                    // U = G g G^T for the filters of a panel. // F,C,W
                    transform_filters(
                        self.tile,
                        &pass.parameters[panel * width * 9 * channels..],
                        channels,
                        width,
                        filter,
                        of_filter,
                    );
                    // M = V U, a product for each frequency. // F,T,W
                    for frequency in 0..frequencies {
                        let left = Matrix::new(&transformed[frequency * plane(tiles, channels)..], tiles, channels);
                        let right = Panels::new(&filter[frequency * of_filter..], channels, width);
                        let sums = MatrixMut::new(&mut sums[frequency * of_sums..], tiles, width);
                        product(sums, Mode::Set, left, right);
                    }
                    // Y = A^T M A
                    let bias = bias.map(|bias| &bias[panel * width..][..width]);
                    let column = (panel - range.start) * width;
                    for tile in 0..tiles {
                        inverse_tiles(
                            self.tile,
                            sums,
                            of_sums,
                            width,
                            tile,
                            bias,
                            self.output_window(tile),
                            &mut output,
                            column,
                        );
                    }
                }
            });
        }
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let (channels, filters, width) = (self.geometry.input.channels, self.geometry.output.channels, panel_width());
        let frequencies = self.frequencies();
        let batch = pass.input.len() / self.geometry.input.len();
        let stride = apart(filters);
        let of_filter = plane(filters, width);
        let mut input_gradient = pass.input_gradient;
        let (sums, workspace) = pass.workspace.split_at_mut(channels / width * frequencies * of_filter);
        for first in (0..batch).step_by(self.images(batch)) {
            let images = self.images(batch).min(batch - first);
            let tiles = images * self.per_image();
            let input = &pass.input[first * self.geometry.input.len()..];
            let output_gradient = &pass.output_gradient[first * self.geometry.output.len()..];

            // D = A Y' A^T, with room between its rows: one of the products reads it across. // F,T,O
            let (transformed, shares) = workspace.split_at_mut(frequencies * plane(tiles, stride));
            let rows = MatrixMut::strided(transformed, frequencies, tiles * stride, plane(tiles, stride));
            pass.team.deal(tiles, ByColumns::new(rows, stride), |range, mut rows| {
                for tile in range.clone() {
                    let window = self.output_window(tile);
                    spread_tiles(self.tile, output_gradient, filters, window, &mut rows, (tile - range.start) * stride);
                }
            });
            let transformed = &*transformed;

            let of_windows = plane(tiles, width);
            let share = frequencies * (of_filter + 2 * of_windows);
            let mode = if first == 0 { Mode::Set } else { Mode::Add };
            let last = first + images == batch;
            // The filters' gradients as rows of channels: a panel of channels is a range of columns.
            let gradients = ByColumns::new(MatrixMut::new(pass.gradients, filters * 9, channels), width);
            let pixels = images * self.geometry.input.height * self.geometry.input.width;
            let input_part = input_gradient.as_deref_mut().map(|gradient| {
                let gradient = &mut gradient[first * self.geometry.input.len()..][..pixels * channels];
                ByColumns::new(MatrixMut::new(gradient, pixels, channels), width)
            });
            let parts = (gradients, input_part, Units::new(sums, frequencies * of_filter), Shares::new(shares, share));
            pass.team.deal(channels / width, parts, |range, (mut gradients, mut input_gradient, sums, share)| {
                let (windows, share) = share.split_at_mut(frequencies * of_windows);
                let (window_gradients, filter) = share.split_at_mut(frequencies * of_windows);
                for panel in range.clone() {
                    let column = (panel - range.start) * width;
                    // The panel of V again. // F,T,W
                    {
                        let mut rows = MatrixMut::strided(windows, frequencies, tiles * width, of_windows);
                        for tile in 0..tiles {
                            let window = self.input_window(tile);
                            transform_windows(
                                self.tile,
                                input,
                                channels,
                                panel * width,
                                window,
                                &mut rows,
                                tile * width,
                                width,
                            );
                        }
                    }
                    // U' = V^T . D, transposed: filters x channels. // F,O,W
                    let sums = &mut sums[column / width * frequencies * of_filter..][..frequencies * of_filter];
                    for frequency in 0..frequencies {
                        let left =
                            Matrix::strided(&transformed[frequency * plane(tiles, stride)..], tiles, filters, stride)
                                .transposed();
                        let right = Panels::new(&windows[frequency * of_windows..], tiles, width);
                        let out = MatrixMut::new(&mut sums[frequency * of_filter..], filters, width);
                        product(out, mode, left, right);
                    }
                    if last {
                        // g' = G^T U' G
                        inverse_filters(self.tile, sums, of_filter, filters, width, &mut gradients, column);
                    }
                    let Some(input_gradient) = &mut input_gradient else { continue };
                    // V' = D U^T // F,T,W
                    transform_filters_transposed(
                        self.tile,
                        pass.parameters,
                        channels,
                        panel * width,
                        width,
                        filters,
                        filter,
                        of_filter,
                    );
                    for frequency in 0..frequencies {
                        let left =
                            Matrix::strided(&transformed[frequency * plane(tiles, stride)..], tiles, filters, stride);
                        let right = Panels::new(&filter[frequency * of_filter..], filters, width);
                        let out = MatrixMut::new(&mut window_gradients[frequency * of_windows..], tiles, width);
                        product(out, Mode::Set, left, right);
                    }
                    // d' = B V' B^T, added up where windows overlap.
                    for pixel in 0..pixels {
                        input_gradient.part(pixel, column, width).fill(0.0);
                    }
                    for tile in 0..tiles {
                        let window = self.input_window(tile);
                        add_windows(
                            self.tile,
                            window_gradients,
                            of_windows,
                            width,
                            tile,
                            window,
                            input_gradient,
                            column,
                        );
                    }
                }
            });
        }
    }
}
