//! What the papers report, to compare with. Nothing is computed from these numbers.

use crate::mapping::Mapping;

/// One layer of AlexNet on the chip, batch 4, at 200 MHz and 1 V: Chen, Krishna, Emer and Sze, "Eyeriss: An
/// Energy-Efficient Reconfigurable Accelerator for Deep Convolutional Neural Networks", JSSC 52(1), 2017.
pub struct ChipLayer {
    /// Its name.
    pub name: &'static str,
    /// How it was mapped.
    pub mapping: Mapping,
    /// PEs that work.
    pub active_pes: usize,
    /// Milliseconds of the array.
    pub processing_ms: f64,
    /// Milliseconds with DRAM.
    pub total_ms: f64,
    /// Billion MACs.
    pub giga_macs: f64,
    /// Megabytes from and to the global buffer.
    pub buffer_mb: f64,
    /// Megabytes from and to DRAM, run-length coded.
    pub dram_mb: f64,
}

const fn layer(name: &'static str, active_pes: usize, numbers: [f64; 5], mapping: [usize; 7]) -> ChipLayer {
    let [processing_ms, total_ms, giga_macs, buffer_mb, dram_mb] = numbers;
    let [m, n, e, p, q, r, t] = mapping;
    let mapping = Mapping { m, n, e, p, q, r, t };
    ChipLayer { name, mapping, active_pes, processing_ms, total_ms, giga_macs, buffer_mb, dram_mb }
}

/// The batch of [`ALEXNET`].
pub const ALEXNET_BATCH: usize = 4;

/// AlexNet's convolutions on the chip.
pub const ALEXNET: [ChipLayer; 5] = [
    layer("CONV1", 154, [16.5, 20.9, 0.42, 18.5, 5.0], [96, 1, 7, 16, 1, 1, 2]),
    layer("CONV2", 135, [39.2, 41.9, 0.90, 77.6, 4.0], [64, 1, 27, 16, 2, 1, 1]),
    layer("CONV3", 156, [21.8, 23.6, 0.60, 50.2, 3.0], [64, 4, 13, 16, 4, 1, 4]),
    layer("CONV4", 156, [16.0, 18.4, 0.45, 37.4, 2.1], [64, 4, 13, 16, 3, 2, 2]),
    layer("CONV5", 156, [10.0, 10.5, 0.30, 24.9, 1.3], [64, 4, 13, 16, 3, 2, 2]),
];

/// How many times the energy of row-stationary the other dataflows need on AlexNet's convolutions, from the best to the
/// worst: Chen, Emer and Sze, "Eyeriss: A Spatial Architecture for Energy-Efficient Dataflow for Convolutional Neural
/// Networks", ISCA 2016.
pub const ISCA_RATIOS: (f64, f64) = (1.4, 2.5);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::analysis::analyse;
    use crate::arch::Architecture;
    use crate::networks::Network;

    /// What must hold against the chip, with its own mappings.
    #[test]
    fn the_model_stands_up_to_the_chip() {
        let arch = Architecture::default();
        let near = |value: f64, published: f64, share: f64| (value - published).abs() <= share * published;
        let (mut macs, mut processing, mut total) = (0, 0.0, 0.0);
        for (layer, chip) in Network::AlexNet.layers().iter().zip(ALEXNET) {
            chip.mapping.check(layer, ALEXNET_BATCH, &arch).unwrap();
            let analysis = analyse(layer, ALEXNET_BATCH, &chip.mapping, &arch);
            assert_eq!((layer.name.as_str(), analysis.active_pes), (chip.name, chip.active_pes));
            assert!(near(analysis.macs as f64 / 1e9, chip.giga_macs, 0.012), "{}", analysis.macs);
            let (array, all) = (analysis.processing_ms(&arch), analysis.total_ms(&arch));
            assert!(near(array, chip.processing_ms, 0.12), "{}: {array} ms", chip.name);
            assert!(near(all, chip.total_ms, 0.13), "{}: {all} ms", chip.name);
            macs += analysis.macs;
            processing += array;
            total += all;
        }
        assert!(near(macs as f64, 2663e6, 0.001));
        assert!(near(processing, 103.5, 0.03) && near(total, 115.3, 0.03), "{processing} {total}");
    }
}
