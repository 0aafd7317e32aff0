//! Convolution with few channels and filters of five lines, by Winograd's minimal filtering down the columns: `F(2, 5)`.
//!
//! Two lines of the output depend on six lines d of the input. With the matrices of `F(2, 5)` and the lines g of a filter
//!
//! ```text
//! Y = A^T [ (G g) * (B^T d) ]
//! ```
//!
//! where each of the six lines ("frequencies") of `B^T d` meets its line of `G g` along itself alone, by definition: three
//! fifths of the multiplications, and transforms that add whole lines, whatever the number of channels.
//!
//! Backward is the adjoint of each of these maps, in reverse order, with `D = A Y'`.

use ringstep_cpu::{Level, Simd, kernels};

use super::super::{Backward, Forward};
use super::direct::{few_channels, padded, padded_len, padded_line};
use super::transforms::{A2, A2Transposed, B, BTransposed, G5, G5Transposed, Times};
use super::{Algorithm, Geometry};
use crate::kernels::end;
use crate::kernels::matrix::Matrix;
use crate::kernels::pack::{PANEL, pack_some, panels_len};
use crate::kernels::windows::{Gradients, Layout, SLACK, add_filter_gradients, add_runs, filter, send_back, unpack};
use crate::team::{Shares, Units};

/// Lines of the output that are found at once, of a filter, and of the input that they depend on.
pub(super) const OUT: usize = 2;
pub(super) const TAPS: usize = 5;
pub(super) const FREQUENCIES: usize = OUT + TAPS - 1;

pub(super) struct Columns {
    geometry: Geometry,
    /// The windows of a frequency: a line for each pair of output lines.
    layout: Layout,
}

/// Numbers of each kind of thing.
struct Sizes {
    /// Of all lines of a frequency: of the input, and of the output.
    windows: usize,
    sums: usize,
    /// Of the weights of a frequency, in panels.
    filters: usize,
    turned: usize,
    /// What a line of positions sends back, and what stands before and after it: nothing, from positions outside of the map.
    runs: usize,
    /// The gradient of an image with lines of padding, if there are any.
    gradient: usize,
}

impl Columns {
    /// `None` if it cannot do such a convolution, or others do it better.
    pub fn new(geometry: Geometry) -> Option<Self> {
        let Geometry { input, output, kernel: [tall, wide], .. } = geometry;
        let suits = few_channels(&geometry)
            && tall == TAPS
            && output.height.is_multiple_of(OUT)
            && output.channels.is_multiple_of(PANEL);
        let line = padded_line(&geometry);
        let pairs = output.height / OUT;
        let starts = (0..pairs).flat_map(|pair| (0..output.width).map(move |x| pair * line + x * input.channels));
        suits.then(|| Self { geometry, layout: Layout::new(starts.collect(), 1, wide * input.channels, line) })
    }

    /// Pairs of lines of the output.
    fn pairs(&self) -> usize {
        self.geometry.output.height / OUT
    }

    /// Numbers of a line of a window.
    fn run(&self) -> usize {
        self.geometry.kernel[1] * self.geometry.input.channels
    }

    fn sizes(&self) -> Sizes {
        let Geometry { input, output, kernel: [_, wide], padding, .. } = self.geometry;
        let lines = input.height + 2 * padding[0];
        Sizes {
            windows: self.pairs() * padded_line(&self.geometry),
            sums: self.pairs() * output.width * output.channels,
            filters: panels_len(self.run(), output.channels),
            turned: panels_len(output.channels, self.run()),
            runs: panels_len(output.width + 2 * (wide - 1), self.run()) + SLACK,
            gradient: if padding[0] == 0 { 0 } else { lines * input.width * input.channels },
        }
    }

    /// Numbers of a thread.
    fn share(&self) -> usize {
        let Sizes { windows, sums, filters, runs, gradient, .. } = self.sizes();
        let line = self.geometry.input.width * self.geometry.input.channels;
        padded_len(&self.geometry) + FREQUENCIES * (windows + sums + filters + line) + runs + gradient
    }

