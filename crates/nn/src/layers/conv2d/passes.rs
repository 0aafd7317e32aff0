//! The passes of Winograd's convolution over maps, filters and frequencies: [`super::transforms`] for many channels.

use std::ops::Range;

use ringstep_cpu::simd::prefetch;
use ringstep_cpu::{Simd, kernels};

use super::super::Shape;
use super::frozen::{Epilogue, larger};
use super::tiling::{Clip, Tiling};
use super::transforms::{A, ATransposed, B, BTransposed, FREQUENCIES, G, GTransposed, OUT, TAPS, Times, WINDOW};
use crate::kernels::matrix::MatrixMut;
use crate::kernels::pack::PANEL;
use crate::kernels::transpose::SQUARE;

/// Numbers of a line of the cache.
const LINE: usize = 16;
/// How many filters before its turn the weights of one are asked for: they lie apart, and no processor guesses where.
const FILTERS_AHEAD: usize = 4;

/// Elements that lie in rows and columns, these so far apart.
#[derive(Debug, Clone, Copy)]
struct Square {
    start: *mut f32,
    row: usize,
    column: usize,
}

impl Square {
    /// Of frequencies, a plane apart.
    #[inline(always)]
    fn of_frequencies(start: *const f32, plane: usize) -> Self {
        Self { start: start.cast_mut(), row: WINDOW * plane, column: plane }
    }

    /// Of pixels; the first may lie outside of the map.
    #[inline(always)]
    fn of_pixels(map: *const f32, first: isize, width: usize, channels: usize) -> Self {
        let start = map.cast_mut().wrapping_offset(first * channels as isize);
        Self { start, row: width * channels, column: channels }
    }

    #[inline(always)]
    fn at(self, row: usize, column: usize) -> *mut f32 {
        self.start.wrapping_add(row * self.row + column * self.column)
    }

    /// The same elements of other channels.
    #[inline(always)]
    fn shifted(self, lanes: usize) -> Self {
        Self { start: self.start.wrapping_add(lanes), ..self }
    }
}

/// `matrix * x`, column by column.
///
/// # Safety
/// A vector can be loaded from each element of the square, or, of a clipped one, from those within the map.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn from_left<S: Simd, T: Times<I, O>, const I: usize, const O: usize>(
    simd: S,
    from: Square,
    clip: Option<Clip>,
) -> [[S::Vector; I]; O] {
    let mut half = [[simd.zero(); I]; O];
    for column in 0..I {
        let mut vectors = [simd.zero(); I];
        for row in 0..I {
            if clip.is_none_or(|clip| clip.contains(row, column)) {
                // SAFETY: the caller's promise.
                vectors[row] = unsafe { simd.load(from.at(row, column)) };
            }
        }
        let products = T::times(simd, vectors);
        for row in 0..O {
            half[row][column] = products[row];
        }
    }
    half
}

/// `half * matrix^T`, stored row by row.
///
/// # Safety
/// A vector can be stored to each element of the square.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn from_right<S: Simd, T: Times<I, O>, const I: usize, const O: usize>(
    simd: S,
    half: [[S::Vector; I]; O],
    to: Square,
) {
    for row in 0..O {
        let products = T::times(simd, half[row]);
        for column in 0..O {
            // SAFETY: the caller's promise.
            unsafe { simd.store(to.at(row, column), products[column]) };
        }
    }
}

/// Some channels of the maps of a batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Channels<'a> {
    /// N,H,W,C
    pub maps: &'a [f32],
    /// Of a pixel.
    pub all: usize,
    /// Those that are meant.
    pub range: (usize, usize),
}

/// Panics unless rows of frequencies have room for so many tiles, `stride` apart, of so many channels.
fn check_rows([rows, columns, _]: [usize; 3], tiles: usize, stride: usize, channels: usize) {
    assert!(rows == FREQUENCIES && channels.is_multiple_of(PANEL), "frequencies of whole panels");
    assert!(tiles == 0 || (tiles - 1) * stride + channels <= columns, "tiles beyond the rows");
}

