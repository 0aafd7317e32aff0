//! The passes of Winograd's convolution over maps, filters and frequencies: [`super::transforms`] for many channels.

use super::transforms::{F2, F4, Filtering, LANES, Lane, Tile, both_sides};
use crate::kernels::matmul::MatrixMut;
use crate::kernels::simd::vectorised;

/// Which pixels of a square window are within a map, and where they lie in the batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Window {
    /// The first pixel within the map.
    pub pixel: usize,
    /// Of the map.
    pub width: usize,
    pub top: usize,
    pub bottom: usize,
    pub left: usize,
    pub right: usize,
}

vectorised! {
    /// `B^T d B` of a window, for `count` channels from `channel` on; each frequency goes to its row of `to`, from
    /// `column` on.
    pub(super) fn transform_windows(
        tile: Tile,
        from: &[f32],
        channels: usize,
        channel: usize,
        window: Window,
        to: &mut MatrixMut<'_>,
        column: usize,
        count: usize,
    ) {
        #[inline(always)]
        fn go<F: Filtering<N, M>, const N: usize, const M: usize>(
            from: &[f32],
            channels: usize,
            window: Window,
            to: &mut MatrixMut<'_>,
            column: usize,
            count: usize,
        ) {
            for lane in (0..count).step_by(LANES) {
                let d = window.load::<N>(from, channels, lane);
                for (row, values) in both_sides(&d, F::b_t).iter().enumerate() {
                    for (at, value) in values.iter().enumerate() {
                        value.store(to.part(row * N + at, column + lane, LANES));
                    }
                }
            }
        }
        let from = &from[channel..];
        match tile {
            Tile::Two => go::<F2, 4, 2>(from, channels, window, to, column, count),
            Tile::Four => go::<F4, 6, 4>(from, channels, window, to, column, count),
        }
    }

    /// `A Y' A^T` of a tile.
    pub(super) fn spread_tiles(
        tile: Tile,
        from: &[f32],
        channels: usize,
        window: Window,
        to: &mut MatrixMut<'_>,
        column: usize,
    ) {
        #[inline(always)]
        fn go<F: Filtering<N, M>, const N: usize, const M: usize>(
            from: &[f32],
            channels: usize,
            window: Window,
            to: &mut MatrixMut<'_>,
            column: usize,
        ) {
            for lane in (0..channels).step_by(LANES) {
                let y = window.load::<M>(from, channels, lane);
                for (row, values) in both_sides(&y, F::a).iter().enumerate() {
                    for (at, value) in values.iter().enumerate() {
                        value.store(to.part(row * N + at, column + lane, LANES));
                    }
                }
            }
        }
        match tile {
            Tile::Two => go::<F2, 4, 2>(from, channels, window, to, column),
            Tile::Four => go::<F4, 6, 4>(from, channels, window, to, column),
        }
    }

    /// `G g G^T` of the `width` filters of a panel. // W,3,3,C to F,C,W
    pub(super) fn transform_filters(
        tile: Tile,
        from: &[f32],
        channels: usize,
        width: usize,
        to: &mut [f32],
        plane: usize,
    ) {
        #[inline(always)]
        fn go<F: Filtering<N, M>, const N: usize, const M: usize>(
            from: &[f32],
            channels: usize,
            width: usize,
            to: &mut [f32],
            plane: usize,
        ) {
            for filter in (0..width).step_by(LANES) {
                for channel in (0..channels).step_by(LANES) {
                    let mut transformed = [[[Lane::default(); N]; N]; LANES];
                    for (at, transformed) in transformed.iter_mut().enumerate() {
                        *transformed = both_sides(&load_square::<3>(&from[(filter + at) * 9 * channels + channel..], channels), F::g);
                    }
                    for frequency in 0..N * N {
                        for lane in 0..LANES {
                            let to = &mut to[frequency * plane + (channel + lane) * width + filter..][..LANES];
                            for (at, to) in to.iter_mut().enumerate() {
                                *to = transformed[at][frequency / N][frequency % N].0[lane];
                            }
                        }
                    }
                }
            }
        }
        match tile {
            Tile::Two => go::<F2, 4, 2>(from, channels, width, to, plane),
            Tile::Four => go::<F4, 6, 4>(from, channels, width, to, plane),
        }
    }

    /// `G g G^T` of all filters, for the `width` channels of a panel. // O,3,3,C to F,O,W
    pub(super) fn transform_filters_transposed(
        tile: Tile,
        from: &[f32],
        channels: usize,
        channel: usize,
        width: usize,
        filters: usize,
        to: &mut [f32],
        plane: usize,
    ) {
        #[inline(always)]
        fn go<F: Filtering<N, M>, const N: usize, const M: usize>(
            from: &[f32],
            channels: usize,
            width: usize,
            filters: usize,
            to: &mut [f32],
            plane: usize,
        ) {
            for filter in 0..filters {
                for lane in (0..width).step_by(LANES) {
                    let transformed = both_sides(&load_square::<3>(&from[filter * 9 * channels + lane..], channels), F::g);
                    for (frequency, value) in transformed.as_flattened().iter().enumerate() {
                        value.store(&mut to[frequency * plane + filter * width + lane..]);
                    }
                }
            }
        }
        let from = &from[channel..];
        match tile {
            Tile::Two => go::<F2, 4, 2>(from, channels, width, filters, to, plane),
            Tile::Four => go::<F4, 6, 4>(from, channels, width, filters, to, plane),
        }
    }

    /// `A^T M A` of a tile, plus the bias. // F,T,W to the pixels of the tile
    pub(super) fn inverse_tiles(
        tile: Tile,
        from: &[f32],
        plane: usize,
        width: usize,
        index: usize,
        bias: Option<&[f32]>,
        window: Window,
        to: &mut MatrixMut<'_>,
        column: usize,
    ) {
        #[inline(always)]
        fn go<F: Filtering<N, M>, const N: usize, const M: usize>(
            from: &[f32],
            plane: usize,
            width: usize,
            bias: Option<&[f32]>,
            window: Window,
            to: &mut MatrixMut<'_>,
            column: usize,
        ) {
            for lane in (0..width).step_by(LANES) {
                let m = load_square::<N>(&from[lane..], plane);
                let y = both_sides(&m, F::a_t);
                let bias = bias.map_or(Lane::default(), |bias| Lane::load(&bias[lane..]));
                for (row, pixels) in y.iter().enumerate().take(window.bottom) {
                    for (at, &pixel) in pixels.iter().enumerate().take(window.right) {
                        let place = window.pixel + row * window.width + at;
                        (pixel + bias).store(to.part(place, column + lane, LANES));
                    }
                }
            }
        }
        let from = &from[index * width..];
        match tile {
            Tile::Two => go::<F2, 4, 2>(from, plane, width, bias, window, to, column),
            Tile::Four => go::<F4, 6, 4>(from, plane, width, bias, window, to, column),
        }
    }

    /// Adds `B V' B^T` of a window to the pixels that it covers. // F,T,W to the pixels of the window
    pub(super) fn add_windows(
        tile: Tile,
        from: &[f32],
        plane: usize,
        width: usize,
        index: usize,
        window: Window,
        to: &mut MatrixMut<'_>,
        column: usize,
    ) {
        #[inline(always)]
        fn go<F: Filtering<N, M>, const N: usize, const M: usize>(
            from: &[f32],
            plane: usize,
            width: usize,
            window: Window,
            to: &mut MatrixMut<'_>,
            column: usize,
        ) {
            for lane in (0..width).step_by(LANES) {
                let d = both_sides(&load_square::<N>(&from[lane..], plane), F::b);
                for (row, values) in d.iter().enumerate().take(window.bottom).skip(window.top) {
                    for (at, &value) in values.iter().enumerate().take(window.right).skip(window.left) {
                        let place = window.pixel + (row - window.top) * window.width + at - window.left;
                        let to = to.part(place, column + lane, LANES);
                        (Lane::load(to) + value).store(to);
                    }
                }
            }
        }
        let from = &from[index * width..];
        match tile {
            Tile::Two => go::<F2, 4, 2>(from, plane, width, window, to, column),
            Tile::Four => go::<F4, 6, 4>(from, plane, width, window, to, column),
        }
    }

    /// `G^T U' G` of all filters, for the channels of a panel. // F,O,W to O,3,3,W
    pub(super) fn inverse_filters(
        tile: Tile,
        from: &[f32],
        plane: usize,
        filters: usize,
        width: usize,
        to: &mut MatrixMut<'_>,
        column: usize,
    ) {
        #[inline(always)]
        fn go<F: Filtering<N, M>, const N: usize, const M: usize>(
            from: &[f32],
            plane: usize,
            filters: usize,
            width: usize,
            to: &mut MatrixMut<'_>,
            column: usize,
        ) {
            for filter in 0..filters {
                for lane in (0..width).step_by(LANES) {
                    let u = load_square::<N>(&from[filter * width + lane..], plane);
                    for (tap, value) in both_sides(&u, F::g_t).as_flattened().iter().enumerate() {
                        value.store(to.part(filter * 9 + tap, column + lane, LANES));
                    }
                }
            }
        }
        match tile {
            Tile::Two => go::<F2, 4, 2>(from, plane, filters, width, to, column),
            Tile::Four => go::<F4, 6, 4>(from, plane, filters, width, to, column),
        }
    }
}

impl Window {
    /// Some channels of the window's pixels; what is outside of the map is zero.
    #[inline(always)]
    fn load<const N: usize>(self, from: &[f32], channels: usize, channel: usize) -> [[Lane; N]; N] {
        let mut pixels = [[Lane::default(); N]; N];
        for (row, pixels) in pixels.iter_mut().enumerate().take(self.bottom).skip(self.top) {
            for (at, value) in pixels.iter_mut().enumerate().take(self.right).skip(self.left) {
                let pixel = self.pixel + (row - self.top) * self.width + at - self.left;
                *value = Lane::load(&from[pixel * channels + channel..]);
            }
        }
        pixels
    }
}

/// A square of lanes, the next always `stride` numbers on.
#[inline(always)]
fn load_square<const N: usize>(from: &[f32], stride: usize) -> [[Lane; N]; N] {
    let mut values = [[Lane::default(); N]; N];
    for (at, value) in values.as_flattened_mut().iter_mut().enumerate() {
        *value = Lane::load(&from[at * stride..]);
    }
    values
}
