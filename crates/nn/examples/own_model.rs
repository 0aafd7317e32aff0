//! Trains a network of one's own on made-up images: the one below or, if a path is given, that of a TOML file.
//!
//! ```text
//! cargo run --release -p ringstep-nn --example own_model [-- crates/nn/examples/own_model.toml]
//! ```

use std::error::Error;
use std::{env, fs};

use ringstep_cpu::Level;
use ringstep_nn::network::{Kind, Layer, Pair};
use ringstep_nn::optim::{Optimizer, Rule};
use ringstep_nn::team::Team;
use ringstep_nn::{Model, Network};

const BATCH: usize = 32;
const STEPS: usize = 50;

/// The same as own_model.toml.
fn network() -> Network {
    // Layers without a name are numbered.
    let layer = |kind| Layer::new("", kind);
    let conv = || {
        let (three, one) = (Pair::Both(3), Pair::Both(1));
        layer(Kind::Conv { filters: 16, kernel: three, stride: one, padding: one, bias: false })
    };
    let layers = vec![
        conv(),
        layer(Kind::BatchNorm),
        layer(Kind::Relu),
        layer(Kind::Residual { body: vec![conv(), layer(Kind::BatchNorm)], shortcut: Vec::new() }),
        layer(Kind::Relu),
        layer(Kind::MaxPool { size: 2, stride: None }),
        layer(Kind::Flatten),
        layer(Kind::Dropout { rate: 0.1 }),
        layer(Kind::Linear { outputs: 10, bias: true }),
    ];
    Network { input: [16, 16, 3], layers }
}

fn main() -> Result<(), Box<dyn Error>> {
    let network = match env::args().nth(1) {
        Some(path) => toml::from_str(&fs::read_to_string(path)?)?,
        None => network(),
    };
    let mut model = Model::new(&network, BATCH, Team::new(2, Level::best()))?; // on 2 threads
    model.initialise(0);
    let rule = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 5e-4 };
    let mut sgd = Optimizer::new(rule, &mut model);

    // Waves, whose length is the class.
    let (size, classes) = (model.input().len(), model.classes());
    let labels: Vec<u8> = (0..BATCH).map(|image| (image % classes) as u8).collect();
    let wave = |index: usize| (index as f32 * (1.0 + f32::from(labels[index / size]))).sin();
    let images: Vec<f32> = (0..BATCH * size).map(wave).collect();

    for step in 1..=STEPS {
        let score = model.forward(&images, &labels);
        model.backward(&images, &labels, 1.0 / BATCH as f32);
        let (team, values, gradients) = model.for_optimizer();
        sgd.step(team, values, gradients, 0.02);
        if step == 1 || step % 10 == 0 {
            println!("step {step}: loss {:.4}, {} of {BATCH} right", score.loss / BATCH as f64, score.correct);
        }
    }
    Ok(())
}
