//! Ways whose workers step alone: what each is equal to where it should be, that all ranks end with the same model, and
//! that runs repeat.

mod common;

use std::sync::Arc;

use common::{ALL_REDUCE, Over, RING, RankRun, Run, run_ranks, train};
use ringstep_data::synthetic::Recipe;
use ringstep_data::{Dataset, Images, Shape};
use ringstep_nn::Network;
use ringstep_nn::network::{Kind, Layer, Pair};
use ringstep_nn::optim::Rule;
use ringstep_nn::schedule::Curve;
use ringstep_train::job::{Design, Length};
use ringstep_train::slow::Slow;
use ringstep_train::strategy::Round;
use ringstep_train::{Job, SyncMethod};
use safetensors::SafeTensors;

const NO_MOMENTUM: Rule = Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 1e-3 };
const DDP: SyncMethod = SyncMethod::Ddp { algorithm: RING, bucket: Some(600) };
const NONE: SyncMethod = SyncMethod::None;

fn local_sgd(round: Round) -> SyncMethod {
    SyncMethod::LocalSgd { round, algorithm: RING }
}

fn post_local_sgd(switch_at: Option<f32>) -> SyncMethod {
    SyncMethod::PostLocalSgd { switch_at, round: Round::Every(3), algorithm: RING, bucket: Some(600) }
}

fn diloco(outer_lr: f32, outer_momentum: f32) -> SyncMethod {
    SyncMethod::DiLoCo { round: Round::Every(3), outer_lr, outer_momentum, algorithm: RING }
}

fn sma(learners: usize, pull: Option<f32>) -> SyncMethod {
    SyncMethod::Sma { learners, pull, momentum: 0.9, algorithm: RING }
}

/// A convolution, with batch norm or without, and a classifier.
fn network(batch_norm: bool) -> Network {
    let (kernel, stride, padding) = (Pair::Both(3), Pair::Both(1), Pair::Both(1));
    let conv = Layer::new("conv", Kind::Conv { filters: 5, kernel, stride, padding, bias: true });
    let normalise = batch_norm.then(|| Layer::new("bn", Kind::BatchNorm));
    let rest = [Layer::new("", Kind::Tanh), Layer::new("fc", Kind::Linear { outputs: 4, bias: true })];
    Network { input: [6, 6, 1], layers: [conv].into_iter().chain(normalise).chain(rest).collect() }
}

fn data(images: usize) -> Dataset {
    Recipe { shape: Shape::new(6, 6, 1), classes: 4, train: images, test: 20, seed: 3 }.make()
}

/// Three epochs of batches of 3, with momentum.
fn job(sync: SyncMethod, workers: usize) -> Job {
    Job {
        rule: Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-3 },
        lr: 0.02,
        seed: 5,
        shuffle: true,
        test_every: Some(1),
        verify_every: sync.has_equal_replicas().then_some(1),
        ..Job::new(Design::new("small", network(false)).unwrap(), sync, workers, 3, Length::Epochs(3))
    }
}

fn sha(job: &Job, data: &Dataset) -> String {
    train(job, Over::Mem, data).summary.weights_sha256
}

/// The loss of each step, on one rank.
fn losses(rank: &RankRun) -> Vec<f64> {
    rank.steps.iter().map(|step| step.loss_sum).collect()
}

fn numbers(weights: &[u8]) -> Vec<f32> {
    let file = SafeTensors::deserialize(weights).unwrap();
    let mut tensors = file.tensors();
    tensors.sort_by(|a, b| a.0.cmp(&b.0));
    let bytes = tensors.iter().flat_map(|(_, tensor)| tensor.data().chunks_exact(4));
    bytes.map(|bytes| f32::from_le_bytes(bytes.try_into().unwrap())).collect()
}

/// Equal to rounding, in the losses of all steps and in the final weights.
fn assert_close(what: &str, ours: &Run, theirs: &Run) {
    assert_eq!(ours.steps.len(), theirs.steps.len(), "{what}: steps");
    for (step, (ours, theirs)) in ours.steps.iter().zip(&theirs.steps).enumerate() {
        let (ours, theirs) = (ours.loss, theirs.loss);
        assert!((ours - theirs).abs() <= 1e-5 * theirs.abs(), "{what}, step {step}: loss {ours} is not {theirs}");
    }
    for (ours, theirs) in numbers(&ours.weights).into_iter().zip(numbers(&theirs.weights)) {
        assert!((ours - theirs).abs() <= 1e-5, "{what}: weight {ours} is not {theirs}");
    }
}

