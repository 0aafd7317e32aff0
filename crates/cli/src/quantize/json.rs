//! The study as JSON.

use anyhow::Result;
use serde::Serialize;

use super::study::Study;

#[derive(Serialize)]
struct Record<'a> {
    float_accuracy: f64,
    quantized_accuracy: f64,
    steps: Vec<Step>,
    layers: Vec<Layer<'a>>,
    float_bytes: usize,
    quantized_bytes: usize,
    float_ms: f64,
    quantized_ms: f64,
}

#[derive(Serialize)]
struct Step {
    step: &'static str,
    accuracy: f64,
}

#[derive(Serialize)]
struct Layer<'a> {
    name: &'a str,
    scale: f32,
    zero_point: i32,
    clipped: f64,
    /// Null where the integers are exact.
    sqnr_db: Option<f64>,
}

/// One line. Accuracies and clipped numbers are fractions, times those of one image.
pub fn json(study: &Study) -> Result<String> {
    let layer = |layer: &'_ super::study::LayerFacts| (layer.grid, layer.clipped, layer.sqnr_db);
    let layers = study.layers.iter().map(|facts| {
        let (grid, clipped, sqnr_db) = layer(facts);
        Layer { name: &facts.name, scale: grid.scale, zero_point: grid.zero_point, clipped, sqnr_db }
    });
    let record = Record {
        float_accuracy: study.float,
        quantized_accuracy: study.quantized(),
        steps: study.steps.iter().map(|&(step, accuracy)| Step { step, accuracy }).collect(),
        layers: layers.collect(),
        float_bytes: study.float_cost.bytes,
        quantized_bytes: study.integer_cost.bytes,
        float_ms: 1e3 * study.float_cost.latency.p50_seconds,
        quantized_ms: 1e3 * study.integer_cost.latency.p50_seconds,
    };
    Ok(serde_json::to_string(&record)?)
}
