//! The curves that training follows: PyTorch's, and the same whatever the number of workers and the way they synchronise.

mod common;

use std::collections::BTreeMap;
use std::path::Path;

use common::{ALL_REDUCE, Over, RING, Run};
use ringstep_comm::transport::mem;
use ringstep_comm::{Algorithm, Group, Topology, cost};
use ringstep_data::augment::Augment;
use ringstep_data::{Dataset, mnist, synthetic};
use ringstep_nn::Architecture;
use ringstep_nn::optim::Rule;
use ringstep_train::job::{Design, Length};
use ringstep_train::summary::Summary;
use ringstep_train::{Job, SyncMethod, checkpoint, worker};
use serde::Deserialize;

#[derive(Deserialize)]
struct Reference {
    plain: Curve,
    momentum: Curve,
}

#[derive(Deserialize)]
struct Curve {
    epoch_losses: Vec<f64>,
    epoch_accuracies: Vec<f64>,
    test_accuracy: f64,
    sums: BTreeMap<String, f64>,
    norms: BTreeMap<String, f64>,
}

fn reference() -> Reference {
    serde_json::from_str(include_str!("reference/lenet5.json")).unwrap()
}

fn course_job(sync: SyncMethod, workers: usize, batch: usize, epochs: usize) -> Job {
    let lenet5 = Design::new("lenet5", Architecture::LeNet5.network()).unwrap();
    Job::new(lenet5, sync, workers, batch, Length::Epochs(epochs))
}

fn first_images(count: usize) -> Dataset {
    let mut data = mnist::sample();
    data.keep_first(count);
    data
}

fn train(job: &Job, data: &Dataset) -> Summary {
    common::train(job, Over::Mem, data).summary
}

fn assert_close(what: &str, ours: &[f64], theirs: &[f64], tolerance: f64) {
    assert_eq!(ours.len(), theirs.len());
    for (at, (ours, theirs)) in ours.iter().zip(theirs).enumerate() {
        assert!((ours - theirs).abs() <= tolerance * theirs.abs(), "{what} {at}: {ours} is not {theirs}");
    }
}

fn assert_follows(job: &Job, curve: &Curve) {
    let init = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/reference/lenet5-init.safetensors");
    let job = &Job { init: Some(init), ..job.clone() };
    let Run { summary, weights, .. } = common::train(job, Over::Mem, &first_images(100));
    assert_close("loss of epoch", &summary.epoch_losses, &curve.epoch_losses, 1e-4);
    // An image on the border between two classes may fall to either side.
    for (ours, theirs) in summary.epoch_accuracies.iter().zip(&curve.epoch_accuracies) {
        assert!((ours - theirs).abs() < 0.0101, "accuracy {ours} is not {theirs}");
    }
    assert!((summary.test_accuracy - curve.test_accuracy).abs() < 0.0021, "{}", summary.test_accuracy);

    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), weights).unwrap();
    let mut model = job.model.build_small();
    checkpoint::load(&mut model, file.path()).unwrap();
    for parameter in model.parameters() {
        let values = model.export(parameter);
        let norm = values.iter().map(|&value| f64::from(value).powi(2)).sum::<f64>().sqrt();
        let sum: f64 = values.iter().map(|&value| f64::from(value)).sum();
        let (their_norm, their_sum) = (curve.norms[&parameter.name], curve.sums[&parameter.name]);
        assert!((norm - their_norm).abs() < 1e-4 * their_norm, "{}: norm {norm} is not {their_norm}", parameter.name);
        assert!((sum - their_sum).abs() < 1e-3 * their_norm, "{}: sum {sum} is not {their_sum}", parameter.name);
    }
}

#[test]
fn one_worker_follows_pytorch() {
    assert_follows(&course_job(SyncMethod::Single, 1, 20, 100), &reference().plain);
}

#[test]
fn four_workers_over_rank_0_follow_pytorch() {
    assert_follows(&course_job(SyncMethod::GatherScatter, 4, 5, 100), &reference().plain);
}

#[test]
fn four_workers_on_a_ring_follow_pytorch() {
    assert_follows(&course_job(ALL_REDUCE, 4, 5, 100), &reference().plain);
}

/// 100 images in batches of 16 leave 4 for the last step of an epoch, one for each of the four workers.
#[test]
fn momentum_weight_decay_and_a_short_last_batch_follow_pytorch() {
    for (sync, workers, batch) in [(SyncMethod::Single, 1, 16), (ALL_REDUCE, 4, 4), (SyncMethod::GatherScatter, 2, 8)] {
        let job = Job {
            lr: 0.02,
            rule: Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.01 },
            ..course_job(sync, workers, batch, 10)
        };
        assert_follows(&job, &reference().momentum);
    }
}

