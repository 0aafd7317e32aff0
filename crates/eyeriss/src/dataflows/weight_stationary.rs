//! Weight-stationary: each PE keeps one weight while all pixels go by. The R S weights of a filter and channel stand in
//! R S PEs; f filters and c channels do so at once. A pixel is broadcast to the PEs of its channel; sums go from PE to
//! PE through R S c of them, and wait in the buffer for the next channels. A weight comes from DRAM once and stays for all
//! its N E F uses; only where the sums of so many outputs do not fit into the buffer it comes again.

use super::Layout;
use crate::analysis::{Analysis, Cycles};
use crate::arch::Architecture;
use crate::counts::{Access, Accesses};
use crate::layer::Layer;
use crate::mapping::Misfit;

pub fn layouts(layer: &Layer, batch: usize, arch: &Architecture) -> Result<Vec<Layout>, Misfit> {
    let weights = layer.filter_height * layer.filter_width;
    let blocks = arch.pes() / weights;
    if blocks == 0 {
        let problem = format!("array too small: R S = {weights} weights need as many PEs, there are {}", arch.pes());
        return Err(Misfit::new(layer, problem));
    }
    let room = arch.others_buffer_words();
    let mut sizes = Vec::new();
    for f in 1..=blocks.min(layer.group_filters()) {
        let c = (blocks / f).min(layer.group_channels());
        for n in 1..=batch {
            // Output rows whose sums fit beside the lines of the input that are being read.
            let lines = c * layer.filter_height * layer.input_columns();
            let row = n * f * layer.output_width();
            let e = (room.saturating_sub(lines) / row).min(layer.output_height());
            if e > 0 {
                sizes.push([f, c, n, e]);
            }
        }
    }
    let whole = |[_, _, n, e]: &[usize; 4]| (*n, *e) == (batch, layer.output_height());
    if sizes.iter().any(whole) {
        sizes.retain(whole);
    }
    Ok(sizes.into_iter().map(|sizes| layout(layer, batch, arch, sizes)).collect())
}

fn layout(layer: &Layer, batch: usize, arch: &Architecture, [f, c, n, e]: [usize; 4]) -> Layout {
    let macs = layer.macs(batch);
    let outputs = (batch * layer.filters * layer.outputs()) as u64;
    let filter_tiles = layer.group_filters().div_ceil(f) as u64;
    let channel_tiles = layer.group_channels().div_ceil(c) as u64;
    let visits = (batch.div_ceil(n) * layer.output_height().div_ceil(e)) as u64;
    let strips = || (0..layer.output_height()).step_by(e).map(|first| (first, e.min(layer.output_height() - first)));
    let real: usize = strips().map(|(first, rows)| layer.real_rows(first, rows) * layer.real_columns()).sum();
    let padded: usize = strips().map(|(_, rows)| layer.input_rows(rows) * layer.input_columns()).sum();
    let maps = (batch * layer.channels) as u64;
    // If the inputs of all channels fit beside the sums, they come from DRAM once.
    let all = n * layer.group_channels() * layer.input_rows(e) * layer.input_columns();
    let stays = all + n * f * e * layer.output_width() <= arch.others_buffer_words();
    let fetches = if stays { maps } else { maps * filter_tiles };
    let loaded = layer.filter_words() as u64 * visits;
    let spilled = outputs * (channel_tiles - 1);

    let mut accesses = Accesses::default();
    accesses.dram.input.reads = fetches * real as u64;
    accesses.dram.filter.reads = loaded;
    accesses.dram.partial_sum.writes = outputs;
    accesses.buffer.input = Access { reads: maps * filter_tiles * padded as u64, writes: fetches * padded as u64 };
    accesses.buffer.filter = Access { reads: loaded, writes: loaded };
    accesses.buffer.partial_sum = Access { reads: spilled + outputs, writes: spilled + outputs };
    // Every MAC's pixel comes over the array, and its sum goes on to the next PE or out.
    accesses.array.input.reads = macs;
    accesses.array.filter.reads = loaded;
    accesses.array.partial_sum.reads = macs + spilled;
    accesses.scratchpad.input.reads = macs;
    accesses.scratchpad.filter = Access { reads: macs, writes: loaded };

    // One pixel of each of f outputs a cycle.
    let passes = layer.groups as u64 * visits * filter_tiles * channel_tiles;
    let pixels =
        (n * layer.outputs()) as u64 * batch.div_ceil(n) as u64 * layer.groups as u64 * filter_tiles * channel_tiles;
    let steps = pixels.max(macs.div_ceil((f * c * layer.filter_height * layer.filter_width) as u64));
    let inputs = accesses.buffer.input.reads.div_ceil(arch.bus.input as u64);
    let sums = accesses.buffer.partial_sum.writes.div_ceil(arch.bus.partial_sum as u64);
    let mut cycles = Cycles::step(steps, inputs, sums);
    cycles.filters = loaded.div_ceil(arch.bus.filter as u64);
    let active_pes = f * c * layer.filter_height * layer.filter_width;
    let parameters = vec![("filters", f), ("channels", c), ("images", n), ("rows", e)];
    Layout { parameters, analysis: Analysis { active_pes, passes, macs, cycles, accesses } }
}