    /// `G g` of all filters. // frequency,filter,run
    fn transform_filters(&self, level: Level, weights: &[f32], to: &mut [f32]) {
        let (filters, run) = (self.geometry.output.channels, self.run());
        let weights = Lines { data: weights, stride: run, step: TAPS * run };
        transform_filters(level, weights, LinesMut { data: to, stride: filters * run, step: run }, filters, run);
    }

    /// `B^T d` of an image. // frequency,pair,line
    fn transform_windows(&self, level: Level, image: &[f32], to: &mut [f32]) {
        let (line, stride) = (padded_line(&self.geometry), self.sizes().windows);
        let image = Lines { data: image, stride: line, step: OUT * line };
        transform_windows(level, image, LinesMut { data: to, stride, step: line }, self.pairs(), line);
    }

    /// The gradient of an image: `B [ (G g)^T * D ]`, added up where windows overlap; `turned` is the weights, `spread` is D.
    fn send_back(
        &self,
        level: Level,
        turned: &[f32],
        spread: &[f32],
        room: (&mut [f32], &mut [f32]),
        gradient: &mut [f32],
    ) {
        let Geometry { input, output, kernel: [_, wide], padding, .. } = self.geometry;
        let (sizes, line, run) = (self.sizes(), input.width * input.channels, panels_len(1, self.run()));
        let (runs, lines) = room;
        gradient.fill(0.0);
        for pair in 0..self.pairs() {
            for (frequency, to) in lines.chunks_exact_mut(line).enumerate() {
                let values = &spread[frequency * sizes.sums..][..sizes.sums];
                let gradients = Gradients { values, width: output.width, filters: output.channels };
                let sent = &mut runs[(wide - 1) * run..][..output.width * run];
                send_back(level, sent, &turned[frequency * sizes.turned..][..sizes.turned], 0..1, gradients, pair);
                let narrow = level.at_most_eight_lanes();
                add_runs(narrow, to, input.width, input.channels, runs, run, padding[1], wide);
            }
            let to = LinesMut { data: &mut gradient[OUT * pair * line..], stride: line, step: 0 };
            add_windows(level, Lines { data: lines, stride: line, step: 0 }, to, 1, line);
        }
    }
}

