//! Whole models: the fast engine against plain integers, files, and what cannot be quantized.

use ringstep_cpu::{DotLevel, Level};
use ringstep_nn::network::{Kind, Layer, Network, Pair};
use ringstep_nn::team::Team;
use ringstep_nn::{Architecture, Model};
use ringstep_quant::engine::Engine;
use ringstep_quant::model::IntegerOp;
use ringstep_quant::steps::{integers_seen, signal_to_noise};
use ringstep_quant::{Bits, Calibration, Granularity, Graph, Quantized, Recipe, Survey, file, plain};

fn noise(count: usize, seed: u64) -> Vec<f32> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

fn team(threads: usize) -> Team {
    Team::new(threads, Level::best())
}

fn trained(network: &Network) -> Model {
    let mut model = Model::new(network, 4, team(1)).unwrap();
    model.initialise(3);
    // A training pass leaves running statistics that are not those of the beginning.
    let images = noise(4 * model.input().len(), 9);
    model.forward(&images, &[1; 4]);
    model
}

const EIGHT: Recipe = Recipe { bits: Bits::EIGHT, granularity: Granularity::Channel, calibration: Calibration::MinMax };

fn quantize(model: &Model, recipe: Recipe) -> (Graph, Quantized) {
    let graph = Graph::of(model);
    let images = noise(6 * model.input().len(), 5);
    let survey = Survey::of(&graph, &mut graph.frozen(4, team(1)), &images).unwrap();
    let quantized = Quantized::new(&graph, &survey, recipe).unwrap();
    (graph, quantized)
}

fn conv(name: &str, filters: usize, kernel: usize, stride: usize, padding: usize) -> Layer {
    let [kernel, stride, padding] = [kernel, stride, padding].map(Pair::Both);
    Layer::new(name, Kind::Conv { filters, kernel, stride, padding, bias: true })
}

/// Shapes that fill no panel, strides, padding, sums, activations that follow no convolution, and pools that leave pixels out.
fn odd_network() -> Network {
    let plain = |kind| Layer::new("", kind);
    let body = vec![conv("a", 5, 3, 1, 1), plain(Kind::BatchNorm), plain(Kind::Relu), conv("b", 37, 1, 1, 0)];
    Network {
        input: [9, 7, 3],
        layers: vec![
            plain(Kind::BatchNorm),
            conv("first", 37, 3, 1, 2),
            plain(Kind::MaxPool { size: 3, stride: Some(2) }),
            plain(Kind::Relu),
            Layer::new("block", Kind::Residual { body, shortcut: Vec::new() }),
            plain(Kind::Relu),
            conv("second", 6, 2, 2, 1),
            plain(Kind::Tanh),
            plain(Kind::AveragePool { size: 2 }),
            Layer::new("out", Kind::Linear { outputs: 3, bias: true }),
        ],
    }
}

/// Enough channels and tiles for Winograd's algorithm, with and without a pool behind it, and maps that are mostly padding.
fn wide_network() -> Network {
    let plain = |kind| Layer::new("", kind);
    let pool = || plain(Kind::MaxPool { size: 2, stride: None });
    Network {
        input: [9, 8, 3],
        layers: vec![
            conv("first", 32, 3, 1, 1),
            plain(Kind::Relu),
            conv("second", 32, 3, 1, 1),
            plain(Kind::Relu),
            pool(),
            conv("third", 37, 3, 1, 1),
            pool(),
            conv("fourth", 5, 3, 1, 1),
            Layer::new("out", Kind::Linear { outputs: 3, bias: true }),
        ],
    }
}

#[test]
fn the_engine_equals_plain_integers_on_every_level_with_any_threads() {
    const IMAGES: usize = 9;
    let networks = [
        Architecture::LeNet5.network(),
        Architecture::Cnn.network(),
        Architecture::ResNet20.network(),
        Architecture::Mlp.network(),
        odd_network(),
        wide_network(),
    ];
    for network in networks {
        let model = trained(&network);
        for (bits, granularity) in [(8, Granularity::Channel), (3, Granularity::Tensor)] {
            let bits = Bits::new(bits).unwrap();
            let (_, quantized) = quantize(&model, Recipe { bits, granularity, ..EIGHT });
            let [least, most] = bits.activations();
            let images: Vec<i8> = noise(IMAGES * model.input().len(), 11)
                .iter()
                .map(|number| (number * 128.0).clamp(least as f32, most as f32) as i8)
                .collect();
            let expected = plain::logits(&quantized, &images);
            assert!(expected.iter().any(|logit| *logit != expected[0]), "logits that differ");
            for level in DotLevel::available() {
                for threads in [1, 2, 3] {
                    let mut engine = Engine::with_instructions(&quantized, IMAGES, team(threads), level);
                    let name = level.name();
                    assert_eq!(engine.integer_logits(&images), expected, "{name}, {threads} threads");
                    let one = &images[..model.input().len()];
                    assert_eq!(engine.integer_logits(one), expected[..quantized.classes()], "one image, {name}");
                }
            }
        }
    }
}

