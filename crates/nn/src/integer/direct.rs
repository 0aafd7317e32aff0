//! Windows times filters.
//!
//! What stands for zero is a byte like any other. So a sum of products is that of the specification once each filter's sum of
//! weights, times that byte, is taken off; sums begin with that and the bias. Windows are laid out a few at a time, right before
//! they are multiplied.
//!
//! With many images, windows are multiplied together that reach beyond the image on the same sides, by those weights alone that
//! meet pixels: of the weights of a 3x3 filter on a map of 2x2, padded by one, that is four of nine. With few images each
//! window is laid out as a whole, with zeros around the image.

use std::iter;
use std::ops::Range;

use ringstep_cpu::DotLevel;

use super::conv::Recipe;
use super::workspace::{Room, Workspace};
use crate::aligned::Aligned;
use crate::kernels::dot_tiles::{Filters, STEP, Sizes, Windows, dot_tiles};
use crate::kernels::matrix::{ByColumns, MatrixMut};
use crate::layers::Geometry;
use crate::team::{Team, Units};

/// The least and the most bytes of windows that are laid out at once. They stay in a cache while all filters go by: as many
/// bytes as these have are enough, fewer are nearer.
const BLOCK: [usize; 2] = [16 << 10, 256 << 10];
/// The most outputs of a block.
const MOST: usize = 256;
/// Tiles of windows for each thread from which on threads share out windows, not filters.
const FEWEST_TILES: usize = 8;
/// Images for each thread from which on windows are sorted by what they see.
const FEWEST_IMAGES: usize = 4;
/// Bytes in a line of the cache.
const LINE: usize = 64;
/// The most bytes behind a line of a window that are written with it; see [`copy_lines`].
const SLACK: usize = 32;

/// A convolution, with its filters laid out for the instructions of this machine.
pub struct Direct {
    geometry: Geometry,
    level: DotLevel,
    sizes: Sizes,
    filters: Filters,
    /// What stands around an image.
    zero: u8,
    /// Height and width of what comes out.
    output: [usize; 2],
    /// All outputs, of whole windows.
    all: Kind,
    /// The same outputs, of what windows see of the image; none if weights of a tap are no whole number of steps.
    sorted: Vec<Kind>,
}

/// A rectangle of outputs, all of whose windows see the same weights.
struct Kind {
    rows: Range<usize>,
    columns: Range<usize>,
    /// The window of an output, or the four of a square of which the largest number comes out.
    parts: Vec<Part>,
}

/// A window, by what it sees.
struct Part {
    /// Its place in the square, down and across.
    place: [usize; 2],
    /// The weights that are multiplied, down and across.
    taps: [Range<usize>; 2],
    /// The same, as steps of the filters.
    steps: Vec<Range<usize>>,
    /// What sums begin with.
    start: Vec<i32>,
}

impl Kind {
    /// Outputs of an image.
    fn len(&self) -> usize {
        self.rows.len() * self.columns.len()
    }
}

impl Direct {
    /// Lays filters out for these instructions.
    pub fn new(recipe: Recipe<'_>, level: DotLevel) -> Self {
        let Recipe { geometry, weights, .. } = recipe;
        let (sizes, window) = (Sizes::of(level), geometry.window());
        let (panels, steps) = (geometry.output.channels.div_ceil(sizes.panel), window.div_ceil(STEP));
        let mut packed = Aligned::zeros(panels * steps * sizes.panel * STEP);
        for (filter, weights) in weights.chunks_exact(window).enumerate() {
            let of_panel = &mut packed[filter / sizes.panel * steps * sizes.panel * STEP..];
            for (at, &weight) in weights.iter().enumerate() {
                of_panel[(at / STEP * sizes.panel + filter % sizes.panel) * STEP + at % STEP] = weight;
            }
        }
        let places: &[usize] = if recipe.pooled { &[0, 1] } else { &[0] };
        let kind = |rows: Range<usize>, columns: Range<usize>, taps: [&[Range<usize>]; 2]| {
            let part = |(down, across): (usize, usize)| {
                let taps = [taps[0][down].clone(), taps[1][across].clone()];
                let start = start(&recipe, &taps, sizes);
                Part { place: [places[down], places[across]], steps: steps_of(&geometry, &taps), taps, start }
            };
            let squares = (0..places.len()).flat_map(|down| (0..places.len()).map(move |across| (down, across)));
            Kind { rows, columns, parts: squares.map(part).collect() }
        };
        let output = recipe.output();
        let whole = [0, 1].map(|axis| vec![0..geometry.kernel[axis]; places.len()]);
        let all = kind(0..output[0], 0..output[1], [&whole[0], &whole[1]]);
        let mut sorted = Vec::new();
        if geometry.padding != [0, 0] && geometry.input.channels.is_multiple_of(STEP) {
            let [rows, columns] = [0, 1].map(|axis| runs(&geometry, axis, output[axis], places));
            for (rows, down) in &rows {
                for (columns, across) in &columns {
                    sorted.push(kind(rows.clone(), columns.clone(), [down, across]));
                }
            }
        }
        let filters = Filters { weights: packed, steps, requantize: recipe.requantize(sizes.panel) };
        Self { geometry, level, sizes, filters, zero: recipe.zero(), output, all, sorted }
    }

