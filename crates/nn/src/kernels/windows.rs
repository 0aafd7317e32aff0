//! Products with the windows of an image, which are read where they lie: a convolution without laying windows out.
//!
//! In an image whose channels come last, a line of a window is a *run* of neighbouring numbers. Vectors hold neighbouring
//! filters, which come last in the output, or neighbouring numbers of a run; the other operand is one number for all
//! lanes. So no lane is wasted at the edges of a map, however small it is.

use std::ops::Range;

use super::simd::{multiply_add, vectorised};

/// Numbers that stand side by side in the vectors of these products.
pub const LANES: usize = 16;
/// Windows, or numbers of a window, that are handled at once: their sums fill the registers with room for operands.
const TALL: usize = 6;
/// The same for positions of a line, which are few: of 10 or 14 none or one is left over.
const ALONG: usize = 5;

type Tile<const ROWS: usize> = [[f32; LANES]; ROWS];

/// Where the windows of an image lie.
#[derive(Debug)]
pub struct Layout {
    starts: Vec<usize>,
    offsets: Vec<usize>,
    run: usize,
    /// Numbers that an image has at least.
    end: usize,
}

impl Layout {
    /// Windows of `lines` runs of `run` numbers, a line of the image apart, that begin at `starts`.
    pub fn new(starts: Vec<usize>, lines: usize, run: usize, line: usize) -> Self {
        let offsets: Vec<usize> = (0..lines).flat_map(|y| (0..run).map(move |x| y * line + x)).collect();
        let end = starts.iter().max().map_or(0, |last| last + (lines - 1) * line + run);
        Self { starts, offsets, run, end }
    }

    /// The windows of an image, which has its padding. // H,W,C
    pub fn of<'a>(&'a self, pixels: &'a [f32]) -> Windows<'a> {
        assert!(self.end <= pixels.len(), "windows beyond the image");
        Windows { pixels, layout: self }
    }
}

/// The windows of an image.
#[derive(Debug, Clone, Copy)]
pub struct Windows<'a> {
    pixels: &'a [f32],
    layout: &'a Layout,
}

/// Numbers of a matrix with so many rows in [`pack`]'s layout.
pub fn packed_len(rows: usize, columns: usize) -> usize {
    rows * columns.next_multiple_of(LANES)
}

/// Lays a matrix out in panels of [`LANES`] columns; what is missing in the last one is zero. `at` tells where a row and
/// column is to be found.
pub fn pack(packed: &mut [f32], rows: usize, columns: usize, from: &[f32], at: impl Fn(usize, usize) -> usize) {
    for (panel, to) in packed[..packed_len(rows, columns)].chunks_exact_mut(rows * LANES).enumerate() {
        for (row, to) in to.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
            for (lane, to) in to.iter_mut().enumerate() {
                let column = panel * LANES + lane;
                *to = if column < columns { from[at(row, column)] } else { 0.0 };
            }
        }
    }
}

/// Adds packed sums, with a row for each number of a window, to those of each filter.
pub fn unpack(packed: &[f32], rows: usize, filters: usize, sums: &mut [f32]) {
    for (filter, sums) in sums.chunks_exact_mut(rows).enumerate().take(filters) {
        let from = packed[filter / LANES * rows * LANES + filter % LANES..].iter().step_by(LANES);
        for (sum, from) in sums.iter_mut().zip(from) {
            *sum += from;
        }
    }
}

/// For each window and each filter the sum of the products of their numbers, plus the filter's bias. There are a multiple
/// of [`LANES`] filters, packed with a row for each number of a window. // position,filter
pub fn filter(out: &mut [f32], filters: &[f32], bias: Option<&[f32]>, windows: Windows<'_>) {
    let depth = windows.layout.offsets.len();
    let count = out.len() / windows.layout.starts.len();
    assert!(count.is_multiple_of(LANES) && filters.len() == packed_len(depth, count));
    for (starts, out) in windows.layout.starts.chunks(TALL).zip(out.chunks_mut(TALL * count)) {
        // What is missing in the last tile is the last window again, and not stored.
        let starts = std::array::from_fn(|row| starts[row.min(starts.len() - 1)]);
        for (panel, weights) in filters.chunks_exact(depth * LANES).enumerate() {
            let bias = bias.map_or(&[0.0; LANES], |bias| bias[panel * LANES..].first_chunk().expect("a bias a filter"));
            filter_tile(bias, weights, windows, starts, &mut out[panel * LANES..], count);
        }
    }
}

