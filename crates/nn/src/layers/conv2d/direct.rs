//! Convolution with few channels, straight from its definition: the sum over all weights of weight times pixel.
//!
//! Vectors hold neighbouring filters if these fill them, and windows are read where they lie. Otherwise they hold
//! neighbouring positions: an image is laid out in planes first, with its padding, so that what a weight meets there are
//! neighbouring numbers. The gradient of the input is found the other way round: every position sends something back to
//! its window, line by line, and neighbouring numbers of such a line stand in the vectors.

use ringstep_cpu::Level;

use super::super::{Backward, Forward};
use super::{Algorithm, Geometry};
use crate::kernels::correlate::{
    Grid, REACH, Weights, add_up, correlate, correlate_room, dots, parts_len, whole_parts,
};
use crate::kernels::matrix::Matrix;
use crate::kernels::pack::{PANEL, copy_columns, pack, panels_len};
use crate::kernels::planes::to_planes;
use crate::kernels::transpose::SQUARE;
use crate::kernels::windows::{self, Gradients, Layout, SLACK, add_filter_gradients, add_runs, filter, unpack};
use crate::team::{Shares, Units};

/// With more channels than this, laying out windows costs less than it brings.
const MOST_CHANNELS: usize = 15;

/// Whether there are so few channels that windows are better read where they lie.
pub(super) fn few_channels(geometry: &Geometry) -> bool {
    geometry.stride == [1, 1]
        && geometry.input.channels <= MOST_CHANNELS
        && (0..2).all(|axis| geometry.padding[axis] < geometry.kernel[axis])
}

pub(super) struct Direct {
    geometry: Geometry,
    lanes: Lanes,
}

/// What stands side by side in vectors in forward, and in the gradient of the weights.
enum Lanes {
    Filters(Layout),
    Positions(Planes),
}

/// Numbers of a line of an image with its padding.
pub(super) fn padded_line(geometry: &Geometry) -> usize {
    (geometry.input.width + 2 * geometry.padding[1]) * geometry.input.channels
}

/// Numbers of an image with its padding; none if there is no padding, and nothing to be copied.
pub(super) fn padded_len(geometry: &Geometry) -> usize {
    let height = geometry.input.height + 2 * geometry.padding[0];
    if geometry.padding == [0, 0] { 0 } else { height * padded_line(geometry) }
}

/// An image with its padding: copied to `room`, which is zero where the padding is, or itself where there is none.
pub(super) fn padded<'a>(geometry: &Geometry, image: &'a [f32], room: &'a mut [f32]) -> &'a [f32] {
    let Geometry { input, padding: [top, left], .. } = *geometry;
    if room.is_empty() {
        return image;
    }
    let from = image.chunks_exact(input.width * input.channels);
    for (to, from) in room.chunks_exact_mut(padded_line(geometry)).skip(top).zip(from) {
        to[left * input.channels..][..from.len()].copy_from_slice(from);
    }
    room
}

pub(super) fn windows(geometry: &Geometry) -> Layout {
    let Geometry { input, output, kernel: [tall, wide], .. } = *geometry;
    let line = padded_line(geometry);
    let starts = (0..output.height).flat_map(|y| (0..output.width).map(move |x| y * line + x * input.channels));
    Layout::new(starts.collect(), tall, wide * input.channels, line)
}

/// An image in planes, black around it.
pub(super) struct Planes {
    /// Numbers of a plane, and of a line of it.
    pub plane: usize,
    pub pitch: usize,
    /// For each weight of a filter, where what it meets at the first position lies.
    pub views: Vec<usize>,
}

impl Planes {
    pub fn new(geometry: &Geometry) -> Self {
        let Geometry { input, kernel: [tall, wide], padding, .. } = *geometry;
        let pitch = input.width + 2 * padding[1];
        let plane = (input.height + 2 * padding[0]) * pitch + SQUARE;
        // Weights of a filter: ky, kx, channel.
        let taps = (0..tall).flat_map(|ky| (0..wide).map(move |kx| ky * pitch + kx));
        let views = taps.flat_map(|tap| (0..input.channels).map(move |channel| channel * plane + tap)).collect();
        Self { plane, pitch, views }
    }

    /// Numbers of all planes, with room after the end, where the last positions of the last plane look when there are no
    /// more of them.
    pub fn len(&self, geometry: &Geometry) -> usize {
        geometry.input.channels * self.plane + self.pitch + REACH + whole_parts(1)
    }