    /// The bytes of its filters, as they are laid out, and of what belongs to them.
    pub fn bytes(&self) -> usize {
        let parts = self.sorted.iter().chain([&self.all]).flat_map(|kind| &kind.parts);
        let starts: usize = parts.map(|part| part.start.len()).sum();
        let numbers = 5 * self.geometry.output.channels.next_multiple_of(self.sizes.panel) + starts;
        self.filters.weights.len() + size_of::<i32>() * numbers
    }

    /// From one window to the next as they are laid out. An odd number of lines of the cache, so that those of a tile do not
    /// compete for the same few places in it.
    fn stride(&self) -> usize {
        ((self.filters.steps * STEP + SLACK).div_ceil(LINE) | 1) * LINE
    }

    /// Outputs whose windows are laid out at once.
    fn block(&self) -> usize {
        let (rows, [least, most]) = (self.sizes.rows, BLOCK);
        let bytes = self.filters.weights.len().clamp(least, most);
        let outputs = (bytes / (self.stride() * self.all.parts.len())).min(MOST);
        (outputs / rows).max(1) * rows
    }

    /// Room that each thread needs.
    pub fn room(&self) -> Room {
        Room { bytes: self.block() * self.all.parts.len() * self.stride(), ..Room::default() }
    }

    /// For as many images as the slices hold. // N,H,W,C to N,OH,OW,O
    pub fn forward(&self, team: &mut Team, input: &[u8], output: &mut [u8], workspace: &mut Workspace) {
        let (filters, from) = (self.geometry.output.channels, self.geometry.input.len());
        let (images, per_image) = (input.len() / from, self.all.len());
        let pixels = images * per_image;
        let panels = filters.div_ceil(self.sizes.panel);
        let tiles = (pixels * self.all.parts.len()).div_ceil(self.sizes.rows);
        if !self.sorted.is_empty() && images >= FEWEST_IMAGES * team.threads() {
            let parts = (Units::new(output, per_image * filters), workspace.bytes());
            team.deal(images, parts, |images, (output, room)| {
                let input = &input[images.start * from..images.end * from];
                let mut output = MatrixMut::new(output, images.len() * per_image, filters);
                for kind in &self.sorted {
                    self.outputs(kind, input, 0..images.len() * kind.len(), 0..panels, output.reborrow(), room);
                }
            });
        } else if tiles >= FEWEST_TILES * team.threads() || panels < team.threads() {
            team.deal(pixels, (Units::new(output, filters), workspace.bytes()), |range, (output, room)| {
                let output = MatrixMut::new(output, range.len(), filters);
                self.outputs(&self.all, input, range, 0..panels, output, room);
            });
        } else {
            let output = ByColumns::new(MatrixMut::new(output, pixels, filters), self.sizes.panel);
            team.deal(panels, (output, workspace.bytes()), |range, (output, room)| {
                self.outputs(&self.all, input, 0..pixels, range, output, room);
            });
        }
    }

