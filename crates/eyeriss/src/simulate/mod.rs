//! Row-stationary cycle by cycle: real numbers go through DRAM, buffer, buses and scratchpads, and everything that
//! happens is counted as it happens. For small layers; [`crate::analysis`] says the same of large ones at once.

mod pass;
mod pe;

use self::pass::{Memory, Shape, run};
use crate::arch::Architecture;
use crate::counts::Accesses;
use crate::layer::Layer;
use crate::mapping::{Mapping, Misfit};

/// What came out, and what it took.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// The output. // N,M,E,F
    pub output: Vec<i64>,
    /// How often the array was set up anew.
    pub passes: u64,
    /// Multiply-accumulates that PEs did.
    pub macs: u64,
    /// How long it took.
    pub cycles: u64,
    /// Words moved.
    pub accesses: Accesses,
}

/// Runs a layer. // input: N,C,H,W; filters: M,C,R,S
pub fn simulate(
    layer: &Layer,
    mapping: &Mapping,
    arch: &Architecture,
    input: &[i64],
    filters: &[i64],
) -> Result<Simulation, Misfit> {
    let batch = input.len() / (layer.channels * layer.height * layer.width);
    mapping.check(layer, batch, arch)?;
    let Mapping { m, n, e, p, q, r, t } = *mapping;
    let (channels, group_filters) = (layer.group_channels(), layer.group_filters());
    let mut memory = Memory::new(layer, mapping, arch, input, filters);
    for group in 0..layer.groups {
        for image in (0..batch).step_by(n) {
            for row in (0..layer.output_height()).step_by(e) {
                for tile in (0..group_filters).step_by(m) {
                    let tile_end = (tile + m).min(group_filters);
                    for channel in (0..channels).step_by(q * r) {
                        for filter in (tile..tile_end).step_by(p * t) {
                            let shape = Shape {
                                group,
                                images: image..(image + n).min(batch),
                                rows: row..(row + e).min(layer.output_height()),
                                tile: tile..tile_end,
                                channels: channel..(channel + q * r).min(channels),
                                filters: filter..(filter + p * t).min(tile_end),
                            };
                            run(&mut memory, &shape);
                        }
                    }
                    memory.write_back(
                        group,
                        image..(image + n).min(batch),
                        row..(row + e).min(layer.output_height()),
                        tile..tile_end,
                    );
                }
            }
        }
    }
    Ok(memory.finish())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::analysis::analyse;
    use crate::arch::{Buffer, Bus, Scratchpad};
    use crate::reference::convolution;

    /// A small layer, an architecture and a mapping that need not fit each other.
    fn cases() -> impl Strategy<Value = (Layer, usize, Mapping, Architecture)> {
        let layer =
            (1..4usize, 1..4usize, (1..5usize, 1..5usize), 1..4usize, 0..3usize, 1..3usize, (1..8usize, 1..8usize));
        let mapping = (1..7usize, 1..4usize, 1..8usize, (1..4usize, 1..4usize), (1..3usize, 1..3usize));
        let arch = ((2..9usize, 2..9usize), 1..4usize, 1..6usize, 1..5usize);
        (layer, 1..4usize, mapping, arch).prop_map(|(layer, batch, mapping, arch)| {
            let (channels, filters, (height, width), stride, padding, groups, size) = layer;
            let layer = Layer {
                stride,
                filter_height: height,
                filter_width: width,
                height: size.0,
                width: size.1,
                ..Layer::convolution("random", channels * groups, 1, filters * groups, 1, padding).groups(groups)
            };
            let (m, n, e, (p, q), (r, t)) = mapping;
            let ((rows, columns), input, filter, partial_sum) = arch;
            let arch = Architecture {
                rows,
                columns,
                scratchpad: Scratchpad { input: 12, filter: 36, partial_sum: 3 },
                buffer: Buffer { bytes: 4096, filter_bytes: 1024 },
                bus: Bus { input, filter, partial_sum },
                ..Architecture::default()
            };
            (layer, batch, Mapping { m, n, e, p, q, r, t }, arch)
        })
    }

    /// The mapping, cut down to what there is.
    fn fitted(layer: &Layer, batch: usize, wanted: &Mapping) -> Mapping {
        let m = wanted.m.min(layer.group_filters());
        let (p, q) = (wanted.p.min(m), wanted.q.min(layer.group_channels()));
        let n = wanted.n.min(batch);
        let r = wanted.r.min(layer.group_channels().div_ceil(q));
        Mapping { m, n, e: wanted.e.min(layer.output_height()), p, q, r, t: wanted.t.min(m.div_ceil(p)) }
    }

    fn numbers(count: usize, seed: usize) -> Vec<i64> {
        (0..count).map(|at| ((at * 7919 + seed * 104_729) % 23) as i64 - 11).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 600, max_global_rejects: 20_000, failure_persistence: None, ..ProptestConfig::default() })]

        /// What comes out is the convolution; what it takes is what the closed form says.
        #[test]
        fn the_simulation_agrees_with_definition_and_analysis((layer, batch, mapping, arch) in cases(), seed in 0..100usize) {
            prop_assume!(layer.validate().is_ok());
            let mapping = fitted(&layer, batch, &mapping);
            prop_assume!(mapping.check(&layer, batch, &arch).is_ok());
            let input = numbers(batch * layer.channels * layer.height * layer.width, seed);
            let filters = numbers(layer.filter_words(), seed + 1);
            let simulated = simulate(&layer, &mapping, &arch, &input, &filters).unwrap();
            prop_assert_eq!(&simulated.output, &convolution(&layer, &input, &filters));
            let analysed = analyse(&layer, batch, &mapping, &arch);
            prop_assert_eq!(simulated.accesses, analysed.accesses);
            prop_assert_eq!(
                (simulated.passes, simulated.macs, simulated.cycles),
                (analysed.passes, analysed.macs, analysed.cycles.total())
            );
        }
    }
}
