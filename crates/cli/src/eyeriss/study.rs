//! What each layer takes under each dataflow.

use anyhow::Result;
use ringstep_eyeriss::analysis::{Analysis, Cycles, analyse};
use ringstep_eyeriss::arch::Architecture;
use ringstep_eyeriss::counts::{Accesses, Energy};
use ringstep_eyeriss::dataflows::{Dataflow, Layout};
use ringstep_eyeriss::layer::Layer;
use ringstep_eyeriss::mapping::Mapping;
use ringstep_eyeriss::published::{self, ChipLayer};
use ringstep_eyeriss::search::{Objective, search};
use ringstep_eyeriss::sparsity::Zeros;

/// A network on an accelerator.
pub struct Study {
    /// What it is called.
    pub network: String,
    pub arch: Architecture,
    pub batch: usize,
    pub objective: Objective,
    /// At least one; row-stationary first, if it is among them.
    pub outcomes: Vec<Outcome>,
}

/// All layers under one dataflow.
pub struct Outcome {
    pub dataflow: Dataflow,
    pub layers: Vec<LayerOutcome>,
}

/// One layer under one dataflow.
pub struct LayerOutcome {
    pub layer: Layer,
    /// For row-stationary.
    pub mapping: Option<Mapping>,
    pub layout: Layout,
    /// Of a trained run's data.
    pub zeros: Option<Zeros>,
}

/// A layer to be looked at.
pub struct Subject {
    pub layer: Layer,
    /// A mapping for row-stationary, instead of the best.
    pub mapping: Option<Mapping>,
    pub zeros: Option<Zeros>,
}

/// Looks at every layer under one dataflow.
pub fn outcome(
    dataflow: Dataflow,
    subjects: &[Subject],
    batch: usize,
    arch: &Architecture,
    objective: Objective,
) -> Result<Outcome> {
    let look = |subject: &Subject| -> Result<LayerOutcome> {
        let layer = &subject.layer;
        let (mapping, layout) = if dataflow == Dataflow::RowStationary {
            let (mapping, analysis) = match subject.mapping {
                Some(mapping) => {
                    mapping.check(layer, batch, arch)?;
                    (mapping, analyse(layer, batch, &mapping, arch))
                }
                None => search(layer, batch, arch, objective)?,
            };
            (Some(mapping), Layout { parameters: mapping.parameters(), analysis })
        } else {
            (None, dataflow.best(layer, batch, arch, objective)?)
        };
        Ok(LayerOutcome { layer: layer.clone(), mapping, layout, zeros: subject.zeros })
    };
    Ok(Outcome { dataflow, layers: subjects.iter().map(look).collect::<Result<_>>()? })
}

impl LayerOutcome {
    pub fn analysis(&self) -> &Analysis {
        &self.layout.analysis
    }

    /// Energy that zero inputs save: the MAC, the weight, and the sum read and written are left out.
    pub fn gated_energy(&self, arch: &Architecture) -> Option<f64> {
        let skipped = arch.energy.mac + 3.0 * arch.energy.scratchpad;
        self.zeros.map(|zeros| zeros.gated * self.analysis().macs as f64 * skipped)
    }

    /// Bytes of DRAM with inputs and outputs run-length coded.
    pub fn coded_dram_bytes(&self, arch: &Architecture) -> Option<f64> {
        let dram = self.analysis().accesses.dram;
        let bytes = |words: u64| arch.bytes(words) as f64;
        self.zeros.map(|zeros| {
            bytes(dram.input.total()) * zeros.input_coded
                + bytes(dram.filter.total())
                + bytes(dram.partial_sum.total()) * zeros.output_coded
        })
    }
}

/// Sums over layers.
#[derive(Default)]
pub struct Total {
    pub macs: u64,
    pub passes: u64,
    pub cycles: Cycles,
    pub processing_ms: f64,
    pub total_ms: f64,
    pub accesses: Accesses,
    pub energy: Energy,
    pub gated_energy: Option<f64>,
    pub coded_dram_bytes: Option<f64>,
}

impl Outcome {
    pub fn total(&self, arch: &Architecture) -> Total {
        let mut total = Total::default();
        for layer in &self.layers {
            let analysis = layer.analysis();
            total.macs += analysis.macs;
            total.passes += analysis.passes;
            total.cycles += analysis.cycles;
            total.processing_ms += analysis.processing_ms(arch);
            total.total_ms += analysis.total_ms(arch);
            total.accesses += analysis.accesses;
            total.energy += analysis.energy(arch);
            if let (Some(gated), Some(coded)) = (layer.gated_energy(arch), layer.coded_dram_bytes(arch)) {
                *total.gated_energy.get_or_insert(0.0) += gated;
                *total.coded_dram_bytes.get_or_insert(0.0) += coded;
            }
        }
        total
    }
}

impl Study {
    /// The first dataflow's.
    pub fn main(&self) -> &Outcome {
        &self.outcomes[0]
    }

    /// Each layer beside the chip's, if this is what was measured on the chip.
    pub fn beside_the_chip(&self) -> Option<Vec<(&LayerOutcome, ChipLayer)>> {
        let chip = Architecture { name: self.arch.name.clone(), ..Architecture::default() };
        let outcome = self.main();
        let same = self.network == "alexnet"
            && self.batch == published::ALEXNET_BATCH
            && self.arch == chip
            && outcome.dataflow == Dataflow::RowStationary;
        let convolutions = outcome.layers.iter().filter(|outcome| !outcome.layer.fully_connected);
        let pairs: Vec<_> = convolutions
            .filter_map(|outcome| {
                let chip = published::ALEXNET.into_iter().find(|chip| chip.name == outcome.layer.name)?;
                Some((outcome, chip))
            })
            .collect();
        (same && !pairs.is_empty()).then_some(pairs)
    }
}
