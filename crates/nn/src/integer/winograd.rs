//! Winograd's algorithm in integers (Lavin and Gray, "Fast algorithms for convolutional neural networks", CVPR 2016), to the bit.
//!
//! Transformed windows and filters are words: a tile of 4x4 outputs takes 36 products of words where it would take 144 of bytes.
//!
//! Nothing is rounded. The transforms make 576 times the convolution Y of integers (see [`super::transforms`]). Sums are modulo
//! 2^32, where 9 has an inverse: times that they are 64 Y, if 64 Y fits in 32 bits; and that can be told from the filters.

use std::ops::{Add, Range, Sub};

use ringstep_cpu::dots;
use ringstep_cpu::dots::{DotLevel, Dots, Rescale};

use super::conv::Recipe;
use super::transforms::{SCALE, a_transposed, b_transposed, g};
use super::workspace::{Room, Workspace};
use crate::aligned::Aligned;
use crate::kernels::dot_tiles::{PAIR, Sizes, word_tiles};
use crate::kernels::requantize::Requantize;
use crate::layers::Geometry;
use crate::layers::conv2d::tiling::Tiling;
use crate::layers::conv2d::transforms::{FREQUENCIES, OUT, TAPS, WINDOW};
use crate::team::{Team, Units};

/// The power of two in [`SCALE`].
const SHIFT: u32 = SCALE.trailing_zeros();
/// Modulo 2^32, times the rest of it, one.
const INVERSE: i32 = 954_437_177;
const _: () = assert!((SCALE >> SHIFT).wrapping_mul(INVERSE) == 1);

/// The fewest tiles for which reading twice, or eight times, as many bytes of weights costs less than it saves.
const FEWEST_TILES: usize = 12;
/// Bytes of transformed windows, and of their sums for a panel, that should stay in a core's own cache.
const BLOCK: usize = 640 << 10;
/// The fewest tiles that are multiplied at once, even if they do not: so often are weights used that come from further away.
const LEAST: usize = 36;
/// Bytes in a line of the cache.
const LINE: usize = 64;

/// A convolution of 3x3 filters, which are transformed.
pub struct Winograd {
    geometry: Geometry,
    tiling: Tiling,
    level: DotLevel,
    sizes: Sizes,
    /// PANELS,FREQUENCIES,C/PAIR,PANEL,PAIR
    filters: Aligned<i16>,
    /// For every filter up to whole panels.
    bias: Vec<i32>,
    requantize: Requantize,
    zero: u8,
    /// Height and width of what comes out.
    output: [usize; 2],
    pooled: bool,
}

impl Winograd {
    /// `None` if it is not for this geometry, or not exact for these filters.
    pub fn new(recipe: Recipe<'_>, level: DotLevel) -> Option<Self> {
        let Recipe { geometry, weights, bias, pooled, .. } = recipe;
        let (sizes, channels, zero) = (Sizes::of(level), geometry.input.channels, recipe.zero());
        let fits = geometry.kernel == [TAPS; 2] && geometry.stride == [1, 1] && channels.is_multiple_of(sizes.panel);
        if !fits || !weights.chunks_exact(geometry.window()).all(|filter| is_exact(filter, zero)) {
            return None;
        }
        let mut bias = bias.to_vec();
        bias.resize(bias.len().next_multiple_of(sizes.panel), 0);
        let of_frequency = channels * sizes.panel;
        let mut filters = Aligned::zeros(bias.len() / sizes.panel * FREQUENCIES * of_frequency);
        for (index, filter) in weights.chunks_exact(geometry.window()).enumerate() {
            let (panel, lane) = (index / sizes.panel, index % sizes.panel);
            let panel = &mut filters[panel * FREQUENCIES * of_frequency..];
            for channel in 0..channels {
                let at = (channel / PAIR * sizes.panel + lane) * PAIR + channel % PAIR;
                for (frequency, number) in transform_filter(filter, channels, channel).into_iter().enumerate() {
                    panel[frequency * of_frequency + at] = number;
                }
            }
        }
        Some(Self {
            geometry,
            tiling: Tiling::new(&geometry),
            level,
            sizes,
            filters,
            bias,
            requantize: recipe.requantize(sizes.panel),
            zero,
            output: recipe.output(),
            pooled,
        })
    }

