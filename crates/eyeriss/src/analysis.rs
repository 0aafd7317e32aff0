//! Row-stationary in closed form: cycles and accesses of a layer under a mapping, without walking through it.
//! [`crate::simulate`] walks; tests hold the two against each other.
//!
//! The loops, outermost first: groups, tiles of n images, strips of e rows, tiles of m filters, tiles of q r channels,
//! and p t filters of those m, which is a pass. Partial sums of n x m x e x F stay in the buffer while the channels go
//! by. In a pass:
//!
//! 1. The filters go into the scratchpads, unless they are still there.
//! 2. The first window of the input goes into the PEs.
//! 3. A *step* for each column of each image: every PE does its p q S MACs. Meanwhile the next window arrives, the sums
//!    so far come from the buffer, and those of the step before go back. A step takes as long as the slowest of these.
//! 4. The sums of the last step go back.

use std::ops::AddAssign;

use serde::Serialize;

use crate::arch::Architecture;
use crate::counts::{Access, Accesses, Energy, Kinds};
use crate::layer::Layer;
use crate::mapping::{Mapping, tiles};

/// What the time goes to. The parts add up to all cycles.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Cycles {
    /// The PEs multiply.
    pub macs: u64,
    /// They wait for filters.
    pub filters: u64,
    /// They wait for inputs.
    pub inputs: u64,
    /// They wait for partial sums, in or out.
    pub partial_sums: u64,
}

impl Cycles {
    /// All of them.
    pub fn total(&self) -> u64 {
        self.macs + self.filters + self.inputs + self.partial_sums
    }

    /// `count` times `other` more.
    pub(crate) fn add(&mut self, count: u64, other: Self) {
        self.macs += count * other.macs;
        self.filters += count * other.filters;
        self.inputs += count * other.inputs;
        self.partial_sums += count * other.partial_sums;
    }

    /// A step that multiplies for `macs` cycles while these go on.
    pub(crate) fn step(macs: u64, inputs: u64, partial_sums: u64) -> Self {
        let waits = inputs.max(partial_sums).saturating_sub(macs);
        if partial_sums > inputs {
            Self { macs, partial_sums: waits, ..Self::default() }
        } else {
            Self { macs, inputs: waits, ..Self::default() }
        }
    }
}

impl AddAssign for Cycles {
    fn add_assign(&mut self, other: Self) {
        self.add(1, other);
    }
}

/// What a layer takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Analysis {
    /// PEs that work.
    pub active_pes: usize,
    /// How often the array is set up anew.
    pub passes: u64,
    /// Multiply-accumulates.
    pub macs: u64,
    /// Cycles of the array.
    pub cycles: Cycles,
    /// Words moved.
    pub accesses: Accesses,
}

impl Analysis {
    /// What it costs.
    pub fn energy(&self, arch: &Architecture) -> Energy {
        Energy::of(self.macs, &self.accesses, arch)
    }

    /// Milliseconds of the array, as if DRAM kept up: the paper's *processing latency*.
    pub fn processing_ms(&self, arch: &Architecture) -> f64 {
        arch.milliseconds(self.cycles.total())
    }

    /// Milliseconds with DRAM, the paper's *total latency*: reading is hidden behind the array's work where that takes
    /// longer; writing is not, since finished sums fill the buffer until they have left.
    pub fn total_ms(&self, arch: &Architecture) -> f64 {
        let words = |access: fn(Access) -> u64| self.accesses.dram.each().into_iter().map(access).sum();
        let (read, written) = (words(|access| access.reads), words(|access| access.writes));
        self.processing_ms(arch).max(arch.dram_milliseconds(read)) + arch.dram_milliseconds(written)
    }

    /// What takes the most time.
    pub fn bound(&self, arch: &Architecture) -> &'static str {
        let Cycles { macs, filters, inputs, partial_sums } = self.cycles;
        if arch.dram_milliseconds(self.accesses.dram.total()) > self.processing_ms(arch) {
            return "DRAM";
        }
        let parts = [(macs, "MACs"), (filters, "filter bus"), (inputs, "input bus"), (partial_sums, "sum bus")];
        parts.into_iter().max_by_key(|(cycles, _)| *cycles).map_or("", |(_, name)| name)
    }
}