/// 47 images: uneven shards and short last batches, and with four workers and more ranks that have none in the last step.
#[test]
fn averaged_after_every_step_and_without_momentum_workers_follow_one() {
    let data = data(47);
    for (workers, accumulate) in (1..=5).flat_map(|workers| [(workers, 1), (workers, 2)]) {
        let alone = Job { batch: 3 * workers * accumulate, rule: NO_MOMENTUM, ..job(SyncMethod::Single, 1) };
        let together = Job { accumulate, rule: NO_MOMENTUM, ..job(local_sgd(Round::Every(1)), workers) };
        let [alone, together] = [alone, together].map(|job| train(&job, Over::Mem, &data));
        assert_close(&format!("{workers} workers, {accumulate} batches a step"), &together, &alone);
    }
}

#[test]
fn rounds_are_counted_in_steps_and_epochs_and_end_with_the_job() {
    // Four steps an epoch.
    let data = data(47);
    let every = |round| sha(&job(local_sgd(round), 4), &data);
    assert_eq!(every(Round::EveryEpoch), every(Round::Every(4)));
    assert_ne!(every(Round::EveryEpoch), every(Round::Every(3)));
    // One average, after the last step.
    assert_eq!(every(Round::Every(12)), every(Round::Every(usize::MAX)));
    // In no time at all workers take one step each.
    assert_eq!(
        sha(&Job { verify_every: None, ..job(local_sgd(Round::Period(0.0)), 4) }, &data),
        every(Round::Every(1))
    );
}

/// How many steps each takes is a matter of time, but not how many they take together, nor that they end as one.
#[test]
fn by_period_workers_share_the_steps_of_the_job() {
    let data = data(47);
    for sync in [
        local_sgd(Round::Period(0.002)),
        // Longer than the job: each has its share of it.
        local_sgd(Round::Period(1e9)),
        SyncMethod::PostLocalSgd { switch_at: Some(1.0), round: Round::Period(0.002), algorithm: RING, bucket: None },
        SyncMethod::DiLoCo { round: Round::Period(0.002), outer_lr: 0.7, outer_momentum: 0.9, algorithm: RING },
    ] {
        let job = Job {
            length: Length::Epochs(20),
            slow: vec![Slow { rank: 2, factor: 5.0, probability: 0.5 }],
            ..job(sync, 4)
        };
        let ranks = run_ranks(&job, Over::Mem, &data);
        let steps: usize = ranks.iter().map(|rank| rank.steps.len()).sum();
        assert!((4 * 79 + 1..=4 * 80).contains(&steps), "{sync:?}: {steps} steps");
        for rank in &ranks {
            assert_eq!(rank.weights, ranks[0].weights);
            let epochs: Vec<usize> = rank.record.epochs.iter().map(|epoch| epoch.epoch).collect();
            assert_eq!(epochs, (0..20).collect::<Vec<_>>());
            assert_eq!(rank.record.outcome.tests.len(), 20);
        }
    }
}

#[test]
fn post_local_sgd_is_ddp_before_the_switch_and_local_sgd_after_it() {
    let data = data(47);
    let post = |switch_at| sha(&job(post_local_sgd(switch_at), 4), &data);
    let [ddp, local] = [DDP, local_sgd(Round::Every(3))].map(|sync| sha(&job(sync, 4), &data));
    assert_eq!(post(Some(3.0)), ddp);
    assert_eq!(post(Some(100.0)), ddp);
    assert_eq!(post(Some(0.0)), local);
    // Half of the job, unless told otherwise.
    let half = post(None);
    assert_eq!(half, post(Some(1.5)));
    assert!(half != ddp && half != local);
    // Until the switch a run cannot be told from ddp, loss by loss.
    let [half, ddp] = [post_local_sgd(None), DDP].map(|sync| run_ranks(&job(sync, 4), Over::Mem, &data));
    for (half, ddp) in half.iter().zip(&ddp) {
        assert_eq!(losses(half)[..7], losses(ddp)[..7]);
    }
}

#[test]
fn diloco_with_plain_outer_steps_is_local_sgd() {
    let data = data(47);
    let [local, plain] =
        [local_sgd(Round::Every(3)), diloco(1.0, 0.0)].map(|sync| train(&job(sync, 4), Over::Mem, &data));
    assert_close("plain outer steps", &plain, &local);
    let outer = sha(&job(diloco(0.7, 0.9), 4), &data);
    assert_ne!(outer, plain.summary.weights_sha256);
}