/// Adds to the sums, packed as the filters of [`filter`], the products of each number of a window with the gradients of
/// the filters there.
pub fn add_filter_gradients(sums: &mut [f32], gradients: &[f32], windows: Windows<'_>) {
    let depth = windows.layout.offsets.len();
    let count = gradients.len() / windows.layout.starts.len();
    assert!(count.is_multiple_of(LANES) && sums.len() == packed_len(depth, count));
    for (panel, sums) in sums.chunks_exact_mut(depth * LANES).enumerate() {
        for (sums, offsets) in sums.as_chunks_mut::<LANES>().0.chunks_mut(TALL).zip(windows.layout.offsets.chunks(TALL))
        {
            let offsets = std::array::from_fn(|row| offsets[row.min(offsets.len() - 1)]);
            let gradients = &gradients[panel * LANES..];
            if let Some(tile) = sums.first_chunk_mut() {
                gradient_tile(gradients, count, windows, offsets, tile);
            } else {
                let mut tile = [[0.0; LANES]; TALL];
                tile[..sums.len()].copy_from_slice(sums);
                gradient_tile(gradients, count, windows, offsets, &mut tile);
                sums.copy_from_slice(&tile[..sums.len()]);
            }
        }
    }
}

/// For each position of a line, the sum over lines of filters and over filters of gradient times weight: what the position
/// sends back to the run that begins there. // position,packed run
///
/// `weights` are packed with a row for each line of a filter, and within it for each filter. Those of line `lines.start`
/// meet line `met` of the gradients, those of the next line the line before it.
pub fn send_back(out: &mut [f32], weights: &[f32], lines: Range<usize>, gradients: Gradients<'_>, met: usize) {
    let Gradients { values, width, filters } = gradients;
    assert!(met < values.len() / (width * filters) && lines.len() <= met + 1, "lines beyond the gradients");
    let runs = out.len() / width;
    let rows = weights.len() / runs;
    for (panel, weights) in weights.chunks_exact(rows * LANES).enumerate() {
        let weights = &weights[lines.start * filters * LANES..lines.end * filters * LANES];
        for (first, out) in (0..width).step_by(ALONG).zip(out.chunks_mut(ALONG * runs)) {
            let positions = std::array::from_fn(|row| met * width + (first + row).min(width - 1));
            back_tile(weights, gradients, positions, &mut out[panel * LANES..], runs);
        }
    }
}

/// Stores the rows of a tile `stride` apart, as many as there is room for.
#[inline(always)]
fn store_rows<const ROWS: usize>(out: &mut [f32], stride: usize, tile: &Tile<ROWS>) {
    for (row, sums) in tile.iter().enumerate() {
        if let Some(out) = out.get_mut(row * stride..row * stride + LANES) {
            out.copy_from_slice(sums);
        }
    }
}

/// The gradient with respect to an output map.
#[derive(Debug, Clone, Copy)]
pub struct Gradients<'a> {
    /// H,W,filters
    pub values: &'a [f32],
    /// Positions of a line.
    pub width: usize,
    /// Numbers of a position.
    pub filters: usize,
}