/// The sizes of a pass; at the edges of a layer they are smaller than the mapping's.
#[derive(Clone, Copy)]
struct Pass {
    images: u64,
    rows: u64,
    filters: u64,
    channels: u64,
    /// Whether sums of other channels are in the buffer already.
    continues: bool,
}

/// Counts what the layer takes under this mapping, which must fit.
pub fn analyse(layer: &Layer, batch: usize, mapping: &Mapping, arch: &Architecture) -> Analysis {
    let Mapping { m, n, e, p, q, r, t } = *mapping;
    let (all_channels, all_filters) = (layer.group_channels(), layer.group_filters());
    let groups = layer.groups as u64;
    // Tiles of m filters, then the p t of a pass among them.
    let passes_of_filters = tiles(all_filters, m)
        .flat_map(|(tile, count)| tiles(tile, p * t).map(move |(size, each)| (size as u64, (count * each) as u64)));

    let mut passes = 0;
    let mut cycles = Cycles::default();
    let mut accesses = Accesses::default();
    for (images, image_tiles) in tiles(batch, n) {
        for (rows, strips) in tiles(layer.output_height(), e) {
            for (filters, filter_passes) in passes_of_filters.clone() {
                for (index, (channels, count)) in tiles(all_channels, q * r).enumerate() {
                    let mut pass = Pass {
                        images: images as u64,
                        rows: rows as u64,
                        filters,
                        channels: channels as u64,
                        continues: false,
                    };
                    let times = groups * (image_tiles * strips) as u64 * filter_passes;
                    let first = u64::from(index == 0);
                    for (continues, count) in [(false, first), (true, count as u64 - first)] {
                        pass.continues = continues;
                        passes += times * count;
                        cycles.add(times * count, pass.cycles(layer, mapping, arch));
                        add(&mut accesses, times * count, &pass.accesses(layer, mapping));
                    }
                }
            }
        }
    }

    let load_passes = passes_of_filters.flat_map(|(filters, count)| {
        tiles(all_channels, q * r).map(move |(channels, tiles)| (filters * channels as u64, count * tiles as u64))
    });
    cycles.filters = add_filters(&mut accesses, layer, batch, mapping, arch, load_passes);
    add_inputs(&mut accesses, layer, batch, mapping);
    // Finished sums leave.
    let outputs = (batch * layer.filters * layer.outputs()) as u64;
    accesses.buffer.partial_sum.reads += outputs;
    accesses.dram.partial_sum.writes = outputs;

    Analysis { active_pes: mapping.active_pes(layer), passes, macs: layer.macs(batch), cycles, accesses }
}

/// Filters on their way from DRAM to the scratchpads; the cycles that this takes. `passes` of one group, images and strip,
/// each as filters x channels, and how often.
fn add_filters(
    accesses: &mut Accesses,
    layer: &Layer,
    batch: usize,
    mapping: &Mapping,
    arch: &Architecture,
    passes: impl Iterator<Item = (u64, u64)> + Clone,
) -> u64 {
    let words = layer.filter_words() as u64;
    let image_tiles = batch.div_ceil(mapping.n) as u64;
    let strips = layer.output_height().div_ceil(mapping.e) as u64;
    // Filters that are all there is stay where they are; others come again for each strip of each image.
    let stay = passes.clone().map(|(_, count)| count).sum::<u64>() == 1;
    let visits = if stay { 1 } else { image_tiles * strips };
    // Each goes to all columns of its set.
    let columns = if stay { mapping.e as u64 } else { layer.output_height() as u64 * image_tiles };
    accesses.dram.filter.reads = words * visits;
    accesses.buffer.filter = Access { reads: words * visits, writes: words * visits };
    accesses.array.filter.reads = words * columns;
    accesses.scratchpad.filter.writes = words * columns;
    let taps = (layer.filter_height * layer.filter_width) as u64;
    let load = |(pairs, count): (u64, u64)| count * (pairs * taps).div_ceil(arch.bus.filter as u64);
    layer.groups as u64 * visits * passes.map(load).sum::<u64>()
}

