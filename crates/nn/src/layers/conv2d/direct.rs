//! Convolution with few channels, straight from its definition: the sum over all weights of weight times pixel, for many
//! neighbouring positions at once.
//!
//! An image is laid out in planes first, with its padding, so that what a weight meets at neighbouring positions are
//! neighbouring numbers. With few channels that costs little, and there is nothing else to lay out: neither windows nor
//! filters.

use super::super::{Backward, Forward, Shape};
use super::{Algorithm, Geometry};
use crate::kernels::correlate::{Grid, Weights, add_up, correlate, dots, lanes_len, reach, whole_lanes};
use crate::team::{Shares, Units};

/// With more channels than this, laying out windows costs less than it brings.
const MOST_CHANNELS: usize = 15;

pub(super) struct Direct {
    geometry: Geometry,
    /// The padded image in planes, and its views.
    image: Planes,
    /// The same for output gradients, padded so that every pixel meets all weights.
    gradient: Planes,
}

/// An image in planes, black around it; and for each weight of a filter, in the order in which these lie, where its view
/// of the planes begins.
struct Planes {
    channels: usize,
    /// Zeros above and left.
    padding: [usize; 2],
    height: usize,
    /// Of a padded row.
    pitch: usize,
    views: Vec<usize>,
}

impl Planes {
    fn plane(&self) -> usize {
        self.height * self.pitch
    }

    /// With room after the end, where the last positions of the last plane look when there are no more of them.
    fn len(&self) -> usize {
        self.channels * self.plane() + self.pitch + reach()
    }

    /// Lays an image of `width` columns out.
    fn fill(&self, planes: &mut [f32], image: &[f32], width: usize) {
        planes[..self.len()].fill(0.0);
        let [top, left] = self.padding;
        for (y, row) in image.chunks_exact(width * self.channels).enumerate() {
            for channel in 0..self.channels {
                let to = &mut planes[channel * self.plane() + (top + y) * self.pitch + left..][..width];
                for (to, from) in to.iter_mut().zip(row[channel..].iter().step_by(self.channels)) {
                    *to = *from;
                }
            }
        }
    }
}

impl Direct {
    pub fn suits(geometry: &Geometry) -> bool {
        geometry.stride == [1, 1]
            && geometry.input.channels <= MOST_CHANNELS
            && (0..2).all(|axis| geometry.padding[axis] < geometry.kernel[axis])
    }

    pub fn new(geometry: Geometry) -> Self {
        let Geometry { input, output, kernel: [tall, wide], padding, .. } = geometry;
        let [height, pitch] = [input.height + 2 * padding[0], input.width + 2 * padding[1]];
        let taps = || (0..tall).flat_map(|ky| (0..wide).map(move |kx| (ky, kx)));
        // Weights of a filter: ky, kx, channel.
        let views = taps()
            .flat_map(|(ky, kx)| (0..input.channels).map(move |channel| channel * height * pitch + ky * pitch + kx))
            .collect();
        let image = Planes { channels: input.channels, padding, height, pitch, views };

        // Weights of a channel: ky, filter, kx, so that those that meet nothing but padding stand together. A pixel meets
        // the last weight at the first position.
        let around = [tall - 1 - padding[0], wide - 1 - padding[1]];
        let [height, pitch] = [output.height + 2 * around[0], output.width + 2 * around[1]];
        let view = move |ky, filter, kx| filter * height * pitch + (tall - 1 - ky) * pitch + wide - 1 - kx;
        let views = (0..tall)
            .flat_map(|ky| (0..output.channels).flat_map(move |filter| (0..wide).map(move |kx| view(ky, filter, kx))))
            .collect();
        let gradient = Planes { channels: output.channels, padding: around, height, pitch, views };
        Self { geometry, image, gradient }
    }

    /// Numbers in a plane of output gradients whose rows lie as those of the image do.
    fn line(&self) -> usize {
        whole_lanes(self.geometry.output.height * self.image.pitch)
    }

    /// Numbers of a thread in backward.
    fn share(&self) -> usize {
        let Geometry { output, .. } = self.geometry;
        let weights = lanes_len(output.channels, self.geometry.window());
        // The last lanes may look beyond the last row.
        weights
            + output.channels * self.geometry.window()
            + self.image.len()
            + whole_lanes(1)
            + self.gradient.len().max(output.channels * self.line())
    }

