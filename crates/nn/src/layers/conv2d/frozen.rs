//! A convolution that is not trained any more: its filters are laid out once, and what follows it is done before its output
//! leaves the cache.
//!
//! Each algorithm leaves the sums of a panel of filters, and [`finish_rows`] or [`finish_tiles`] makes the output of them.

use std::ops::Range;
use std::sync::{Arc, OnceLock};

use ringstep_cpu::{Simd, Vector, kernels};

use super::im2col::Im2col;
use super::pairs::{Meeting, Pairs};
use super::passes::{Channels, Tiling, finish_tiles, transform_filters, transform_windows};
use super::transforms::{FREQUENCIES, TAPS};
use super::winograd::plane;
use super::{Geometry, direct};
use crate::aligned::Aligned;
use crate::kernels::matmul::{Store, padded_stride, product};
use crate::kernels::matrix::{ByColumns, Matrix, MatrixMut};
use crate::kernels::pack::{PANEL, Panels, pack, panels_len};
use crate::kernels::tanh::tanh;
use crate::kernels::windows::{Layout, filter};
use crate::team::{Shares, Team, Units};

/// What is done to a sum before it is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Activation {
    None,
    Relu,
    Tanh,
}

/// Filters and biases with what comes before and after them folded in, in the layouts that algorithms want, each made when it
/// is first asked for.
struct Filters {
    weights: Vec<f32>, // O,KH,KW,C
    bias: Vec<f32>,    // O, and zeros up to whole panels
    panels: OnceLock<Aligned>,
    frequencies: OnceLock<Aligned>,
}

/// A convolution, the residual sum, the activation and the pooling that follow it.
#[derive(Clone)]
pub(crate) struct FrozenConv {
    geometry: Geometry,
    filters: Arc<Filters>,
    /// Where windows lie, if there are few channels.
    layout: Option<Arc<Layout>>,
    pub activation: Activation,
    /// Whether each square of 2x2 outputs becomes its largest number.
    pub pool: bool,
}

/// What a frozen convolution reads and writes.
pub(crate) struct Pass<'a> {
    pub team: &'a mut Team,
    pub input: &'a [f32],
    /// Is added to the sums. // N,H,W,O
    pub residual: Option<&'a [f32]>,
    pub output: &'a mut [f32],
    pub workspace: &'a mut [f32],
}

/// How it is computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Algorithm {
    Whole,
    Pairs,
    Winograd,
    Windows,
    Im2col,
}

/// The fewest tiles for which reading four times as many weights costs less than a quarter of the multiplications saves.
const FEWEST_TILES: usize = 12;
/// Tiles that are handled at once.
const TILES: usize = 128;
/// Numbers in a block of windows.
const WINDOWS: usize = 1 << 18;

impl FrozenConv {
    /// From filters, in memory's layout, and a bias for each.
    pub fn new(geometry: Geometry, weights: Vec<f32>, mut bias: Vec<f32>) -> Self {
        assert_eq!(weights.len(), bias.len() * geometry.window());
        bias.resize(bias.len().next_multiple_of(PANEL), 0.0);
        let filters = Filters { weights, bias, panels: OnceLock::new(), frequencies: OnceLock::new() };
        let layout = direct::few_channels(&geometry).then(|| Arc::new(direct::windows(&geometry)));
        Self { geometry, filters: Arc::new(filters), layout, activation: Activation::None, pool: false }
    }

    /// Multiplies each filter by a number and adds another to its output: batch norm, which follows it.
    pub fn scaled(self, scale: &[f32], offset: &[f32]) -> Self {
        let mut weights = self.filters.weights.clone();
        for (filter, scale) in weights.chunks_exact_mut(self.geometry.window()).zip(scale) {
            filter.iter_mut().for_each(|weight| *weight *= scale);
        }
        let bias = self.filters.bias.iter().zip(scale.iter().zip(offset));
        Self::new(self.geometry, weights, bias.map(|(bias, (scale, offset))| bias * scale + offset).collect())
    }