    /// Whether it is the right one for so many images.
    pub fn suits(&self, images: usize) -> bool {
        let whole = [self.geometry.output.height, self.geometry.output.width].iter().all(|length| *length > OUT / 2);
        whole && images * self.tiling.per_image() >= FEWEST_TILES
    }

    /// The bytes of its filters, as they are laid out, and of what belongs to them.
    pub fn bytes(&self) -> usize {
        size_of::<i16>() * self.filters.len() + 6 * size_of::<i32>() * self.bias.len()
    }

    /// From one window to the next, in words. Many lines of the cache are an odd number, so that those of a tile do not compete
    /// for the same few places in it.
    fn stride(&self) -> usize {
        let line = LINE / size_of::<i16>();
        let lines = self.geometry.input.channels.div_ceil(line);
        line * if lines < 8 { lines } else { lines | 1 }
    }

    /// Tiles that are multiplied at once.
    fn block(&self) -> usize {
        let of_tile = FREQUENCIES * (self.stride() * size_of::<i16>() + self.sizes.panel * size_of::<i32>());
        (BLOCK / of_tile).max(LEAST) / self.sizes.word_rows * self.sizes.word_rows
    }

    /// From a frequency to the next, for the most tiles: in words of windows, and in sums of a panel.
    fn planes(&self) -> [usize; 2] {
        let [line, sums_line] = [LINE / size_of::<i16>(), LINE / size_of::<i32>()];
        [self.block() * self.stride() + line, self.block() * self.sizes.panel + sums_line]
    }

    /// Room that each thread needs.
    pub fn room(&self) -> Room {
        let [words, sums] = self.planes().map(|plane| FREQUENCIES * plane);
        Room { words, sums, ..Room::default() }
    }

    /// For as many images as the slices hold. // N,H,W,C to N,OH,OW,O
    pub fn forward(&self, team: &mut Team, input: &[u8], output: &mut [u8], workspace: &mut Workspace) {
        let (from, filters) = (self.geometry.input.len(), self.geometry.output.channels);
        let to = self.output[0] * self.output[1] * filters;
        let (words, sums) = workspace.words_and_sums();
        team.deal(input.len() / from, (Units::new(output, to), words, sums), |images, (output, words, sums)| {
            let input = &input[images.start * from..images.end * from];
            let tiles = images.len() * self.tiling.per_image();
            for first in (0..tiles).step_by(self.block()) {
                self.tiles(input, first..tiles.min(first + self.block()), output, words, sums);
            }
        });
    }

    /// `Y = A^T [(G g G^T) (B^T d B)] A` for some tiles, with sums over all channels.
    fn tiles(&self, input: &[u8], tiles: Range<usize>, output: &mut [u8], windows: &mut [i16], sums: &mut [i32]) {
        let ([plane, sums_plane], stride, panel_len) = (self.planes(), self.stride(), self.sizes.panel);
        let of_frequency = self.geometry.input.channels * panel_len;
        transform_windows(self.level, self, tiles.clone(), input, windows);
        for (panel, filters) in self.filters.chunks_exact(FREQUENCIES * of_frequency).enumerate() {
            for (frequency, filters) in filters.chunks_exact(of_frequency).enumerate() {
                let sums = &mut sums[frequency * sums_plane..][..tiles.len() * panel_len];
                word_tiles(self.level, &windows[frequency * plane..][..plane], stride, filters, sums);
            }
            finish_tiles(self.level, self, tiles.clone(), panel, sums, output);
        }
    }
}

/// Whether 64 times whatever a filter makes of bytes fits in 32 bits.
fn is_exact(filter: &[i8], zero: u8) -> bool {
    let zero = i64::from(zero);
    let of_sign = |sign: i64| filter.iter().map(|&weight| (sign * i64::from(weight)).max(0)).sum::<i64>();
    let (positive, negative) = (of_sign(1), of_sign(-1));
    let most = (255 - zero) * positive + zero * negative;
    let least = -zero * positive - (255 - zero) * negative;
    [least, most].iter().all(|sum| i32::try_from(sum << SHIFT).is_ok())
}

