//! The study as JSON.

use ringstep_eyeriss::arch::Architecture;
use ringstep_eyeriss::counts::Energy;
use serde_json::{Map, Value, json};

use super::study::{LayerOutcome, Outcome, Study};

/// All of it. The first dataflow's layers and total stand at the top; where there are several, each is in `dataflows`.
pub fn json(study: &Study) -> Value {
    let mut top = outcome(study.main(), &study.arch);
    top.insert("network".to_owned(), study.network.clone().into());
    top.insert("batch".to_owned(), study.batch.into());
    top.insert("objective".to_owned(), study.objective.name().into());
    top.insert("architecture".to_owned(), json!(study.arch));
    if study.outcomes.len() > 1 {
        let all: Vec<Value> = study.outcomes.iter().map(|each| outcome(each, &study.arch).into()).collect();
        top.insert("dataflows".to_owned(), all.into());
    }
    if let Some(pairs) = study.beside_the_chip() {
        let rows = pairs.iter().map(|(_, chip)| {
            json!({
                "name": chip.name,
                "active_pes": chip.active_pes,
                "latency_ms": chip.processing_ms,
                "latency_with_dram_ms": chip.total_ms,
                "buffer_bytes": chip.buffer_mb * 1e6,
                "dram_bytes_coded": chip.dram_mb * 1e6,
            })
        });
        top.insert("published".to_owned(), rows.collect());
    }
    top.into()
}

fn outcome(outcome: &Outcome, arch: &Architecture) -> Map<String, Value> {
    let total = outcome.total(arch);
    let mut sums = json!({
        "macs": total.macs,
        "passes": total.passes,
        "cycles": total.cycles.total(),
        "cycles_by_cause": total.cycles,
        "latency_ms": total.processing_ms,
        "latency_with_dram_ms": total.total_ms,
        "dram_bytes": arch.bytes(total.accesses.dram.total()),
        "buffer_bytes": arch.bytes(total.accesses.buffer.total()),
        "accesses": total.accesses,
        "energy": energy(&total.energy),
    });
    if let (Some(gated), Some(coded)) = (total.gated_energy, total.coded_dram_bytes) {
        sums["zeros"] = json!({ "energy_saved": gated, "dram_bytes_coded": coded });
    }
    let mut map = Map::new();
    map.insert("dataflow".to_owned(), outcome.dataflow.name().into());
    map.insert("layers".to_owned(), outcome.layers.iter().map(|each| layer(each, arch)).collect());
    map.insert("total".to_owned(), sums);
    map
}

fn layer(outcome: &LayerOutcome, arch: &Architecture) -> Value {
    let analysis = outcome.analysis();
    let cycles = analysis.cycles.total();
    let mut value = json!({
        "name": outcome.layer.name,
        "active_pes": analysis.active_pes,
        "utilization": analysis.active_pes as f64 / arch.pes() as f64,
        "busy": analysis.macs as f64 / (cycles as f64 * arch.pes() as f64),
        "passes": analysis.passes,
        "cycles": cycles,
        "cycles_by_cause": analysis.cycles,
        "latency_ms": analysis.processing_ms(arch),
        "latency_with_dram_ms": analysis.total_ms(arch),
        "bound_by": analysis.bound(arch),
        "macs": analysis.macs,
        "dram_bytes": arch.bytes(analysis.accesses.dram.total()),
        "buffer_bytes": arch.bytes(analysis.accesses.buffer.total()),
        "accesses": analysis.accesses,
        "energy": energy(&analysis.energy(arch)),
        "mapping": outcome.layout.parameters.iter().map(|(name, size)| ((*name).to_owned(), json!(size))).collect::<Map<_, _>>(),
    });
    if let (Some(zeros), Some(saved), Some(coded)) =
        (outcome.zeros, outcome.gated_energy(arch), outcome.coded_dram_bytes(arch))
    {
        value["zeros"] = json!({
            "input": zeros.input,
            "filters": zeros.filters,
            "gated_macs": zeros.gated,
            "energy_saved": saved,
            "dram_bytes_coded": coded,
        });
    }
    value
}

/// In units of a MAC, by level and by kind.
fn energy(energy: &Energy) -> Value {
    let [dram, buffer, array, scratchpad] = energy.by_level();
    let [input, filter, partial_sum] = energy.by_kind();
    json!({
        "total": energy.total(), "mac": energy.mac,
        "dram": dram, "buffer": buffer, "array": array, "scratchpad": scratchpad,
        "input": input, "filter": filter, "partial_sum": partial_sum,
    })
}