    pub fn geometry(&self) -> Geometry {
        self.geometry
    }

    /// The bytes of its filters, in all the layouts that there are.
    pub fn bytes(&self) -> usize {
        let Filters { weights, bias, panels, frequencies } = &*self.filters;
        let packed = [panels, frequencies].into_iter().filter_map(OnceLock::get).map(|numbers| numbers.len());
        size_of::<f32>() * (weights.len() + bias.len() + packed.sum::<usize>())
    }

    fn algorithm(&self, images: usize) -> Algorithm {
        let Geometry { input, output, kernel, stride, padding } = self.geometry;
        let whole_panels = [input.channels, output.channels].iter().all(|channels| channels.is_multiple_of(PANEL));
        if kernel == [input.height, input.width] && padding == [0, 0] {
            Algorithm::Whole
        } else if Pairs::new(self.geometry).is_some_and(|pairs| super::Algorithm::suits(&pairs, images)) {
            Algorithm::Pairs
        } else if kernel == [TAPS; 2]
            && stride == [1, 1]
            && whole_panels
            && images * Tiling::new(&self.geometry).per_image() >= FEWEST_TILES
        {
            Algorithm::Winograd
        } else if self.layout.is_some() {
            Algorithm::Windows
        } else {
            Algorithm::Im2col
        }
    }