    /// Lays an image out; `planes` are zero where the padding is.
    pub fn fill(&self, level: Level, geometry: &Geometry, planes: &mut [f32], image: &[f32]) {
        let Geometry { input, padding: [top, left], .. } = *geometry;
        let to = &mut planes[top * self.pitch + left..];
        to_planes(level.at_most_eight_lanes(), to, self.plane, self.pitch, image, input.width, input.channels);
    }

    /// Numbers in a plane of output gradients whose rows lie as those of the image do.
    pub fn line(&self, geometry: &Geometry) -> usize {
        whole_parts(geometry.output.height * self.pitch + SQUARE)
    }

    /// Lays gradients out in planes; `lines` are zero between the rows.
    pub fn fill_lines(&self, level: Level, geometry: &Geometry, lines: &mut [f32], output_gradient: &[f32]) {
        let (filters, line) = (geometry.output.channels, self.line(geometry));
        to_planes(
            level.at_most_eight_lanes(),
            lines,
            line,
            self.pitch,
            output_gradient,
            geometry.output.width,
            filters,
        );
    }
}

impl Direct {
    /// `None` if others do such a convolution better.
    pub fn new(geometry: Geometry) -> Option<Self> {
        if !few_channels(&geometry) {
            return None;
        }
        let lanes = if geometry.output.channels.is_multiple_of(PANEL) {
            Lanes::Filters(windows(&geometry))
        } else {
            Lanes::Positions(Planes::new(&geometry))
        };
        Some(Self { geometry, lanes })
    }

    /// Numbers of a line of a window.
    fn run(&self) -> usize {
        self.geometry.kernel[1] * self.geometry.input.channels
    }

    /// Numbers of the weights as [`Direct::send_back`] wants them.
    fn turned(&self) -> usize {
        panels_len(self.geometry.kernel[0] * self.geometry.output.channels, self.run())
    }

    /// Numbers of what a line of positions sends back, and of what stands before and after it: nothing from positions
    /// outside of the map.
    fn runs(&self) -> usize {
        let Geometry { output, kernel: [_, wide], .. } = self.geometry;
        panels_len(output.width + 2 * (wide - 1), self.run()) + SLACK
    }

    /// Sums of a thread for the gradient of the weights.
    fn sums(&self) -> usize {
        let (window, filters) = (self.geometry.window(), self.geometry.output.channels);
        match &self.lanes {
            Lanes::Filters(_) => panels_len(window, filters),
            Lanes::Positions(_) => parts_len(filters, window),
        }
    }

    /// Numbers of a thread.
    fn share(&self) -> usize {
        let layouts = match &self.lanes {
            Lanes::Filters(_) => padded_len(&self.geometry),
            Lanes::Positions(planes) => {
                let filters = self.geometry.output.channels;
                planes.len(&self.geometry)
                    + (filters * planes.line(&self.geometry)).max(correlate_room(filters, self.geometry.positions()))
            }
        };
        self.sums() + layouts + self.runs()
    }

    /// The gradient of one image's input, line by line, without the weights that meet nothing there.
    fn send_back(
        &self,
        level: Level,
        turned: &[f32],
        runs: &mut [f32],
        output_gradient: &[f32],
        input_gradient: &mut [f32],
    ) {
        let Geometry { input, output, kernel: [tall, wide], padding, .. } = self.geometry;
        let gradients = Gradients { values: output_gradient, width: output.width, filters: output.channels };
        for y in 0..input.height {
            // Weight ky of a position meets the pixel ky lines below it.
            let above = y + padding[0];
            let lines = (above + 1).saturating_sub(output.height)..tall.min(above + 1);
            let run = panels_len(1, self.run());
            let sent = &mut runs[(wide - 1) * run..][..output.width * run];
            windows::send_back(level, sent, turned, lines.clone(), gradients, above - lines.start);
            let out = &mut input_gradient[y * input.width * input.channels..];
            let narrow = if input.channels < PANEL { level.at_most_eight_lanes() } else { level };
            add_runs(narrow, out, input.width, input.channels, runs, run, padding[1], wide);
        }
    }
}

