//! A pass, cycle by cycle, and the memories around it.

use std::ops::Range;

use super::Simulation;
use super::pe::Pe;
use crate::arch::Architecture;
use crate::counts::Accesses;
use crate::layer::Layer;
use crate::mapping::Mapping;

/// What a pass works on. Channels and filters are counted within the group.
#[derive(Clone, PartialEq)]
pub struct Shape {
    pub group: usize,
    pub images: Range<usize>,
    pub rows: Range<usize>,
    /// The filters whose partial sums are in the buffer.
    pub tile: Range<usize>,
    pub channels: Range<usize>,
    /// Of these, the filters of this pass.
    pub filters: Range<usize>,
}

/// What is in the input part of the buffer: group, images, rows, channels.
type InputTile = (usize, Range<usize>, Range<usize>, Range<usize>);
/// What is in the filter scratchpads: group, filters, channels.
type FilterTile = (usize, Range<usize>, Range<usize>);

/// DRAM, the buffer, the array, and the counters.
pub struct Memory<'a> {
    layer: &'a Layer,
    mapping: &'a Mapping,
    arch: &'a Architecture,
    input: &'a [i64],
    filters: &'a [i64],
    output: Vec<i64>,
    input_tile: Option<InputTile>,
    filter_tile: Option<FilterTile>,
    /// Partial sums, as the output has them; only those of the tile are in the buffer. // N,M,E,F
    sums: Vec<i64>,
    /// The PEs: sets by channel, sets by filter, rows, columns.
    pes: Vec<Vec<Vec<Vec<Pe>>>>,
    passes: u64,
    macs: u64,
    cycles: u64,
    counts: Accesses,
}

impl<'a> Memory<'a> {
    pub fn new(
        layer: &'a Layer,
        mapping: &'a Mapping,
        arch: &'a Architecture,
        input: &'a [i64],
        filters: &'a [i64],
    ) -> Self {
        let batch = input.len() / (layer.channels * layer.height * layer.width);
        let outputs = batch * layer.filters * layer.outputs();
        Self {
            layer,
            mapping,
            arch,
            input,
            filters,
            output: vec![0; outputs],
            input_tile: None,
            filter_tile: None,
            sums: vec![0; outputs],
            pes: Vec::new(),
            passes: 0,
            macs: 0,
            cycles: 0,
            counts: Accesses::default(),
        }
    }

    pub fn finish(self) -> Simulation {
        let Self { output, passes, macs, cycles, counts, .. } = self;
        Simulation { output, passes, macs, cycles, accesses: counts }
    }

    /// A pixel of the padded input, if it is no padding.
    fn pixel(&self, image: usize, channel: usize, row: usize, column: usize) -> Option<i64> {
        let layer = self.layer;
        let row = row.checked_sub(layer.padding).filter(|&row| row < layer.height)?;
        let column = column.checked_sub(layer.padding).filter(|&column| column < layer.width)?;
        Some(self.input[((image * layer.channels + channel) * layer.height + row) * layer.width + column])
    }

    fn place(&self, image: usize, filter: usize, row: usize, column: usize) -> usize {
        let layer = self.layer;
        ((image * layer.filters + filter) * layer.output_height() + row) * layer.output_width() + column
    }

    /// Rows of the padded input that these rows of the output need.
    fn input_rows(&self, rows: &Range<usize>) -> Vec<usize> {
        distinct(rows.clone(), self.layer.filter_height, self.layer.stride)
    }

    /// Fills the input part of the buffer, unless it holds that already. Padding is not in DRAM.
    fn fetch_input(&mut self, shape: &Shape) {
        let tile = Some((shape.group, shape.images.clone(), shape.rows.clone(), shape.channels.clone()));
        if self.input_tile == tile {
            return;
        }
        self.input_tile = tile;
        let columns = distinct(0..self.layer.output_width(), self.layer.filter_width, self.layer.stride);
        for image in shape.images.clone() {
            for channel in shape.channels.clone() {
                for row in self.input_rows(&shape.rows) {
                    for &column in &columns {
                        let channel = shape.group * self.layer.group_channels() + channel;
                        self.counts.dram.input.reads += u64::from(self.pixel(image, channel, row, column).is_some());
                        self.counts.buffer.input.writes += 1;
                    }
                }
            }
        }
    }

