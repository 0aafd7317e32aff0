//! Products of bytes and of words: tiles of sums stay in registers while windows and filters go by.
//!
//! As in [`super::matmul`], but the inner dimension runs in steps of four bytes or two words.

use std::ops::Range;

use ringstep_cpu::dots;
use ringstep_cpu::dots::{DotLevel, Dots};

use super::matrix::MatrixMut;
use super::requantize::Requantize;
use super::{end, unrolled};
use crate::aligned::Aligned;

/// Bytes of the inner dimension that a sum takes at once.
pub const STEP: usize = 4;
/// Words that it takes at once.
pub const PAIR: usize = 2;

/// What the kernels want of a level.
#[derive(Debug, Clone, Copy)]
pub struct Sizes {
    /// Filters that a tile sums up at once.
    pub panel: usize,
    /// Windows of bytes.
    pub rows: usize,
    /// Windows of words.
    pub word_rows: usize,
    /// What is taken from every byte before it is multiplied.
    pub offset: i32,
    /// Whether multiplications of words are fast.
    pub fast_words: bool,
}

impl Sizes {
    /// Those of a level.
    pub fn of(level: DotLevel) -> Self {
        dots! {
            fn sizes<S>(_simd: S) -> Sizes {
                Sizes { panel: 2 * S::LANES, rows: S::ROWS, word_rows: S::WORD_ROWS, offset: S::OFFSET, fast_words: S::FAST_WORDS }
            }
        }
        sizes(level)
    }
}

/// Filters, and what becomes of their sums.
pub struct Filters {
    /// A panel of filters after the other. // PANELS,STEPS,PANEL,STEP
    pub(crate) weights: Aligned<i8>,
    /// Steps of the inner dimension.
    pub steps: usize,
    /// How sums become bytes.
    pub requantize: Requantize,
}

/// Windows, one after the other, that see the same part of the filters.
#[derive(Debug, Clone, Copy)]
pub struct Windows<'a> {
    /// What the filters see. // COUNT,stride
    pub bytes: &'a [u8],
    /// From one window to the next.
    pub stride: usize,
    /// The steps of the filters that the bytes of a window meet, in their order.
    pub steps: &'a [Range<usize>],
    /// What sums begin with, for every filter up to whole panels.
    pub start: &'a [i32],
}

/// Calls a tile of so many rows: a function that is generic over the instruction set and this number, which is at most
/// `$most` and twelve.
macro_rules! by_rows {
    ($tall:expr, $most:expr, $tile:ident::<$set:ident $(, $sides:literal)?>($($argument:expr),* $(,)?)) => {
        match $tall {
            1 => $tile::<$set, 1 $(, $sides)?>($($argument),*),
            2 => $tile::<$set, 2 $(, $sides)?>($($argument),*),
            3 if $most >= 3 => $tile::<$set, 3 $(, $sides)?>($($argument),*),
            4 if $most >= 4 => $tile::<$set, 4 $(, $sides)?>($($argument),*),
            5 if $most >= 5 => $tile::<$set, 5 $(, $sides)?>($($argument),*),
            6 if $most >= 6 => $tile::<$set, 6 $(, $sides)?>($($argument),*),
            7 if $most >= 7 => $tile::<$set, 7 $(, $sides)?>($($argument),*),
            8 if $most >= 8 => $tile::<$set, 8 $(, $sides)?>($($argument),*),
            9 if $most >= 9 => $tile::<$set, 9 $(, $sides)?>($($argument),*),
            10 if $most >= 10 => $tile::<$set, 10 $(, $sides)?>($($argument),*),
            11 if $most >= 11 => $tile::<$set, 11 $(, $sides)?>($($argument),*),
            12 if $most >= 12 => $tile::<$set, 12 $(, $sides)?>($($argument),*),
            _ => unreachable!("a tile that no registers hold"),
        }
    };
}