/// Uneven shards, and a last step in which some ranks have nothing left.
#[test]
fn p_workers_of_b_equal_one_worker_of_p_times_b() {
    for (images, workers, batch) in [(101, 3, 11), (50, 4, 6), (21, 5, 2), (7, 7, 1), (61, 6, 10)] {
        let data = first_images(images);
        let job = |sync, workers, batch| Job { shuffle: true, ..course_job(sync, workers, batch, 5) };
        let alone = train(&job(SyncMethod::Single, 1, workers * batch), &data);
        for sync in [ALL_REDUCE, SyncMethod::GatherScatter] {
            let together = train(&job(sync, workers, batch), &data);
            assert_close("loss of epoch", &together.epoch_losses, &alone.epoch_losses, 1e-5);
            assert_eq!(together.steps, alone.steps);
        }
    }
}

/// Augmentation is decided image by image, so it does not depend on who loads the image.
#[test]
fn augmented_images_are_the_same_for_any_number_of_workers() {
    let data = first_images(60);
    let job = |sync, workers, batch, augment| {
        let job = Job { shuffle: true, augment, ..course_job(sync, workers, batch, 4) };
        train(&job, &data).epoch_losses
    };
    let both = Augment { crop: true, flip: true };
    let alone = job(SyncMethod::Single, 1, 12, both);
    assert_close("loss of epoch", &job(ALL_REDUCE, 3, 4, both), &alone, 1e-5);
    assert_close("loss of epoch", &job(ALL_REDUCE, 4, 3, both), &alone, 1e-5);
    assert_ne!(alone, job(SyncMethod::Single, 1, 12, Augment::default()));
    assert_ne!(alone, job(SyncMethod::Single, 1, 12, Augment { crop: true, flip: false }));
}

#[test]
fn synthetic_images_are_learned() {
    let shape = ringstep_data::Shape::new(32, 32, 1);
    let data = synthetic::Recipe { shape, classes: 10, train: 300, test: 100, seed: 0 }.make();
    let job = Job {
        lr: 0.05,
        rule: Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
        ..course_job(ALL_REDUCE, 2, 10, 10)
    };
    let summary = train(&job, &data);
    assert!(summary.test_accuracy > 0.9, "{}", summary.test_accuracy);
}

#[test]
fn the_same_seed_gives_the_same_bits_and_another_seed_does_not() {
    let data = first_images(60);
    let run = |seed, shuffle| {
        let job = Job { seed, shuffle, ..course_job(ALL_REDUCE, 3, 5, 3) };
        train(&job, &data).weights_sha256
    };
    assert_eq!(run(1, true), run(1, true));
    assert_ne!(run(1, true), run(2, true));
    assert_ne!(run(1, true), run(1, false));
}

#[test]
fn steps_end_a_job_in_the_middle_of_an_epoch() {
    let job = Job { length: Length::Steps(7), ..course_job(ALL_REDUCE, 4, 5, 0) };
    let summary = train(&job, &first_images(100));
    assert_eq!((summary.steps, summary.epochs), (7, 2));
    assert!(summary.epoch_losses.iter().all(|loss| loss.is_finite()));
}

/// LeNet-5 has 61,706 parameters of four bytes.
#[test]
fn the_busiest_rank_sends_what_the_formulas_say() {
    let bytes = |sync, workers| {
        let job = Job { length: Length::Steps(3), ..course_job(sync, workers, 5, 0) };
        train(&job, &first_images(100)).bytes_sent
    };
    assert_eq!(bytes(SyncMethod::Single, 1), 0);
    assert_eq!(bytes(SyncMethod::GatherScatter, 4), 3 * 3 * 61_706 * 4); // rank 0: p-1 slices a step
    let everything = SyncMethod::Ddp { algorithm: RING, bucket: Some(usize::MAX) };
    assert_eq!(bytes(everything, 2), 3 * 61_706 * 4); // 2(p-1)/p = 1 slice a step
    // The slice does not divide by four: two chunks have one element more than the other two.
    assert_eq!(bytes(everything, 4), 3 * 4 * (2 * 61_706 - 2 * 15_426));
    // One collective a parameter: the same, but for the chunks' ends.
    let model = course_job(ALL_REDUCE, 1, 1, 1).model.build_small();
    let parameters = || model.parameters().iter().map(|parameter| parameter.range().len());
    let of_rank = |rank| -> usize {
        parameters()
            .map(|length| cost::bytes_sent(Algorithm::Ring, rank, &Topology::new(vec![0; 4], false), length, 4))
            .sum()
    };
    assert_eq!(bytes(ALL_REDUCE, 4), 3 * (0..4).map(of_rank).max().unwrap() as u64);
}

#[test]
fn a_learning_rate_far_too_large_is_told_as_such() {
    let job = Job { lr: 1e30, ..course_job(SyncMethod::Single, 1, 20, 5) };
    let data = first_images(100);
    let error = worker::run(&job, &data, &mut Group::new(mem::mesh(1).pop().unwrap()), &mut |_| ()).unwrap_err();
    assert!(error.to_string().starts_with("rank 0: the loss is "), "{error}");
    assert!(error.to_string().ends_with("training diverged, a smaller lr may help"), "{error}");
}
