//! Convolution as a matrix product: each window becomes a row of a matrix ("im2col", Chellapilla et al. 2006), and the
//! rows times the filters are the outputs. Backward takes the same road in the other direction.
//!
//! The matrix is never there as a whole: a block of rows is made, used while it is in the cache, and forgotten.

use ringstep_cpu::Level;

use super::super::{Backward, Forward};
use super::{Algorithm, Geometry};
use crate::kernels::matmul::{Store, padded_stride, product};
use crate::kernels::matrix::{ByColumns, Matrix, MatrixMut};
use crate::kernels::pack::{PANEL, Panels, pack, panels_len};
use crate::kernels::rows::{add_slice, add_to_rows};
use crate::team::{Shares, Units};

/// Numbers in a block of windows: a good part of the second-level cache.
const BLOCK: usize = 48 * 1024;
/// The fewest windows of a block for the gradient of the filters: the whole gradient is read and written for each block.
const DEEP: usize = 128;

pub(super) struct Im2col {
    geometry: Geometry,
}

impl Im2col {
    pub fn new(geometry: Geometry) -> Self {
        Self { geometry }
    }

    /// Windows that are handled at once.
    fn block(&self) -> usize {
        (BLOCK / self.geometry.window()).clamp(6, 252) / 6 * 6
    }

    /// Windows that are handled at once for the gradient of the filters.
    fn deep_block(&self) -> usize {
        self.block().max(DEEP)
    }

    /// Room that a thread takes for that.
    fn deep_share(&self) -> usize {
        let (window, filters) = (self.geometry.window(), self.geometry.output.channels);
        self.deep_block() * (window.next_multiple_of(PANEL) + padded_stride(filters)) + window
    }

    /// The window of a position of the batch, as a row.
    pub fn gather(&self, input: &[f32], position: usize, row: &mut [f32]) {
        let Geometry { input: from, kernel, .. } = self.geometry;
        let line = kernel[1] * from.channels;
        for (ky, to) in row.chunks_exact_mut(line).enumerate() {
            match self.line(position, ky) {
                None => to.fill(0.0),
                Some(Line { start, before, length }) => {
                    to[..before].fill(0.0);
                    to[before..before + length].copy_from_slice(&input[start..start + length]);
                    to[before + length..].fill(0.0);
                }
            }
        }
    }

    /// Adds a row of gradients to the window of a position.
    fn scatter(&self, level: Level, row: &[f32], position: usize, input_gradient: &mut [f32]) {
        let line = self.geometry.kernel[1] * self.geometry.input.channels;
        for (ky, from) in row.chunks_exact(line).enumerate() {
            let Some(Line { start, before, length }) = self.line(position, ky) else { continue };
            add_slice(level, &mut input_gradient[start..start + length], &from[before..before + length]);
        }
    }

    /// Where line `ky` of a window lies in the batch; `None` if it is all padding.
    #[inline(always)]
    fn line(&self, position: usize, ky: usize) -> Option<Line> {
        let Geometry { input, output, kernel, stride, padding } = self.geometry;
        let (image, at) = (position / self.geometry.positions(), position % self.geometry.positions());
        let (top, left) = (at / output.width * stride[0], at % output.width * stride[1]);
        let y = (top + ky).checked_sub(padding[0]).filter(|&y| y < input.height)?;
        let first = left.max(padding[1]);
        let end = (left + kernel[1]).min(padding[1] + input.width);
        let pixel = (image * input.height + y) * input.width + first.checked_sub(padding[1])?;
        let length = end.checked_sub(first)? * input.channels;
        Some(Line { start: pixel * input.channels, before: (first - left) * input.channels, length })
    }
}

struct Line {
    /// In the batch.
    start: usize,
    /// Numbers of padding before it.
    before: usize,
    /// Numbers of the batch.
    length: usize,
}