// Not inlined: within the loops around it, the compiler no longer sees how to keep a tile in registers.
vectorised! {
    #[inline(never)]
    fn filter_tile(
        bias: &[f32; LANES],
        weights: &[f32],
        windows: Windows<'_>,
        starts: [usize; TALL],
        out: &mut [f32],
        filters: usize,
    ) {
        let mut tile = [*bias; TALL];
        let weights = weights.as_chunks::<LANES>().0;
        for (weights, offsets) in weights.chunks_exact(windows.layout.run).zip(windows.layout.offsets.chunks_exact(windows.layout.run)) {
            // SAFETY: all windows are within the image, as `Layout::of` has seen.
            let starts = starts.map(|start| unsafe { windows.pixels.as_ptr().add(start + offsets[0]) });
            for (at, weights) in weights.iter().enumerate() {
                for row in 0..TALL {
                    // SAFETY: as above.
                    let pixel = unsafe { *starts[row].add(at) };
                    for lane in 0..LANES {
                        tile[row][lane] = multiply_add::<FUSED>(pixel, weights[lane], tile[row][lane]);
                    }
                }
            }
        }
        store_rows(out, filters, &tile);
    }

    #[inline(never)]
    fn gradient_tile(gradients: &[f32], filters: usize, windows: Windows<'_>, offsets: [usize; TALL], sums: &mut Tile<TALL>) {
        assert!((windows.layout.starts.len() - 1) * filters + LANES <= gradients.len());
        let mut tile = *sums;
        // SAFETY: all windows are within the image, as `Layout::of` has seen.
        let offsets = offsets.map(|offset| unsafe { windows.pixels.as_ptr().add(offset) });
        let mut position = 0;
        for &start in &windows.layout.starts {
            // SAFETY: the assertion above.
            let gradients: &[f32; LANES] = unsafe { &*gradients.as_ptr().add(position).cast() };
            for row in 0..TALL {
                // SAFETY: as above.
                let pixel = unsafe { *offsets[row].add(start) };
                for lane in 0..LANES {
                    tile[row][lane] = multiply_add::<FUSED>(pixel, gradients[lane], tile[row][lane]);
                }
            }
            position += filters;
        }
        *sums = tile;
    }

    #[inline(never)]
    fn back_tile(weights: &[f32], gradients: Gradients<'_>, positions: [usize; ALONG], out: &mut [f32], runs: usize) {
        let Gradients { values, width, filters } = gradients;
        let weights = weights.as_chunks::<LANES>().0;
        let lines = weights.len() / filters;
        assert!(positions.iter().all(|&at| at + width >= lines * width && (at + 1) * filters <= values.len()));
        let mut tile = [[0.0; LANES]; ALONG];
        for (line, weights) in weights.chunks_exact(filters).enumerate() {
            // SAFETY: the assertion above.
            let starts = positions.map(|at| unsafe { values.as_ptr().add((at - line * width) * filters) });
            for (at, weights) in weights.iter().enumerate() {
                for row in 0..ALONG {
                    // SAFETY: a position has as many numbers as there are filters.
                    let gradient = unsafe { *starts[row].add(at) };
                    for lane in 0..LANES {
                        tile[row][lane] = multiply_add::<FUSED>(gradient, weights[lane], tile[row][lane]);
                    }
                }
            }
        }
        store_rows(out, runs, &tile);
    }

    /// Adds up what all positions of a line sent back: a pixel gets its part of the run of every position whose window it
    /// is in, the first of them `padding` pixels before the line. `runs` begin and end with `wide - 1` runs of zeros, so that
    /// all pixels are in as many windows, and have [`SLACK`] numbers of room after their end. `out` may go on after the
    /// line: what stands there is overwritten.
    pub fn add_runs(out: &mut [f32], pixels: usize, channels: usize, runs: &[f32], run: usize, padding: usize, wide: usize) {
        // Compiled once more for LeNet's second convolution.
        match (channels, wide) {
            (6, 5) => add_runs_sized(out, pixels, 6, runs, run, padding, 5),
            _ => add_runs_sized(out, pixels, channels, runs, run, padding, wide),
        }
    }
}

#[inline(always)]
#[allow(unsafe_code)]
fn add_runs_sized(
    out: &mut [f32],
    pixels: usize,
    channels: usize,
    runs: &[f32],
    run: usize,
    padding: usize,
    wide: usize,
) {
    assert!(wide * channels <= run && (pixels + padding + wide - 1) * run + SLACK <= runs.len());
    for pixel in 0..pixels {
        // The last weight's run; that of the weight before it begins one position later.
        let last = (pixel + padding) * run + (wide - 1) * channels;
        for channel in (0..channels).step_by(SLACK) {
            let mut sums = [0.0; SLACK];
            for later in 0..wide {
                // SAFETY: the assertion above; a channel of a run, after which there is room.
                let from: &[f32; SLACK] =
                    unsafe { &*runs.as_ptr().add(last + channel + later * (run - channels)).cast() };
                for lane in 0..SLACK {
                    sums[lane] += from[lane];
                }
            }
            let at = pixel * channels + channel;
            if at + SLACK <= out.len() {
                out[at..at + SLACK].copy_from_slice(&sums);
            } else {
                copy_some(&mut out[at..], &sums);
            }
        }
    }
}

/// At the end of an image, where fewer than [`SLACK`] numbers are left. Not inlined: the loops around it shall be short.
#[cold]
#[inline(never)]
fn copy_some(to: &mut [f32], from: &[f32; SLACK]) {
    to.copy_from_slice(&from[..to.len()]);
}

/// Numbers that [`add_runs`] handles at once.
pub const SLACK: usize = 8;

#[cfg(test)]
mod tests {
    use super::*;

