//! Matrix products: the inner loop of nearly everything.
//!
//! As in Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (ACM TOMS 2008): a tile of the
//! output stays in registers while the product runs along the inner dimension. Its right operand comes from a *panel*,
//! a few columns of the right matrix laid out one row after the other, which stays in the first-level cache while the
//! rows of the left matrix go by. Who makes a right operand anyway lays it out in panels at once, and nothing is
//! copied; otherwise [`pack`] does it.

use std::marker::PhantomData;
use std::ops::Range;

use super::simd::{Level, PORTABLE_FUSED, multiply_add, prefetch};
use super::transpose::transpose_into;
use crate::team::{Parts, Team, Units};

/// A view of a slice as a matrix.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row after row.
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// Rows that begin `stride` numbers apart; the slice may be longer.
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        assert!(columns <= stride, "rows overlap");
        assert!(rows == 0 || (rows - 1) * stride + columns <= data.len(), "a matrix larger than its numbers");
        Self { data, rows, columns, row_stride: stride, column_stride: 1 }
    }

    /// The same numbers with rows and columns exchanged; nothing moves.
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// A view of a slice as a matrix that one can write to. Matrices with other columns of the same rows can exist beside
/// it, in other threads too.
#[derive(Debug)]
pub struct MatrixMut<'a> {
    start: *mut f32,
    rows: usize,
    columns: usize,
    row_stride: usize,
    slice: PhantomData<&'a mut [f32]>,
}

// SAFETY: it stands for the exclusive borrow of its elements.
#[allow(unsafe_code)]
unsafe impl Send for MatrixMut<'_> {}
// SAFETY: a shared one gives no access but by `ByColumns`, whose parts do not overlap.
#[allow(unsafe_code)]
unsafe impl Sync for MatrixMut<'_> {}

impl<'a> MatrixMut<'a> {
    /// Row after row.
    pub fn new(data: &'a mut [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// Rows that begin `stride` numbers apart.
    pub fn strided(data: &'a mut [f32], rows: usize, columns: usize, stride: usize) -> Self {
        assert!(columns <= stride, "rows overlap");
        assert!(rows == 0 || (rows - 1) * stride + columns <= data.len(), "a matrix larger than its numbers");
        Self { start: data.as_mut_ptr(), rows, columns, row_stride: stride, slice: PhantomData }
    }

    /// The same for a shorter time.
    pub fn reborrow(&mut self) -> MatrixMut<'_> {
        MatrixMut { slice: PhantomData, ..*self }
    }

    /// Some columns of a row.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub fn part(&mut self, row: usize, column: usize, length: usize) -> &mut [f32] {
        assert!(row < self.rows && column + length <= self.columns);
        // SAFETY: within the slice by the assertions here and in `strided`, and this matrix's alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.row_stride + column), length) }
    }

    /// Some columns of some rows.
    #[inline(always)]
    #[allow(unsafe_code)]
    fn tile<const TALL: usize, const WIDE: usize>(&mut self, row: usize, column: usize) -> [&mut [f32; WIDE]; TALL] {
        assert!(row + TALL <= self.rows && column + WIDE <= self.columns);
        // SAFETY: as above; rows do not overlap.
        std::array::from_fn(|at| unsafe { &mut *self.start.add((row + at) * self.row_stride + column).cast() })
    }
}

/// Deals a matrix out by columns.
pub struct ByColumns<'a> {
    matrix: MatrixMut<'a>,
    unit: usize,
}

impl<'a> ByColumns<'a> {
    /// `unit` columns a unit; the last may have fewer.
    pub fn new(matrix: MatrixMut<'a>, unit: usize) -> Self {
        Self { matrix, unit }
    }
}

#[allow(unsafe_code)]
impl<'a> Parts for ByColumns<'a> {
    type Part = MatrixMut<'a>;

    fn check(&self, units: usize, _: usize) {
        assert_eq!(units, self.matrix.columns.div_ceil(self.unit), "units of columns");
    }

    unsafe fn part(&self, _: usize, range: Range<usize>) -> MatrixMut<'a> {
        let [first, end] = [range.start, range.end].map(|unit| (unit * self.unit).min(self.matrix.columns));
        let MatrixMut { start, rows, row_stride, .. } = self.matrix;
        MatrixMut { start: start.wrapping_add(first), rows, columns: end - first, row_stride, slice: PhantomData }
    }
}