    /// Some panels of filters at some outputs of a kind, of all images in their order; the output's rows before the first of
    /// these are not among `to`.
    fn outputs(
        &self,
        kind: &Kind,
        input: &[u8],
        outputs: Range<usize>,
        panels: Range<usize>,
        mut to: MatrixMut<'_, u8>,
        room: &mut [u8],
    ) {
        let (stride, block, mut rows) = (self.stride(), self.block(), [0; MOST]);
        let begin = self.pixel(kind, outputs.start).0 - self.pixel(kind, 0).0;
        let side = if kind.parts.len() > 1 { 2 } else { 1 };
        for first in outputs.clone().step_by(block) {
            let last = outputs.end.min(first + block);
            let mut output = first;
            while output < last {
                // Those of a row are neighbours.
                let (pixel, image, [row, column]) = self.pixel(kind, output);
                let (at, count) = (output - first, (last - output).min(kind.columns.end - column));
                for (index, to) in rows[at..at + count].iter_mut().enumerate() {
                    *to = pixel - begin + index;
                }
                let image = &input[image * self.geometry.input.len()..];
                for (which, part) in kind.parts.iter().enumerate() {
                    let position = [side * row + part.place[0], side * column + part.place[1]];
                    let room = &mut room[(which * block + at) * stride..][..count * stride];
                    self.lay_out(image, position, side, &part.taps, room);
                }
                output += count;
            }
            let windows = |which: usize| {
                let Part { steps, start, .. } = &kind.parts[which];
                Windows { bytes: &room[which * block * stride..], stride, steps, start }
            };
            let (four, one);
            let parts: &[Windows<'_>] = if kind.parts.len() > 1 {
                four = [windows(0), windows(1), windows(2), windows(3)];
                &four
            } else {
                one = [windows(0)];
                &one
            };
            dot_tiles(self.level, &self.filters, panels.clone(), parts, &rows[..last - first], to.reborrow());
        }
    }

    /// The pixel that an output of a kind is among all images' outputs, its image, and its row and column there.
    fn pixel(&self, kind: &Kind, output: usize) -> (usize, usize, [usize; 2]) {
        let (image, at) = (output / kind.len(), output % kind.len());
        let row = kind.rows.start + at / kind.columns.len();
        let column = kind.columns.start + at % kind.columns.len();
        ((image * self.output[0] + row) * self.output[1] + column, image, [row, column])
    }

    /// The bytes that some taps see at a position of the image that `input` begins with, and at those that follow it in its
    /// row, each `apart` after the one before. // WINDOWS,KH,KW,C
    fn lay_out(&self, input: &[u8], position: [usize; 2], apart: usize, taps: &[Range<usize>; 2], windows: &mut [u8]) {
        let Geometry { input: from, stride, padding, .. } = self.geometry;
        let [top, left] = [0, 1].map(|axis| position[axis] * stride[axis] + taps[axis].start);
        let (apart, line, window) = (apart * stride[1], taps[1].len() * from.channels, self.stride());
        let count = windows.len() / window;
        // The first window whose line begins in the image, and the first from there on whose line does not end there.
        let begin = padding[1].saturating_sub(left).div_ceil(apart).min(count);
        let room = (from.width + padding[1]).checked_sub(left + taps[1].len());
        let end = room.map_or(begin, |room| (room / apart + 1).clamp(begin, count));
        for tap in 0..taps[0].len() {
            let to = &mut windows[tap * line..];
            let Some(row) = (top + tap).checked_sub(padding[0]).filter(|&row| row < from.height) else {
                to.chunks_mut(window).for_each(|to| to[..line].fill(self.zero));
                continue;
            };
            let pixels = &input[row * from.width * from.channels..];
            for index in (0..begin).chain(end..count) {
                let left = left + index * apart;
                let inside =
                    [0, from.width].map(|column| (column + padding[1]).saturating_sub(left).min(taps[1].len()));
                let to = &mut to[index * window..][..line];
                to.fill(self.zero);
                if inside[0] < inside[1] {
                    let first = (left + inside[0] - padding[1]) * from.channels;
                    let [start, end] = inside.map(|column| column * from.channels);
                    to[start..end].copy_from_slice(&pixels[first..][..end - start]);
                }
            }
            if begin < end {
                let first = (left + begin * apart - padding[1]) * from.channels;
                let (pixels, to) = (&pixels[first..], &mut to[begin * window..]);
                let lines = Lines { count: end - begin, from: apart * from.channels, to: window, length: line };
                match line {
                    ..=16 => copy_lines::<16>(pixels, to, lines),
                    17..=32 => copy_lines::<32>(pixels, to, lines),
                    _ => copy_lines::<64>(pixels, to, lines),
                }
            }
        }
    }
}