dots! {
    /// The bytes of some panels of filters. Number `i` of `rows` is the row of the output that windows `i` of all `parts` belong
    /// to: their largest sum becomes a byte, which is the largest byte, since factors are not negative. The output's columns
    /// begin with the first of these panels.
    pub fn dot_tiles<S>(simd: S, filters: &Filters, panels: Range<usize>, parts: &[Windows<'_>], rows: &[usize], output: MatrixMut<'_, u8>) {
        let mut output = output;
        let (panel_len, of_panel) = (2 * S::LANES, filters.steps * 2 * S::LANES * STEP);
        let [output_rows, columns, stride] = output.size();
        filters.requantize.check(panels.end * panel_len);
        assert!(filters.weights.len() >= panels.end * of_panel);
        assert!(!parts.is_empty() && rows.iter().all(|&row| row < output_rows));
        for part in parts {
            let steps: usize = part.steps.iter().map(|range| range.len()).sum();
            assert!(part.steps.iter().all(|range| range.end <= filters.steps) && part.start.len() >= panels.end * panel_len);
            assert!(part.bytes.len() >= end(&[(rows.len(), part.stride)], steps * STEP));
        }
        for (index, panel) in panels.enumerate() {
            let first = index * panel_len;
            assert!(first < columns);
            let wide = panel_len.min(columns - first);
            for (row, tall) in (0..rows.len()).step_by(S::ROWS).map(|row| (row, S::ROWS.min(rows.len() - row))) {
                // SAFETY: the assertions above: windows, weights and numbers of the panel are there, and `wide` bytes of each
                // row are within the output.
                unsafe {
                    let tile = Tile {
                        parts,
                        row,
                        weights: filters.weights.as_ptr().add(panel * of_panel),
                        filter: panel * panel_len,
                        rows: &rows[row..row + tall],
                        to: output.as_mut_ptr().add(first),
                        stride,
                        wide,
                    };
                    if wide > S::LANES {
                        by_rows!(tall, S::ROWS, byte_tile::<S, 2>(simd, &filters.requantize, tile));
                    } else {
                        by_rows!(tall, S::ROWS, byte_tile::<S, 1>(simd, &filters.requantize, tile));
                    }
                }
            }
        }
    }

    /// Sums of products of words, a panel of filters for each window. // COUNT,stride and STEPS,PANEL,PAIR to COUNT,PANEL
    pub fn word_tiles<S>(simd: S, windows: &[i16], stride: usize, weights: &[i16], sums: &mut [i32]) {
        let panel_len = 2 * S::LANES;
        let (steps, count) = (weights.len() / (panel_len * PAIR), sums.len() / panel_len);
        assert!(windows.len() >= end(&[(count, stride)], steps * PAIR));
        for (row, tall) in (0..count).step_by(S::WORD_ROWS).map(|row| (row, S::WORD_ROWS.min(count - row))) {
            // SAFETY: the assertion above; there are so many sums.
            unsafe {
                let (windows, to) = (windows.as_ptr().add(row * stride), sums.as_mut_ptr().add(row * panel_len));
                by_rows!(tall, S::WORD_ROWS, word_tile::<S>(simd, windows, stride, weights.as_ptr(), steps, to));
            }
        }
    }
}

/// Where a tile's numbers are.
struct Tile<'a> {
    parts: &'a [Windows<'a>],
    /// The first window of each part.
    row: usize,
    /// Of the panel.
    weights: *const i8,
    /// The panel's first.
    filter: usize,
    /// Where the bytes go, in the output's rows.
    rows: &'a [usize],
    to: *mut u8,
    stride: usize,
    wide: usize,
}

/// Of the panel's two registers of filters the first `SIDES` are wanted.
///
/// # Safety
/// Each part has `ROWS` windows from the tile's on; weights and numbers are those of two registers.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn byte_tile<S: Dots, const ROWS: usize, const SIDES: usize>(simd: S, requantize: &Requantize, tile: Tile<'_>) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut largest = byte_sums::<S, ROWS, SIDES>(simd, &tile, &tile.parts[0]);
        for part in &tile.parts[1..] {
            let sums = byte_sums::<S, ROWS, SIDES>(simd, &tile, part);
            unrolled!(row < ROWS, {
                unrolled!(side < SIDES, {
                    largest[row][side] = simd.larger(largest[row][side], sums[row][side]);
                });
            });
        }
        unrolled!(side < SIDES, {
            let begin = side * S::LANES;
            let how = requantize.of(simd, tile.filter + begin);
            let count = (tile.wide - begin).min(S::LANES);
            unrolled!(row < ROWS, {
                let to = tile.to.add(tile.rows[row] * tile.stride + begin);
                simd.store_bytes(to, count, simd.rescale(largest[row][side], how));
            });
        });
    }
}

/// # Safety
/// As for [`byte_tile`].
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn byte_sums<S: Dots, const ROWS: usize, const SIDES: usize>(
    simd: S,
    tile: &Tile<'_>,
    part: &Windows<'_>,
) -> [[S::Sums; SIDES]; ROWS] {
    // SAFETY: the caller's promise.
    unsafe {
        let mut start = [simd.splat(0); SIDES];
        unrolled!(side < SIDES, {
            start[side] = simd.load(part.start.as_ptr().add(tile.filter + side * S::LANES));
        });
        let mut sums = [start; ROWS];
        let mut windows = [part.bytes.as_ptr(); ROWS];
        unrolled!(row < ROWS, {
            windows[row] = part.bytes.as_ptr().add((tile.row + row) * part.stride);
        });
        let mut at = 0;
        for steps in part.steps {
            for step in steps.clone() {
                let from = tile.weights.add(step * 2 * S::LANES * STEP);
                let mut weights = [simd.weights(from); SIDES];
                unrolled!(side < SIDES, {
                    weights[side] = simd.weights(from.add(side * S::LANES * STEP));
                });
                unrolled!(row < ROWS, {
                    let bytes = simd.bytes(windows[row].add(at));
                    unrolled!(side < SIDES, {
                        sums[row][side] = simd.dot(sums[row][side], bytes, weights[side]);
                    });
                });
                at += STEP;
            }
        }
        sums
    }
}

/// # Safety
/// There are `ROWS` windows, `stride` apart, of so many steps, weights of as many for two registers, and room for the sums.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn word_tile<S: Dots, const ROWS: usize>(
    simd: S,
    windows: *const i16,
    stride: usize,
    weights: *const i16,
    steps: usize,
    to: *mut i32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut sums = [[simd.splat(0); 2]; ROWS];
        for step in 0..steps {
            let at = weights.add(step * 2 * S::LANES * PAIR);
            let weights = [simd.load_words(at), simd.load_words(at.add(S::LANES * PAIR))];
            unrolled!(row < ROWS, {
                let pair = simd.pair(windows.add(row * stride + step * PAIR));
                sums[row] =
                    [simd.dot_words(sums[row][0], pair, weights[0]), simd.dot_words(sums[row][1], pair, weights[1])];
            });
        }
        unrolled!(row < ROWS, {
            for side in 0..2 {
                simd.store(to.add((row * 2 + side) * S::LANES), sums[row][side]);
            }
        });
    }
}
