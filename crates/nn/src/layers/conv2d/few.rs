//! Convolution of so few windows that the filters are most of what is read: one or two images deep in a network.
//!
//! Filters and windows are both read along, where they lie: each thread takes some filters and reads these once, from
//! the first to the last number, while the image, with its padding around it, stays in its cache.

use super::super::Forward;
use super::Geometry;
use crate::kernels::dots::{LEFT, RIGHT, SUMS, add_dots, totals};
use crate::kernels::matmul::{ByColumns, MatrixMut};
use crate::team::Shares;

/// The most windows of a batch for which this is the fastest way.
const MOST: usize = 192;

pub(super) struct Few {
    geometry: Geometry,
    /// Where each window of a batch begins in the padded images.
    starts: Vec<Start>,
}

#[derive(Clone, Copy)]
struct Start {
    /// Its first number in the batch.
    at: usize,
    /// Its first row in its image.
    row: usize,
}

impl Few {
    pub fn new(geometry: Geometry, batch: usize) -> Self {
        let Geometry { input, output, stride, .. } = geometry;
        let [height, width] = padded(&geometry);
        let start = |position: usize| {
            let (image, at) = (position / geometry.positions(), position % geometry.positions());
            let [row, column] = [at / output.width * stride[0], at % output.width * stride[1]];
            Start { at: ((image * height + row) * width + column) * input.channels, row }
        };
        Self { geometry, starts: (0..MOST.min(batch * geometry.positions())).map(start).collect() }
    }

    /// Whether it can take so many windows.
    pub fn suits(&self, positions: usize) -> bool {
        positions <= self.starts.len()
    }

    /// Numbers of room for so many windows: padded images, then the sums of each window with a tile of filters.
    fn share(&self, positions: usize) -> [usize; 2] {
        let [height, width] = padded(&self.geometry);
        let images = positions / self.geometry.positions();
        [images * height * width * self.geometry.input.channels, positions.div_ceil(RIGHT) * SUMS]
    }

    pub fn workspace(&self, threads: usize) -> usize {
        threads * self.share(self.starts.len()).iter().sum::<usize>()
    }

    /// Copies images, each with its padding around it.
    fn pad(&self, images: &[f32], to: &mut [f32]) {
        let Geometry { input, padding, .. } = self.geometry;
        let [height, width] = padded(&self.geometry);
        to.fill(0.0);
        let to_images = to.chunks_exact_mut(height * width * input.channels);
        for (image, to) in images.chunks_exact(input.len()).zip(to_images) {
            let to_rows = to.chunks_exact_mut(width * input.channels).skip(padding[0]);
            for (row, to) in image.chunks_exact(input.width * input.channels).zip(to_rows) {
                to[padding[1] * input.channels..][..row.len()].copy_from_slice(row);
            }
        }
    }

    pub fn forward(&self, pass: Forward<'_>, bias: Option<&[f32]>) {
        let Geometry { input, output, kernel, padding, .. } = self.geometry;
        let filters = output.channels;
        let row = padded(&self.geometry)[1] * input.channels;
        // The lines of a window that is as wide as the image follow each other: they are one.
        let line = kernel[1] * input.channels;
        let (lines, line) = if line == row { (1, kernel[0] * line) } else { (kernel[0], line) };
        let starts = &self.starts[..pass.output.len() / filters];
        let [images, sums] = self.share(starts.len());
        let inside = padding[0]..padding[0] + input.height;
        // A line of each filter of a tile. Filters and windows beyond the last are the last again; their results are
        // not stored.
        let line_of = |tile: usize, y: usize| -> [&[f32]; LEFT] {
            std::array::from_fn(|index| {
                let filter = (tile * LEFT + index).min(filters - 1);
                &pass.parameters[(filter * lines + y) * line..][..line]
            })
        };
        let output = ByColumns::new(MatrixMut::new(pass.output, starts.len(), filters), LEFT);
        let parts = (output, Shares::new(pass.workspace, images + sums));
        pass.team.deal(filters.div_ceil(LEFT), parts, |range, (mut output, share)| {
            let (images, sums) = share.split_at_mut(images);
            let sums = sums.as_chunks_mut::<SUMS>().0;
            self.pad(pass.input, images);
            for tile in range.clone() {
                sums.fill([0.0; SUMS]);
                let tall = LEFT.min(filters - tile * LEFT);
                for y in 0..lines {
                    let weights = line_of(tile, y);
                    let next = if y + 1 < lines { line_of(tile, y + 1) } else { line_of(tile + 1, 0) };
                    let groups = sums.iter_mut().zip(starts.chunks(RIGHT));
                    let in_image = |start: &Start| lines == 1 || inside.contains(&(start.row + y));
                    let groups = groups.filter(|(_, starts)| starts.iter().any(in_image));
                    for (group, (sums, starts)) in groups.enumerate() {
                        let windows = std::array::from_fn(|index| {
                            let start = starts[index.min(starts.len() - 1)].at;
                            &images[start + y * row..][..line]
                        });
                        add_dots(sums, weights, windows, next[group.min(LEFT - 1)]);
                    }
                }
                let column = (tile - range.start) * LEFT;
                for (group, sums) in sums.iter().enumerate() {
                    let totals = totals(sums);
                    for position in group * RIGHT..starts.len().min((group + 1) * RIGHT) {
                        let out = output.part(position, column, tall);
                        for (index, out) in out.iter_mut().enumerate() {
                            *out = totals[position % RIGHT][index] + bias.map_or(0.0, |bias| bias[tile * LEFT + index]);
                        }
                    }
                }
            }
        });
    }
}

/// Height and width of an image with its padding.
fn padded(geometry: &Geometry) -> [usize; 2] {
    let Geometry { input, padding, .. } = geometry;
    [input.height + 2 * padding[0], input.width + 2 * padding[1]]
}