/// The right operand of a product, in panels.
#[derive(Debug, Clone, Copy)]
pub struct Panels<'a> {
    data: &'a [f32], // ceil(columns / panel_width), rows, panel_width
    rows: usize,
    columns: usize,
}

impl<'a> Panels<'a> {
    /// Panels that lie in a slice already.
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self { data: &data[..panels_len(rows, columns)], rows, columns }
    }
}

/// Columns of a panel on this machine.
pub fn panel_width() -> usize {
    match Level::of_this_machine() {
        Level::Portable => 8,
        Level::Avx2 => 16,
        Level::Avx512 => 32,
    }
}

/// Numbers in the panels of a matrix.
pub fn panels_len(rows: usize, columns: usize) -> usize {
    rows * columns.next_multiple_of(panel_width())
}

/// Lays a matrix out in panels, on all threads; what is missing in the last one is zero.
pub fn pack<'a>(team: &mut Team, panels: &'a mut [f32], matrix: Matrix<'_>) -> Panels<'a> {
    let width = panel_width();
    team.deal(matrix.columns.div_ceil(width), Units::new(panels, matrix.rows * width), |range, panels| match width {
        8 => pack_some::<8>(panels, matrix, range),
        16 => pack_some::<16>(panels, matrix, range),
        _ => pack_some::<32>(panels, matrix, range),
    });
    Panels::new(panels, matrix.rows, matrix.columns)
}

/// Lays out only these panels, at the beginning of `panels`.
fn pack_some<const WIDE: usize>(panels: &mut [f32], matrix: Matrix<'_>, range: Range<usize>) {
    let Matrix { data, rows, columns, row_stride, column_stride } = matrix;
    let mut panels = panels.as_chunks_mut::<WIDE>().0;
    for first in range.map(|index| index * WIDE) {
        let (panel, rest) = panels.split_at_mut(rows);
        panels = rest;
        let width = WIDE.min(columns - first);
        if column_stride != 1 {
            let from = data.get(first * column_stride..).unwrap_or_default();
            transpose_into(panel.as_flattened_mut(), WIDE, from, column_stride, width, rows);
        } else if width == WIDE {
            for (row, to) in panel.iter_mut().enumerate() {
                *to = *data[first + row * row_stride..].first_chunk().expect("a row of a panel");
            }
        } else {
            // Not `copy_from_slice`: the compiler would join it with the copy above, and call a function for both.
            for (row, to) in panel.iter_mut().enumerate() {
                for (to, from) in to.iter_mut().zip(&data[first + row * row_stride..][..width]) {
                    *to = *from;
                }
            }
        }
        if width < WIDE {
            panel.iter_mut().for_each(|row| row[width..].fill(0.0));
        }
    }
}

/// How far apart rows of so many numbers should lie, so that the same column of many rows finds room in the cache: an odd
/// number of its lines.
pub fn apart(columns: usize) -> usize {
    columns.next_multiple_of(32) + 16
}

/// What happens to the numbers that are in the output already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// The product replaces them.
    Set,
    /// It is added to them.
    Add,
}

/// Numbers of a panel in a block: half of a first-level cache.
const PANEL: usize = 4096;
/// Rows of a block: so much of the left matrix stays in the second-level cache.
const ROWS: usize = 96;

/// `out = left * right` or `out += left * right`.
///
/// A transposed `left` is read across its rows; if these lie a power of two apart they fall on the same lines of the
/// cache, so a large one is better laid out with some room between its rows ([`apart`]).
#[allow(unsafe_code)]
pub fn product(out: MatrixMut<'_>, mode: Mode, left: Matrix<'_>, right: Panels<'_>) {
    assert_eq!(left.columns, right.rows, "inner dimensions of a matrix product");
    assert_eq!((out.rows, out.columns), (left.rows, right.columns), "size of a matrix product");
    assert!(left.rows * left.columns == 0 || last_index(left) < left.data.len());
    match Level::of_this_machine() {
        // SAFETY: the machine has these instructions.
        #[cfg(target_arch = "x86_64")]
        Level::Avx512 => blocks(out, mode, left, right, |tile| unsafe { tile_avx512(tile) }),
        // SAFETY: the machine has these instructions.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 if tiles_cost(left.rows, 5) < tiles_cost(left.rows, 6) => {
            blocks(out, mode, left, right, |tile| unsafe { lower_tile_avx2(tile) })
        }
        // SAFETY: the machine has these instructions.
        #[cfg(target_arch = "x86_64")]
        Level::Avx2 => blocks(out, mode, left, right, |tile| unsafe { tile_avx2(tile) }),
        _ => blocks::<4, 8>(out, mode, left, right, |tile| tile.compute::<PORTABLE_FUSED>()),
    }
}

