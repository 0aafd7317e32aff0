//! Gradients that are compressed on their way: the same curve where nothing is left out, the same bits on all ranks and in every
//! repetition, as many bytes as the formulas say, and an error that names whoever sends what is no code.

#[path = "../common/mod.rs"]
mod common;
mod forged;
mod records;
mod sums;
mod ways;

use common::{RING, Run};
use ringstep_data::synthetic::Recipe;
use ringstep_data::{Dataset, Shape};
use ringstep_nn::Network;
use ringstep_nn::network::{Kind, Layer, Pair};
use ringstep_nn::optim::Rule;
use ringstep_train::compress::{Compression, Method};
use ringstep_train::job::{Design, Length};
use ringstep_train::strategy::{Round, Servers};
use ringstep_train::{Job, SyncMethod};

/// A matrix of 6 by 18 numbers, one of 10 by 54 and one of 4 by 360, each with its biases.
fn network() -> Network {
    let conv = |name: &str, filters| {
        let (kernel, stride, padding) = (Pair::Both(3), Pair::Both(1), Pair::Both(1));
        Layer::new(name, Kind::Conv { filters, kernel, stride, padding, bias: true })
    };
    let layers = vec![
        conv("conv0", 6),
        Layer::new("", Kind::Tanh),
        conv("conv1", 10),
        Layer::new("", Kind::Tanh),
        Layer::new("fc", Kind::Linear { outputs: 4, bias: true }),
    ];
    Network { input: [6, 6, 2], layers }
}

fn data(images: usize) -> Dataset {
    Recipe { shape: Shape::new(6, 6, 2), classes: 4, train: images, test: 20, seed: 3 }.make()
}

fn sgd(momentum: f32) -> Rule {
    Rule::Sgd { momentum, nesterov: false, weight_decay: 1e-3 }
}

fn job(sync: SyncMethod, workers: usize, compress: impl Into<Option<Compression>>) -> Job {
    let small = Design::new("small", network()).unwrap();
    Job {
        rule: sgd(0.9),
        lr: 0.02,
        seed: 5,
        shuffle: true,
        compress: compress.into(),
        verify_every: sync.has_equal_replicas().then_some(1),
        ..Job::new(small, sync, workers, 3, Length::Epochs(3))
    }
}

fn alone(images_a_step: usize) -> Job {
    Job { batch: images_a_step, ..job(SyncMethod::Single, 1, None) }
}

fn ddp(bucket: usize) -> SyncMethod {
    SyncMethod::Ddp { algorithm: RING, bucket: Some(bucket) }
}

fn losses(run: &Run) -> Vec<f64> {
    run.steps.iter().map(|step| step.loss).collect()
}

fn assert_near(what: &str, ours: &Run, theirs: &Run, tolerance: f64) {
    assert_eq!(ours.steps.len(), theirs.steps.len(), "{what}: steps");
    for (step, (ours, theirs)) in losses(ours).into_iter().zip(losses(theirs)).enumerate() {
        assert!((ours - theirs).abs() <= tolerance * theirs.abs(), "{what}, step {step}: loss {ours} is not {theirs}");
    }
}

/// Methods that leave nothing out.
const AT_FULL_RATE: [Method; 4] = [
    Method::TopK { keep: 1.0 },
    Method::Threshold { threshold: 0.0 },
    Method::RandomK { keep: 1.0 },
    Method::PowerSgd { rank: 1000 },
];

/// Uneven shards, a short last batch, and ranks that run out before others.
const IMAGES: usize = 47;

/// Ways that average models or hold them together; `verify_every` compares replicas after each average.
fn averaging() -> [SyncMethod; 4] {
    let round = Round::Every(2);
    [
        SyncMethod::LocalSgd { round, algorithm: RING },
        SyncMethod::PostLocalSgd { switch_at: Some(1.0), round, algorithm: RING, bucket: Some(3000) },
        SyncMethod::DiLoCo { round, outer_lr: 0.7, outer_momentum: 0.9, algorithm: RING },
        SyncMethod::Sma { learners: 2, pull: None, momentum: 0.9, algorithm: RING },
    ]
}

/// Servers that keep workers in lockstep.
fn serving() -> [SyncMethod; 3] {
    let servers = Servers::Apart(2);
    [
        SyncMethod::ParameterServer { servers },
        SyncMethod::ParameterServer { servers: Servers::Colocated },
        SyncMethod::Stale { servers, staleness: 0 },
    ]
}
