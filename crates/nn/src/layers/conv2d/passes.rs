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
            let mut half = [[Lane::default(); N]; N];
            for lane in (0..count).step_by(LANES) {
                let store = |row, at, value: Lane| value.store(to.part(row * N + at, column + lane, LANES));
                if window.is_whole(N) {
                    both_sides(&mut half, |row, at| window.load(from, channels, lane, row, at), F::b_t, store);
                } else {
                    both_sides(&mut half, |row, at| window.load_or_zero(from, channels, lane, row, at), F::b_t, store);
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
            let mut half = [[Lane::default(); M]; N];
            for lane in (0..channels).step_by(LANES) {
                let store = |row, at, value: Lane| value.store(to.part(row * N + at, column + lane, LANES));
                if window.is_whole(M) {
                    both_sides(&mut half, |row, at| window.load(from, channels, lane, row, at), F::a, store);
                } else {
                    both_sides(&mut half, |row, at| window.load_or_zero(from, channels, lane, row, at), F::a, store);
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
            let mut half = [[Lane::default(); 3]; N];
            let mut transformed = [[[Lane::default(); N]; N]; LANES];
            for filter in (0..width).step_by(LANES) {
                for channel in (0..channels).step_by(LANES) {
                    for (at, transformed) in transformed.iter_mut().enumerate() {
                        let from = &from[(filter + at) * 9 * channels + channel..];
                        let load = |row, column| Lane::load(&from[(row * 3 + column) * channels..]);
                        both_sides(&mut half, load, F::g, |row, column, value| transformed[row][column] = value);
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
            let mut half = [[Lane::default(); 3]; N];
            for filter in 0..filters {
                for lane in (0..width).step_by(LANES) {
                    let from = &from[filter * 9 * channels + lane..];
                    let load = |row, column| Lane::load(&from[(row * 3 + column) * channels..]);
                    let to = &mut to[filter * width + lane..];
                    let store = |row, column, value: Lane| value.store(&mut to[(row * N + column) * plane..]);
                    both_sides(&mut half, load, F::g, store);
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
            let mut half = [[Lane::default(); N]; M];
            for lane in (0..width).step_by(LANES) {
                let load = |row, at| Lane::load(&from[(row * N + at) * plane + lane..]);
                let bias = bias.map_or(Lane::default(), |bias| Lane::load(&bias[lane..]));
                both_sides(&mut half, load, F::a_t, |row, at, pixel| {
                    if window.contains(row, at) {
                        (pixel + bias).store(to.part(window.place(row, at), column + lane, LANES));
                    }
                });
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
            let mut half = [[Lane::default(); N]; N];
            for lane in (0..width).step_by(LANES) {
                let load = |row, at| Lane::load(&from[(row * N + at) * plane + lane..]);
                both_sides(&mut half, load, F::b, |row, at, value| {
                    if window.contains(row, at) {
                        let to = to.part(window.place(row, at), column + lane, LANES);
                        (Lane::load(to) + value).store(to);
                    }
                });
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
            let mut half = [[Lane::default(); N]; 3];
            for filter in 0..filters {
                for lane in (0..width).step_by(LANES) {
                    let from = &from[filter * width + lane..];
                    let load = |row, at| Lane::load(&from[(row * N + at) * plane..]);
                    let store = |row, at, value: Lane| {
                        value.store(to.part(filter * 9 + row * 3 + at, column + lane, LANES));
                    };
                    both_sides(&mut half, load, F::g_t, store);
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
    /// Whether all of a window of `size` x `size` is within the map.
    #[inline(always)]
    fn is_whole(self, size: usize) -> bool {
        self.top + self.left == 0 && self.bottom.min(self.right) == size
    }

    #[inline(always)]
    fn contains(self, row: usize, column: usize) -> bool {
        (self.top..self.bottom).contains(&row) && (self.left..self.right).contains(&column)
    }

    /// Where a pixel that the window contains lies in the batch.
    #[inline(always)]
    fn place(self, row: usize, column: usize) -> usize {
        self.pixel + (row - self.top) * self.width + column - self.left
    }

    /// Some channels of a pixel that the window contains.
    #[inline(always)]
    fn load(self, from: &[f32], channels: usize, channel: usize, row: usize, column: usize) -> Lane {
        Lane::load(&from[self.place(row, column) * channels + channel..])
    }

    /// Some channels of a pixel; what is outside of the map is zero.
    #[inline(always)]
    fn load_or_zero(self, from: &[f32], channels: usize, channel: usize, row: usize, column: usize) -> Lane {
        if self.contains(row, column) { self.load(from, channels, channel, row, column) } else { Lane::default() }
    }
}