    /// Finished sums go from the buffer to DRAM.
    pub fn write_back(&mut self, group: usize, images: Range<usize>, rows: Range<usize>, tile: Range<usize>) {
        for image in images {
            for filter in tile.clone() {
                for row in rows.clone() {
                    for column in 0..self.layer.output_width() {
                        let at = self.place(image, group * self.layer.group_filters() + filter, row, column);
                        self.output[at] = self.sums[at];
                        self.counts.buffer.partial_sum.reads += 1;
                        self.counts.dram.partial_sum.writes += 1;
                    }
                }
            }
        }
    }

    /// Sets the array up: filters go from DRAM through the buffer into the scratchpads, unless they are there.
    fn load_filters(&mut self, shape: &Shape) {
        let tile = Some((shape.group, shape.filters.clone(), shape.channels.clone()));
        if self.filter_tile == tile {
            return;
        }
        self.filter_tile = tile;
        let (layer, mapping) = (self.layer, self.mapping);
        let (height, width) = (layer.filter_height, layer.filter_width);
        let parts = |of: usize, size: usize| (0..of).step_by(size).map(move |first| size.min(of - first));
        self.pes = parts(shape.channels.len(), mapping.q)
            .map(|channels| {
                let set = |filters| {
                    let row = || shape.rows.clone().map(|_| Pe::new(filters, channels, width)).collect();
                    (0..height).map(|_| row()).collect()
                };
                parts(shape.filters.len(), mapping.p).map(set).collect()
            })
            .collect();
        let mut bus = 0;
        for (f, filter) in shape.filters.clone().enumerate() {
            for (c, channel) in shape.channels.clone().enumerate() {
                for i in 0..height {
                    for tap in 0..width {
                        let of_all = shape.group * layer.group_filters() + filter;
                        let weight =
                            self.filters[((of_all * layer.group_channels() + channel) * height + i) * width + tap];
                        self.counts.dram.filter.reads += 1;
                        self.counts.buffer.filter.writes += 1;
                        self.counts.buffer.filter.reads += 1;
                        bus += 1;
                        for pe in &mut self.pes[c / mapping.q][f / mapping.p][i] {
                            self.counts.array.filter.reads += 1;
                            pe.put_weight(f % mapping.p, c % mapping.q, tap, weight, &mut self.counts);
                        }
                    }
                }
            }
        }
        self.cycles += u64::div_ceil(bus, self.arch.bus.filter as u64);
    }

    /// The pixel goes from the buffer to every PE that needs it: a diagonal of each set of its channel.
    fn deliver(&mut self, shape: &Shape, &(image, c, row, column): &(usize, usize, usize, usize)) {
        let channel = shape.group * self.layer.group_channels() + shape.channels.start + c;
        let value = self.pixel(image, channel, row, column).unwrap_or(0);
        self.counts.buffer.input.reads += 1;
        let stride = self.layer.stride;
        for set in &mut self.pes[c / self.mapping.q] {
            for (i, pes) in set.iter_mut().enumerate() {
                for (pe, output_row) in pes.iter_mut().zip(shape.rows.clone()) {
                    if output_row * stride + i == row {
                        self.counts.array.input.reads += 1;
                        pe.put_pixel(c % self.mapping.q, value, &mut self.counts);
                    }
                }
            }
        }
    }

    /// The PEs that this pass uses: the last strip may leave some idle.
    fn busy(pes: &mut [Vec<Vec<Vec<Pe>>>], columns: usize) -> impl Iterator<Item = &mut Pe> {
        pes.iter_mut().flatten().flatten().flat_map(move |row| row[..columns].iter_mut())
    }

    /// Sums go up the columns, from the last channels' last row to the first's first.
    fn accumulate(&mut self, shape: &Shape, incoming: &[i64]) -> Vec<i64> {
        let mut finished = Vec::new();
        for f in 0..shape.filters.len() {
            for j in 0..shape.rows.len() {
                let mut sum = incoming[f * shape.rows.len() + j];
                for (k, sets) in self.pes.iter().enumerate().rev() {
                    for (i, row) in sets[f / self.mapping.p].iter().enumerate().rev() {
                        sum += row[j].sums[f % self.mapping.p];
                        self.counts.scratchpad.partial_sum.reads += 1;
                        // All but the topmost hand it on.
                        self.counts.array.partial_sum.reads += u64::from((k, i) != (0, 0));
                    }
                }
                finished.push(sum);
            }
        }
        finished
    }
}

