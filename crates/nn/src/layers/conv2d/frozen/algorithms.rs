//! How a frozen convolution comes to its sums: as in training, but for filters that are laid out already.

use std::ops::Range;

use super::super::im2col::Im2col;
use super::super::pairs::{Meeting, Pairs};
use super::super::passes::{Channels, finish_tiles, transform_windows};
use super::super::tiling::Tiling;
use super::super::transforms::FREQUENCIES;
use super::super::winograd::plane;
use super::super::{Geometry, direct};
use super::epilogue::finish_rows;
use super::{FrozenConv, Pass};
use crate::kernels::matmul::{Store, padded_stride, product};
use crate::kernels::matrix::{ByColumns, Matrix, MatrixMut};
use crate::kernels::pack::{PANEL, Panels};
use crate::kernels::windows::filter;
use crate::team::{Shares, Units};

impl FrozenConv {
    /// Each thread computes the sums of some panels from all images, which get some room between them first.
    pub(super) fn products(
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
    pub(super) fn pairs(&self, input: &[f32], weights: Panels<'_>, sums: &mut [f32], level: ringstep_cpu::Level) {
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
    pub(super) fn winograd(&self, pass: Pass<'_>) {
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
    pub(super) fn windows(&self, pass: Pass<'_>) {
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
    pub(super) fn im2col(&self, pass: Pass<'_>) {
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
