//! [`super::columns`] for few filters, such as a first layer has: vectors hold neighbouring positions of a line, as in
//! [`super::direct`], and an image and its frequencies are laid out in planes.

use ringstep_cpu::Level;

use super::super::{Backward, Forward};
use super::columns::{
    FREQUENCIES, Lines, LinesMut, OUT, TAPS, inverse_filters, inverse_lines, spread_lines, transform_filters,
    transform_windows,
};
use super::direct::{Direct, Planes, few_channels};
use super::{Algorithm, Geometry};
use crate::kernels::correlate::{
    Grid, REACH, Weights, add_up, correlate_planes, correlate_room, dots, parts_len, whole_parts,
};
use crate::kernels::pack::PANEL;
use crate::kernels::planes::from_planes;
use crate::team::{Shares, Units};

/// With fewer channels than this, transforming the output costs more than it saves.
const FEWEST_CHANNELS: usize = 2;

pub(super) struct PlanarColumns {
    geometry: Geometry,
    planes: Planes,
    /// For each weight of a line of a filter, where what it meets at the first position of a frequency lies.
    views: Vec<usize>,
    /// A first layer needs no gradient of its input; who does gets it by the definition.
    direct: Direct,
}

impl PlanarColumns {
    /// `None` if it cannot do such a convolution, or others do it better.
    pub fn new(geometry: Geometry) -> Option<Self> {
        let Geometry { input, output, kernel: [tall, wide], .. } = geometry;
        let suits = few_channels(&geometry)
            && tall == TAPS
            && output.height.is_multiple_of(OUT)
            && !output.channels.is_multiple_of(PANEL)
            && input.channels >= FEWEST_CHANNELS;
        let direct = Direct::new(geometry).filter(|_| suits)?;
        let planes = Planes::new(&geometry);
        let plane = output.height / OUT * planes.pitch;
        let views = (0..wide).flat_map(|kx| (0..input.channels).map(move |channel| channel * plane + kx)).collect();
        Some(Self { geometry, planes, views, direct })
    }

    /// Pairs of lines of the output.
    fn pairs(&self) -> usize {
        self.geometry.output.height / OUT
    }

    /// Numbers of a frequency: of the weights, of the input with room after its end, of the output, and of a line of gradients.
    fn filters(&self) -> usize {
        self.geometry.output.channels * self.views.len()
    }

    fn windows(&self) -> usize {
        self.geometry.input.channels * self.pairs() * self.planes.pitch + REACH + whole_parts(self.views.len())
    }

    fn sums(&self) -> usize {
        correlate_room(self.geometry.output.channels, self.pairs() * self.geometry.output.width)
    }

    fn line(&self) -> usize {
        whole_parts(self.pairs() * self.planes.pitch)
    }

    /// Numbers of a plane of the output.
    fn output_plane(&self) -> usize {
        self.geometry.positions() + REACH
    }

    /// Numbers of a thread.
    fn share(&self) -> usize {
        let filters = self.geometry.output.channels;
        let forward = FREQUENCIES * self.sums() + filters * self.output_plane();
        let of_frequency = filters * self.line() + parts_len(filters, self.views.len());
        let backward = FREQUENCIES * of_frequency + filters * self.planes.line(&self.geometry);
        self.planes.len(&self.geometry) + FREQUENCIES * self.windows() + forward.max(backward)
    }

    /// `B^T d` of an image, which `pixels` have room for. // frequency,channel,pair,line
    fn transform(&self, level: Level, image: &[f32], pixels: &mut [f32], to: &mut [f32]) {
        let Planes { plane, pitch, .. } = self.planes;
        self.planes.fill(level, &self.geometry, pixels, image);
        for channel in 0..self.geometry.input.channels {
            let from = Lines { data: &pixels[channel * plane..], stride: pitch, step: OUT * pitch };
            let data = &mut to[channel * self.pairs() * pitch..];
            transform_windows(level, from, LinesMut { data, stride: self.windows(), step: pitch }, self.pairs(), pitch);
        }
    }
}

