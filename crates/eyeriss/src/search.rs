//! The best mapping of a layer.

use std::ops::RangeInclusive;

use crate::analysis::{Analysis, analyse};
use crate::arch::{Architecture, Strips};
use crate::array;
use crate::layer::Layer;
use crate::mapping::{Mapping, Misfit};

/// What is best.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Objective {
    /// The least energy; among equals the fewest cycles.
    Energy,
    /// The fewest cycles; among equals the least energy.
    Latency,
}

impl Objective {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Energy, Self::Latency];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Energy => "energy",
            Self::Latency => "latency",
        }
    }

    /// Smaller is better.
    pub(crate) fn score(self, analysis: &Analysis, arch: &Architecture) -> (f64, f64) {
        let (energy, cycles) = (analysis.energy(arch).total(), analysis.cycles.total() as f64);
        match self {
            Self::Energy => (energy, cycles),
            Self::Latency => (cycles, energy),
        }
    }
}

/// The best legal mapping, and what it takes. As on the chip, as many sets run at once as the array holds; by its rule,
/// as many PEs work as can, and of those mappings the best is taken.
pub fn search(
    layer: &Layer,
    batch: usize,
    arch: &Architecture,
    objective: Objective,
) -> Result<(Mapping, Analysis), Misfit> {
    Mapping::SMALLEST.check(layer, batch, arch)?;
    // Empty unless r divides the sets.
    let filling = |sets: usize, r: usize| sets.div_ceil(r)..=sets / r;
    let best = best_of(layer, batch, arch, objective, filling);
    // Where the buffer is too small for a full array, some of it must do.
    let some = |sets: usize, r: usize| 1..=sets / r;
    let best = best.or_else(|| best_of(layer, batch, arch, objective, some));
    best.ok_or_else(|| Misfit::new(layer, "global buffer too small: no mapping fits into it"))
}

/// PEs that must not idle but do, then the objective: smaller is better.
type Score = (usize, (f64, f64));

/// The best mapping whose sets for different filters are among `filters_of` the sets that fit and those for channels.
fn best_of(
    layer: &Layer,
    batch: usize,
    arch: &Architecture,
    objective: Objective,
    filters_of: impl Fn(usize, usize) -> RangeInclusive<usize>,
) -> Option<(Mapping, Analysis)> {
    let mut best: Option<(Score, Mapping, Analysis)> = None;
    for e in widths(layer, arch) {
        let sets = array::capacity(arch.rows, arch.columns, layer.filter_height, e);
        for r in 1..=sets.min(layer.group_channels()) {
            for mapping in filters_of(sets, r).flat_map(|t| with_sets(layer, batch, arch, e, r, t)) {
                let analysis = analyse(layer, batch, &mapping, arch);
                let idle = if arch.strips == Strips::WhenNeeded { arch.pes() - analysis.active_pes } else { 0 };
                let score = (idle, objective.score(&analysis, arch));
                if best.as_ref().is_none_or(|(least, ..)| score < *least) {
                    best = Some((score, mapping, analysis));
                }
            }
        }
    }
    best.map(|(_, mapping, analysis)| (mapping, analysis))
}

/// The widths of a set to try: all of the output if that fits on the array, strips of it if not, or if they may be
/// better. Strips are as wide as fills the array's columns.
fn widths(layer: &Layer, arch: &Architecture) -> Vec<usize> {
    let height = layer.output_height();
    let active = |e| e * array::capacity(arch.rows, arch.columns, layer.filter_height, e);
    let whole = Mapping { e: height, ..Mapping::SMALLEST }.check(layer, 1, arch).is_ok();
    if whole && arch.strips == Strips::WhenNeeded {
        return vec![height];
    }
    let most = (1..=height).map(active).max().unwrap_or(0);
    (1..=height).filter(|&e| active(e) == most || (whole && e == height)).collect()
}

/// The mappings with sets of this width, `r` of them for different channels and at most `t` for different filters.
fn with_sets(layer: &Layer, batch: usize, arch: &Architecture, e: usize, r: usize, t: usize) -> Vec<Mapping> {
    let (pads, width) = (arch.scratchpad, layer.filter_width);
    let (channels, filters) = (layer.group_channels(), layer.group_filters());
    let mut mappings = Vec::new();
    for q in 1..=(pads.input / width).min(channels) {
        for p in 1..=pads.partial_sum.min(pads.filter / (q * width)).min(filters) {
            for n in 1..=batch {
                let (r, t) = (r.min(channels.div_ceil(q)), t.min(filters.div_ceil(p)));
                let mapping = Mapping { m: (p * t).min(filters), n, e, p, q, r, t };
                if mapping.check(layer, batch, arch).is_err() {
                    // More images need more room still.
                    break;
                }
                // The more sums the buffer holds, the less often the inputs come from DRAM: as many as fit, in tiles of
                // whole passes that are about equal.
                let room = (arch.map_words() - mapping.input_tile(layer)) / Mapping { m: 1, ..mapping }.sum_tile(layer);
                let tiles = filters.div_ceil((room / (p * t)).max(1) * p * t);
                let m = filters.div_ceil(tiles).next_multiple_of(p * t).min(filters);
                mappings.push(Mapping { m, ..mapping });
            }
        }
    }
    mappings
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::networks::Network;

    #[test]
    fn what_is_found_is_legal_and_no_worse_than_the_chips_choice() {
        let arch = Architecture::default();
        for (layer, published) in Network::AlexNet.layers().iter().zip(crate::published::ALEXNET) {
            let theirs = analyse(layer, 4, &published.mapping, &arch);
            for objective in Objective::ALL {
                let (mapping, analysis) = search(layer, 4, &arch, objective).unwrap();
                mapping.check(layer, 4, &arch).unwrap();
                assert_eq!(analysis, analyse(layer, 4, &mapping, &arch));
                assert!(
                    objective.score(&analysis, &arch) <= objective.score(&theirs, &arch),
                    "{} {mapping}",
                    layer.name
                );
            }
        }
    }

    #[test]
    fn all_layers_of_all_networks_have_a_mapping() {
        for network in Network::ALL {
            for layer in network.layers() {
                let (mapping, _) = search(&layer, 2, &Architecture::default(), Objective::Energy).unwrap();
                mapping.check(&layer, 2, &Architecture::default()).unwrap();
            }
        }
    }

    #[test]
    fn a_buffer_too_small_for_a_full_array_holds_a_smaller_mapping() {
        let layer = &Network::AlexNet.layers()[2];
        let small = Architecture::from_toml("[buffer]\nbytes = 2048\nfilter-bytes = 64\n").unwrap();
        let (mapping, analysis) = search(layer, 1, &small, Objective::Energy).unwrap();
        mapping.check(layer, 1, &small).unwrap();
        assert!(analysis.active_pes < 156, "{mapping}");
    }

    #[test]
    fn a_layer_that_nothing_suits_names_the_resource() {
        let chip = Architecture::default();
        let wide = Layer::convolution("wide", 1, 20, 1, 13, 0);
        let error = search(&wide, 1, &chip, Objective::Energy).unwrap_err().to_string();
        assert_eq!(error, "layer wide: array rows too small: R needs 13, there are 12");
    }
}
