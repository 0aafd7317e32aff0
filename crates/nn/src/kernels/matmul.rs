//! Matrix products: the inner loop of nearly everything.
//!
//! As in Goto and van de Geijn, "Anatomy of high-performance matrix multiplication" (ACM TOMS 2008): a tile of the
//! output stays in registers while the product runs along the inner dimension. Its right operand comes from a *panel*,
//! a few columns of the right matrix laid out one row after the other, which stays in the first-level cache while the
//! rows of the left matrix go by. Who makes a right operand anyway lays it out in panels at once, and nothing is
//! copied; otherwise [`super::pack`] does it.
//!
//! How an element is rounded depends neither on the tile that it is computed in nor on the number of lanes: its products are
//! added up in the order of the inner dimension, from zero in each block of [`DEPTH`], and the blocks' sums in their order.

#[cfg(target_arch = "aarch64")]
use ringstep_cpu::simd::Neon;
#[cfg(target_arch = "x86_64")]
use ringstep_cpu::simd::{Avx2, Avx512};
use ringstep_cpu::simd::{Portable, prefetch};
use ringstep_cpu::{Level, Simd, Vector};

use super::matrix::{Matrix, MatrixMut};
use super::pack::{PANEL, Panels};
use super::{end, unrolled};

/// What happens to the numbers that are in the output already.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// The product replaces them.
    Overwrite,
    /// It is added to them.
    Accumulate,
}

/// Rows of a panel in a block: half of a first-level cache.
const DEPTH: usize = 256;
/// Rows of a block: so much of the left matrix stays in the second-level cache.
const ROWS: usize = 120;

/// How far apart rows of so many numbers should lie, so that the same column of many rows finds room in the cache: an odd
/// number of its lines.
pub fn padded_stride(columns: usize) -> usize {
    columns.next_multiple_of(32) + 16
}

/// `out = left * right` or `out += left * right`.
///
/// A transposed `left` is read across its rows; if these lie a power of two apart they fall on the same lines of the
/// cache, so a large one is better laid out with some room between its rows ([`padded_stride`]).
#[allow(unsafe_code)]
pub fn product(level: Level, out: MatrixMut<'_>, store: Store, left: Matrix<'_>, right: Panels<'_>) {
    assert_eq!(left.columns, right.rows, "inner dimensions of a matrix product");
    assert_eq!((out.rows, out.columns), (left.rows, right.columns), "size of a matrix product");
    let strides = [(left.rows, left.row_stride), (left.columns, left.column_stride)];
    assert!(
        left.rows == 0 || left.columns == 0 || end(&strides, 1) <= left.data.len(),
        "a matrix larger than its numbers"
    );
    // SAFETY: the level proves that the machine has the instructions; `blocks` stays within the matrices.
    match level {
        Level::Portable(simd) => blocks(out, store, left, right, PORTABLE.len(), |tall, tile| unsafe {
            PORTABLE[tall - 1](simd, tile);
        }),
        #[cfg(target_arch = "x86_64")]
        Level::Avx2(simd) => blocks(out, store, left, right, AVX2.len(), |tall, tile| unsafe {
            AVX2[tall - 1](simd, tile);
        }),
        #[cfg(target_arch = "x86_64")]
        Level::Avx512(simd) => blocks(out, store, left, right, AVX512.len(), |tall, tile| unsafe {
            AVX512[tall - 1](simd, tile);
        }),
        #[cfg(target_arch = "aarch64")]
        Level::Neon(simd) => blocks(out, store, left, right, NEON.len(), |tall, tile| unsafe {
            NEON[tall - 1](simd, tile);
        }),
    }
}

/// Ranges of `0..length`, as few as there can be with at most `most` in each, and as equal as they can be.
pub(crate) fn evenly(length: usize, most: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let count = length.div_ceil(most);
    (0..count).map(move |index| length * index / count..length * (index + 1) / count)
}

/// Calls `compute` for every tile of the output, of at most `tallest` rows each.
#[inline(always)]
#[allow(unsafe_code)]
fn blocks(
    mut out: MatrixMut<'_>,
    store: Store,
    left: Matrix<'_>,
    right: Panels<'_>,
    tallest: usize,
    compute: impl Fn(usize, Microtile),
) {
    if left.columns == 0 && store == Store::Overwrite {
        for row in 0..out.rows {
            out.part(row, 0, out.columns).fill(0.0);
        }
    }
    for inner in (0..left.columns).step_by(DEPTH) {
        let depth = DEPTH.min(left.columns - inner);
        let store = if inner == 0 { store } else { Store::Accumulate };
        for block in evenly(left.rows, ROWS) {
            for (index, panel) in right.data.chunks_exact(right.panel_rows * PANEL).enumerate() {
                let first = right.first_row + inner;
                let panel = panel[first * PANEL..(first + depth) * PANEL].as_ptr();
                let column = index * PANEL;
                let columns = PANEL.min(right.columns - column);
                for rows in evenly(block.len(), tallest) {
                    let row = block.start + rows.start;
                    let first = row * left.row_stride + inner * left.column_stride;
                    // SAFETY: a tile's first row and column are within both matrices, by their sizes.
                    let (left_start, out_start) =
                        unsafe { (left.data.as_ptr().add(first), out.start.add(row * out.row_stride + column)) };
                    compute(
                        rows.len(),
                        Microtile {
                            left: left_start,
                            row_stride: left.row_stride,
                            column_stride: left.column_stride,
                            panel,
                            depth,
                            out: out_start,
                            out_stride: out.row_stride,
                            columns,
                            store,
                        },
                    );
                }
            }
        }
    }
}

