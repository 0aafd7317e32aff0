//! Products with rows that are views of an image: a convolution without laying out its windows.
//!
//! In a planar image (each channel a plane of its own), what a filter's weight meets at neighbouring positions are
//! neighbouring pixels. So the right operand of the product need not be made: its rows are there, at an offset for each
//! weight.

use super::planes::from_planes;
use super::simd::{Level, PORTABLE_FUSED, multiply_add, vectorised};

/// Some rows of weights: where they begin in a slice, and how far apart the weights of a row are.
#[derive(Debug, Clone, Copy)]
pub struct Weights<'a> {
    /// All of them.
    pub data: &'a [f32],
    /// How many rows.
    pub rows: usize,
    /// From one row to the next.
    pub row_stride: usize,
    /// From one weight of a row to the next.
    pub step: usize,
}

/// Positions that are handled at once; planes need so many numbers of room after their end.
pub fn reach() -> usize {
    match Level::of_this_machine() {
        Level::Portable => 8,
        Level::Avx2 => 16,
        Level::Avx512 => 32,
    }
}

/// The positions of an output map.
#[derive(Debug, Clone, Copy)]
pub struct Grid {
    /// Rows.
    pub height: usize,
    /// Positions of a row.
    pub width: usize,
    /// From one row to the next in the planes.
    pub pitch: usize,
}

/// Numbers of room that [`correlate`] takes for so many rows of weights and positions.
pub fn correlate_room(rows: usize, positions: usize) -> usize {
    rows.next_multiple_of(TALL) * (positions + reach())
}

/// For each position of the grid and each row of weights the sum of `weight[k] * planes[offsets[k] + position]`, plus the
/// row's bias. // height,width,rows
///
/// `room` is for the same in planes, as it comes out of the vectors.
#[allow(unsafe_code)]
pub fn correlate(
    out: &mut [f32],
    weights: Weights<'_>,
    bias: Option<&[f32]>,
    offsets: &[usize],
    planes: &[f32],
    grid: Grid,
    room: &mut [f32],
) {
    let last = (weights.rows - 1) * weights.row_stride + (offsets.len() - 1) * weights.step;
    assert!(last < weights.data.len(), "more rows than weights");
    let largest = offsets.iter().max().copied().unwrap_or(0) + (grid.height - 1) * grid.pitch;
    assert!(largest + grid.width.next_multiple_of(reach()) <= planes.len(), "planes without room after their end");
    assert_eq!(out.len(), grid.height * grid.width * weights.rows);
    let sums = &mut room[..correlate_room(weights.rows, grid.height * grid.width)];
    match Level::of_this_machine() {
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => tiles(sums, weights, bias, planes, grid, |starts, bias, planes, sums| {
            // SAFETY: the machine has these instructions; the bounds are asserted above.
            unsafe { tile_avx512(weights, starts, bias, offsets, planes, sums) }
        }),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => tiles(sums, weights, bias, planes, grid, |starts, bias, planes, sums| {
            // SAFETY: the machine has these instructions; the bounds are asserted above.
            unsafe { tile_avx2(weights, starts, bias, offsets, planes, sums) }
        }),
        _ => tiles(sums, weights, bias, planes, grid, |starts, bias, planes, sums| {
            // SAFETY: the bounds are asserted above.
            unsafe { tile::<8, PORTABLE_FUSED>(weights, starts, bias, offsets, planes, sums) }
        }),
    }
    from_planes(out, weights.rows, sums, grid.height * grid.width + reach());
}

/// Rows of weights in a tile.
const TALL: usize = 6;