    /// Small integers: every order of adding them is exact.
    fn integers(length: usize) -> Vec<f32> {
        (0..length).map(|at| (at * 7 % 11) as f32 - 5.0).collect()
    }

    #[test]
    fn products_with_windows_agree_with_their_definitions() {
        // Positions and filters, lines and numbers of a window's runs; a line of the image has 40 numbers.
        for (positions, filters, lines, run) in [(1, 16, 1, 1), (6, 16, 2, 3), (7, 32, 3, 5), (20, 48, 5, 30)] {
            let starts: Vec<usize> = (0..positions).map(|at| at % 5 * 2 + at / 5 * 40).collect();
            let (layout, pixels) = (Layout::new(starts.clone(), lines, run, 40), integers(400));
            let window = lines * run;
            let pixel = |position: usize, at: usize| pixels[starts[position] + at / run * 40 + at % run];
            let (weights, bias) = (integers(filters * window), integers(filters));

            let mut packed = vec![f32::NAN; packed_len(window, filters)];
            pack(&mut packed, window, filters, &weights, |row, filter| filter * window + row);
            let mut out = vec![f32::NAN; positions * filters];
            for bias in [None, Some(&bias[..])] {
                self::filter(&mut out, &packed, bias, layout.of(&pixels));
                for (at, &sum) in out.iter().enumerate() {
                    let (position, filter) = (at / filters, at % filters);
                    let products = (0..window).map(|k| weights[filter * window + k] * pixel(position, k));
                    assert_eq!(sum, products.sum::<f32>() + bias.map_or(0.0, |bias| bias[filter]));
                }
            }

            let gradients = integers(positions * filters);
            let (mut sums, mut unpacked) = (vec![1.0; packed.len()], vec![2.0; weights.len()]);
            add_filter_gradients(&mut sums, &gradients, layout.of(&pixels));
            unpack(&sums, window, filters, &mut unpacked);
            for (at, &sum) in unpacked.iter().enumerate() {
                let (filter, k) = (at / window, at % window);
                let products =
                    (0..positions).map(|position| gradients[position * filters + filter] * pixel(position, k));
                assert_eq!(sum, 3.0 + products.sum::<f32>());
            }
        }
    }

    #[test]
    fn what_is_sent_back_agrees_with_its_definition() {
        // Positions of a line, filters, lines and pixels of a window, channels.
        for (width, filters, tall, wide, channels) in
            [(1, 3, 1, 1, 1), (5, 2, 3, 2, 6), (10, 16, 5, 5, 6), (7, 4, 2, 3, 9)]
        {
            let (height, run) = (tall + 1, wide * channels);
            let values = integers(height * width * filters);
            let weights = integers(tall * filters * run); // line,filter,run
            let mut packed = vec![f32::NAN; packed_len(tall * filters, run)];
            pack(&mut packed, tall * filters, run, &weights, |row, column| row * run + column);
            let (stride, met) = (packed_len(1, run), height - 1);
            let mut runs = vec![0.0; (width + 2 * (wide - 1)) * stride + SLACK];
            let gradients = Gradients { values: &values, width, filters };
            // Without the first line of weights, where there is another.
            let lines = tall.min(2) - 1..tall;
            let sent_runs = &mut runs[(wide - 1) * stride..][..width * stride];
            send_back(sent_runs, &packed, lines.clone(), gradients, met);
            let sent = |position: usize, at: usize| -> f32 {
                let terms = lines.clone().flat_map(|line| (0..filters).map(move |filter| (line, filter)));
                let gradient = |line: usize, filter: usize| {
                    values[((met + lines.start - line) * width + position) * filters + filter]
                };
                terms.map(|(line, filter)| gradient(line, filter) * weights[(line * filters + filter) * run + at]).sum()
            };
            for position in 0..width {
                for at in 0..run {
                    assert_eq!(runs[(position + wide - 1) * stride + at], sent(position, at));
                }
            }

            for padding in 0..wide {
                let pixels = width + wide - 1 - padding;
                let mut line = vec![f32::NAN; pixels * channels];
                add_runs(&mut line, pixels, channels, &runs, stride, padding, wide);
                for (at, &sum) in line.iter().enumerate() {
                    let (x, channel) = (at / channels + padding, at % channels);
                    let positions = (0..width).filter(|&position| (position..position + wide).contains(&x));
                    let expected = positions.map(|position| sent(position, (x - position) * channels + channel));
                    assert_eq!(sum, expected.sum::<f32>());
                }
            }
        }
    }
}