/// Inputs on their way from DRAM to the buffer, where padding is added.
fn add_inputs(accesses: &mut Accesses, layer: &Layer, batch: usize, mapping: &Mapping) {
    // A tile of all channels stays in the buffer from one tile of filters to the next.
    let one_tile = layer.group_channels() <= mapping.q * mapping.r;
    let times = if one_tile { 1 } else { layer.group_filters().div_ceil(mapping.m) };
    let maps = (batch * layer.channels * times) as u64;
    let (height, e) = (layer.output_height(), mapping.e);
    let strips = (0..height).step_by(e).map(|first| (first, e.min(height - first)));
    let real_rows: usize = strips.clone().map(|(first, rows)| layer.real_rows(first, rows)).sum();
    let padded_rows: usize = strips.map(|(_, rows)| layer.input_rows(rows)).sum();
    accesses.dram.input.reads = maps * (real_rows * layer.real_columns()) as u64;
    accesses.buffer.input.writes = maps * (padded_rows * layer.input_columns()) as u64;
}

impl Pass {
    /// Without the loading of filters.
    fn cycles(&self, layer: &Layer, mapping: &Mapping, arch: &Architecture) -> Cycles {
        let input_rows = layer.input_rows(self.rows as usize) as u64;
        let (width, stride) = (layer.filter_width as u64, layer.stride as u64);
        let input = |columns: u64| (input_rows * columns * self.channels).div_ceil(arch.bus.input as u64);
        let (window, slide) = (input(width), input(width.min(stride)));
        let sums = (self.filters * self.rows).div_ceil(arch.bus.partial_sum as u64);
        let sums_in = if self.continues { sums } else { 0 };
        let macs = self.filters.min(mapping.p as u64) * self.channels.min(mapping.q as u64) * width;

        let columns = layer.output_width() as u64;
        let slides = self.images * (columns - 1);
        let mut cycles = Cycles { inputs: window, partial_sums: sums, ..Cycles::default() };
        // By what arrives meanwhile: a few columns more, the next image's window, or nothing. Nothing goes back in the
        // first step of all.
        let mut kinds = [(slides, slide), (self.images - 1, window), (1, 0)];
        let first = kinds.iter_mut().find(|(count, _)| *count > 0).expect("there is a last step");
        first.0 -= 1;
        cycles.add(1, Cycles::step(macs, first.1, sums_in));
        for (count, inputs) in kinds {
            cycles.add(count, Cycles::step(macs, inputs, sums));
        }
        cycles
    }

    /// All but what is said of filters, of DRAM, and of filling and emptying the buffer.
    fn accesses(&self, layer: &Layer, mapping: &Mapping) -> Accesses {
        let Self { images, rows, filters, channels, continues } = *self;
        let (height, width) = (layer.filter_height as u64, layer.filter_width as u64);
        let columns = layer.output_width() as u64;
        let input_columns = layer.input_columns() as u64;
        let input_rows = layer.input_rows(rows as usize) as u64;
        let filter_sets = filters.div_ceil(mapping.p as u64);
        let channel_sets = channels.div_ceil(mapping.q as u64);

        let sums = images * filters * rows * columns;
        let sums_in = if continues { sums } else { 0 };
        let macs = sums * channels * height * width;
        let delivered = images * channels * height * rows * input_columns * filter_sets;
        let reads = |reads| Access { reads, writes: 0 };
        Accesses {
            dram: Kinds::default(),
            buffer: Kinds {
                input: reads(images * channels * input_rows * input_columns),
                filter: Access::default(),
                partial_sum: Access { reads: sums_in, writes: sums },
            },
            array: Kinds {
                input: reads(delivered),
                filter: Access::default(),
                // In at the bottom, up the column through all channels' sets, out at the top.
                partial_sum: reads(sums_in + sums * (height * channel_sets - 1) + sums),
            },
            scratchpad: Kinds {
                input: Access { reads: macs, writes: delivered },
                filter: reads(macs),
                // A sum begins without being read, and is read once more when it goes up.
                partial_sum: Access { reads: macs, writes: macs },
            },
        }
    }
}

fn add(sum: &mut Accesses, count: u64, each: &Accesses) {
    let times = |access: Access| Access { reads: count * access.reads, writes: count * access.writes };
    let kinds = |kinds: Kinds| Kinds {
        input: times(kinds.input),
        filter: times(kinds.filter),
        partial_sum: times(kinds.partial_sum),
    };
    *sum += Accesses {
        dram: kinds(each.dram),
        buffer: kinds(each.buffer),
        array: kinds(each.array),
        scratchpad: kinds(each.scratchpad),
    };
}