kernels! {
    /// `B^T d B` of some tiles' windows; each frequency goes to its row of `to`, tiles `stride` apart.
    pub(super) fn transform_windows<S>(simd: S, tiling: &Tiling, tiles: Range<usize>, from: Channels<'_>, to: &mut MatrixMut<'_>, stride: usize) {
        let Channels { maps, all, range: (first, end) } = from;
        tiling.check(&tiles, maps.len() / tiling.input.len());
        check_rows(to.size(), tiles.len(), stride, end - first);
        assert!(end <= all && all == tiling.input.channels);
        let (rows, [_, _, plane]) = (to.as_mut_ptr(), to.size());
        for (index, tile) in tiles.enumerate() {
            let (pixel, clip) = tiling.input_window(tile);
            let pixels = Square::of_pixels(maps.as_ptr(), pixel, tiling.input.width, all).shifted(first);
            let frequencies = Square::of_frequencies(rows, plane).shifted(index * stride);
            // SAFETY: the checks above: all tiles are within the maps, but for what is clipped, and have room in the rows.
            unsafe {
                if clip.is_whole(WINDOW) {
                    for lane in (0..end - first).step_by(S::LANES) {
                        let half = from_left::<S, BTransposed, WINDOW, WINDOW>(simd, pixels.shifted(lane), None);
                        from_right::<S, BTransposed, WINDOW, WINDOW>(simd, half, frequencies.shifted(lane));
                    }
                } else {
                    for lane in (0..end - first).step_by(S::LANES) {
                        let half = from_left::<S, BTransposed, WINDOW, WINDOW>(simd, pixels.shifted(lane), Some(clip));
                        from_right::<S, BTransposed, WINDOW, WINDOW>(simd, half, frequencies.shifted(lane));
                    }
                }
            }
        }
    }

    /// `A Y' A^T` of some tiles; each frequency goes to its row of `to`, tiles `stride` apart.
    pub(super) fn spread_tiles<S>(simd: S, tiling: &Tiling, tiles: Range<usize>, maps: &[f32], to: &mut MatrixMut<'_>, stride: usize) {
        let channels = tiling.output.channels;
        tiling.check(&tiles, maps.len() / tiling.output.len());
        check_rows(to.size(), tiles.len(), stride, channels);
        let (rows, [_, _, plane]) = (to.as_mut_ptr(), to.size());
        for (index, tile) in tiles.enumerate() {
            let (pixel, clip) = tiling.output_tile(tile);
            let pixels = Square::of_pixels(maps.as_ptr(), pixel, tiling.output.width, channels);
            let frequencies = Square::of_frequencies(rows, plane).shifted(index * stride);
            // SAFETY: as in `transform_windows`.
            unsafe {
                if clip.is_whole(OUT) {
                    for lane in (0..channels).step_by(S::LANES) {
                        let half = from_left::<S, A, OUT, WINDOW>(simd, pixels.shifted(lane), None);
                        from_right::<S, A, OUT, WINDOW>(simd, half, frequencies.shifted(lane));
                    }
                } else {
                    for lane in (0..channels).step_by(S::LANES) {
                        let half = from_left::<S, A, OUT, WINDOW>(simd, pixels.shifted(lane), Some(clip));
                        from_right::<S, A, OUT, WINDOW>(simd, half, frequencies.shifted(lane));
                    }
                }
            }
        }
    }

    /// `G g G^T` of the filters of a panel. // PANEL,3,3,C to F,C,PANEL
    ///
    /// Vectors run along channels where the filters lie and along filters in the panel: the nine weights are transposed
    /// first, since there are four times as many frequencies.
    pub(super) fn transform_filters<S>(simd: S, filters: &[f32], channels: usize, to: &mut [f32], plane: usize) {
        assert!(channels.is_multiple_of(SQUARE) && filters.len() >= PANEL * TAPS * TAPS * channels);
        assert!(plane >= channels * PANEL && to.len() >= (FREQUENCIES - 1) * plane + channels * PANEL);
        let mut weights = [[[0.0f32; PANEL]; SQUARE]; TAPS * TAPS];
        for channel in (0..channels).step_by(SQUARE) {
            if channel.is_multiple_of(LINE) {
                for row in 0..PANEL * TAPS * TAPS {
                    prefetch(filters.as_ptr().wrapping_add(row * channels + channel + LINE));
                }
            }
            for (tap, weights) in weights.iter_mut().enumerate() {
                for filter in (0..PANEL).step_by(SQUARE) {
                    // SAFETY: the assertions above; a square of the weights.
                    unsafe {
                        let from = filters.as_ptr().add((filter * TAPS * TAPS + tap) * channels + channel);
                        let to = weights.as_mut_ptr().cast::<f32>().add(filter);
                        simd.transpose_square(from, TAPS * TAPS * channels, SQUARE, to, PANEL, SQUARE);
                    }
                }
            }
            let weights = weights.as_ptr().cast::<f32>();
            for at in 0..SQUARE {
                for lane in (0..PANEL).step_by(S::LANES) {
                    // SAFETY: the assertions above.
                    unsafe {
                        let taps = Square { start: weights.add(at * PANEL + lane).cast_mut(), row: TAPS * SQUARE * PANEL, column: SQUARE * PANEL };
                        let half = from_left::<S, G, TAPS, WINDOW>(simd, taps, None);
                        let frequencies = Square::of_frequencies(to.as_mut_ptr().add((channel + at) * PANEL + lane), plane);
                        from_right::<S, G, TAPS, WINDOW>(simd, half, frequencies);
                    }
                }
            }
        }
    }

    /// `G g G^T` of all filters, for a panel of channels from `channel` on. // O,3,3,C to F,O,PANEL
    pub(super) fn transform_filters_transposed<S>(simd: S, filters: &[f32], channels: usize, channel: usize, to: &mut [f32], plane: usize) {
        let count = filters.len() / (TAPS * TAPS * channels);
        assert!(channel + PANEL <= channels && plane >= count * PANEL && to.len() >= (FREQUENCIES - 1) * plane + count * PANEL);
        for filter in 0..count {
            for tap in 0..TAPS * TAPS {
                prefetch(filters.as_ptr().wrapping_add(((filter + FILTERS_AHEAD) * TAPS * TAPS + tap) * channels + channel));
            }
            for lane in (0..PANEL).step_by(S::LANES) {
                // SAFETY: the assertion above.
                unsafe {
                    let start = filters.as_ptr().add(filter * TAPS * TAPS * channels + channel + lane).cast_mut();
                    let half = from_left::<S, G, TAPS, WINDOW>(simd, Square { start, row: TAPS * channels, column: channels }, None);
                    let frequencies = Square::of_frequencies(to.as_mut_ptr().add(filter * PANEL + lane), plane);
                    from_right::<S, G, TAPS, WINDOW>(simd, half, frequencies);
                }
            }
        }
    }

    /// `G^T U' G` of all filters, for the channels of a panel. // F,O,PANEL to O,3,3 rows of PANEL columns
    pub(super) fn inverse_filters<S>(simd: S, from: &[f32], plane: usize, to: &mut MatrixMut<'_>) {
        let [rows, columns, row] = to.size();
        let filters = rows / (TAPS * TAPS);
        assert!(columns == PANEL && from.len() >= (FREQUENCIES - 1) * plane + filters * PANEL);
        for filter in 0..filters {
            for tap in 0..TAPS * TAPS {
                prefetch(to.as_mut_ptr().wrapping_add(((filter + FILTERS_AHEAD) * TAPS * TAPS + tap) * row));
            }
            for lane in (0..PANEL).step_by(S::LANES) {
                // SAFETY: the assertion above.
                unsafe {
                    let frequencies = Square::of_frequencies(from.as_ptr().add(filter * PANEL + lane), plane);
                    let half = from_left::<S, GTransposed, WINDOW, TAPS>(simd, frequencies, None);
                    let start = to.as_mut_ptr().add(filter * TAPS * TAPS * row + lane);
                    from_right::<S, GTransposed, WINDOW, TAPS>(simd, half, Square { start, row: TAPS * row, column: row });
                }
            }
        }
    }

    /// `A^T M A` of some tiles, plus the bias, to a panel's columns of the pixels. // F,T,PANEL to N,H,W rows of PANEL columns
    pub(super) fn inverse_tiles<S>(simd: S, tiling: &Tiling, tiles: Range<usize>, from: &[f32], plane: usize, bias: Option<&[f32]>, to: &mut MatrixMut<'_>) {
        let [rows, columns, row] = to.size();
        tiling.check(&tiles, rows / (tiling.output.height * tiling.output.width));
        assert!(columns == PANEL && bias.is_none_or(|bias| bias.len() == PANEL) && from.len() >= (FREQUENCIES - 1) * plane + tiles.len() * PANEL);
        for lane in (0..PANEL).step_by(S::LANES) {
            let bias = match bias {
                // SAFETY: there is a number for each column.
                Some(bias) => unsafe { simd.load(bias.as_ptr().add(lane)) },
                None => simd.zero(),
            };
            for (index, tile) in tiles.clone().enumerate() {
                let (pixel, clip) = tiling.output_tile(tile);
                let pixels = Square::of_pixels(to.as_mut_ptr(), pixel, tiling.output.width, row).shifted(lane);
                // SAFETY: the checks above.
                unsafe {
                    let frequencies = Square::of_frequencies(from.as_ptr().add(index * PANEL + lane), plane);
                    let half = from_left::<S, ATransposed, WINDOW, OUT>(simd, frequencies, None);
                    for y in 0..OUT {
                        let products = ATransposed::times(simd, half[y]);
                        for x in 0..OUT {
                            if clip.contains(y, x) {
                                simd.store(pixels.at(y, x), products[x] + bias);
                            }
                        }
                    }
                }
            }
        }
    }

    /// The same for a frozen convolution, which does what follows before a tile is stored.
    pub(super) fn finish_tiles<S>(simd: S, tiling: &Tiling, tiles: Range<usize>, from: &[f32], plane: usize, epilogue: Epilogue<'_>, to: &mut MatrixMut<'_>) {
        let ([pixels, columns, stride], start) = (to.size(), to.as_mut_ptr());
        let Shape { height, width, .. } = tiling.output;
        let side = if epilogue.pool.is_some() { 2 } else { 1 };
        let [tall, wide] = [height / side, width / side];
        let images = pixels.checked_div(tall * wide).unwrap_or(0);
        tiling.check(&tiles, images);
        assert!(columns == PANEL && from.len() >= (FREQUENCIES - 1) * plane + tiles.len() * PANEL);
        let end = (images * height * width).checked_sub(1).map_or(0, |last| last * epilogue.stride + columns);
        assert!(epilogue.residual.is_none_or(|residual| end <= residual.len()));
        for lane in (0..PANEL).step_by(S::LANES) {
            // SAFETY: there is a number for each column of a panel.
            let bias = unsafe { simd.load(epilogue.bias.as_ptr().add(lane)) };
            for (index, tile) in tiles.clone().enumerate() {
                let [image, top, left] = tiling.origin(tile);
                // SAFETY: the checks above; what is outside of the map is left out.
                unsafe {
                    let frequencies = Square::of_frequencies(from.as_ptr().add(index * PANEL + lane), plane);
                    let half = from_left::<S, ATransposed, WINDOW, OUT>(simd, frequencies, None);
                    let mut rows = [[simd.zero(); OUT]; OUT];
                    for y in 0..OUT {
                        rows[y] = ATransposed::times(simd, half[y]);
                        for x in 0..OUT {
                            if epilogue.residual.is_some() && top + y < height && left + x < width {
                                let pixel = (image * height + top + y) * width + left + x;
                                rows[y][x] = rows[y][x] + epilogue.residual(simd, pixel, lane, S::LANES);
                            }
                        }
                    }
                    if side == 2 {
                        for y in 0..OUT / 2 {
                            for x in 0..OUT / 2 {
                                let (row, column) = (top / 2 + y, left / 2 + x);
                                if row < tall && column < wide {
                                    let upper = larger(rows[2 * y][2 * x], rows[2 * y][2 * x + 1]);
                                    let lower = larger(rows[2 * y + 1][2 * x], rows[2 * y + 1][2 * x + 1]);
                                    let value = epilogue.finish(simd, larger(upper, lower), bias);
                                    simd.store(start.add(((image * tall + row) * wide + column) * stride + lane), value);
                                }
                            }
                        }
                    } else {
                        for y in 0..OUT {
                            for x in 0..OUT {
                                if top + y < height && left + x < width {
                                    let value = epilogue.finish(simd, rows[y][x], bias);
                                    let pixel = (image * height + top + y) * width + left + x;
                                    simd.store(start.add(pixel * stride + lane), value);
                                }
                            }
                        }
                    }
                }
            }
        }
    }

    /// Adds `B V' B^T` of some tiles' windows to a panel's columns of the pixels that they cover. // F,T,PANEL
    pub(super) fn add_windows<S>(simd: S, tiling: &Tiling, tiles: Range<usize>, from: &[f32], plane: usize, to: &mut MatrixMut<'_>) {
        let [rows, columns, row] = to.size();
        tiling.check(&tiles, rows / (tiling.input.height * tiling.input.width));
        assert!(columns == PANEL && from.len() >= (FREQUENCIES - 1) * plane + tiles.len() * PANEL);
        for lane in (0..PANEL).step_by(S::LANES) {
            for (index, tile) in tiles.clone().enumerate() {
                let (pixel, clip) = tiling.input_window(tile);
                let pixels = Square::of_pixels(to.as_mut_ptr(), pixel, tiling.input.width, row).shifted(lane);
                // SAFETY: the checks above.
                unsafe {
                    let frequencies = Square::of_frequencies(from.as_ptr().add(index * PANEL + lane), plane);
                    let half = from_left::<S, B, WINDOW, WINDOW>(simd, frequencies, None);
                    for y in 0..WINDOW {
                        let products = B::times(simd, half[y]);
                        for x in 0..WINDOW {
                            if clip.contains(y, x) {
                                let at = pixels.at(y, x);
                                simd.store(at, simd.load(at) + products[x]);
                            }
                        }
                    }
                }
            }
        }
    }
}
