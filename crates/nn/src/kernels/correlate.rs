//! Products with rows that are views of an image: a convolution without laying out its windows.
//!
//! In a planar image (each channel a plane of its own), what a filter's weight meets at neighbouring positions are
//! neighbouring pixels. So the right operand of the product need not be made: its rows are there, at an offset for each
//! weight.

use ringstep_cpu::{Level, Simd, Vector as _, kernels};

use super::end;
use super::planes::from_planes;

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

/// The most positions that are handled at once; planes need so many numbers of room after their end.
pub const REACH: usize = 32;

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
    rows.next_multiple_of(TALL) * (positions + REACH)
}

/// For each position of the grid and each row of weights the sum of `weight[k] * planes[offsets[k] + position]`, plus the
/// row's bias. // height,width,rows
///
/// `room` is for the same in planes, as it comes out of the vectors.
#[allow(clippy::too_many_arguments)]
pub fn correlate(
    level: Level,
    out: &mut [f32],
    weights: Weights<'_>,
    bias: Option<&[f32]>,
    offsets: &[usize],
    planes: &[f32],
    grid: Grid,
    room: &mut [f32],
) {
    assert_eq!(out.len(), grid.height * grid.width * weights.rows);
    correlate_planes(level, room, weights, bias, offsets, planes, grid);
    from_planes(level.at_most_eight_lanes(), out, weights.rows, room, grid.height * grid.width + REACH);
}

/// Rows of weights in a tile, and vectors of positions.
const TALL: usize = 6;
const WIDE: usize = 2;

kernels! {
    /// All positions, tile by tile. What a tile writes after the end of a line is overwritten by the next line.
    /// // rows,positions
    pub fn correlate_planes<S>(
        simd: S,
        out: &mut [f32],
        weights: Weights<'_>,
        bias: Option<&[f32]>,
        offsets: &[usize],
        planes: &[f32],
        grid: Grid,
    ) {
        let strides = [(weights.rows, weights.row_stride), (offsets.len(), weights.step)];
        assert!(end(&strides, 1) <= weights.data.len(), "more rows than weights");
        let furthest = [(2, offsets.iter().max().copied().unwrap_or(0)), (grid.height, grid.pitch), (2, grid.width)];
        assert!(end(&furthest, REACH) <= planes.len(), "planes without room after their end");
        assert!(WIDE * S::LANES <= REACH);
        let plane = grid.height * grid.width + REACH;
        assert!(out.len() >= correlate_room(weights.rows, grid.height * grid.width));
        for top in (0..weights.rows).step_by(TALL) {
            // Rows beyond the last are the last again; nobody reads their results.
            let mut rows = [Row { weights: weights.data.as_ptr(), bias: 0.0, out: out.as_mut_ptr() }; TALL];
            for (at, row) in rows.iter_mut().enumerate() {
                let index = (top + at).min(weights.rows - 1);
                row.weights = weights.data[index * weights.row_stride..].as_ptr();
                row.bias = bias.map_or(0.0, |bias| bias[index]);
                row.out = out[(top + at) * plane..].as_mut_ptr();
            }
            for y in 0..grid.height {
                for x in (0..grid.width).step_by(WIDE * S::LANES) {
                    let planes = planes[y * grid.pitch + x..].as_ptr();
                    let at = y * grid.width + x;
                    // SAFETY: every row has as many weights as there are offsets, and every offset so many positions, by the
                    // assertions above; as many sums have room after the last position.
                    unsafe {
                        if grid.width - x > S::LANES {
                            tile::<S, WIDE>(simd, &rows, weights.step, offsets, planes, at);
                        } else {
                            tile::<S, 1>(simd, &rows, weights.step, offsets, planes, at);
                        }
                    }
                }
            }
        }
    }
}

/// A row of weights: where it begins, its bias, and where its sums go.
#[derive(Clone, Copy)]
struct Row {
    weights: *const f32,
    bias: f32,
    out: *mut f32,
}

/// # Safety
/// Every row has as many weights as there are offsets and room for the sums, and every offset so many positions.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn tile<S: Simd, const WIDE: usize>(
    simd: S,
    rows: &[Row; TALL],
    step: usize,
    offsets: &[usize],
    planes: *const f32,
    to: usize,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[simd.zero(); WIDE]; TALL];
        let mut starts = [planes; TALL];
        for row in 0..TALL {
            sums[row] = [simd.splat(rows[row].bias); WIDE];
            starts[row] = rows[row].weights;
        }
        let mut at = 0;
        for &offset in offsets {
            let mut right = [simd.zero(); WIDE];
            for column in 0..WIDE {
                right[column] = simd.load(planes.add(offset + column * S::LANES));
            }
            for row in 0..TALL {
                let weight = simd.splat(*starts[row].add(at));
                for column in 0..WIDE {
                    sums[row][column] = weight.multiply_add(right[column], sums[row][column]);
                }
            }
            at += step;
        }
        for row in 0..TALL {
            for column in 0..WIDE {
                simd.store(rows[row].out.add(to + column * S::LANES), sums[row][column]);
            }
        }
    }
}

/// Partial sums of a product in [`dots`], on every machine: number i of a line goes to the one of i modulo this.
const PARTS: usize = 16;

/// Sums that are not yet added up: some parts for each row and each offset.
pub fn parts_len(rows: usize, offsets: usize) -> usize {
    rows * offsets * PARTS
}

/// Adds up the parts: `sums[row][offset] += ...`.
pub fn add_up(parts: &[f32], sums: &mut [f32]) {
    for (sum, parts) in sums.iter_mut().zip(parts.as_chunks::<PARTS>().0) {
        *sum += parts.iter().sum::<f32>();
    }
}