impl Algorithm for Direct {
    fn name(&self) -> &'static str {
        "direct"
    }

    fn suits(&self, _: usize) -> bool {
        true
    }

    fn adds(&self) -> bool {
        false
    }

    fn workspace(&self, _: usize, threads: usize) -> usize {
        let packed = panels_len(self.geometry.window(), self.geometry.output.channels);
        packed.max(self.turned()) + threads * self.share()
    }

    fn forward(&mut self, pass: Forward<'_>, bias: Option<&[f32]>) {
        let Geometry { input, output, .. } = self.geometry;
        let (filters, window) = (output.channels, self.geometry.window());
        let (images, level) = (pass.output.len() / output.len(), pass.team.level());
        let image_of = |image: usize| &pass.input[image * input.len()..][..input.len()];
        match &self.lanes {
            Lanes::Filters(layout) => {
                let (packed, shares) = pass.workspace.split_at_mut(panels_len(window, filters));
                pack(pass.team, packed, Matrix::new(pass.parameters, filters, window).transposed());
                let parts = (Units::new(pass.output, output.len()), Shares::new(shares, self.share()));
                pass.team.deal(images, parts, |range, (outputs, share)| {
                    let room = &mut share[..padded_len(&self.geometry)];
                    room.fill(0.0);
                    for (index, to) in range.zip(outputs.chunks_exact_mut(output.len())) {
                        let image = padded(&self.geometry, image_of(index), room);
                        filter(level, to, packed, bias, layout.of(image));
                    }
                });
            }
            Lanes::Positions(planes) => {
                let weights = Weights { data: pass.parameters, rows: filters, row_stride: window, step: 1 };
                let grid = Grid { height: output.height, width: output.width, pitch: planes.pitch };
                let parts = (Units::new(pass.output, output.len()), Shares::new(pass.workspace, self.share()));
                pass.team.deal(images, parts, |range, (outputs, share)| {
                    let (pixels, room) = share.split_at_mut(planes.len(&self.geometry));
                    pixels.fill(0.0);
                    for (index, to) in range.zip(outputs.chunks_exact_mut(output.len())) {
                        planes.fill(level, &self.geometry, pixels, image_of(index));
                        correlate(level, to, weights, bias, &planes.views, pixels, grid, room);
                    }
                });
            }
        }
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let Geometry { input, output, kernel: [tall, _], .. } = self.geometry;
        let (filters, window, run) = (output.channels, self.geometry.window(), self.run());
        let (images, level) = (pass.output_gradient.len() / output.len(), pass.team.level());
        let (sums, share) = (self.sums(), self.share());
        let (turned, shares) = pass.workspace.split_at_mut(self.turned());
        if pass.input_gradient.is_some() {
            // A panel has some columns of a run, and a row for each line and, within it, each filter.
            for (panel, to) in turned.chunks_exact_mut(tall * filters * PANEL).enumerate() {
                let first = panel * PANEL;
                for (line, to) in to.chunks_exact_mut(filters * PANEL).enumerate() {
                    let from = &pass.parameters[line * run + first..];
                    copy_columns(level, to, from, tall * run, PANEL.min(run - first));
                }
            }
        }
        let input_gradient = pass.input_gradient.map(|gradient| Units::new(gradient, input.len()));
        pass.team.deal(images, (input_gradient, Shares::new(shares, share)), |range, (mut input_gradient, share)| {
            share.fill(0.0);
            let (sums, share) = share.split_at_mut(sums);
            let (runs, share) = share.split_at_mut(self.runs());
            for (at, index) in range.enumerate() {
                let image = &pass.input[index * input.len()..][..input.len()];
                let output_gradient = &pass.output_gradient[index * output.len()..][..output.len()];
                // weight' = the sum over all positions of output' times what the weight met there.
                match &self.lanes {
                    Lanes::Filters(layout) => {
                        let image = padded(&self.geometry, image, share);
                        add_filter_gradients(level, sums, output_gradient, layout.of(image));
                    }
                    Lanes::Positions(planes) => {
                        let (room, lines) = share.split_at_mut(planes.len(&self.geometry));
                        let lines = &mut lines[..filters * planes.line(&self.geometry)];
                        planes.fill(level, &self.geometry, room, image);
                        planes.fill_lines(level, &self.geometry, lines, output_gradient);
                        dots(level, lines, planes.line(&self.geometry), &planes.views, room, sums);
                    }
                }
                // input' = the sum over all weights of output' where the weight met the pixel.
                if let Some(input_gradient) = &mut input_gradient {
                    let to = &mut input_gradient[at * input.len()..][..input.len()];
                    self.send_back(level, turned, runs, output_gradient, to);
                }
            }
        });
        // Threads without an image have no sums.
        let threads = pass.team.threads();
        pass.gradients.fill(0.0);
        for thread in 0..threads {
            if images * thread / threads < images * (thread + 1) / threads {
                let sums = &shares[thread * share..][..sums];
                match &self.lanes {
                    Lanes::Filters(_) => unpack(sums, window, filters, pass.gradients),
                    Lanes::Positions(_) => add_up(sums, pass.gradients),
                }
            }
        }
    }
}