#[test]
fn eight_bits_are_close_to_floats() {
    for network in [Architecture::LeNet5.network(), Architecture::ResNet20.network(), odd_network()] {
        let model = trained(&network);
        let (graph, quantized) = quantize(&model, EIGHT);
        let images = noise(4 * model.input().len(), 5);
        let mut frozen = model.freeze(4, 1);
        let float = frozen.logits(&images).to_vec();
        // Folding changes nothing but the rounding.
        let mut folded = graph.frozen(4, team(1));
        for (a, b) in folded.logits(&images).iter().zip(&float) {
            assert!((a - b).abs() < 1e-4 * (1.0 + b.abs()), "{a} and {b}");
        }
        let mut engine = Engine::new(&quantized, 4, team(2));
        let [low, high] = quantized.grid_of(quantized.nodes.len()).range(Bits::EIGHT);
        for (a, b) in engine.logits(&images).iter().zip(&float) {
            assert!((a - b).abs() < 0.12 * (high - low), "{a} and {b} of {low} to {high}");
        }
    }
}

#[test]
fn what_is_saved_is_what_is_loaded() {
    for network in [odd_network(), Architecture::ResNet20.network()] {
        let (_, quantized) = quantize(&trained(&network), EIGHT);
        let bytes = file::to_bytes(&quantized);
        assert!(file::is_quantized(&bytes));
        assert_eq!(file::from_bytes(&bytes).unwrap(), quantized);
        // No change of a byte of the header makes it panic.
        for at in 0..bytes.len().min(2000) {
            let mut changed = bytes.clone();
            changed[at] = changed[at].wrapping_add(1);
            let _ = file::from_bytes(&changed);
        }
        assert!(file::from_bytes(&bytes[..bytes.len() - 1]).is_err());
    }
}