kernels! {
    /// Adds to the parts of each row of `lines`, which is `length` long, and of each offset the products with the numbers of
    /// `planes` from the offset on. Adding up the parts is left to [`add_up`], once after many images.
    pub fn dots<S>(simd: S, lines: &[f32], length: usize, offsets: &[usize], planes: &[f32], parts: &mut [f32]) {
        let dots = Dots { lines, length, offsets, planes };
        assert!(length.is_multiple_of(PARTS) && offsets.iter().all(|&offset| end(&[(2, offset)], length) <= planes.len()));
        assert!(parts.len() >= parts_len(lines.len() / length, offsets.len()));
        // As many sums as there are registers for, and nothing left over of filters of 5 x 5.
        if S::REGISTERS < 32 {
            dots.in_tiles::<S, 2, 5>(simd, parts);
        } else {
            dots.in_tiles::<S, 3, 5>(simd, parts);
        }
    }
}

/// The operands of [`dots`].
#[derive(Clone, Copy)]
struct Dots<'a> {
    lines: &'a [f32],
    length: usize,
    offsets: &'a [usize],
    planes: &'a [f32],
}

impl Dots<'_> {
    #[inline(always)]
    #[allow(unsafe_code)]
    fn in_tiles<S: Simd, const ROWS: usize, const VIEWS: usize>(self, simd: S, parts: &mut [f32]) {
        let (rows, views) = (self.lines.len() / self.length, self.offsets.len());
        for first in (0..rows).step_by(ROWS) {
            for group in (0..views).step_by(VIEWS) {
                // What is missing in the last group is the last again.
                let mut left = [self.lines.as_ptr(); ROWS];
                let mut right = [self.planes.as_ptr(); VIEWS];
                let mut sums = [[parts.as_mut_ptr(); VIEWS]; ROWS];
                for view in 0..VIEWS {
                    right[view] = self.planes[self.offsets[(group + view).min(views - 1)]..].as_ptr();
                }
                for row in 0..ROWS {
                    let index = (first + row).min(rows - 1);
                    left[row] = self.lines[index * self.length..].as_ptr();
                    for view in 0..VIEWS {
                        sums[row][view] = parts[(index * views + (group + view).min(views - 1)) * PARTS..].as_mut_ptr();
                    }
                }
                // Where a vector holds not all of them, some parts are added up after the others.
                for part in (0..PARTS).step_by(S::LANES) {
                    // SAFETY: all lines and views are `length` long, and each sum has its parts.
                    unsafe { dot_tile(simd, left, right, self.length, part, sums) };
                }
            }
        }
    }
}

/// # Safety
/// All lines are `length` long, a multiple of [`PARTS`], which each sum has.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn dot_tile<S: Simd, const ROWS: usize, const VIEWS: usize>(
    simd: S,
    left: [*const f32; ROWS],
    right: [*const f32; VIEWS],
    length: usize,
    part: usize,
    to: [[*mut f32; VIEWS]; ROWS],
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[simd.zero(); VIEWS]; ROWS];
        for row in 0..ROWS {
            for view in 0..VIEWS {
                sums[row][view] = simd.load(to[row][view].add(part));
            }
        }
        let mut at = part;
        while at < length {
            let mut lefts = [simd.zero(); ROWS];
            for row in 0..ROWS {
                lefts[row] = simd.load(left[row].add(at));
            }
            for view in 0..VIEWS {
                let right = simd.load(right[view].add(at));
                for row in 0..ROWS {
                    sums[row][view] = lefts[row].multiply_add(right, sums[row][view]);
                }
            }
            at += PARTS;
        }
        for row in 0..ROWS {
            for view in 0..VIEWS {
                simd.store(to[row][view].add(part), sums[row][view]);
            }
        }
    }
}

/// `length` rounded up so that [`dots`] can take it.
pub fn whole_parts(length: usize) -> usize {
    length.next_multiple_of(PARTS)
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::Level;

    use super::*;

    #[test]
    fn correlations_and_dots_agree_with_their_definitions() {
        // Small integers: every order of adding them is exact.
        let numbers: Vec<f32> = (0..2000).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
        let cases = [(1, 1), (6, 16), (7, 33), (16, 28), (3, 40)];
        for (level, (rows, count)) in Level::available().into_iter().flat_map(|level| cases.map(|case| (level, case))) {
            let offsets = [0, 5, 3, 77, 40, 41, 9];
            let weights = Weights { data: &numbers, rows, row_stride: 2, step: 19 };
            let grid = Grid { height: 3, width: count, pitch: 50 };
            let mut out = vec![f32::NAN; 3 * count * rows];
            let mut room = vec![f32::NAN; correlate_room(rows, 3 * count)];
            correlate(level, &mut out, weights, Some(&numbers[..rows]), &offsets, &numbers, grid, &mut room);
            for (at, &sum) in out.iter().enumerate() {
                let (position, row) = (at / rows / count * 50 + at / rows % count, at % rows);
                let products = offsets
                    .iter()
                    .enumerate()
                    .map(|(k, offset)| numbers[row * 2 + k * 19] * numbers[offset + position]);
                assert_eq!(sum, numbers[row] + products.sum::<f32>());
            }

            let length = whole_parts(count);
            let mut parts = vec![0.0; parts_len(rows, offsets.len())];
            dots(level, &numbers[..rows * length], length, &offsets, &numbers, &mut parts);
            let mut sums = vec![1.0; rows * offsets.len()];
            add_up(&parts, &mut sums);
            for (at, sum) in sums.iter().enumerate() {
                let (row, offset) = (at / offsets.len(), offsets[at % offsets.len()]);
                let expected: f32 = (0..length).map(|i| numbers[row * length + i] * numbers[offset + i]).sum();
                assert_eq!(*sum, 1.0 + expected);
            }
        }
    }
}