impl Algorithm for Im2col {
    fn name(&self) -> &'static str {
        "im2col"
    }

    fn suits(&self, _: usize) -> bool {
        true
    }

    fn adds(&self) -> bool {
        true
    }

    fn workspace(&self, _: usize, threads: usize) -> usize {
        let (window, filters) = (self.geometry.window(), self.geometry.output.channels);
        let panels = panels_len(window, filters).max(panels_len(filters, window));
        let share = self.block() * padded_stride(window);
        (panels + threads * share).max(threads * self.deep_share())
    }

    fn forward(&mut self, pass: Forward<'_>, bias: Option<&[f32]>) {
        let (window, filters, level) = (self.geometry.window(), self.geometry.output.channels, pass.team.level());
        let positions = pass.output.len() / filters;
        let weight = Matrix::new(pass.parameters, filters, window);
        let (panels, shares) = pass.workspace.split_at_mut(panels_len(window, filters));
        let weight = pack(pass.team, panels, weight.transposed());
        // Many rows are read at once: they have some room between them.
        let (block, stride) = (self.block(), padded_stride(window));
        let parts = (Units::new(pass.output, filters), Shares::new(shares, block * stride));
        pass.team.deal(positions, parts, |range, (output, windows)| {
            for (start, output) in range.step_by(block).zip(output.chunks_mut(block * filters)) {
                let rows = output.len() / filters;
                for (at, row) in windows.chunks_exact_mut(stride).take(rows).enumerate() {
                    self.gather(pass.input, start + at, &mut row[..window]);
                }
                let windows = Matrix::strided(windows, rows, window, stride);
                product(level, MatrixMut::new(output, rows, filters), Store::Overwrite, windows, weight);
                if let Some(bias) = bias {
                    add_to_rows(level, output, bias);
                }
            }
        });
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let (window, filters, level) = (self.geometry.window(), self.geometry.output.channels, pass.team.level());
        let positions = pass.output_gradient.len() / filters;

        // weight' = output'^T * windows; a thread computes some columns of it, and gathers no others.
        let block = self.deep_block();
        let weight_gradient = MatrixMut::new(pass.gradients, filters, window);
        let parts = (ByColumns::new(weight_gradient, PANEL), Shares::new(pass.workspace, self.deep_share()));
        pass.team.deal(window.div_ceil(PANEL), parts, |range, (mut gradient, share)| {
            let (row, share) = share.split_at_mut(window);
            let (gradients, panels) = share.split_at_mut(block * padded_stride(filters));
            let first = range.start * PANEL;
            let columns = window.min(range.end * PANEL) - first;
            for start in (0..positions).step_by(block) {
                let rows = block.min(positions - start);
                for at in 0..rows {
                    self.gather(pass.input, start + at, row);
                    for (panel, chunk) in row[first..first + columns].chunks(PANEL).enumerate() {
                        let to = &mut panels[(panel * rows + at) * PANEL..][..PANEL];
                        to[..chunk.len()].copy_from_slice(chunk);
                        to[chunk.len()..].fill(0.0);
                    }
                }
                let store = if start == 0 { Store::Overwrite } else { Store::Accumulate };
                let from = pass.output_gradient[start * filters..].chunks_exact(filters);
                for (to, from) in gradients.chunks_exact_mut(padded_stride(filters)).zip(from).take(rows) {
                    to[..filters].copy_from_slice(from);
                }
                let output_gradient = Matrix::strided(gradients, rows, filters, padded_stride(filters)).transposed();
                product(level, gradient.reborrow(), store, output_gradient, Panels::new(panels, rows, columns));
            }
        });

        // windows' = output' * weight; each thread adds them up for its own images.
        let Some(input_gradient) = pass.input_gradient else { return };
        let block = self.block();
        let image = self.geometry.input.len();
        let images = input_gradient.len() / image;
        let (panels, shares) = pass.workspace.split_at_mut(panels_len(filters, window));
        let weight = Matrix::new(pass.parameters, filters, window);
        let weight = pack(pass.team, panels, weight);
        let parts = (Units::new(input_gradient, image), Shares::new(shares, block * window));
        pass.team.deal(images, parts, |range, (input_gradient, windows)| {
            if !pass.adds {
                input_gradient.fill(0.0);
            }
            let [first, end] = [range.start, range.end].map(|image| image * self.geometry.positions());
            for start in (first..end).step_by(block) {
                let rows = block.min(end - start);
                let output_gradient = Matrix::new(&pass.output_gradient[start * filters..], rows, filters);
                product(level, MatrixMut::new(windows, rows, window), Store::Overwrite, output_gradient, weight);
                for (at, row) in windows.chunks_exact(window).take(rows).enumerate() {
                    self.scatter(level, row, start + at - first, input_gradient);
                }
            }
        });
    }
}