/// `G g G^T` of a filter's weights for one channel.
fn transform_filter(filter: &[i8], channels: usize, channel: usize) -> [i16; FREQUENCIES] {
    let weight = |row: usize, column: usize| i32::from(filter[(row * TAPS + column) * channels + channel]);
    let half: [[i32; WINDOW]; TAPS] = std::array::from_fn(|column| g(std::array::from_fn(|row| weight(row, column))));
    let whole: [[i32; WINDOW]; WINDOW] = std::array::from_fn(|row| g(std::array::from_fn(|column| half[column][row])));
    std::array::from_fn(|at| whole[at / WINDOW][at % WINDOW] as i16)
}

/// Words with the operators of numbers.
#[derive(Clone, Copy)]
struct Words<S: Dots>(S, S::Words);

impl<S: Dots> Add for Words<S> {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(self.0, self.0.add_words(self.1, other.1))
    }
}

impl<S: Dots> Sub for Words<S> {
    type Output = Self;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(self.0, self.0.subtract_words(self.1, other.1))
    }
}

/// Sums with the operators of numbers.
#[derive(Clone, Copy)]
struct Sums<S: Dots>(S, S::Sums);

impl<S: Dots> Add for Sums<S> {
    type Output = Self;

    #[inline(always)]
    fn add(self, other: Self) -> Self {
        Self(self.0, self.0.add(self.1, other.1))
    }
}

impl<S: Dots> Sub for Sums<S> {
    type Output = Self;

    #[inline(always)]
    fn sub(self, other: Self) -> Self {
        Self(self.0, self.0.subtract(self.1, other.1))
    }
}

dots! {
    /// `B^T d B` of some tiles' windows. // N,H,W,C to FREQUENCIES,TILES,C
    fn transform_windows<S>(simd: S, conv: &Winograd, tiles: Range<usize>, input: &[u8], to: &mut [i16]) {
        let (tiling, stride, [plane, _]) = (&conv.tiling, conv.stride(), conv.planes());
        let (channels, width) = (tiling.input.channels, tiling.input.width);
        tiling.check(&tiles, input.len() / tiling.input.len());
        assert!(tiles.len() <= conv.block() && to.len() >= FREQUENCIES * plane && channels.is_multiple_of(2 * S::LANES));
        let zero = Words(simd, simd.splat_words(i16::from(conv.zero)));
        let outside = Words(simd, simd.splat_words(0));
        for (index, tile) in tiles.enumerate() {
            let (pixel, clip) = tiling.input_window(tile);
            let start = input.as_ptr().wrapping_offset(pixel * channels as isize);
            let whole = clip.is_whole(WINDOW);
            for channel in (0..channels).step_by(2 * S::LANES) {
                let mut half = [[outside; WINDOW]; WINDOW];
                for column in 0..WINDOW {
                    let mut d = [outside; WINDOW];
                    for row in 0..WINDOW {
                        if whole || clip.contains(row, column) {
                            let from = start.wrapping_add((row * width + column) * channels + channel);
                            // SAFETY: the pixel is within the map, which the check above has found in the input.
                            d[row] = Words(simd, unsafe { simd.widen(from) }) - zero;
                        }
                    }
                    let products = b_transposed(d);
                    for row in 0..WINDOW {
                        half[row][column] = products[row];
                    }
                }
                for row in 0..WINDOW {
                    let products = b_transposed(half[row]);
                    for column in 0..WINDOW {
                        let at = (row * WINDOW + column) * plane + index * stride + channel;
                        // SAFETY: a plane holds the channels of so many tiles, and there are as many as frequencies.
                        unsafe { simd.store_words(to.as_mut_ptr().add(at), products[column].1) };
                    }
                }
            }
        }
    }

    /// `A^T M A` of some tiles and a panel of filters, as bytes. // FREQUENCIES,TILES,PANEL to N,OH,OW,O
    fn finish_tiles<S>(simd: S, conv: &Winograd, tiles: Range<usize>, panel: usize, sums: &[i32], output: &mut [u8]) {
        let (filters, panel_len, [_, plane]) = (conv.geometry.output.channels, 2 * S::LANES, conv.planes());
        let ([height, width], side) = (conv.output, if conv.pooled { 2 } else { 1 });
        let of_image = height * width * filters;
        assert!(tiles.len() <= conv.block() && sums.len() >= FREQUENCIES * plane);
        assert!(output.len() / of_image * conv.tiling.per_image() >= tiles.end && conv.bias.len() >= (panel + 1) * panel_len);
        conv.requantize.check((panel + 1) * panel_len);
        for lane in (0..panel_len).step_by(S::LANES) {
            let filter = panel * panel_len + lane;
            if filter >= filters {
                break;
            }
            let count = S::LANES.min(filters - filter);
            // SAFETY: so many filters have a bias, and `requantize` knows them.
            let (bias, how) = unsafe { (simd.load(conv.bias.as_ptr().add(filter)), conv.requantize.of(simd, filter)) };
            for (index, tile) in tiles.clone().enumerate() {
                let zero = Sums(simd, simd.splat(0));
                let mut half = [[zero; WINDOW]; OUT];
                for column in 0..WINDOW {
                    let mut m = [zero; WINDOW];
                    for row in 0..WINDOW {
                        let at = (row * WINDOW + column) * plane + index * panel_len + lane;
                        // SAFETY: a plane holds the panel of so many tiles, and there are as many as frequencies.
                        m[row] = Sums(simd, unsafe { simd.load(sums.as_ptr().add(at)) });
                    }
                    let products = a_transposed(m);
                    for row in 0..OUT {
                        half[row][column] = products[row];
                    }
                }
                let [image, y, x] = conv.tiling.origin(tile);
                let tile = OutputTile { y: y / side, x: x / side, height, width, filters, count };
                // SAFETY: so many images are in the output.
                unsafe {
                    let to = output.as_mut_ptr().add(image * of_image + filter);
                    if side == 2 {
                        store_tile::<S, 2>(simd, half, bias, how, tile, to);
                    } else {
                        store_tile::<S, 1>(simd, half, bias, how, tile, to);
                    }
                }
            }
        }
    }
}