/// What sums of every filter begin with, up to whole panels, if they are of these taps.
fn start(recipe: &Recipe<'_>, [rows, columns]: &[Range<usize>; 2], sizes: Sizes) -> Vec<i32> {
    let (geometry, zero) = (recipe.geometry, i32::from(recipe.zero()) - sizes.offset);
    let (width, channels) = (geometry.kernel[1], geometry.input.channels);
    let of_filter = |(filter, &bias): (&[i8], &i32)| {
        let taps = rows.clone().flat_map(|row| columns.clone().map(move |column| row * width + column));
        let weights = taps.flat_map(|tap| &filter[tap * channels..][..channels]);
        let sum: i32 = weights.map(|&weight| i32::from(weight)).sum();
        bias.wrapping_sub(sum.wrapping_mul(zero))
    };
    let mut start: Vec<i32> = recipe.weights.chunks_exact(geometry.window()).zip(recipe.bias).map(of_filter).collect();
    start.resize(start.len().next_multiple_of(sizes.panel), 0);
    start
}

/// The steps of filters that some taps are: one run if they are whole lines.
fn steps_of(geometry: &Geometry, [rows, columns]: &[Range<usize>; 2]) -> Vec<Range<usize>> {
    let (width, channels) = (geometry.kernel[1], geometry.input.channels);
    let first = |row: usize| (row * width + columns.start) * channels / STEP;
    if columns.len() == width {
        let all = first(rows.start)..(rows.end * width * channels).div_ceil(STEP);
        return iter::once(all).collect();
    }
    rows.clone().map(|row| first(row)..first(row) + columns.len() * channels / STEP).collect()
}

/// Runs of outputs along an axis whose windows see the same taps, at each place of a square.
fn runs(geometry: &Geometry, axis: usize, outputs: usize, places: &[usize]) -> Vec<(Range<usize>, Vec<Range<usize>>)> {
    let Geometry { input, kernel, stride, padding, .. } = *geometry;
    let (length, kernel) = ([input.height, input.width][axis], kernel[axis]);
    let seen = |position: usize| {
        let [begin, end] =
            [0, length].map(|at| (at + padding[axis]).saturating_sub(position * stride[axis]).min(kernel));
        begin..end
    };
    let mut runs: Vec<(Range<usize>, Vec<Range<usize>>)> = Vec::new();
    for output in 0..outputs {
        let taps: Vec<Range<usize>> = places.iter().map(|place| seen(output * places.len() + place)).collect();
        match runs.last_mut() {
            Some((run, same)) if *same == taps => run.end += 1,
            _ => runs.push((output..output + 1, taps)),
        }
    }
    runs
}

/// Lines of bytes, so far apart where they come from and where they go to.
#[derive(Clone, Copy)]
struct Lines {
    count: usize,
    from: usize,
    to: usize,
    length: usize,
}

/// Copies lines, each as a block of so many bytes if it is no longer and there are as many: what comes next is written over
/// those behind the line, and nobody reads them behind the last.
#[inline(always)]
fn copy_lines<const BYTES: usize>(from: &[u8], to: &mut [u8], lines: Lines) {
    for index in 0..lines.count {
        let (from, to) = (&from[index * lines.from..], &mut to[index * lines.to..]);
        match (from.first_chunk::<BYTES>(), to.first_chunk_mut::<BYTES>()) {
            (Some(from), Some(to)) if lines.length <= BYTES => *to = *from,
            _ => to[..lines.length].copy_from_slice(&from[..lines.length]),
        }
    }
}