/// The images of a rank, in the order in which it has them without shuffling.
fn shard(data: &Dataset, rank: usize, workers: usize) -> Dataset {
    let all = &data.train;
    let own = || (rank..all.len()).step_by(workers);
    let pixels = own().flat_map(|image| all.image(image)).copied().collect();
    let train = Images { shape: all.shape, pixels, labels: own().map(|image| all.labels[image]).collect() };
    Dataset { train: Arc::new(train), ..data.clone() }
}

/// The final model is that of rank 0.
#[test]
fn workers_that_never_talk_train_on_their_shards_alone() {
    let data = data(47);
    let ranks = run_ranks(&Job { shuffle: false, ..job(NONE, 4) }, Over::Mem, &data);
    for (rank, of_four) in ranks.iter().enumerate() {
        let single = Job { shuffle: false, ..job(SyncMethod::Single, 1) };
        let alone = run_ranks(&single, Over::Mem, &shard(&data, rank, 4));
        assert_eq!(losses(of_four), losses(&alone[0]), "rank {rank}");
        assert_eq!(of_four.weights, ranks[0].weights);
        assert_eq!(of_four.weights == alone[0].weights, rank == 0);
    }
}

/// Losses are those of workers that never talk, and the central model stays where it was.
#[test]
fn without_a_pull_learners_are_independent() {
    let data = data(47);
    let unconnected = run_ranks(&job(NONE, 4), Over::Mem, &data);
    for learners in [1, 2, 4] {
        let job = job(sma(learners, Some(0.0)), 4 / learners);
        let ranks = run_ranks(&job, Over::Mem, &data);
        for (of_rank, alone) in ranks.iter().zip(unconnected.chunks(learners)) {
            let sums: Vec<f64> = (0..12).map(|step| alone.iter().map(|rank| rank.steps[step].loss_sum).sum()).collect();
            assert_eq!(losses(of_rank), sums, "{learners} learners a worker");
        }
        let short = Job { length: Length::Steps(1), ..job };
        assert_eq!(ranks[0].weights, run_ranks(&short, Over::Mem, &data)[0].weights);
    }
}

#[test]
fn it_does_not_matter_which_worker_a_learner_is_on() {
    let data = data(47);
    let apart = train(&job(sma(1, None), 4), Over::Mem, &data);
    for (learners, workers) in [(2, 2), (4, 1)] {
        let together = train(&job(sma(learners, None), workers), Over::Mem, &data);
        assert_close(&format!("{workers} workers of {learners}"), &together, &apart);
    }
}

/// Without a pull the central model stays where it began, so whoever begins anew from it repeats the first step.
#[test]
fn learners_begin_anew_from_the_central_model_when_the_learning_rate_drops() {
    let data = data(47);
    let curve = |curve| Job { curve, shuffle: false, ..job(sma(2, Some(0.0)), 2) };
    let first_steps = |job: &Job| -> Vec<[f64; 2]> {
        let ranks = run_ranks(job, Over::Mem, &data);
        ranks.iter().map(|rank| [0, 4].map(|step| rank.steps[step].loss_sum)).collect()
    };
    let dropping = first_steps(&curve(Curve::Step { every: 1.0, factor: 0.5 }));
    assert!(dropping.iter().all(|[first, anew]| first == anew), "{dropping:?}");
    let smooth = first_steps(&curve(Curve::Polynomial { power: 0.1 }));
    assert!(smooth.iter().all(|[first, later]| first != later), "{smooth:?}");
}

/// With batch norm, uneven shards and ranks that run out of images; over each transport; with and without a slow rank.
/// That all ranks end with the same bits is checked in each run.
#[test]
fn every_way_ends_with_one_model_and_repeats_also_where_a_rank_is_slow() {
    let data = data(47);
    for sync in [
        NONE,
        local_sgd(Round::Every(1)),
        local_sgd(Round::Every(3)),
        local_sgd(Round::EveryEpoch),
        post_local_sgd(None),
        diloco(0.7, 0.9),
        sma(1, None),
        sma(2, None),
        DDP,
        ALL_REDUCE,
        SyncMethod::GatherScatter,
        SyncMethod::DataParallel,
    ] {
        let design = Design::new("small", network(true)).unwrap();
        let job = Job { model: design, batch: 2, ..job(sync, 5) };
        let once = sha(&job, &data);
        assert_eq!(sha(&job, &data), once, "{sync:?}");
        let slow =
            vec![Slow { rank: 1, factor: 3.0, probability: 0.5 }, Slow { rank: 4, factor: 2.0, probability: 1.0 }];
        let slowed = Job { slow, ..job };
        for over in [Over::Mem, Over::Tcp, Over::Shm] {
            assert_eq!(train(&slowed, over, &data).summary.weights_sha256, once, "{sync:?} over {over:?}, slowed");
        }
    }
}
