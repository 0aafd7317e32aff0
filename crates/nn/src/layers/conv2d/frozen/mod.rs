//! A convolution that is not trained any more: its filters are laid out once, and what follows it is done before its output
//! leaves the cache.
//!
//! Each of the [`algorithms`] leaves the sums of a panel of filters, and the [`epilogue`] makes the output of them.

use std::sync::{Arc, OnceLock};

use super::pairs::Pairs;
use super::passes::transform_filters;
use super::tiling::Tiling;
use super::transforms::{FREQUENCIES, TAPS};
use super::winograd::plane;
use super::{Geometry, direct};
use crate::aligned::Aligned;
use crate::kernels::matmul::{Store, padded_stride, product};
use crate::kernels::matrix::{Matrix, MatrixMut};
use crate::kernels::pack::{PANEL, pack, panels_len};
use crate::kernels::windows::Layout;
use crate::team::{Team, Units};

mod algorithms;
mod epilogue;

pub(crate) use epilogue::Activation;
pub(super) use epilogue::{Epilogue, larger};

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
}

#[cfg(test)]
mod tests;
