//! From floats to integers one step at a time, to see what each costs: first weights alone, then activations too, and last the
//! biases, with which the model is the one in integers. What is not yet an integer is still a float; what is stands on its grid.

use ringstep_nn::Frozen;
use ringstep_nn::team::Team;

use crate::engine::{Engine, signed};
use crate::error::QuantError;
use crate::graph::{Graph, Op};
use crate::grid::{Bits, Grid};
use crate::model::{IntegerOp, Quantized};

/// A model in floats some of whose numbers can only be those that integers stand for.
pub struct Partly {
    frozen: Frozen,
    bits: Bits,
    /// For each source, images first, the grid that its numbers are rounded to.
    grids: Vec<Option<Grid>>,
    images: Vec<f32>,
}

impl Partly {
    /// Weights on their grids; biases and activations are floats.
    pub fn weights(graph: &Graph, model: &Quantized, batch: usize, team: Team) -> Self {
        Self::new(graph, model, batch, team, |_| true, |_| false)
    }

    /// Weights and activations on their grids; biases are floats.
    pub fn activations(graph: &Graph, model: &Quantized, batch: usize, team: Team) -> Self {
        Self::new(graph, model, batch, team, |_| true, |_| true)
    }

    /// One node's weights, and what comes out of it, on their grids.
    pub fn one(graph: &Graph, model: &Quantized, node: usize, batch: usize, team: Team) -> Self {
        Self::new(graph, model, batch, team, |index| index == node, |source| source == node + 1)
    }

    fn new(
        graph: &Graph,
        model: &Quantized,
        batch: usize,
        team: Team,
        weights: impl Fn(usize) -> bool,
        activations: impl Fn(usize) -> bool,
    ) -> Self {
        let mut graph = graph.clone();
        for (index, (node, integers)) in graph.nodes.iter_mut().zip(&model.nodes).enumerate() {
            if let (Op::Conv { weights: floats, .. }, IntegerOp::Conv { weights: integers, scales, .. }, true) =
                (&mut node.op, &integers.op, weights(index))
            {
                let window = floats.len() / scales.len();
                for ((float, &integer), at) in floats.iter_mut().zip(integers).zip(0..) {
                    *float = f32::from(integer) * scales[at / window];
                }
            }
        }
        let grids = (0..=model.nodes.len()).map(|source| activations(source).then(|| model.grid_of(source)));
        Self { frozen: graph.frozen(batch, team), bits: model.bits, grids: grids.collect(), images: Vec::new() }
    }

    /// The most images it takes at once.
    pub fn batch(&self) -> usize {
        self.frozen.batch()
    }

    /// How many classes it tells apart.
    pub fn classes(&self) -> usize {
        self.frozen.classes()
    }

    /// What comes out for images.
    pub fn logits(&mut self, images: &[f32]) -> &[f32] {
        let Self { frozen, bits, grids, images: rounded } = self;
        rounded.clear();
        rounded.extend_from_slice(images);
        let round = |source: usize, numbers: &mut [f32]| {
            if let Some(grid) = grids[source] {
                numbers.iter_mut().for_each(|number| *number = grid.real(grid.quantize(*number, *bits)));
            }
        };
        round(0, rounded);
        frozen.logits_changing(rounded, |index, output| round(index + 1, output))
    }
}

/// For each source the ratio of signal to quantization noise: how much larger the numbers of the float model are, squared and
/// summed, than their distance from those of the integers, in decibels; nothing where
/// the integers are exact. Errors of all layers before are in it. The engine is one [to be watched](Engine::to_be_watched).
pub fn signal_to_noise(
    frozen: &mut Frozen,
    engine: &mut Engine,
    model: &Quantized,
    images: &[f32],
) -> Vec<Option<f64>> {
    let sources = model.nodes.len() + 1;
    let (mut signal, mut noise) = (vec![0.0; sources], vec![0.0; sources]);
    let batch = frozen.batch().min(engine.batch());
    for images in images.chunks(batch * model.input.len()) {
        let mut floats = vec![images.to_vec()];
        frozen.logits_changing(images, |_, output| floats.push(output.to_vec()));
        engine.logits_seeing(images, |source, bytes| {
            let grid = model.grid_of(source);
            for (&float, &byte) in floats[source].iter().zip(bytes) {
                signal[source] += f64::from(float).powi(2);
                noise[source] += f64::from(float - grid.real(signed(byte))).powi(2);
            }
        });
    }
    signal.into_iter().zip(noise).map(|(signal, noise)| ratio_db(signal, noise)).collect()
}

/// The integers of a source that were seen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seen {
    /// How many there were.
    pub count: usize,
    /// The least.
    pub least: i8,
    /// The largest.
    pub most: i8,
}

/// The integers that images become and that come out of each node, one for each source, if all are integers that the model's
/// bits have: bytes could hold others where it has fewer than eight. The engine is one [to be watched](Engine::to_be_watched).
pub fn integers_seen(engine: &mut Engine, model: &Quantized, images: &[f32]) -> Result<Vec<Seen>, QuantError> {
    let mut seen = vec![Seen { count: 0, least: i8::MAX, most: i8::MIN }; model.nodes.len() + 1];
    for images in images.chunks(engine.batch() * model.input.len()) {
        engine.logits_seeing(images, |source, bytes| {
            let Seen { count, least, most } = &mut seen[source];
            *count += bytes.len();
            for &byte in bytes {
                (*least, *most) = ((*least).min(signed(byte)), (*most).max(signed(byte)));
            }
        });
    }
    let [low, high] = model.bits.activations();
    let foreign = |integer: i8| !(low..=high).contains(&i32::from(integer));
    for (source, &Seen { least, most, .. }) in seen.iter().enumerate().filter(|(_, seen)| seen.count > 0) {
        if let Some(integer) = [least, most].into_iter().find(|&integer| foreign(integer)) {
            let name = source.checked_sub(1).map_or("input", |index| &model.nodes[index].name).to_owned();
            return Err(QuantError::OutOfRange { name, integer, low, high });
        }
    }
    Ok(seen)
}

/// Without noise nothing is lost, whatever the signal is: there is no ratio.
fn ratio_db(signal: f64, noise: f64) -> Option<f64> {
    (noise > 0.0).then(|| 10.0 * (signal.max(f64::MIN_POSITIVE) / noise).log10())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_loses_nothing_has_no_ratio() {
        assert_eq!(ratio_db(100.0, 1.0), Some(20.0));
        assert_eq!(ratio_db(1.0, 1.0), Some(0.0));
        assert_eq!(ratio_db(1.0, 0.0), None);
        assert_eq!(ratio_db(0.0, 0.0), None);
        // Noise where there is no signal is bad, but still a number.
        assert!(ratio_db(0.0, 1.0).unwrap().is_finite());
    }
}