    /// What it is called in reports.
    pub fn algorithm_name(&self, images: usize) -> &'static str {
        match self.algorithm(images) {
            Algorithm::Whole => "whole",
            Algorithm::Pairs => "pairs of pixels",
            Algorithm::Winograd => "winograd",
            Algorithm::Windows => "direct",
            Algorithm::Im2col => "im2col",
        }
    }

    /// Lays the filters out for so many images, unless they are.
    pub fn prepare(&self, team: &mut Team, images: usize) {
        match self.algorithm(images) {
            Algorithm::Winograd => drop(self.frequencies(team)),
            _ => drop(self.panels(team)),
        }
    }

    /// Filters as columns of panels. // PANELS,KH,KW,C,PANEL
    fn panels(&self, team: &mut Team) -> &[f32] {
        let (filters, window) = (self.geometry.output.channels, self.geometry.window());
        self.filters.panels.get_or_init(|| {
            let mut panels = Aligned::zeros(panels_len(window, filters));
            pack(team, &mut panels, Matrix::new(&self.filters.weights, filters, window).transposed());
            panels
        })
    }

    /// Numbers of a panel's transformed filters.
    fn of_panel(&self) -> usize {
        FREQUENCIES * plane(self.geometry.input.channels, PANEL)
    }

    /// Transformed filters. // PANELS,F,C,PANEL
    fn frequencies(&self, team: &mut Team) -> &[f32] {
        let (channels, count) = (self.geometry.input.channels, self.geometry.output.channels / PANEL);
        self.filters.frequencies.get_or_init(|| {
            let mut frequencies = Aligned::zeros(count * self.of_panel());
            let (level, window) = (team.level(), self.geometry.window());
            team.deal(count, Units::new(&mut frequencies, self.of_panel()), |range, panels| {
                for (panel, to) in range.zip(panels.chunks_exact_mut(self.of_panel())) {
                    let filters = &self.filters.weights[panel * PANEL * window..];
                    transform_filters(level, filters, channels, to, plane(channels, PANEL));
                }
            });
            frequencies
        })
    }

    /// Images that are handled at once.
    fn block(&self, images: usize) -> usize {
        let most = match self.algorithm(images) {
            Algorithm::Whole | Algorithm::Pairs => images,
            Algorithm::Winograd => TILES / Tiling::new(&self.geometry).per_image(),
            Algorithm::Windows => 1,
            Algorithm::Im2col => WINDOWS / (self.geometry.positions() * self.geometry.window()),
        };
        most.clamp(1, images.max(1))
    }

    /// Numbers that all threads share, and numbers of each, for so many images.
    fn room(&self, images: usize) -> [usize; 2] {
        let (block, positions) = (self.block(images), self.geometry.positions());
        let sums = block * positions * PANEL;
        match self.algorithm(images) {
            Algorithm::Whole | Algorithm::Pairs => [images * padded_stride(self.geometry.input.len()), sums],
            Algorithm::Winograd => {
                let tiles = block * Tiling::new(&self.geometry).per_image();
                let of_windows = plane(tiles, padded_stride(self.geometry.input.channels));
                [FREQUENCIES * of_windows, FREQUENCIES * plane(tiles, PANEL)]
            }
            Algorithm::Windows => [0, sums + direct::padded_len(&self.geometry)],
            Algorithm::Im2col => [block * positions * padded_stride(self.geometry.window()), sums],
        }
    }

    /// Numbers of temporary room for up to so many images.
    pub fn workspace(&self, batch: usize, threads: usize) -> usize {
        // Fewer images may be another algorithm's; each takes most for the most images.
        let counts = (1..=FEWEST_TILES.min(batch)).chain([batch]);
        counts.map(|images| self.room(images)).map(|[all, each]| all + threads * each).max().unwrap_or(0)
    }

    /// Pixels of an image that comes out.
    pub fn output_size(&self) -> [usize; 2] {
        let [height, width] = [self.geometry.output.height, self.geometry.output.width];
        if self.pool { [height / 2, width / 2] } else { [height, width] }
    }

    fn output_pixels(&self) -> usize {
        self.output_size().iter().product()
    }

    fn epilogue<'a>(&'a self, panel: usize, residual: Option<&'a [f32]>, first_image: usize) -> Epilogue<'a> {
        let Geometry { output, .. } = self.geometry;
        let bias = self.filters.bias[panel * PANEL..].first_chunk().expect("a bias for each filter of a panel");
        let residual = residual.map(|all| &all[first_image * output.len() + panel * PANEL..]);
        let pool = self.pool.then_some([output.height, output.width]);
        Epilogue { bias, residual, stride: output.channels, activation: self.activation, pool }
    }

    /// For as many images as the slices hold.
    pub fn forward(&self, pass: Pass<'_>) {
        let images = pass.input.len() / self.geometry.input.len();
        match self.algorithm(images) {
            Algorithm::Whole => self.products(pass, |conv, input, panel, sums, level| {
                let (inputs, stride) = (conv.geometry.input.len(), padded_stride(conv.geometry.input.len()));
                let rows = input.len() / stride;
                let left = Matrix::strided(input, rows, inputs, stride);
                product(level, MatrixMut::new(sums, rows, PANEL), Store::Overwrite, left, panel);
            }),
            Algorithm::Pairs => self.products(pass, Self::pairs),
            Algorithm::Winograd => self.winograd(pass),
            Algorithm::Windows => self.windows(pass),
            Algorithm::Im2col => self.im2col(pass),
        }
    }

    /// Each thread computes the sums of some panels from all images, which get some room between them first.
    fn products(
        &self,
        pass: Pass<'_>,
        sum: impl Fn(&Self, &[f32], Panels<'_>, &mut [f32], ringstep_cpu::Level) + Sync,
    ) {
        let (filters, window, level) = (self.geometry.output.channels, self.geometry.window(), pass.team.level());
        let images = pass.input.len() / self.geometry.input.len();
        let panels = self.panels(pass.team);
        let (image, stride) = (self.geometry.input.len(), padded_stride(self.geometry.input.len()));
        let (padded, shares) = pass.workspace.split_at_mut(images * stride);
        pass.team.deal(images, Units::new(padded, stride), |range, padded| {
            for (index, to) in range.zip(padded.chunks_exact_mut(stride)) {
                to[..image].copy_from_slice(&pass.input[index * image..][..image]);
            }
        });
        let (padded, rows) = (&*padded, images * self.geometry.positions());
        let output = ByColumns::new(MatrixMut::new(pass.output, images * self.output_pixels(), filters), PANEL);
        let parts = (output, Shares::new(shares, rows * PANEL));
        pass.team.deal(filters.div_ceil(PANEL), parts, |range, (mut output, sums)| {
            for (index, panel) in range.enumerate() {
                let weights = Panels::new(&panels[panel * window * PANEL..], window, PANEL);
                sum(self, padded, weights, sums, level);
                let mut output = output.columns(index * PANEL, PANEL.min(filters - panel * PANEL));
                finish_rows(level, sums, self.epilogue(panel, pass.residual, 0), &mut output);
            }
        });
    }

    /// As in training: a product for each line of weights that meets pixels.
    fn pairs(&self, input: &[f32], weights: Panels<'_>, sums: &mut [f32], level: ringstep_cpu::Level) {
        let pairs = Pairs::new(self.geometry).expect("a map that is small enough");
        let (channels, positions) = (self.geometry.input.channels, self.geometry.positions());
        let stride = padded_stride(self.geometry.input.len());
        let images = input.len() / stride;
        let mut sums = MatrixMut::new(sums, images * positions, PANEL);
        for position in 0..positions {
            let mut store = Store::Overwrite;
            for Meeting { taps, pixel } in pairs.meetings(position) {
                let left = Matrix::strided(&input[pixel * channels..], images, taps.len() * channels, stride);
                let right = weights.rows(taps.start * channels..taps.end * channels);
                product(level, sums.every(position, positions, images), store, left, right);
                store = Store::Accumulate;
            }
            if store == Store::Overwrite {
                (0..images).for_each(|row| sums.part(row * positions + position, 0, PANEL).fill(0.0));
            }
        }
    }

    /// As in training, but for the filters, which are transformed already.
    fn winograd(&self, pass: Pass<'_>) {
        let Geometry { input: from, output: to, .. } = self.geometry;
        let (tiling, level) = (Tiling::new(&self.geometry), pass.team.level());
        let images = pass.input.len() / from.len();
        let frequencies = self.frequencies(pass.team);
        let of_filter = plane(from.channels, PANEL);
        for first in (0..images).step_by(self.block(images)) {
            let count = self.block(images).min(images - first);
            let tiles = count * tiling.per_image();
            let input = &pass.input[first * from.len()..][..count * from.len()];
            let stride = padded_stride(from.channels);
            let (of_windows, of_sums) = (plane(tiles, stride), plane(tiles, PANEL));
            let (transformed, shares) = pass.workspace.split_at_mut(FREQUENCIES * of_windows);
            let rows = MatrixMut::strided(transformed, FREQUENCIES, tiles * stride, of_windows);
            pass.team.deal(tiles, ByColumns::new(rows, stride), |range, mut rows| {
                let from = Channels { maps: input, all: from.channels, range: (0, from.channels) };
                transform_windows(level, &tiling, range, from, &mut rows, stride);
            });
            let transformed = &*transformed;

            let pixels = self.output_pixels();
            let output = &mut pass.output[first * pixels * to.channels..][..count * pixels * to.channels];
            let output = ByColumns::new(MatrixMut::new(output, count * pixels, to.channels), PANEL);
            let parts = (output, Shares::new(shares, FREQUENCIES * of_sums));
            pass.team.deal(to.channels / PANEL, parts, |range, (mut output, sums)| {
                for (index, panel) in range.enumerate() {
                    let filter = &frequencies[panel * self.of_panel()..][..self.of_panel()];
                    for frequency in 0..FREQUENCIES {
                        let left =
                            Matrix::strided(&transformed[frequency * of_windows..], tiles, from.channels, stride);
                        let right = Panels::new(&filter[frequency * of_filter..], from.channels, PANEL);
                        let sums = MatrixMut::new(&mut sums[frequency * of_sums..], tiles, PANEL);
                        product(level, sums, Store::Overwrite, left, right);
                    }
                    let epilogue = self.epilogue(panel, pass.residual, first);
                    finish_tiles(
                        level,
                        &tiling,
                        0..tiles,
                        sums,
                        of_sums,
                        epilogue,
                        &mut output.columns(index * PANEL, PANEL),
                    );
                }
            });
        }
    }

    /// Few channels: windows are read where they lie, in images with their padding.
    fn windows(&self, pass: Pass<'_>) {
        let Geometry { input: from, output: to, .. } = self.geometry;
        let (level, layout) = (pass.team.level(), self.layout.as_deref().expect("a layout for few channels"));
        let images = pass.input.len() / from.len();
        let (panels, filters, window) = (self.panels(pass.team), to.channels, self.geometry.window());
        let [_, share] = self.room(1);
        let pixels = self.output_pixels();
        let some = |range: Range<usize>, image: usize, mut output: MatrixMut<'_>, share: &mut [f32]| {
            let (sums, room) = share.split_at_mut(self.geometry.positions() * PANEL);
            let room = &mut room[..direct::padded_len(&self.geometry)];
            room.fill(0.0);
            let padded = direct::padded(&self.geometry, &pass.input[image * from.len()..][..from.len()], room);
            for (index, panel) in range.enumerate() {
                let weights = &panels[panel * window * PANEL..][..window * PANEL];
                filter(level, sums, weights, None, layout.of(padded));
                let mut output = output.columns(index * PANEL, PANEL.min(filters - panel * PANEL));
                finish_rows(level, sums, self.epilogue(panel, pass.residual, image), &mut output);
            }
        };
        if images >= pass.team.threads() {
            let parts = (Units::new(pass.output, pixels * filters), Shares::new(pass.workspace, share));
            pass.team.deal(images, parts, |range, (output, share)| {
                for (image, output) in range.zip(output.chunks_exact_mut(pixels * filters)) {
                    some(0..filters.div_ceil(PANEL), image, MatrixMut::new(output, pixels, filters), share);
                }
            });
        } else {
            for (image, output) in pass.output.chunks_exact_mut(pixels * filters).enumerate().take(images) {
                let output = ByColumns::new(MatrixMut::new(output, pixels, filters), PANEL);
                let parts = (output, Shares::new(&mut *pass.workspace, share));
                pass.team.deal(filters.div_ceil(PANEL), parts, |range, (output, share)| {
                    some(range, image, output, share);
                });
            }
        }
    }

    /// Windows become rows of a matrix.
    fn im2col(&self, pass: Pass<'_>) {
        let Geometry { input: from, output: to, .. } = self.geometry;
        let (level, gather) = (pass.team.level(), Im2col::new(self.geometry));
        let images = pass.input.len() / from.len();
        let (panels, filters, window) = (self.panels(pass.team), to.channels, self.geometry.window());
        let (positions, pixels) = (self.geometry.positions(), self.output_pixels());
        for first in (0..images).step_by(self.block(images)) {
            let count = self.block(images).min(images - first);
            let rows = count * positions;
            let stride = padded_stride(window);
            let (windows, shares) = pass.workspace.split_at_mut(rows * stride);
            pass.team.deal(rows, Units::new(windows, stride), |range, windows| {
                for (position, row) in range.zip(windows.chunks_exact_mut(stride)) {
                    gather.gather(pass.input, first * positions + position, &mut row[..window]);
                }
            });
            let windows = Matrix::strided(windows, rows, window, stride);
            let output = &mut pass.output[first * pixels * filters..][..count * pixels * filters];
            let output = ByColumns::new(MatrixMut::new(output, count * pixels, filters), PANEL);
            let parts = (output, Shares::new(shares, rows * PANEL));
            pass.team.deal(filters.div_ceil(PANEL), parts, |range, (mut output, sums)| {
                for (index, panel) in range.enumerate() {
                    let weights = Panels::new(&panels[panel * window * PANEL..], window, PANEL);
                    product(level, MatrixMut::new(sums, rows, PANEL), Store::Overwrite, windows, weights);
                    let mut output = output.columns(index * PANEL, PANEL.min(filters - panel * PANEL));
                    finish_rows(level, sums, self.epilogue(panel, pass.residual, first), &mut output);
                }
            });
        }
    }
}