/// A part of the output that is computed in registers: the products of some rows of the left operand with a panel.
#[derive(Clone, Copy)]
struct Microtile {
    /// The first row's first number, and how far apart rows, and numbers of a row, lie.
    left: *const f32,
    row_stride: usize,
    column_stride: usize,
    /// depth,PANEL
    panel: *const f32,
    depth: usize,
    /// The first row's first number, and how far apart rows lie.
    out: *mut f32,
    out_stride: usize,
    /// Columns that are stored.
    columns: usize,
    store: Store,
}

/// Rows of a panel that are asked for ahead.
const AHEAD: usize = 96;

/// Rows of a tile that share a pointer, and the most pointers.
const GROUP: usize = 3;
const GROUPS: usize = 8;

/// # Safety
/// `TALL` rows of `depth` numbers, `depth` rows of the panel and `TALL` rows of `columns` outputs are there.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn tile<S: Simd, const TALL: usize>(simd: S, at: Microtile) {
    // SAFETY: the caller's promise.
    unsafe {
        match PANEL / S::LANES {
            1 => tile_of_vectors::<S, TALL, 1>(simd, at),
            2 => tile_of_vectors::<S, TALL, 2>(simd, at),
            _ => tile_of_vectors::<S, TALL, 4>(simd, at),
        }
    }
}

#[inline(always)]
#[allow(unsafe_code)]
unsafe fn tile_of_vectors<S: Simd, const TALL: usize, const WIDE: usize>(simd: S, at: Microtile) {
    // SAFETY: the caller's promise.
    unsafe {
        if at.store == Store::Accumulate {
            // What will be added to may have left the cache long ago.
            for row in 0..TALL {
                prefetch(at.out.add(row * at.out_stride));
            }
        }
        let mut sums = [[simd.zero(); WIDE]; TALL];
        // A pointer for each three rows: the others are a multiple of the stride away that an address can have in it.
        let mut lefts = [at.left; GROUPS];
        for group in 0..GROUPS {
            lefts[group] = at.left.wrapping_add(group * GROUP * at.row_stride);
        }
        let mut panel = at.panel;
        for _ in 0..at.depth {
            // A panel that few rows use comes from memory, whose own guesses end with each page.
            prefetch(panel.wrapping_add(AHEAD * PANEL));
            let mut right = [simd.zero(); WIDE];
            for column in 0..WIDE {
                right[column] = simd.load(panel.add(column * S::LANES));
            }
            unrolled!(row < TALL, {
                let left = simd.splat(*lefts[row / GROUP].add(row % GROUP * at.row_stride));
                for column in 0..WIDE {
                    sums[row][column] = left.multiply_add(right[column], sums[row][column]);
                }
            });
            for left in &mut lefts {
                *left = left.wrapping_add(at.column_stride);
            }
            panel = panel.wrapping_add(PANEL);
        }
        unrolled!(row < TALL, {
            for column in 0..WIDE {
                let first = column * S::LANES;
                let out = at.out.wrapping_add(row * at.out_stride + first);
                if first + S::LANES <= at.columns {
                    let sum = match at.store {
                        Store::Overwrite => sums[row][column],
                        Store::Accumulate => simd.load(out) + sums[row][column],
                    };
                    simd.store(out, sum);
                } else if first < at.columns {
                    let count = at.columns - first;
                    let sum = match at.store {
                        Store::Overwrite => sums[row][column],
                        Store::Accumulate => simd.load_some(out, count) + sums[row][column],
                    };
                    simd.store_some(out, count, sum);
                }
            }
        });
    }
}

