//! The other dataflows of the ISCA 2016 study, in closed form. They differ in what stays in a PE: a weight, a sum, or
//! nothing. All have the same PEs and buses; what row-stationary spends on scratchpads they have as a larger buffer.
//!
//! Energy is that of the study's formula: a value that is used a b c d times costs a accesses of DRAM, a b of the buffer,
//! a b c of the array, and a b c d of the register files, which every operand of a MAC comes from, unless there are none.

mod no_local_reuse;
mod output_stationary;
mod weight_stationary;

use crate::analysis::Analysis;
use crate::arch::Architecture;
use crate::layer::Layer;
use crate::mapping::Misfit;
use crate::search::{Objective, search};

/// A way to lay a convolution out on PEs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dataflow {
    /// Each PE keeps a row of a filter: Eyeriss.
    RowStationary,
    /// Each PE keeps a weight; inputs are broadcast, sums go from PE to PE.
    WeightStationary,
    /// Each PE keeps a sum; weights are broadcast, inputs go from PE to PE.
    OutputStationary,
    /// PEs keep nothing; all comes from a large buffer.
    NoLocalReuse,
}

/// How a layer is laid out, as names and sizes for people, and what it takes.
#[derive(Debug, Clone, PartialEq)]
pub struct Layout {
    /// The parameters.
    pub parameters: Vec<(&'static str, usize)>,
    /// What it takes.
    pub analysis: Analysis,
}

impl Dataflow {
    /// All of them.
    pub const ALL: [Self; 4] =
        [Self::RowStationary, Self::WeightStationary, Self::OutputStationary, Self::NoLocalReuse];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::RowStationary => "row-stationary",
            Self::WeightStationary => "weight-stationary",
            Self::OutputStationary => "output-stationary",
            Self::NoLocalReuse => "no-local-reuse",
        }
    }

    /// The best layout of a layer.
    pub fn best(
        self,
        layer: &Layer,
        batch: usize,
        arch: &Architecture,
        objective: Objective,
    ) -> Result<Layout, Misfit> {
        let layouts = match self {
            Self::RowStationary => {
                let (mapping, analysis) = search(layer, batch, arch, objective)?;
                return Ok(Layout { parameters: mapping.parameters(), analysis });
            }
            Self::WeightStationary => weight_stationary::layouts(layer, batch, arch),
            Self::OutputStationary => output_stationary::layouts(layer, batch, arch),
            Self::NoLocalReuse => no_local_reuse::layouts(layer, batch, arch),
        }?;
        let best = layouts.into_iter().min_by(|a, b| {
            let score = |layout: &Layout| objective.score(&layout.analysis, arch);
            score(a).partial_cmp(&score(b)).expect("energy is a number")
        });
        best.ok_or_else(|| {
            let words = arch.others_buffer_words();
            Misfit::new(layer, format!("global buffer too small: {words} words hold no tile of {}", self.name()))
        })
    }
}

/// What a dataflow that goes through filters in tiles reads from DRAM, as words of inputs and of filters. Either the
/// filters of a tile stay in the buffer while all images go by, or some images stay while all filters go by. `None` if
/// the buffer holds neither.
fn dram_reads(layer: &Layer, batch: usize, tile: usize, arch: &Architecture) -> Option<(u64, u64)> {
    let room = arch.others_buffer_words();
    let taps = layer.group_channels() * layer.filter_height * layer.filter_width;
    let columns = layer.width + 2 * layer.padding;
    let image = (layer.channels * layer.height * layer.width) as u64;
    let filters = layer.filter_words() as u64;
    let tiles = layer.group_filters().div_ceil(tile) as u64;
    let lines = layer.group_channels() * layer.filter_height * columns;
    let mut best: Option<(u64, u64)> = None;
    let mut consider = |fits: bool, reads: (u64, u64)| {
        if fits && best.is_none_or(|best| reads.0 + reads.1 < best.0 + best.1) {
            best = Some(reads);
        }
    };
    consider(tile * taps + lines <= room, (batch as u64 * image * tiles, filters));
    for images in 1..=batch {
        let held = images * layer.group_channels() * layer.height * columns;
        let visits = batch.div_ceil(images) as u64;
        consider(held + tile * taps <= room, (batch as u64 * image, filters * visits));
    }
    // Neither stays: a tile's sums are finished from lines of the input while its weights stream by, for each line.
    consider(lines <= room, (batch as u64 * image * tiles, filters * (batch * layer.output_height()) as u64));
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::networks::Network;

    #[test]
    fn every_dataflow_does_every_mac_and_writes_every_output_once() {
        for layer in Network::AlexNet.layers() {
            for dataflow in Dataflow::ALL {
                let layout = dataflow.best(&layer, 4, &Architecture::default(), Objective::Energy).unwrap();
                let analysis = layout.analysis;
                assert_eq!(analysis.macs, layer.macs(4));
                assert_eq!(analysis.accesses.dram.partial_sum.writes, (4 * layer.filters * layer.outputs()) as u64);
                assert!(analysis.active_pes <= 168, "{} {:?}", layer.name, layout.parameters);
                assert!(analysis.cycles.macs * 168 >= analysis.macs, "{} {}", layer.name, dataflow.name());
                let needed = (
                    layer.filter_words() as u64,
                    (4 * layer.channels * layer.real_rows(0, layer.output_height()) * layer.real_columns()) as u64,
                );
                assert!(analysis.accesses.dram.filter.reads >= needed.0, "{} {}", layer.name, dataflow.name());
                assert!(analysis.accesses.dram.input.reads >= needed.1, "{} {}", layer.name, dataflow.name());
            }
        }
    }

    /// What the names say: the stationary kind is used many times for each time that it comes over the array.
    #[test]
    fn what_is_stationary_is_reused_in_the_pe() {
        let layer = &Network::AlexNet.layers()[2];
        let reused = |dataflow: Dataflow| {
            let accesses =
                dataflow.best(layer, 4, &Architecture::default(), Objective::Energy).unwrap().analysis.accesses;
            let pairs = accesses.scratchpad.each().into_iter().zip(accesses.array.each());
            pairs.map(|(pads, array)| pads.reads > array.reads).collect::<Vec<_>>()
        };
        assert_eq!(reused(Dataflow::RowStationary), [true, true, true]);
        assert_eq!(reused(Dataflow::WeightStationary), [false, true, false]);
        assert_eq!(reused(Dataflow::OutputStationary), [false, false, true]);
        assert_eq!(reused(Dataflow::NoLocalReuse), [false, false, false]);
    }

    /// What must hold against the study: its set-up is architectures/eyeriss-isca.toml.
    #[test]
    fn the_others_need_as_much_more_energy_as_in_the_study() {
        let arch = Architecture::from_toml(include_str!("../../../../architectures/eyeriss-isca.toml")).unwrap();
        let convolutions = &Network::AlexNet.layers()[..5];
        let energy = |dataflow: Dataflow| -> f64 {
            let best =
                |layer| dataflow.best(layer, 16, &arch, Objective::Energy).unwrap().analysis.energy(&arch).total();
            convolutions.iter().map(best).sum()
        };
        let (least, most) = crate::published::ISCA_RATIOS;
        for dataflow in &Dataflow::ALL[1..] {
            let ratio = energy(*dataflow) / energy(Dataflow::RowStationary);
            assert!((least..=most).contains(&ratio), "{}: {ratio}", dataflow.name());
        }
    }
}