impl Algorithm for Columns {
    fn name(&self) -> &'static str {
        "columns"
    }

    fn suits(&self, _: usize) -> bool {
        true
    }

    fn adds(&self) -> bool {
        false
    }

    fn workspace(&self, _: usize, threads: usize) -> usize {
        let Sizes { filters, turned, .. } = self.sizes();
        let transformed = self.geometry.output.channels * self.run();
        FREQUENCIES * (transformed + filters.max(turned)) + threads * self.share()
    }

    fn forward(&mut self, pass: Forward<'_>, bias: Option<&[f32]>) {
        let Geometry { input, output, .. } = self.geometry;
        let (sizes, run, level) = (self.sizes(), self.run(), pass.team.level());
        let (images, of_filters) = (pass.output.len() / output.len(), output.channels * run);
        let (transformed, workspace) = pass.workspace.split_at_mut(FREQUENCIES * of_filters);
        let (packed, shares) = workspace.split_at_mut(FREQUENCIES * sizes.filters);
        self.transform_filters(level, pass.parameters, transformed);
        for (from, to) in transformed.chunks_exact(of_filters).zip(packed.chunks_exact_mut(sizes.filters)) {
            let matrix = Matrix::new(from, output.channels, run).transposed();
            pack_some(level, to, matrix, 0..output.channels / PANEL);
        }
        let packed = &*packed;
        let parts = (Units::new(pass.output, output.len()), Shares::new(shares, self.share()));
        pass.team.deal(images, parts, |range, (outputs, share)| {
            let (room, share) = share.split_at_mut(padded_len(&self.geometry));
            let (windows, share) = share.split_at_mut(FREQUENCIES * sizes.windows);
            let sums = &mut share[..FREQUENCIES * sizes.sums];
            room.fill(0.0);
            for (index, to) in range.zip(outputs.chunks_exact_mut(output.len())) {
                let image = padded(&self.geometry, &pass.input[index * input.len()..][..input.len()], room);
                self.transform_windows(level, image, windows);
                for (frequency, sums) in sums.chunks_exact_mut(sizes.sums).enumerate() {
                    let windows = self.layout.of(&windows[frequency * sizes.windows..][..sizes.windows]);
                    // The first line of a pair alone depends on the first frequency, the second line alone on the last.
                    let bias = bias.filter(|_| frequency == 0 || frequency == FREQUENCIES - 1);
                    filter(level, sums, &packed[frequency * sizes.filters..][..sizes.filters], bias, windows);
                }
                let line = output.width * output.channels;
                let sums = Lines { data: sums, stride: sizes.sums, step: line };
                inverse_lines(level, sums, LinesMut { data: to, stride: line, step: OUT * line }, self.pairs(), line);
            }
        });
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let Geometry { input, output, padding, .. } = self.geometry;
        let (sizes, run, level, share_len) = (self.sizes(), self.run(), pass.team.level(), self.share());
        let (images, of_filters) = (pass.output_gradient.len() / output.len(), output.channels * run);
        let (transformed, workspace) = pass.workspace.split_at_mut(FREQUENCIES * of_filters);
        let (turned, shares) = workspace.split_at_mut(FREQUENCIES * sizes.turned);
        if pass.input_gradient.is_some() {
            self.transform_filters(level, pass.parameters, transformed);
            for (from, to) in transformed.chunks_exact(of_filters).zip(turned.chunks_exact_mut(sizes.turned)) {
                pack_some(level, to, Matrix::new(from, output.channels, run), 0..run.div_ceil(PANEL));
            }
        }
        let turned = &*turned;
        let input_gradient = pass.input_gradient.map(|gradient| Units::new(gradient, input.len()));
        pass.team.deal(images, (input_gradient, Shares::new(shares, share_len)), |range, (mut gradients, share)| {
            share.fill(0.0);
            let (totals, share) = share.split_at_mut(FREQUENCIES * sizes.filters);
            let (room, share) = share.split_at_mut(padded_len(&self.geometry));
            let (windows, share) = share.split_at_mut(FREQUENCIES * sizes.windows);
            let (spread, share) = share.split_at_mut(FREQUENCIES * sizes.sums);
            let (runs, share) = share.split_at_mut(sizes.runs);
            let (lines, with_padding) = share.split_at_mut(FREQUENCIES * input.width * input.channels);
            for (at, index) in range.enumerate() {
                let image = padded(&self.geometry, &pass.input[index * input.len()..][..input.len()], room);
                let output_gradient = &pass.output_gradient[index * output.len()..][..output.len()];
                self.transform_windows(level, image, windows);
                let line = output.width * output.channels;
                let from = Lines { data: output_gradient, stride: line, step: OUT * line };
                let to = LinesMut { data: spread, stride: sizes.sums, step: line };
                spread_lines(level, from, to, self.pairs(), line);
                // (G g)' = the sum over all positions of D times what the weight met there.
                for (frequency, totals) in totals.chunks_exact_mut(sizes.filters).enumerate() {
                    let windows = self.layout.of(&windows[frequency * sizes.windows..][..sizes.windows]);
                    add_filter_gradients(level, totals, &spread[frequency * sizes.sums..][..sizes.sums], windows);
                }
                let Some(gradients) = &mut gradients else { continue };
                let to = &mut gradients[at * input.len()..][..input.len()];
                if sizes.gradient == 0 {
                    self.send_back(level, turned, spread, (runs, lines), to);
                } else {
                    let with_padding = &mut with_padding[..sizes.gradient];
                    self.send_back(level, turned, spread, (runs, lines), with_padding);
                    to.copy_from_slice(&with_padding[padding[0] * input.width * input.channels..][..to.len()]);
                }
            }
        });
        // g' = G^T (G g)'; threads without an image have no sums.
        let threads = pass.team.threads();
        transformed.fill(0.0);
        for thread in (0..threads).filter(|thread| images * thread / threads < images * (thread + 1) / threads) {
            let totals = shares[thread * share_len..][..FREQUENCIES * sizes.filters].chunks_exact(sizes.filters);
            for (totals, to) in totals.zip(transformed.chunks_exact_mut(of_filters)) {
                unpack(totals, run, output.channels, to);
            }
        }
        let transformed = Lines { data: transformed, stride: of_filters, step: run };
        let to = LinesMut { data: pass.gradients, stride: run, step: TAPS * run };
        inverse_filters(level, transformed, to, output.channels, run);
    }
}