/// Where a tile goes.
struct OutputTile {
    /// Its first pixel.
    y: usize,
    x: usize,
    /// Of the image.
    height: usize,
    width: usize,
    /// Of a pixel.
    filters: usize,
    /// Those that are stored.
    count: usize,
}

/// `half A`, as the bytes of a tile, or of the largest numbers of its squares of `SIDE` pixels.
///
/// # Safety
/// `to` is where the first of these filters is in the image's first pixel.
#[inline(always)]
#[allow(unsafe_code)]
unsafe fn store_tile<S: Dots, const SIDE: usize>(
    simd: S,
    half: [[Sums<S>; WINDOW]; OUT],
    bias: S::Sums,
    how: Rescale<S::Sums>,
    tile: OutputTile,
    to: *mut u8,
) {
    let (inverse, shift) = (simd.splat(INVERSE), simd.splat(SHIFT as i32));
    for row in (0..OUT).step_by(SIDE) {
        // 64 Y
        let mut sums = [simd.splat(i32::MIN); OUT];
        for row in row..row + SIDE {
            let products = a_transposed(half[row]);
            for column in 0..OUT {
                sums[column] = simd.larger(sums[column], simd.times(products[column].1, inverse));
            }
        }
        for column in (0..OUT).step_by(SIDE) {
            let [y, x] = [tile.y + row / SIDE, tile.x + column / SIDE];
            if y < tile.height && x < tile.width {
                let largest = if SIDE == 2 { simd.larger(sums[column], sums[column + 1]) } else { sums[column] };
                let bytes = simd.rescale(simd.add(simd.shift_right(largest, shift), bias), how);
                // SAFETY: the caller's promise; the pixel is within the image.
                unsafe { simd.store_bytes(to.add((y * tile.width + x) * tile.filters), tile.count, bytes) };
            }
        }
    }
}