/// A tile for each height, up to those that fill the registers: `HEIGHT * PANEL / LANES` of them hold sums, and some must be
/// left for the operands. Each is a function of its own, whose name tells its height to whoever reads the machine code.
macro_rules! tiles {
    ($attributes:tt $TILES:ident: [$set:ty; $count:literal] = $($name:ident: $height:literal),+) => {
        $(tiles!(@one $attributes $name $set, $height);)+

        static $TILES: [unsafe fn($set, Microtile); $count] = [$($name),+];
    };
    (@one [$(#[$attribute:meta])*] $name:ident $set:ty, $height:literal) => {
        $(#[$attribute])*
        #[inline(never)]
        #[allow(unsafe_code)]
        unsafe fn $name(simd: $set, at: Microtile) {
            // SAFETY: the caller's promise.
            unsafe { tile::<_, $height>(simd, at) }
        }
    };
}
tiles!([] PORTABLE: [Portable; 2] = portable_1: 1, portable_2: 2);
#[cfg(target_arch = "x86_64")]
tiles!([#[target_feature(enable = "avx2,fma")]] AVX2: [Avx2; 6] =
    avx2_1: 1, avx2_2: 2, avx2_3: 3, avx2_4: 4, avx2_5: 5, avx2_6: 6);
#[cfg(target_arch = "x86_64")]
tiles!([#[target_feature(enable = "avx2,fma,avx512f,avx512vl,avx512bw,avx512dq")]] AVX512: [Avx512; 24] =
    avx512_1: 1, avx512_2: 2, avx512_3: 3, avx512_4: 4, avx512_5: 5, avx512_6: 6, avx512_7: 7, avx512_8: 8,
    avx512_9: 9, avx512_10: 10, avx512_11: 11, avx512_12: 12, avx512_13: 13, avx512_14: 14, avx512_15: 15,
    avx512_16: 16, avx512_17: 17, avx512_18: 18, avx512_19: 19, avx512_20: 20, avx512_21: 21, avx512_22: 22,
    avx512_23: 23, avx512_24: 24);
#[cfg(target_arch = "aarch64")]
tiles!([] NEON: [Neon; 6] = neon_1: 1, neon_2: 2, neon_3: 3, neon_4: 4, neon_5: 5, neon_6: 6);

#[cfg(test)]
mod tests {
    use super::super::pack::{pack, panels_len};
    use super::*;
    use crate::team::Team;

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

    const SIZES: [(usize, usize, usize); 12] = [
        (1, 1, 1),
        (3, 5, 2),
        (17, 1, 9),
        (40, 25, 6),
        (6, 300, 25),
        (25, 80, 40),
        (200, 520, 33),
        (100, 9, 64),
        (24, 16, 16),
        (121, 257, 17),
        (0, 3, 2),
        (2, 0, 3),
    ];

    #[test]
    fn products_agree_with_the_definition_in_every_orientation() {
        for level in Level::available() {
            let mut team = Team::new(2, level);
            for (m, k, n) in SIZES {
                let (left, right) = (integers(m * k), integers(k * n));
                let expected = reference(m, k, n, &left, &right);
                let (left_t, right_t) = (transpose(&left, m, k), transpose(&right, k, n));
                let lefts = [Matrix::new(&left, m, k), Matrix::new(&left_t, k, m).transposed()];
                let rights = [Matrix::new(&right, k, n), Matrix::new(&right_t, n, k).transposed()];
                let mut panels = vec![f32::NAN; panels_len(k, n)];
                for left in lefts {
                    for right in rights {
                        // Rows apart: what is between them stays.
                        let mut out = vec![7.0; m * (n + 2)];
                        let packed = pack(&mut team, &mut panels, right);
                        product(level, MatrixMut::strided(&mut out, m, n, n + 2), Store::Overwrite, left, packed);
                        product(level, MatrixMut::strided(&mut out, m, n, n + 2), Store::Accumulate, left, packed);
                        for (out, expected) in out.chunks_exact(n + 2).zip(expected.chunks_exact(n)) {
                            let doubled = out.iter().zip(expected).all(|(out, expected)| *out == 2.0 * expected);
                            assert!(doubled, "{level}: {m} {k} {n}");
                            assert_eq!(out[n..], [7.0; 2], "{level}");
                        }
                    }
                }
            }
        }
    }

    /// With instructions that round a multiply-add once, no element depends on the level.
    #[test]
    fn levels_with_fused_instructions_agree_to_the_bit() {
        let found = |level: Level, (m, k, n): (usize, usize, usize)| {
            let noise = |length: usize, seed: u32| crate::layers::check::noise(length, seed);
            let (left, right) = (noise(m * k, 1), noise(k * n, 2));
            let (mut panels, mut out) = (vec![0.0; panels_len(k, n)], noise(m * n, 3));
            let packed = pack(&mut Team::new(1, level), &mut panels, Matrix::new(&right, k, n));
            product(level, MatrixMut::new(&mut out, m, n), Store::Accumulate, Matrix::new(&left, m, k), packed);
            out.iter().map(|number| number.to_bits()).collect::<Vec<_>>()
        };
        let fused: Vec<Level> = Level::available().split_off(1);
        for size in SIZES {
            assert!(fused.iter().all(|&level| found(level, size) == found(fused[0], size)), "{size:?}");
        }
    }

    #[test]
    fn parts_are_equal_and_none_is_too_large() {
        for (length, most) in [(0, 3), (1, 3), (7, 3), (128, 24), (120, 120)] {
            let parts: Vec<_> = evenly(length, most).collect();
            assert_eq!(parts.iter().map(std::ops::Range::len).sum::<usize>(), length);
            let (least, largest) =
                (parts.iter().map(ExactSizeIterator::len).min(), parts.iter().map(ExactSizeIterator::len).max());
            assert!(largest <= Some(most) && largest.unwrap_or(0) - least.unwrap_or(0) <= 1);
        }
    }
}
