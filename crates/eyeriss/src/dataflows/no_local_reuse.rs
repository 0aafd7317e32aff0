//! No local reuse: PEs keep nothing, and the area is all buffer. f x c PEs stand for f filters and c channels: each
//! cycle every PE gets a weight of its own, a pixel is shared by f PEs, and sums go through c PEs and back to the
//! buffer.

use super::{Layout, dram_reads};
use crate::analysis::{Analysis, Cycles};
use crate::arch::Architecture;
use crate::counts::{Access, Accesses};
use crate::layer::Layer;
use crate::mapping::Misfit;

pub fn layouts(layer: &Layer, batch: usize, arch: &Architecture) -> Result<Vec<Layout>, Misfit> {
    let mut layouts = Vec::new();
    for f in 1..=arch.pes().min(layer.group_filters()) {
        let c = (arch.pes() / f).min(layer.group_channels());
        if let Some(reads) = dram_reads(layer, batch, f, arch) {
            layouts.push(layout(layer, batch, arch, [f, c], reads));
        }
    }
    Ok(layouts)
}

fn layout(
    layer: &Layer,
    batch: usize,
    arch: &Architecture,
    [f, c]: [usize; 2],
    (inputs, filters): (u64, u64),
) -> Layout {
    let macs = layer.macs(batch);
    let outputs = (batch * layer.filters * layer.outputs()) as u64;
    let filter_tiles = layer.group_filters().div_ceil(f) as u64;
    let channel_tiles = layer.group_channels().div_ceil(c) as u64;
    // A sum goes to the buffer for every tap and tile of channels, and is read for the next, or to leave.
    let taps = (layer.filter_height * layer.filter_width) as u64;
    let sums = outputs * taps * channel_tiles;
    let pixels = macs / layer.group_filters() as u64 * filter_tiles;

    let mut accesses = Accesses::default();
    accesses.dram.input.reads = inputs;
    accesses.dram.filter.reads = filters;
    accesses.dram.partial_sum.writes = outputs;
    accesses.buffer.input = Access { reads: pixels, writes: inputs };
    accesses.buffer.filter = Access { reads: macs, writes: filters };
    accesses.buffer.partial_sum = Access { reads: sums, writes: sums };
    accesses.array.input.reads = macs;
    accesses.array.filter.reads = macs;
    accesses.array.partial_sum.reads = macs + (sums - outputs);

    let passes = layer.groups as u64 * batch as u64 * filter_tiles * channel_tiles;
    let steps = passes * taps * layer.outputs() as u64;
    let bus = |words: u64, width: usize| words.div_ceil(width as u64);
    let mut cycles = Cycles::step(steps, bus(pixels, arch.bus.input), bus(sums, arch.bus.partial_sum));
    cycles.filters = bus(macs, arch.bus.filter).saturating_sub(cycles.total());
    let parameters = vec![("filters", f), ("channels", c)];
    Layout { parameters, analysis: Analysis { active_pes: f * c, passes, macs, cycles, accesses } }
}