kernels! {
    /// `G g` of the lines of filters.
    pub(super) fn transform_filters<S>(simd: S, from: Lines<'_>, to: LinesMut<'_>, count: usize, length: usize) {
        times::<S, G5, TAPS, FREQUENCIES, false>(simd, from, to, count, length);
    }

    /// `G^T u` of the frequencies of filters.
    pub(super) fn inverse_filters<S>(simd: S, from: Lines<'_>, to: LinesMut<'_>, count: usize, length: usize) {
        times::<S, G5Transposed, FREQUENCIES, TAPS, false>(simd, from, to, count, length);
    }

    /// `B^T d` of lines of the input.
    pub(super) fn transform_windows<S>(simd: S, from: Lines<'_>, to: LinesMut<'_>, count: usize, length: usize) {
        times::<S, BTransposed, FREQUENCIES, FREQUENCIES, false>(simd, from, to, count, length);
    }

    /// Adds `B v` to lines of the input's gradient.
    fn add_windows<S>(simd: S, from: Lines<'_>, to: LinesMut<'_>, count: usize, length: usize) {
        times::<S, B, FREQUENCIES, FREQUENCIES, true>(simd, from, to, count, length);
    }

    /// `A^T m`: lines of the output.
    pub(super) fn inverse_lines<S>(simd: S, from: Lines<'_>, to: LinesMut<'_>, count: usize, length: usize) {
        times::<S, A2Transposed, FREQUENCIES, OUT, false>(simd, from, to, count, length);
    }

    /// `A y` of lines of the output's gradient.
    pub(super) fn spread_lines<S>(simd: S, from: Lines<'_>, to: LinesMut<'_>, count: usize, length: usize) {
        times::<S, A2, OUT, FREQUENCIES, false>(simd, from, to, count, length);
    }
}

/// Columns of lines: the lines of one are `stride` apart, and the next column begins `step` after it.
#[derive(Clone, Copy)]
pub(super) struct Lines<'a> {
    pub data: &'a [f32],
    pub stride: usize,
    pub step: usize,
}

/// The same, to be written.
pub(super) struct LinesMut<'a> {
    pub data: &'a mut [f32],
    pub stride: usize,
    pub step: usize,
}

/// A matrix times `count` columns of lines of so many numbers, which replaces the lines of `to` or is added to them.
#[inline(always)]
#[allow(unsafe_code)]
fn times<S: Simd, T: Times<I, O>, const I: usize, const O: usize, const ADD: bool>(
    simd: S,
    from: Lines<'_>,
    to: LinesMut<'_>,
    count: usize,
    length: usize,
) {
    assert!(count > 0 && end(&[(count, from.step), (I, from.stride)], length) <= from.data.len());
    assert!(end(&[(count, to.step), (O, to.stride)], length) <= to.data.len());
    let (first, first_to) = (from.data.as_ptr(), to.data.as_mut_ptr());
    for column in 0..count {
        for at in (0..length).step_by(S::LANES) {
            let lanes = S::LANES.min(length - at);
            // SAFETY: all lines are within the slices, by the assertions.
            unsafe {
                let mut lines = [simd.zero(); I];
                for line in 0..I {
                    let from = first.add(column * from.step + line * from.stride + at);
                    lines[line] = if lanes == S::LANES { simd.load(from) } else { simd.load_some(from, lanes) };
                }
                let products = T::times(simd, lines);
                for line in 0..O {
                    let to = first_to.add(column * to.step + line * to.stride + at);
                    if lanes == S::LANES {
                        simd.store(to, if ADD { simd.load(to) + products[line] } else { products[line] });
                    } else {
                        let product = if ADD { simd.load_some(to, lanes) + products[line] } else { products[line] };
                        simd.store_some(to, lanes, product);
                    }
                }
            }
        }
    }
}