    /// The filters as [`Planes::views`] of the gradient has them. // O,KH,KW,C to C,KH,O,KW
    fn turn(&self, filters: &[f32], turned: &mut [f32]) {
        let Geometry { input: Shape { channels, .. }, output, kernel: [tall, wide], .. } = self.geometry;
        let mut turned = turned.iter_mut();
        for channel in 0..channels {
            for ky in 0..tall {
                for filter in 0..output.channels {
                    let from = &filters[(filter * tall + ky) * wide * channels + channel..];
                    for (from, to) in from.iter().step_by(channels).take(wide).zip(turned.by_ref()) {
                        *to = *from;
                    }
                }
            }
        }
    }

    /// The input gradient of one image, row by row, without the weights that meet nothing there.
    fn spread_back(&self, turned: &[f32], planes: &[f32], input_gradient: &mut [f32]) {
        let Geometry { input, output, kernel: [tall, wide], padding, .. } = self.geometry;
        let (all, of_row) = (self.gradient.views.len(), output.channels * wide);
        for (y, row) in input_gradient.chunks_exact_mut(input.width * input.channels).enumerate() {
            let [first, end] = [(y + padding[0] + 1).saturating_sub(output.height), (y + padding[0] + 1).min(tall)];
            let part = first * of_row..end * of_row;
            let weights = Weights { data: &turned[part.start..], rows: input.channels, row_stride: all, step: 1 };
            let grid = Grid { height: 1, width: input.width, pitch: self.gradient.pitch };
            correlate(row, weights, None, &self.gradient.views[part], &planes[y * self.gradient.pitch..], grid);
        }
    }
}

impl Algorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn workspace(&self, _: usize, threads: usize) -> usize {
        threads * self.share()
    }

    fn forward(&mut self, pass: Forward<'_>, bias: Option<&[f32]>) {
        let Geometry { input, output, .. } = self.geometry;
        let (filters, window) = (output.channels, self.geometry.window());
        let images = pass.output.len() / output.len();
        let weights = Weights { data: pass.parameters, rows: filters, row_stride: window, step: 1 };
        let grid = Grid { height: output.height, width: output.width, pitch: self.image.pitch };
        let parts = (Units::new(pass.output, output.len()), Shares::new(pass.workspace, self.share()));
        pass.team.deal(images, parts, |range, (outputs, planes)| {
            for (image, to) in range.zip(outputs.chunks_exact_mut(output.len())) {
                self.image.fill(planes, &pass.input[image * input.len()..][..input.len()], input.width);
                correlate(to, weights, bias, &self.image.views, planes, grid);
            }
        });
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let Geometry { input, output, .. } = self.geometry;
        let (filters, window, line) = (output.channels, self.geometry.window(), self.line());
        let images = pass.output_gradient.len() / output.len();
        let share = self.share();
        let weights = lanes_len(filters, window);
        let input_gradient = pass.input_gradient.map(|gradient| Units::new(gradient, input.len()));
        let parts = (input_gradient, Shares::new(pass.workspace, share));
        pass.team.deal(images, parts, |range, (mut input_gradient, share)| {
            let (sums, share) = share.split_at_mut(weights);
            let (turned, share) = share.split_at_mut(filters * window);
            let (planes, gradients) = share.split_at_mut(self.image.len() + whole_lanes(1));
            self.turn(pass.parameters, turned);
            sums.fill(0.0);
            planes[self.image.len()..].fill(0.0);
            for (at, image) in range.enumerate() {
                // weight' = the sum over all positions of output' times what the weight met there.
                let output_gradient = &pass.output_gradient[image * output.len()..][..output.len()];
                self.image.fill(planes, &pass.input[image * input.len()..][..input.len()], input.width);
                let lines = &mut gradients[..filters * line];
                lines.fill(0.0);
                for (y, row) in output_gradient.chunks_exact(output.width * filters).enumerate() {
                    for filter in 0..filters {
                        let to = lines[filter * line + y * self.image.pitch..].iter_mut();
                        for (to, from) in to.zip(row[filter..].iter().step_by(filters)) {
                            *to = *from;
                        }
                    }
                }
                dots(lines, line, &self.image.views, planes, sums);

                // input' = the sum over all weights of output' where the weight met the pixel.
                let Some(input_gradient) = &mut input_gradient else { continue };
                self.gradient.fill(gradients, output_gradient, output.width);
                self.spread_back(turned, gradients, &mut input_gradient[at * input.len()..][..input.len()]);
            }
        });
        // Threads without an image have no sums.
        let threads = pass.team.threads();
        pass.gradients.fill(0.0);
        for thread in 0..threads {
            if images * thread / threads < images * (thread + 1) / threads {
                add_up(&pass.workspace[thread * share..][..weights], filters, window, pass.gradients);
            }
        }
    }
}
