//! Files of quantized models, for fuzzers.

use ringstep_cpu::Level;
use ringstep_nn::team::Team;

use crate::engine::Engine;
use crate::{file, plain};

/// A file; a model that is small enough is run, plain and fast.
pub fn quantized(input: &[u8]) -> bool {
    let Ok(model) = file::from_bytes(input) else { return false };
    assert!(file::is_quantized(input) && file::from_bytes(&file::to_bytes(&model)) == Ok(model.clone()));
    let numbers = model.nodes.iter().map(|node| node.shape.len()).fold(model.input.len(), usize::saturating_add);
    if numbers <= 1 << 12 {
        let images = vec![3; model.input.len()];
        let mut engine = Engine::new(&model, 1, Team::new(1, Level::best()));
        assert_eq!(engine.integer_logits(&images), plain::logits(&model, &images));
    }
    true
}

#[cfg(test)]
mod tests {
    use ringstep_nn::Model;
    use ringstep_nn::network::{Kind, Layer, Network, Pair};

    use super::*;
    use crate::{Bits, Calibration, Granularity, Graph, Quantized, Recipe, Survey};

    fn seed() -> Vec<u8> {
        let layer = |kind| Layer::new("", kind);
        let [kernel, stride, padding] = [3, 1, 1].map(Pair::Both);
        let body = vec![layer(Kind::Conv { filters: 2, kernel, stride, padding, bias: true })];
        let layers = vec![
            layer(Kind::Conv { filters: 2, kernel, stride, padding, bias: true }),
            layer(Kind::Tanh),
            layer(Kind::Residual { body, shortcut: Vec::new() }),
            layer(Kind::Relu),
            layer(Kind::MaxPool { size: 2, stride: None }),
            layer(Kind::GlobalAveragePool),
            layer(Kind::Linear { outputs: 3, bias: true }),
        ];
        let team = || Team::new(1, Level::best());
        let mut model = Model::new(&Network { input: [5, 4, 1], layers }, 1, team()).unwrap();
        model.initialise(3);
        let graph = Graph::of(&model);
        let images: Vec<f32> = (0..60).map(|at| (at as f32).sin()).collect();
        let survey = Survey::of(&graph, &mut graph.frozen(1, team()), &images).unwrap();
        let recipe = Recipe { bits: Bits::EIGHT, granularity: Granularity::Channel, calibration: Calibration::MinMax };
        file::to_bytes(&Quantized::new(&graph, &survey, recipe).unwrap())
    }

    #[test]
    fn files() {
        crate::replay::replay("quantized", quantized, &[seed()]);
    }
}