/// All positions, tile by tile. What a tile writes after the end of a line is overwritten by the next line. // rows,positions
fn tiles<const WIDE: usize>(
    out: &mut [f32],
    weights: Weights<'_>,
    bias: Option<&[f32]>,
    planes: &[f32],
    grid: Grid,
    tile: impl Fn([usize; TALL], [f32; TALL], &[f32], [&mut [f32; WIDE]; TALL]),
) {
    let plane = grid.height * grid.width + reach();
    for (top, out) in (0..weights.rows).step_by(TALL).zip(out.chunks_exact_mut(TALL * plane)) {
        // Rows beyond the last are the last again; nobody reads their results.
        let row = |at: usize| (top + at).min(weights.rows - 1);
        let starts = std::array::from_fn(|at| row(at) * weights.row_stride);
        let bias = std::array::from_fn(|at| bias.map_or(0.0, |bias| bias[row(at)]));
        for y in 0..grid.height {
            for x in (0..grid.width).step_by(WIDE) {
                let mut sums = out.chunks_exact_mut(plane);
                let sums = std::array::from_fn(|_| {
                    let plane = sums.next().expect("a plane a row");
                    plane[y * grid.width + x..].first_chunk_mut().expect("room after the end")
                });
                tile(starts, bias, &planes[y * grid.pitch + x..], sums);
            }
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
#[inline(never)]
#[allow(unsafe_code)]
unsafe fn tile_avx2(
    weights: Weights<'_>,
    starts: [usize; TALL],
    bias: [f32; TALL],
    offsets: &[usize],
    planes: &[f32],
    sums: [&mut [f32; 16]; TALL],
) {
    // SAFETY: the caller's promise.
    unsafe { tile::<16, true>(weights, starts, bias, offsets, planes, sums) }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512vl")]
#[inline(never)]
#[allow(unsafe_code)]
unsafe fn tile_avx512(
    weights: Weights<'_>,
    starts: [usize; TALL],
    bias: [f32; TALL],
    offsets: &[usize],
    planes: &[f32],
    sums: [&mut [f32; 32]; TALL],
) {
    // SAFETY: the caller's promise.
    unsafe { tile::<32, true>(weights, starts, bias, offsets, planes, sums) }
}

/// # Safety
/// Every start has as many weights as there are offsets, and every offset `WIDE` numbers of the planes.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn tile<const WIDE: usize, const FUSED: bool>(
    weights: Weights<'_>,
    starts: [usize; TALL],
    bias: [f32; TALL],
    offsets: &[usize],
    planes: &[f32],
    sums: [&mut [f32; WIDE]; TALL],
) {
    let mut tile = [[0.0; WIDE]; TALL];
    for row in 0..TALL {
        tile[row] = [bias[row]; WIDE];
    }
    // SAFETY: the caller's promise.
    let starts: [*const f32; TALL] = starts.map(|start| unsafe { weights.data.as_ptr().add(start) });
    let mut at = 0;
    for &offset in offsets {
        // SAFETY: the caller's promise.
        let right: &[f32; WIDE] = unsafe { &*planes.as_ptr().add(offset).cast() };
        for row in 0..TALL {
            // SAFETY: the caller's promise.
            let weight = unsafe { *starts[row].add(at) };
            for column in 0..WIDE {
                tile[row][column] = multiply_add::<FUSED>(weight, right[column], tile[row][column]);
            }
        }
        at += weights.step;
    }
    for (sums, tile) in sums.into_iter().zip(tile) {
        *sums = tile;
    }
}

/// Numbers that are multiplied at once in [`dots`].
const LANES: usize = 8;
/// Rows and offsets that [`dots`] takes at once: ten sums stay in registers, and nothing is left over of filters of 5 x 5.
const ROWS: usize = 2;
const VIEWS: usize = 5;

/// Sums that are not yet added up: for each row and each group of offsets a few lanes.
pub fn lanes_len(rows: usize, offsets: usize) -> usize {
    rows.div_ceil(ROWS) * offsets.div_ceil(VIEWS) * size_of::<DotTile>() / size_of::<f32>()
}

/// Adds to the lanes of each row of `lines`, which is `length` long, and of each offset the products with the numbers of
/// `planes` from the offset on. Adding up the lanes is left to [`add_up`], once after many images.
pub fn dots(lines: &[f32], length: usize, offsets: &[usize], planes: &[f32], lanes: &mut [f32]) {
    let rows = lines.len() / length;
    let tiles = lanes.as_chunks_mut::<LANES>().0.as_chunks_mut::<VIEWS>().0.as_chunks_mut::<ROWS>().0;
    let mut tiles = tiles.iter_mut();
    for first in (0..rows).step_by(ROWS) {
        for views in offsets.chunks(VIEWS) {
            // What is missing in the last group is the last again, and not stored.
            let left = std::array::from_fn(|row| &lines[(first + row).min(rows - 1) * length..][..length]);
            let right = std::array::from_fn(|view| &planes[views[view.min(views.len() - 1)]..][..length]);
            add_products(left, right, tiles.next().expect("lanes for all sums"));
        }
    }
}

/// Adds up the lanes: `sums[row][offset] += ...`.
pub fn add_up(lanes: &[f32], rows: usize, offsets: usize, sums: &mut [f32]) {
    let tiles = lanes.as_chunks::<LANES>().0.as_chunks::<VIEWS>().0.as_chunks::<ROWS>().0;
    let groups = offsets.div_ceil(VIEWS);
    for (index, tile) in tiles.iter().enumerate().take(rows.div_ceil(ROWS) * groups) {
        let (first, group) = (index / groups * ROWS, index % groups * VIEWS);
        for (row, tile) in tile.iter().enumerate().take(rows - first) {
            for (view, lanes) in tile.iter().enumerate().take(offsets - group) {
                sums[(first + row) * offsets + group + view] += lanes.iter().sum::<f32>();
            }
        }
    }
}

type DotTile = [[[f32; LANES]; VIEWS]; ROWS];

vectorised! {
    #[inline(never)]
    fn add_products(left: [&[f32]; ROWS], right: [&[f32]; VIEWS], sums: &mut DotTile) {
        let length = left[0].len();
        assert!(length.is_multiple_of(LANES) && left.iter().chain(&right).all(|line| line.len() == length));
        // A copy of its own, so that it stays in registers.
        let mut tile = *sums;
        for start in (0..length).step_by(LANES) {
            for view in 0..VIEWS {
                // SAFETY: the assertion above.
                let right: &[f32; LANES] = unsafe { &*right[view].as_ptr().add(start).cast() };
                for row in 0..ROWS {
                    // SAFETY: the assertion above.
                    let left: &[f32; LANES] = unsafe { &*left[row].as_ptr().add(start).cast() };
                    for lane in 0..LANES {
                        tile[row][view][lane] = multiply_add::<FUSED>(left[lane], right[lane], tile[row][view][lane]);
                    }
                }
            }
        }
        *sums = tile;
    }
}

/// `length` rounded up so that [`dots`] can take it.
pub fn whole_lanes(length: usize) -> usize {
    length.next_multiple_of(LANES)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correlations_and_dots_agree_with_their_definitions() {
        // Small integers: every order of adding them is exact.
        let numbers: Vec<f32> = (0..2000).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
        for (rows, count) in [(1, 1), (6, 16), (7, 33), (16, 28), (3, 40)] {
            let offsets = [0, 5, 3, 77, 40, 41, 9];
            let weights = Weights { data: &numbers, rows, row_stride: 2, step: 19 };
            let grid = Grid { height: 3, width: count, pitch: 50 };
            let mut out = vec![f32::NAN; 3 * count * rows];
            let mut room = vec![f32::NAN; correlate_room(rows, 3 * count)];
            correlate(&mut out, weights, Some(&numbers[..rows]), &offsets, &numbers, grid, &mut room);
            for (at, &sum) in out.iter().enumerate() {
                let (position, row) = (at / rows / count * 50 + at / rows % count, at % rows);
                let products = offsets
                    .iter()
                    .enumerate()
                    .map(|(k, offset)| numbers[row * 2 + k * 19] * numbers[offset + position]);
                assert_eq!(sum, numbers[row] + products.sum::<f32>());
            }

            let length = whole_lanes(count);
            let mut lanes = vec![0.0; lanes_len(rows, offsets.len())];
            dots(&numbers[..rows * length], length, &offsets, &numbers, &mut lanes);
            let mut sums = vec![1.0; rows * offsets.len()];
            add_up(&lanes, rows, offsets.len(), &mut sums);
            for (at, sum) in sums.iter().enumerate() {
                let (row, offset) = (at / offsets.len(), offsets[at % offsets.len()]);
                let expected: f32 = (0..length).map(|i| numbers[row * length + i] * numbers[offset + i]).sum();
                assert_eq!(*sum, 1.0 + expected);
            }
        }
    }
}