#[test]
fn a_file_that_is_none_is_refused_in_one_line() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("x.safetensors");
    let refusal = |bytes: &[u8]| {
        std::fs::write(&path, bytes).unwrap();
        file::load(&path).unwrap_err().to_string()
    };
    let shown = path.display();
    assert!(refusal(b"no").starts_with(&format!("{shown}: not a quantized model: ")));
    let empty = safetensors::serialize(Vec::<(String, safetensors::tensor::TensorView<'_>)>::new(), None).unwrap();
    assert_eq!(refusal(&empty), format!("{shown}: not a quantized model: it has no scales"));
}

#[test]
fn zeros_and_dead_filters_get_sound_scales() {
    let mut model = trained(&Architecture::Cnn.network());
    // The first convolution is all zero, the second has a dead filter with a large bias.
    let names: Vec<String> = model.parameters().iter().map(|parameter| parameter.name.clone()).collect();
    for (index, name) in names.iter().enumerate() {
        let parameter = model.parameters()[index].clone();
        let mut values = model.export(&parameter);
        match name.as_str() {
            "conv1.weight" | "conv1.bias" => values.fill(0.0),
            "conv2.weight" => values[..150].fill(0.0),
            "conv2.bias" => values[0] = 1e6,
            _ => {}
        }
        model.import(index, &values);
    }
    let images = noise(2 * model.input().len(), 5);
    let float = model.freeze(2, 1).logits(&images).to_vec();
    // The large bias is what comes out; it is exact to the grid.
    let reach = float.iter().fold(0f32, |most, logit| most.max(logit.abs()));
    for calibration in Calibration::ALL {
        let (_, quantized) = quantize(&model, Recipe { calibration, ..EIGHT });
        assert_sound(&quantized);
        // Of sixteen channels the one with the bias is further than three deviations from the mean of all: a fifth is cut off.
        let most = if calibration == Calibration::ThreeSigma { 0.25 } else { 0.05 };
        let mut engine = Engine::new(&quantized, 2, team(1));
        for (a, b) in engine.logits(&images).iter().zip(&float) {
            assert!((a - b).abs() < most * reach, "{}: {a} and {b}", calibration.name());
        }
    }
}

fn assert_sound(model: &Quantized) {
    let sound = |scale: f32| scale.is_finite() && scale > 0.0;
    for node in &model.nodes {
        assert!(sound(node.grid.scale), "{}", node.name);
        if let IntegerOp::Conv { scales, .. } = &node.op {
            assert!(scales.iter().all(|&scale| sound(scale)), "{}", node.name);
        }
    }
}

/// A layer without weights gives what its bias says, and all that follows is a few different numbers: each calibration keeps them.
#[test]
fn behind_a_layer_of_zeros_answers_stay_with_every_calibration() {
    let mut model = trained(&Architecture::Cnn.network());
    let index = model.parameters().iter().position(|parameter| parameter.name == "conv2.weight").unwrap();
    let zeros = vec![0.0; model.export(&model.parameters()[index].clone()).len()];
    model.import(index, &zeros);
    let images = noise(8 * model.input().len(), 5);
    let float = model.freeze(8, 1).logits(&images).to_vec();
    let reach = float.iter().fold(0f32, |most, logit| most.max(logit.abs()));
    for calibration in Calibration::ALL {
        let (_, quantized) = quantize(&model, Recipe { calibration, ..EIGHT });
        let integers = Engine::new(&quantized, 8, team(1)).logits(&images).to_vec();
        for (a, b) in integers.iter().zip(&float) {
            assert!((a - b).abs() < 0.05 * reach, "{}: {a} and {b}", calibration.name());
        }
    }
}

/// Weights of which a 127th is no float any more.
#[test]
fn denormal_weights_get_sound_scales_with_every_calibration() {
    for factor in [1e-30, 1e-43] {
        let mut model = trained(&Architecture::Cnn.network());
        for index in 0..model.parameters().len() {
            let parameter = model.parameters()[index].clone();
            let values: Vec<f32> = model.export(&parameter).into_iter().map(|value| value * factor).collect();
            model.import(index, &values);
        }
        for calibration in Calibration::ALL {
            let (_, quantized) = quantize(&model, Recipe { calibration, ..EIGHT });
            assert_sound(&quantized);
            let images = noise(2 * model.input().len(), 5);
            let mut engine = Engine::new(&quantized, 2, team(1));
            assert!(engine.logits(&images).iter().all(|logit| logit.is_finite()), "{}", calibration.name());
        }
    }
}

#[test]
fn what_is_not_finite_is_told_with_the_layer() {
    let mut model = trained(&Architecture::Cnn.network());
    let parameter = model.parameters()[0].clone();
    let mut values = model.export(&parameter);
    values[0] = f32::NAN;
    model.import(0, &values);
    let graph = Graph::of(&model);
    let survey = |images: &[f32]| Survey::of(&graph, &mut graph.frozen(4, team(1)), images).unwrap_err().to_string();
    assert_eq!(survey(&noise(model.input().len(), 5)), "layer conv1: not all of its numbers are finite");
    assert_eq!(survey(&[]), "there are no images to calibrate with");
}

#[test]
fn what_is_all_zero_is_exact() {
    let mut model = trained(&Architecture::Cnn.network());
    for index in 0..model.parameters().len() {
        let zeros = vec![0.0; model.export(&model.parameters()[index].clone()).len()];
        model.import(index, &zeros);
    }
    let (graph, quantized) = quantize(&model, EIGHT);
    let mut watched = Engine::to_be_watched(&quantized, 4, team(1));
    let images = noise(4 * model.input().len(), 5);
    let ratios = signal_to_noise(&mut graph.frozen(4, team(1)), &mut watched, &quantized, &images);
    assert!(ratios[0].unwrap() > 30.0);
    assert!(ratios[1..].iter().all(Option::is_none), "{ratios:?}");
}

/// What an engine of 8 bits computes is no activation of 4 bits; what one of 4 bits does is.
#[test]
fn integers_that_the_bits_do_not_have_are_told() {
    let model = trained(&odd_network());
    let images = noise(6 * model.input().len(), 8);
    for bits in (2..=8).filter_map(Bits::new) {
        let (_, quantized) = quantize(&model, Recipe { bits, ..EIGHT });
        let mut watched = Engine::to_be_watched(&quantized, 4, team(1));
        let seen = integers_seen(&mut watched, &quantized, &images).unwrap();
        let [low, high] = bits.activations();
        assert_eq!(seen.len(), quantized.nodes.len() + 1);
        for (source, seen) in seen.iter().enumerate() {
            assert_eq!(seen.count, 6 * quantized.shape_of(source).len());
            assert!(low <= seen.least.into() && seen.least <= seen.most && i32::from(seen.most) <= high);
        }
        if let Some(fewer) = Bits::new(bits.count() - 1) {
            let fewer = Quantized { bits: fewer, ..quantized };
            let refusal = integers_seen(&mut watched, &fewer, &images).unwrap_err().to_string();
            assert!(refusal.starts_with("input: an integer of "), "{refusal}");
        }
    }
}