/// What happens to the sums of a panel.
#[derive(Clone, Copy)]
pub(super) struct Epilogue<'a> {
    pub bias: &'a [f32; PANEL],
    /// The panel's columns of what is added to the first image's outputs and the following; pixels are `stride` apart.
    pub residual: Option<&'a [f32]>,
    pub stride: usize,
    pub activation: Activation,
    /// Height and width of the map, if squares of 2x2 become their largest number.
    pub pool: Option<[usize; 2]>,
}

/// The larger of two numbers, as max pooling has it: what is not a number wins, so that it is seen.
#[inline(always)]
pub(super) fn larger<V: Vector>(one: V, other: V) -> V {
    let larger = other.where_greater(one, other, one);
    other.where_equal(other, larger, other)
}

impl Epilogue<'_> {
    /// What comes of a sum, or of the largest of several, to which the residual has been added.
    #[inline(always)]
    pub fn finish<S: Simd>(&self, simd: S, sum: S::Vector, bias: S::Vector) -> S::Vector {
        let sum = sum + bias;
        match self.activation {
            Activation::None => sum,
            Activation::Relu => simd.zero().max(sum),
            Activation::Tanh => tanh(simd, sum),
        }
    }

    /// What is added to some columns of a pixel.
    ///
    /// # Safety
    /// The residual has that pixel, and `count` columns of it from `column` on.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn residual<S: Simd>(&self, simd: S, pixel: usize, column: usize, count: usize) -> S::Vector {
        match self.residual {
            None => simd.zero(),
            Some(residual) => {
                let from = residual.as_ptr().wrapping_add(pixel * self.stride + column);
                // SAFETY: the caller's promise.
                unsafe { if count >= S::LANES { simd.load(from) } else { simd.load_some(from, count) } }
            }
        }
    }
}