impl Algorithm for PlanarColumns {
    fn name(&self) -> &'static str {
        "columns"
    }

    fn suits(&self, _: usize) -> bool {
        true
    }

    fn adds(&self) -> bool {
        false
    }

    fn workspace(&self, batch: usize, threads: usize) -> usize {
        let own = FREQUENCIES * self.filters() + threads * self.share();
        own.max(self.direct.workspace(batch, threads))
    }

    fn forward(&mut self, pass: Forward<'_>, bias: Option<&[f32]>) {
        let Geometry { input, output, .. } = self.geometry;
        let (filters, run, level) = (output.channels, self.views.len(), pass.team.level());
        let (of_filters, of_windows, of_sums) = (self.filters(), self.windows(), self.sums());
        let (transformed, shares) = pass.workspace.split_at_mut(FREQUENCIES * of_filters);
        // G g // frequency,filter,run
        let weights = Lines { data: pass.parameters, stride: run, step: TAPS * run };
        let to = LinesMut { data: transformed, stride: of_filters, step: run };
        transform_filters(level, weights, to, filters, run);
        let transformed = &*transformed;
        let grid = Grid { height: self.pairs(), width: output.width, pitch: self.planes.pitch };
        let images = pass.output.len() / output.len();
        let parts = (Units::new(pass.output, output.len()), Shares::new(shares, self.share()));
        pass.team.deal(images, parts, |range, (outputs, share)| {
            share.fill(0.0);
            let (pixels, share) = share.split_at_mut(self.planes.len(&self.geometry));
            let (windows, share) = share.split_at_mut(FREQUENCIES * of_windows);
            let (sums, planes) = share.split_at_mut(FREQUENCIES * of_sums);
            for (index, to) in range.zip(outputs.chunks_exact_mut(output.len())) {
                self.transform(level, &pass.input[index * input.len()..][..input.len()], pixels, windows);
                for (frequency, sums) in sums.chunks_exact_mut(of_sums).enumerate() {
                    let data = &transformed[frequency * of_filters..][..of_filters];
                    let weights = Weights { data, rows: filters, row_stride: run, step: 1 };
                    // The first line of a pair alone depends on the first frequency, the second line alone on the last.
                    let bias = bias.filter(|_| frequency == 0 || frequency == FREQUENCIES - 1);
                    let windows = &windows[frequency * of_windows..][..of_windows];
                    correlate_planes(level, sums, weights, bias, &self.views, windows, grid);
                }
                // Y = A^T m
                for filter in 0..filters {
                    let data = &sums[filter * (grid.height * grid.width + REACH)..];
                    let from = Lines { data, stride: of_sums, step: grid.width };
                    let data = &mut planes[filter * self.output_plane()..];
                    let to = LinesMut { data, stride: grid.width, step: OUT * grid.width };
                    inverse_lines(level, from, to, grid.height, grid.width);
                }
                from_planes(level.at_most_eight_lanes(), to, filters, planes, self.output_plane());
            }
        });
    }

    fn backward(&mut self, pass: Backward<'_>) {
        if pass.input_gradient.is_some() {
            return self.direct.backward(pass);
        }
        let Geometry { input, output, .. } = self.geometry;
        let (filters, run, level) = (output.channels, self.views.len(), pass.team.level());
        let (of_filters, of_windows, of_line) = (self.filters(), self.windows(), self.line());
        let (of_parts, line, share_len) = (parts_len(filters, run), self.planes.line(&self.geometry), self.share());
        let images = pass.output_gradient.len() / output.len();
        let (transformed, shares) = pass.workspace.split_at_mut(FREQUENCIES * of_filters);
        pass.team.deal(images, Shares::new(shares, share_len), |range, share| {
            share.fill(0.0);
            let (totals, share) = share.split_at_mut(FREQUENCIES * of_parts);
            let (pixels, share) = share.split_at_mut(self.planes.len(&self.geometry));
            let (windows, share) = share.split_at_mut(FREQUENCIES * of_windows);
            let (spread, share) = share.split_at_mut(FREQUENCIES * filters * of_line);
            let gradients = &mut share[..filters * line];
            for index in range {
                self.transform(level, &pass.input[index * input.len()..][..input.len()], pixels, windows);
                // D = A Y' // frequency,filter,pair,line
                let output_gradient = &pass.output_gradient[index * output.len()..][..output.len()];
                self.planes.fill_lines(level, &self.geometry, gradients, output_gradient);
                let pitch = self.planes.pitch;
                for filter in 0..filters {
                    let from = Lines { data: &gradients[filter * line..], stride: pitch, step: OUT * pitch };
                    let data = &mut spread[filter * of_line..];
                    let to = LinesMut { data, stride: filters * of_line, step: pitch };
                    spread_lines(level, from, to, self.pairs(), pitch);
                }
                // (G g)' = the sum over all positions of D times what the weight met there.
                for (frequency, totals) in totals.chunks_exact_mut(of_parts).enumerate() {
                    let lines = &spread[frequency * filters * of_line..][..filters * of_line];
                    let windows = &windows[frequency * of_windows..][..of_windows];
                    dots(level, lines, of_line, &self.views, windows, totals);
                }
            }
        });
        // g' = G^T (G g)'; threads without an image have no sums.
        let threads = pass.team.threads();
        transformed.fill(0.0);
        for thread in (0..threads).filter(|thread| images * thread / threads < images * (thread + 1) / threads) {
            let totals = shares[thread * share_len..][..FREQUENCIES * of_parts].chunks_exact(of_parts);
            for (totals, to) in totals.zip(transformed.chunks_exact_mut(of_filters)) {
                add_up(totals, to);
            }
        }
        let transformed = Lines { data: transformed, stride: of_filters, step: run };
        let to = LinesMut { data: pass.gradients, stride: run, step: TAPS * run };
        inverse_filters(level, transformed, to, filters, run);
    }
}
