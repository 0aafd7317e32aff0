//! Output-stationary: each PE keeps one sum until it is finished. PEs stand for o filters x y x x pixels: one filter and
//! many pixels, many filters and one pixel, or between (the study's OS_A, OS_C and OS_B). A weight is broadcast to the
//! pixels of its filter; an input is shared by the filters and handed from pixel to pixel.

use super::{Layout, dram_reads};
use crate::analysis::{Analysis, Cycles};
use crate::arch::Architecture;
use crate::counts::{Access, Accesses};
use crate::layer::Layer;
use crate::mapping::{Misfit, tiles};

pub fn layouts(layer: &Layer, batch: usize, arch: &Architecture) -> Result<Vec<Layout>, Misfit> {
    let mut layouts = Vec::new();
    for o in 1..=arch.pes().min(layer.group_filters()) {
        // Pixel tiles as square as they can be, which share the most inputs.
        let pixels = arch.pes() / o;
        let x = pixels.isqrt().max(1).min(layer.output_width());
        let y = (pixels / x).min(layer.output_height());
        let x = (pixels / y).min(layer.output_width());
        if let Some(reads) = dram_reads(layer, batch, o, arch) {
            layouts.push(layout(layer, batch, arch, [o, y, x], reads));
        }
    }
    Ok(layouts)
}

fn layout(
    layer: &Layer,
    batch: usize,
    arch: &Architecture,
    [o, y, x]: [usize; 3],
    (inputs, filters): (u64, u64),
) -> Layout {
    let macs = layer.macs(batch);
    let outputs = (batch * layer.filters * layer.outputs()) as u64;
    let taps = (layer.group_channels() * layer.filter_height * layer.filter_width) as u64;
    let filter_tiles = (layer.groups * layer.group_filters().div_ceil(o)) as u64;
    // For each tile of pixels: how many, and the inputs under it.
    let (mut pixel_tiles, mut under) = (0, 0);
    for (rows, count) in tiles(layer.output_height(), y) {
        for (columns, each) in tiles(layer.output_width(), x) {
            pixel_tiles += (count * each) as u64;
            let wide = Layer { width: (columns - 1) * layer.stride + layer.filter_width, padding: 0, ..layer.clone() };
            under += (count * each * layer.input_rows(rows) * wide.input_columns()) as u64;
        }
    }
    let passes = batch as u64 * filter_tiles * pixel_tiles;
    let weights = batch as u64 * pixel_tiles * layer.filter_words() as u64;
    let pixels = batch as u64 * filter_tiles * under * layer.group_channels() as u64;

    let mut accesses = Accesses::default();
    accesses.dram.input.reads = inputs;
    accesses.dram.filter.reads = filters;
    accesses.dram.partial_sum.writes = outputs;
    accesses.buffer.input = Access { reads: pixels, writes: inputs };
    accesses.buffer.filter = Access { reads: weights, writes: filters };
    accesses.buffer.partial_sum = Access { reads: outputs, writes: outputs };
    // Every MAC's weight and pixel come over the array, from the buffer or from the PE beside.
    accesses.array.input.reads = macs;
    accesses.array.filter.reads = macs;
    accesses.array.partial_sum.reads = outputs;
    accesses.scratchpad.input.reads = macs;
    accesses.scratchpad.filter.reads = macs;
    accesses.scratchpad.partial_sum = Access { reads: macs, writes: macs };

    let steps = passes * taps;
    let input_cycles = pixels.div_ceil(arch.bus.input as u64);
    let filter_cycles = weights.div_ceil(arch.bus.filter as u64);
    let mut cycles = Cycles::step(steps, input_cycles, outputs.div_ceil(arch.bus.partial_sum as u64));
    cycles.filters = filter_cycles.saturating_sub(cycles.total());
    let parameters = vec![("filters", o), ("rows", y), ("columns", x)];
    Layout { parameters, analysis: Analysis { active_pes: o * y * x, passes, macs, cycles, accesses } }
}