/// The pixels that one more column of the output needs: image, channel within the pass, row, column.
fn arrivals(memory: &Memory<'_>, shape: &Shape, image: usize, column: usize) -> Vec<(usize, usize, usize, usize)> {
    let (width, stride) = (memory.layer.filter_width, memory.layer.stride);
    let known = if column == 0 { 0 } else { width.saturating_sub(stride) };
    let columns = column * stride + known..column * stride + width;
    let rows = memory.input_rows(&shape.rows);
    let channels = 0..shape.channels.len();
    columns
        .flat_map(|at| rows.iter().map(move |&row| (row, at)))
        .flat_map(|(row, at)| channels.clone().map(move |channel| (image, channel, row, at)))
        .collect()
}

/// Runs one pass.
pub fn run(memory: &mut Memory<'_>, shape: &Shape) {
    memory.passes += 1;
    memory.fetch_input(shape);
    memory.load_filters(shape);
    let bus = memory.arch.bus;
    let columns = shape.rows.len();
    let continues = shape.channels.start > 0;

    for window in arrivals(memory, shape, shape.images.start, 0).chunks(bus.input) {
        window.iter().for_each(|pixel| memory.deliver(shape, pixel));
        memory.cycles += 1;
    }
    let steps: Vec<(usize, usize)> = shape
        .images
        .clone()
        .flat_map(|image| (0..memory.layer.output_width()).map(move |column| (image, column)))
        .collect();
    // Sums on their way back, with their places.
    let mut leaving: Vec<(usize, i64)> = Vec::new();
    for (at, &(image, column)) in steps.iter().enumerate() {
        Memory::busy(&mut memory.pes, columns).for_each(Pe::slide);
        let next = steps.get(at + 1).map_or_else(Vec::new, |&(image, column)| arrivals(memory, shape, image, column));
        let mut next = next.chunks(bus.input);
        let places: Vec<usize> = shape
            .filters
            .clone()
            .flat_map(|filter| shape.rows.clone().map(move |row| (filter, row)))
            .map(|(filter, row)| memory.place(image, shape.group * memory.layer.group_filters() + filter, row, column))
            .collect();
        let mut incoming = vec![0; places.len()];
        let mut entered = if continues { 0 } else { places.len() };
        loop {
            let mut worked = false;
            for pe in Memory::busy(&mut memory.pes, columns).filter(|pe| !pe.is_done()) {
                pe.work(&mut memory.counts);
                memory.macs += 1;
                worked = true;
            }
            if let Some(pixels) = next.next() {
                pixels.iter().for_each(|pixel| memory.deliver(shape, pixel));
                worked = true;
            }
            let arriving = entered..places.len().min(entered + bus.partial_sum);
            worked |= !arriving.is_empty();
            entered = arriving.end;
            for place in arriving {
                incoming[place] = memory.sums[places[place]];
                memory.counts.buffer.partial_sum.reads += 1;
                memory.counts.array.partial_sum.reads += 1;
            }
            worked |= leave(memory, &mut leaving);
            if !worked {
                break;
            }
            memory.cycles += 1;
        }
        leaving = places.into_iter().zip(memory.accumulate(shape, &incoming)).collect();
    }
    while leave(memory, &mut leaving) {
        memory.cycles += 1;
    }
}

/// One cycle of the bus back to the buffer; whether there was anything to carry.
fn leave(memory: &mut Memory<'_>, leaving: &mut Vec<(usize, i64)>) -> bool {
    let count = leaving.len().min(memory.arch.bus.partial_sum);
    for (place, sum) in leaving.drain(..count) {
        memory.sums[place] = sum;
        memory.counts.buffer.partial_sum.writes += 1;
        memory.counts.array.partial_sum.reads += 1;
    }
    count > 0
}

/// The different places that windows touch along one dimension.
fn distinct(outputs: Range<usize>, filter: usize, stride: usize) -> Vec<usize> {
    let mut places: Vec<usize> = outputs.flat_map(|at| (0..filter).map(move |tap| at * stride + tap)).collect();
    places.sort_unstable();
    places.dedup();
    places
}
