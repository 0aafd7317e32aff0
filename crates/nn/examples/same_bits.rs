//! A fingerprint of some training steps with each instruction level of this machine: two machines that print the same stay in
//! step in one cluster.
//!
//!     cargo run --release -p ringstep-nn --example same_bits

use ringstep_cpu::Level;
use ringstep_nn::optim::{Optimizer, Rule};
use ringstep_nn::team::Team;
use ringstep_nn::{Architecture, Model};

const BATCH: usize = 9;

fn main() {
    for architecture in [Architecture::LeNet5, Architecture::Cnn, Architecture::ResNet20, Architecture::Mlp] {
        for level in Level::available() {
            println!("{:8} {:8} {:016x}", architecture.name(), level.name(), fingerprint(architecture, level));
        }
    }
}

/// FNV-1a of all parameters after two steps of a model on images that are the same everywhere.
fn fingerprint(architecture: Architecture, level: Level) -> u64 {
    let mut model = Model::new(&architecture.network(), BATCH, Team::new(1, level)).expect("a network that is known");
    model.initialise(1);
    let rule = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 5e-4 };
    let mut optimizer = Optimizer::new(rule, &mut model);
    let pixels = (BATCH * model.input().len()) as u32;
    let images: Vec<f32> = (0..pixels).map(|at| (at.wrapping_mul(2_654_435_761) >> 8) as f32 / 8e6 - 1.0).collect();
    let labels: Vec<u8> = (0..BATCH as u8).collect();
    for _ in 0..2 {
        model.forward(&images, &labels);
        model.backward(&images, &labels, 1.0 / BATCH as f32);
        let (team, values, gradients) = model.for_optimizer();
        optimizer.step(team, values, gradients, 0.05);
    }
    let bytes = model.values_mut().iter().flat_map(|value| value.to_bits().to_le_bytes());
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3))
}