/// What so many rows take in tiles of this height, of which the last may have rows to spare: each tile costs about one
/// more row to begin and end.
fn tiles_cost(rows: usize, tall: usize) -> usize {
    rows.div_ceil(tall) * (tall + 1)
}

fn last_index(matrix: Matrix<'_>) -> usize {
    (matrix.rows - 1) * matrix.row_stride + (matrix.columns - 1) * matrix.column_stride
}

fn blocks<const TALL: usize, const WIDE: usize>(
    mut out: MatrixMut<'_>,
    mode: Mode,
    left: Matrix<'_>,
    right: Panels<'_>,
    compute: impl Fn(Tile<'_, TALL, WIDE>),
) {
    if left.columns == 0 && mode == Mode::Set {
        for row in 0..out.rows {
            out.part(row, 0, out.columns).fill(0.0);
        }
    }
    // For tiles that cannot be stored as they are; here, so that it is not cleared for each.
    let mut sums = [[0.0; WIDE]; TALL];
    let block_rows = ROWS / TALL * TALL;
    for inner in (0..left.columns).step_by(PANEL / WIDE) {
        let depth = (PANEL / WIDE).min(left.columns - inner);
        let mode = if inner == 0 { mode } else { Mode::Add };
        for top in (0..left.rows).step_by(block_rows) {
            let rows = block_rows.min(left.rows - top);
            let block = &left.data[top * left.row_stride + inner * left.column_stride..];
            for (index, panel) in right.data.chunks_exact(right.rows * WIDE).enumerate() {
                let panel = &panel[inner * WIDE..(inner + depth) * WIDE];
                let column = index * WIDE;
                let columns = WIDE.min(right.columns - column);
                for tile_top in (0..rows).step_by(TALL) {
                    let tall = TALL.min(rows - tile_top);
                    // Rows beyond the last are the last again; their results are not stored.
                    let starts = std::array::from_fn(|row| (tile_top + row.min(tall - 1)) * left.row_stride);
                    let row = top + tile_top;
                    if mode == Mode::Add {
                        // What will be added to may have left the cache long ago.
                        for row in row..row + tall {
                            prefetch(&out.part(row, column, columns)[0]);
                        }
                    }
                    let step = left.column_stride;
                    if mode == Mode::Set && (tall, columns) == (TALL, WIDE) {
                        compute(Tile { left: block, starts, step, panel, out: out.tile(row, column) });
                    } else {
                        compute(Tile { left: block, starts, step, panel, out: sums.each_mut() });
                        for (at, sums) in sums.iter().enumerate().take(tall) {
                            store(out.part(row + at, column, columns), mode, sums);
                        }
                    }
                }
            }
        }
    }
}

/// A part of the output that is computed in registers: the products of some rows of the left operand with a panel.
struct Tile<'a, const TALL: usize, const WIDE: usize> {
    left: &'a [f32],
    /// Where the rows begin in it.
    starts: [usize; TALL],
    /// How far apart the numbers of a row lie.
    step: usize,
    panel: &'a [f32],
    out: [&'a mut [f32; WIDE]; TALL],
}

// Tiles that fill the registers: 6 x 16 numbers in 12 of 16, 12 x 32 in 24 of 32. Not inlined: within the loops around
// it, the compiler no longer sees how to keep a tile in registers.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
#[inline(never)]
fn tile_avx2(tile: Tile<'_, 6, 16>) {
    tile.compute::<true>();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma")]
#[inline(never)]
fn lower_tile_avx2(tile: Tile<'_, 5, 16>) {
    tile.compute::<true>();
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2,fma,avx512f,avx512vl")]
#[inline(never)]
fn tile_avx512(tile: Tile<'_, 12, 32>) {
    tile.compute::<true>();
}

impl<const TALL: usize, const WIDE: usize> Tile<'_, TALL, WIDE> {
    #[inline(always)]
    #[allow(unsafe_code)]
    fn compute<const FUSED: bool>(self) {
        let Tile { left, starts, step, panel, out } = self;
        let depth = panel.len() / WIDE;
        assert!(depth > 0 && starts.iter().all(|start| start + (depth - 1) * step < left.len()));
        let mut sums = [[0.0; WIDE]; TALL];
        // SAFETY: every row has `depth` numbers, as asserted above.
        let starts: [*const f32; TALL] = starts.map(|start| unsafe { left.as_ptr().add(start) });
        let mut at = 0;
        for right in panel.chunks_exact(WIDE) {
            let right: &[f32; WIDE] = right.try_into().expect("a row of a panel");
            for row in 0..TALL {
                // SAFETY: `at` is at most (depth - 1) * step.
                let left = unsafe { *starts[row].add(at) };
                for column in 0..WIDE {
                    sums[row][column] = multiply_add::<FUSED>(left, right[column], sums[row][column]);
                }
            }
            at += step;
        }
        for row in 0..TALL {
            *out[row] = sums[row];
        }
    }
}

/// Stores, or adds, a row of a tile.
#[inline(always)]
fn store<const WIDE: usize>(out: &mut [f32], mode: Mode, sums: &[f32; WIDE]) {
    if let Ok(out) = <&mut [f32; WIDE]>::try_from(&mut *out)
        && mode == Mode::Add
    {
        for column in 0..WIDE {
            out[column] += sums[column];
        }
        return;
    }
    for (out, sum) in out.iter_mut().zip(sums) {
        *out = if mode == Mode::Set { *sum } else { *out + sum };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small integers: every order of adding them is exact.
    fn integers(length: usize) -> Vec<f32> {
        (0..length).map(|i| (i * 7 % 11) as f32 - 5.0).collect()
    }

    fn reference(rows: usize, inner: usize, columns: usize, left: &[f32], right: &[f32]) -> Vec<f32> {
        let element = |i: usize, j: usize| (0..inner).map(|k| left[i * inner + k] * right[k * columns + j]).sum();
        (0..rows * columns).map(|at| element(at / columns, at % columns)).collect()
    }

    fn transpose(data: &[f32], rows: usize, columns: usize) -> Vec<f32> {
        (0..rows * columns).map(|at| data[at % rows * columns + at / rows]).collect()
    }

    #[test]
    fn products_agree_with_the_definition_in_every_orientation() {
        let sizes = [
            (1, 1, 1),
            (3, 5, 2),
            (17, 1, 9),
            (40, 25, 6),
            (6, 300, 25),
            (25, 80, 40),
            (200, 520, 33),
            (100, 9, 64),
            (0, 3, 2),
            (2, 0, 3),
        ];
        for (m, k, n) in sizes {
            let (left, right) = (integers(m * k), integers(k * n));
            let expected = reference(m, k, n, &left, &right);
            let (left_t, right_t) = (transpose(&left, m, k), transpose(&right, k, n));
            let lefts = [Matrix::new(&left, m, k), Matrix::new(&left_t, k, m).transposed()];
            let rights = [Matrix::new(&right, k, n), Matrix::new(&right_t, n, k).transposed()];
            let mut panels = vec![f32::NAN; panels_len(k, n)];
            let mut team = Team::new(2);
            for left in lefts {
                for right in rights {
                    // Rows apart: what is between them stays.
                    let mut out = vec![7.0; m * (n + 2)];
                    let packed = pack(&mut team, &mut panels, right);
                    product(MatrixMut::strided(&mut out, m, n, n + 2), Mode::Set, left, packed);
                    product(MatrixMut::strided(&mut out, m, n, n + 2), Mode::Add, left, packed);
                    for (out, expected) in out.chunks_exact(n + 2).zip(expected.chunks_exact(n)) {
                        assert!(out.iter().zip(expected).all(|(out, expected)| *out == 2.0 * expected), "{m} {k} {n}");
                        assert_eq!(out[n..], [7.0; 2]);
                    }
                }
            }
        }
    }
}