kernels! {
    /// The outputs of a panel from its sums, which stand pixel after pixel.
    fn finish_rows<S>(simd: S, sums: &[f32], epilogue: Epilogue<'_>, to: &mut MatrixMut<'_>) {
        let ([pixels, columns, stride], start) = (to.size(), to.as_mut_ptr());
        // Without pooling a map is as good as a row of pixels, each of which is a square of its own.
        let ([height, width], side) = match epilogue.pool {
            Some(map) => (map, 2),
            None => ([1, pixels], 1),
        };
        let [tall, wide] = [height / side, width / side];
        let images = pixels.checked_div(tall * wide).unwrap_or(0);
        assert!(columns <= PANEL && images * height * width * PANEL <= sums.len());
        let end = (images * height * width).checked_sub(1).map_or(0, |last| last * epilogue.stride + columns);
        assert!(epilogue.residual.is_none_or(|residual| end <= residual.len()));
        for lane in (0..columns).step_by(S::LANES) {
            let count = columns - lane;
            // SAFETY: there is a number for each column of a panel.
            let bias = unsafe { simd.load(epilogue.bias.as_ptr().add(lane)) };
            for pixel in 0..images * tall * wide {
                let (image, y, x) = (pixel / (tall * wide), pixel / wide % tall, pixel % wide);
                let first = (image * height + y * side) * width + x * side;
                // SAFETY: the assertions above.
                unsafe {
                    let at = |pixel: usize| sums.as_ptr().add(pixel * PANEL + lane);
                    let mut best = simd.load(at(first)) + epilogue.residual(simd, first, lane, count);
                    for other in 1..side * side {
                        let pixel = first + other / side * width + other % side;
                        best = larger(best, simd.load(at(pixel)) + epilogue.residual(simd, pixel, lane, count));
                    }
                    let value = epilogue.finish(simd, best, bias);
                    let to = start.add(pixel * stride + lane);
                    if count >= S::LANES { simd.store(to, value) } else { simd.store_some(to, count, value) };
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::Level;

    use super::super::super::check::noise;
    use super::super::super::{Shape, check};
    use super::super::{Conv2d, Layer};
    use super::*;

    /// A convolution as it is trained, then everything that may follow it, one after the other.
    #[test]
    fn it_is_what_the_layers_do_one_after_the_other() {
        // Height, width, channels, filters, kernel, stride, padding, images.
        let cases: [[usize; 8]; 9] = [
            [8, 8, 16, 32, 3, 1, 1, 4],
            [7, 9, 16, 16, 3, 1, 1, 3],
            [4, 4, 32, 20, 3, 1, 1, 1],
            [9, 8, 3, 10, 3, 1, 1, 3],
            [12, 12, 1, 6, 5, 1, 0, 1],
            [8, 8, 17, 33, 3, 2, 1, 3],
            [2, 2, 16, 48, 3, 1, 1, 9],
            [5, 5, 4, 12, 5, 1, 0, 5],
            [6, 6, 20, 7, 1, 1, 0, 2],
        ];
        for [height, width, channels, filters, kernel, stride, padding, images] in cases {
            let input = Shape::new(height, width, channels);
            let geometry = Geometry::new(input, filters, [kernel; 2], [stride; 2], [padding; 2]).unwrap();
            let mut layer = Conv2d::new(geometry, true);
            let mut bench = check::Bench::new(&mut layer, input, images, 1);
            let sums = bench.forward(images);
            let (weights, bias) = bench.parameters.split_at(filters * geometry.window());
            let to = layer.output();
            let residual = noise(images * to.len(), 9);
            for (level, threads) in Level::available().into_iter().flat_map(|level| [(level, 1), (level, 3)]) {
                for (activation, adds, pool) in [
                    (Activation::None, false, false),
                    (Activation::Relu, true, false),
                    (Activation::Tanh, false, true),
                    (Activation::Relu, true, true),
                ] {
                    let pool = pool && to.height.min(to.width) > 1;
                    let mut frozen = FrozenConv::new(geometry, weights.to_vec(), bias.to_vec());
                    (frozen.activation, frozen.pool) = (activation, pool);
                    let mut team = Team::new(threads, level);
                    let mut workspace = vec![f32::NAN; frozen.workspace(images, threads)];
                    let [tall, wide] = frozen.output_size();
                    let mut output = vec![f32::NAN; images * tall * wide * filters];
                    frozen.forward(Pass {
                        team: &mut team,
                        input: &bench_input(images, input),
                        residual: adds.then_some(&residual[..]),
                        output: &mut output,
                        workspace: &mut workspace,
                    });
                    let value = |image: usize, y: usize, x: usize, filter: usize| {
                        let at = ((image * to.height + y) * to.width + x) * filters + filter;
                        let sum = sums[at] + if adds { residual[at] } else { 0.0 };
                        match activation {
                            Activation::None => sum,
                            Activation::Relu => sum.max(0.0),
                            Activation::Tanh => sum.tanh(),
                        }
                    };
                    for (at, &found) in output.iter().enumerate() {
                        let (pixel, filter) = (at / filters, at % filters);
                        let (image, y, x) = (pixel / (tall * wide), pixel / wide % tall, pixel % wide);
                        let side = if pool { 2 } else { 1 };
                        let squares =
                            (0..side * side).map(|of| value(image, y * side + of / side, x * side + of % side, filter));
                        let expected = squares.fold(f32::NEG_INFINITY, f32::max);
                        assert!(
                            (found - expected).abs() < 2e-4,
                            "{level}, {geometry:?}, {activation:?}: {found} is not {expected}"
                        );
                    }
                }
            }
        }
    }

    /// What [`check::Bench`] has for input.
    fn bench_input(images: usize, shape: Shape) -> Vec<f32> {
        noise(images * shape.len(), 2)
    }
}
