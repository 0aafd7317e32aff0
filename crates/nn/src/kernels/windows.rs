//! Products with the windows of an image, which are read where they lie: a convolution without laying windows out.
//!
//! In an image whose channels come last, a line of a window is a *run* of neighbouring numbers. Vectors hold neighbouring
//! filters, which come last in the output, or neighbouring numbers of a run; the other operand is one number for all
//! lanes. So no lane is wasted at the edges of a map, however small it is.

use std::ops::Range;

use ringstep_cpu::{Simd, Vector as _, kernels};

use super::matmul::evenly;
use super::pack::PANEL;
use super::{by_height, end, tallest, unrolled};

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
        let end = starts.iter().max().map_or(0, |&last| end(&[(2, last), (lines, line)], run));
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

/// Adds packed sums, with a row for each number of a window, to those of each filter.
pub fn unpack(packed: &[f32], rows: usize, filters: usize, sums: &mut [f32]) {
    for (filter, sums) in sums.chunks_exact_mut(rows).enumerate().take(filters) {
        let from = packed[filter / PANEL * rows * PANEL + filter % PANEL..].iter().step_by(PANEL);
        for (sum, from) in sums.iter_mut().zip(from) {
            *sum += from;
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

kernels! {
    /// For each window and each filter the sum of the products of their numbers, plus the filter's bias. There are a multiple
    /// of [`PANEL`] filters, in panels with a row for each number of a window. // position,filter
    pub fn filter<S>(simd: S, out: &mut [f32], filters: &[f32], bias: Option<&[f32]>, windows: Windows<'_>) {
        let (starts, depth) = (&windows.layout.starts, windows.layout.offsets.len());
        let count = out.len() / starts.len();
        assert!(count.is_multiple_of(PANEL) && filters.len() == depth * count && bias.is_none_or(|bias| bias.len() == count));
        for positions in evenly(starts.len(), tallest::<S>()) {
            for (panel, weights) in filters.chunks_exact(depth * PANEL).enumerate() {
                let column = panel * PANEL;
                let bias = bias.map_or([0.0; PANEL], |bias| *bias[column..].first_chunk().expect("a bias a filter"));
                let out = &mut out[positions.start * count + column..];
                let starts = &starts[positions.clone()];
                by_height!(starts.len(), filter_tile::<S>(simd, &bias, weights, windows, starts, out, count));
            }
        }
    }

    /// Adds to the sums, in panels as the filters of [`filter`], the products of each number of a window with the gradients of
    /// the filters there.
    pub fn add_filter_gradients<S>(simd: S, sums: &mut [f32], gradients: &[f32], windows: Windows<'_>) {
        let offsets = &windows.layout.offsets;
        let count = gradients.len() / windows.layout.starts.len();
        assert!(count.is_multiple_of(PANEL) && sums.len() == offsets.len() * count);
        for (panel, sums) in sums.chunks_exact_mut(offsets.len() * PANEL).enumerate() {
            for rows in evenly(offsets.len(), tallest::<S>()) {
                let gradients = &gradients[panel * PANEL..];
                let sums = &mut sums[rows.start * PANEL..rows.end * PANEL];
                by_height!(rows.len(), gradient_tile::<S>(simd, gradients, count, windows, &offsets[rows], sums));
            }
        }
    }

    /// For each position of a line, the sum over lines of filters and over filters of gradient times weight: what the position
    /// sends back to the run that begins there. // position,whole panels of a run
    ///
    /// `weights` are in panels with a row for each line of a filter, and within it for each filter. Those of line `lines.start`
    /// meet line `met` of the gradients, those of the next line the line before it.
    pub fn send_back<S>(simd: S, out: &mut [f32], weights: &[f32], lines: Range<usize>, gradients: Gradients<'_>, met: usize) {
        let Gradients { values, width, filters } = gradients;
        assert!(met < values.len() / (width * filters) && lines.len() <= met + 1, "lines beyond the gradients");
        let runs = out.len() / width;
        let rows = weights.len() / runs;
        for (panel, weights) in weights.chunks_exact(rows * PANEL).enumerate() {
            let weights = &weights[lines.start * filters * PANEL..lines.end * filters * PANEL];
            for positions in evenly(width, tallest::<S>()) {
                let out = &mut out[positions.start * runs + panel * PANEL..];
                let first = met * width + positions.start;
                by_height!(positions.len(), back_tile::<S>(simd, weights, gradients, first, out, runs));
            }
        }
    }

    /// Adds up what all positions of a line sent back: a pixel gets its part of the run of every position whose window it
    /// is in, the first of them `padding` pixels before the line. `runs` begin and end with `wide - 1` runs of zeros, so that
    /// all pixels are in as many windows, and have [`SLACK`] numbers of room after their end. `out` may go on after the
    /// line: what stands there is overwritten.
    pub fn add_runs<S>(simd: S, out: &mut [f32], pixels: usize, channels: usize, runs: &[f32], run: usize, padding: usize, wide: usize) {
        // Compiled once more for LeNet's second convolution.
        match (channels, wide) {
            (6, 5) => add_runs_sized(simd, out, pixels, 6, runs, run, padding, 5),
            _ => add_runs_sized(simd, out, pixels, channels, runs, run, padding, wide),
        }
    }
}

/// Sums of a tile: vectors of [`PANEL`] numbers, of which narrow instruction sets have four, wide ones one.
type Sums<S, const TALL: usize> = [[<S as Simd>::Vector; 4]; TALL];

/// Vectors of a row of sums.
const fn wide<S: Simd>() -> usize {
    PANEL / S::LANES
}

/// `sums[row] += numbers[row] * panel`, for a row of a panel that begins there.
///
/// # Safety
/// [`PANEL`] numbers can be read from `panel` on, and one from each of `numbers` on.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn add_products<S: Simd, const TALL: usize>(
    simd: S,
    sums: &mut Sums<S, TALL>,
    numbers: &[*const f32; TALL],
    at: usize,
    panel: *const f32,
) {
    // SAFETY: the caller's promise.
    unsafe {
        let mut right = [simd.zero(); 4];
        for column in 0..wide::<S>() {
            right[column] = simd.load(panel.add(column * S::LANES));
        }
        unrolled!(row < TALL, {
            let number = simd.splat(*numbers[row].add(at));
            for column in 0..wide::<S>() {
                sums[row][column] = number.multiply_add(right[column], sums[row][column]);
            }
        });
    }
}

/// A row of sums, from [`PANEL`] numbers.
#[inline(always)]
#[allow(unsafe_code)]
fn load_row<S: Simd>(simd: S, from: &[f32; PANEL]) -> [S::Vector; 4] {
    let mut row = [simd.zero(); 4];
    for column in 0..wide::<S>() {
        // SAFETY: all columns are within the panel.
        row[column] = unsafe { simd.load(from.as_ptr().add(column * S::LANES)) };
    }
    row
}

/// Stores the rows of a tile `stride` apart.
#[inline(always)]
#[allow(unsafe_code)]
fn store_rows<S: Simd, const TALL: usize>(simd: S, out: &mut [f32], stride: usize, sums: &Sums<S, TALL>) {
    assert!((TALL - 1) * stride + PANEL <= out.len());
    for row in 0..TALL {
        for column in 0..wide::<S>() {
            // SAFETY: the assertion.
            unsafe { simd.store(out.as_mut_ptr().add(row * stride + column * S::LANES), sums[row][column]) };
        }
    }
}

/// Where rows of operands begin: pointers into `numbers`, at `starts`.
#[inline(always)]
fn pointers<const TALL: usize>(numbers: &[f32], starts: &[usize]) -> [*const f32; TALL] {
    let mut pointers = [numbers.as_ptr(); TALL];
    for row in 0..TALL {
        pointers[row] = numbers.as_ptr().wrapping_add(starts[row]);
    }
    pointers
}

#[inline(always)]
#[allow(unsafe_code)]
fn filter_tile<S: Simd, const TALL: usize>(
    simd: S,
    bias: &[f32; PANEL],
    weights: &[f32],
    windows: Windows<'_>,
    starts: &[usize],
    out: &mut [f32],
    filters: usize,
) {
    let Layout { offsets, run, .. } = windows.layout;
    assert_eq!(weights.len(), offsets.len() * PANEL);
    let starts: [*const f32; TALL] = pointers(windows.pixels, starts);
    let mut sums = [load_row(simd, bias); TALL];
    let mut panel = weights.as_ptr();
    for line in offsets.chunks_exact(*run) {
        for at in line[0]..line[0] + run {
            // SAFETY: all windows are within the image, as `Layout::of` has seen; there is a row of weights for each number.
            unsafe {
                add_products(simd, &mut sums, &starts, at, panel);
                panel = panel.add(PANEL);
            }
        }
    }
    store_rows(simd, out, filters, &sums);
}

#[inline(always)]
#[allow(unsafe_code)]
fn gradient_tile<S: Simd, const TALL: usize>(
    simd: S,
    gradients: &[f32],
    filters: usize,
    windows: Windows<'_>,
    offsets: &[usize],
    totals: &mut [f32],
) {
    let starts = &windows.layout.starts;
    assert!((starts.len() - 1) * filters + PANEL <= gradients.len() && totals.len() == TALL * PANEL);
    let offsets: [*const f32; TALL] = pointers(windows.pixels, offsets);
    let rows = totals.as_chunks::<PANEL>().0;
    let mut sums = [[simd.zero(); 4]; TALL];
    for row in 0..TALL {
        sums[row] = load_row(simd, &rows[row]);
    }
    let mut panel = gradients.as_ptr();
    for &start in starts {
        // SAFETY: all windows are within the image, as `Layout::of` has seen; gradients by the assertion above.
        unsafe { add_products(simd, &mut sums, &offsets, start, panel) };
        panel = panel.wrapping_add(filters);
    }
    store_rows(simd, totals, PANEL, &sums);
}

#[inline(always)]
#[allow(unsafe_code)]
fn back_tile<S: Simd, const TALL: usize>(
    simd: S,
    weights: &[f32],
    gradients: Gradients<'_>,
    first: usize,
    out: &mut [f32],
    runs: usize,
) {
    let Gradients { values, width, filters } = gradients;
    let lines = weights.len() / (PANEL * filters);
    assert!(first + width >= lines * width && (first + TALL) * filters <= values.len());
    let mut sums = [[simd.zero(); 4]; TALL];
    let mut panel = weights.as_ptr();
    for line in 0..lines {
        let mut starts = [values.as_ptr(); TALL];
        for row in 0..TALL {
            starts[row] = values.as_ptr().wrapping_add((first + row - line * width) * filters);
        }
        for at in 0..filters {
            // SAFETY: the assertion above; a position has as many numbers as there are filters.
            unsafe {
                add_products(simd, &mut sums, &starts, at, panel);
                panel = panel.add(PANEL);
            }
        }
    }
    store_rows(simd, out, runs, &sums);
}

#[inline(always)]
#[allow(unsafe_code, clippy::too_many_arguments)]
fn add_runs_sized<S: Simd>(
    simd: S,
    out: &mut [f32],
    pixels: usize,
    channels: usize,
    runs: &[f32],
    run: usize,
    padding: usize,
    wide: usize,
) {
    assert!(channels <= run && end(&[(wide, channels)], channels) <= run);
    assert!(end(&[(pixels, run), (2, padding * run), (wide, run)], run + SLACK) <= runs.len());
    assert!(pixels * channels <= out.len() && S::LANES <= SLACK);
    for pixel in 0..pixels {
        // The last weight's run; that of the weight before it begins one position later.
        let last = (pixel + padding) * run + (wide - 1) * channels;
        for channel in (0..channels).step_by(S::LANES) {
            let mut sum = simd.zero();
            for later in 0..wide {
                // SAFETY: the assertion above; a channel of a run, after which there is room.
                sum = sum + unsafe { simd.load(runs.as_ptr().add(last + channel + later * (run - channels))) };
            }
            let at = pixel * channels + channel;
            // SAFETY: the condition, or as many lanes as there are numbers left.
            unsafe {
                match out.len() - at {
                    left if left >= S::LANES => simd.store(out.as_mut_ptr().add(at), sum),
                    left => simd.store_some(out.as_mut_ptr().add(at), left, sum),
                }
            }
        }
    }
}

/// The most numbers that [`add_runs`] handles at once.
pub const SLACK: usize = 16;

#[cfg(test)]
mod tests {
    use ringstep_cpu::Level;

    use super::super::matrix::Matrix;
    use super::super::pack::{pack, panels_len};
    use super::*;
    use crate::team::Team;

    /// Small integers: every order of adding them is exact.
    fn integers(length: usize) -> Vec<f32> {
        (0..length).map(|at| (at * 7 % 11) as f32 - 5.0).collect()
    }

    fn on_all_levels<C: Copy>(cases: &[C]) -> impl Iterator<Item = (Level, C)> {
        Level::available().into_iter().flat_map(|level| cases.iter().map(move |&case| (level, case)))
    }

    #[test]
    fn products_with_windows_agree_with_their_definitions() {
        // Positions and filters, lines and numbers of a window's runs; a line of the image has 40 numbers.
        let cases = [(1, 16, 1, 1), (6, 16, 2, 3), (7, 32, 3, 5), (20, 48, 5, 30)];
        for (level, (positions, filters, lines, run)) in on_all_levels(&cases) {
            let starts: Vec<usize> = (0..positions).map(|at| at % 5 * 2 + at / 5 * 40).collect();
            let (layout, pixels) = (Layout::new(starts.clone(), lines, run, 40), integers(400));
            let window = lines * run;
            let pixel = |position: usize, at: usize| pixels[starts[position] + at / run * 40 + at % run];
            let (weights, bias) = (integers(filters * window), integers(filters));

            let mut packed = vec![f32::NAN; panels_len(window, filters)];
            pack(&mut Team::new(1, level), &mut packed, Matrix::new(&weights, filters, window).transposed());
            let mut out = vec![f32::NAN; positions * filters];
            for bias in [None, Some(&bias[..])] {
                self::filter(level, &mut out, &packed, bias, layout.of(&pixels));
                for (at, &sum) in out.iter().enumerate() {
                    let (position, filter) = (at / filters, at % filters);
                    let products = (0..window).map(|k| weights[filter * window + k] * pixel(position, k));
                    assert_eq!(sum, products.sum::<f32>() + bias.map_or(0.0, |bias| bias[filter]));
                }
            }

            let gradients = integers(positions * filters);
            let (mut sums, mut unpacked) = (vec![1.0; packed.len()], vec![2.0; weights.len()]);
            add_filter_gradients(level, &mut sums, &gradients, layout.of(&pixels));
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
        let cases = [(1, 3, 1, 1, 1), (5, 2, 3, 2, 6), (10, 16, 5, 5, 6), (7, 4, 2, 3, 9)];
        for (level, (width, filters, tall, wide, channels)) in on_all_levels(&cases) {
            let (height, run) = (tall + 1, wide * channels);
            let values = integers(height * width * filters);
            let weights = integers(tall * filters * run); // line,filter,run
            let mut packed = vec![f32::NAN; panels_len(tall * filters, run)];
            pack(&mut Team::new(1, level), &mut packed, Matrix::new(&weights, tall * filters, run));
            let (stride, met) = (panels_len(1, run), height - 1);
            let mut runs = vec![0.0; (width + 2 * (wide - 1)) * stride + SLACK];
            let gradients = Gradients { values: &values, width, filters };
            // Without the first line of weights, where there is another.
            let lines = tall.min(2) - 1..tall;
            let sent_runs = &mut runs[(wide - 1) * stride..][..width * stride];
            send_back(level, sent_runs, &packed, lines.clone(), gradients, met);
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
                add_runs(level, &mut line, pixels, channels, &runs, stride, padding, wide);
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
