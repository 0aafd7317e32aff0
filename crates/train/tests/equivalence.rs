//! p ranks of batch b follow the trajectory of one rank of batch p*b, whatever the way of synchronising, the buckets, the
//! algorithm and the transport; and ranks stay bit-identical, which `sum_up` insists on.

mod common;

use common::{ALL_REDUCE, Over, RING, RankRun, Run, run_ranks, train};
use ringstep_comm::Algorithm;
use ringstep_data::shard::Deal;
use ringstep_data::synthetic::Recipe;
use ringstep_data::{Dataset, Shape};
use ringstep_nn::Network;
use ringstep_nn::network::{Kind, Layer, Pair};
use ringstep_nn::optim::Rule;
use ringstep_train::accounts::{Shares, split};
use ringstep_train::batch_norm::BatchNorm;
use ringstep_train::job::{Design, Length};
use ringstep_train::records::Step;
use ringstep_train::trace::{Span, Track};
use ringstep_train::{Job, SyncMethod};

/// Two convolutions, with batch norm or without, and a classifier: small, with parameters of 6 to 600 numbers.
fn network(batch_norm: bool) -> Network {
    let conv = |name: &str, filters| {
        let (kernel, stride, padding) = (Pair::Both(3), Pair::Both(1), Pair::Both(1));
        Layer::new(name, Kind::Conv { filters, kernel, stride, padding, bias: true })
    };
    let mut layers = Vec::new();
    for (at, filters) in [6, 10].into_iter().enumerate() {
        layers.push(conv(&format!("conv{at}"), filters));
        if batch_norm {
            layers.push(Layer::new(format!("bn{at}"), Kind::BatchNorm));
        }
        layers.push(Layer::new("", Kind::Tanh));
    }
    layers.push(Layer::new("fc", Kind::Linear { outputs: 4, bias: true }));
    Network { input: [6, 6, 2], layers }
}

fn data(images: usize) -> Dataset {
    Recipe { shape: Shape::new(6, 6, 2), classes: 4, train: images, test: 20, seed: 3 }.make()
}

fn job(sync: SyncMethod, workers: usize, batch: usize, batch_norm: Option<BatchNorm>) -> Job {
    let small = Design::new("small", network(batch_norm.is_some())).unwrap();
    Job {
        rule: Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-3 },
        lr: 0.02,
        seed: 5,
        shuffle: true,
        batch_norm: batch_norm.unwrap_or_default(),
        test_every: Some(1),
        verify_every: Some(2),
        ..Job::new(small, sync, workers, batch, Length::Epochs(3))
    }
}

fn losses(run: &Run) -> Vec<f64> {
    run.steps.iter().map(|step| step.loss).collect()
}

fn assert_same(what: &str, ours: &Run, theirs: &Run) {
    assert_eq!(ours.steps.len(), theirs.steps.len(), "{what}: steps");
    for (step, (ours, theirs)) in losses(ours).into_iter().zip(losses(theirs)).enumerate() {
        assert!((ours - theirs).abs() <= 1e-5 * theirs.abs(), "{what}, step {step}: loss {ours} is not {theirs}");
    }
    assert_eq!(ours.summary.epoch_test_accuracies, theirs.summary.epoch_test_accuracies, "{what}");
}

#[test]
fn ddp_follows_one_rank_for_any_workers_and_buckets() {
    // 47 images: uneven shards, a short last batch, and ranks that run out before others.
    let data = data(47);
    for workers in 1..=5 {
        let alone = train(&job(SyncMethod::Single, 1, 3 * workers, None), Over::Mem, &data);
        for bucket in [Some(1), Some(600), Some(4096), Some(usize::MAX), None] {
            let sync = SyncMethod::Ddp { algorithm: RING, bucket };
            let together = train(&job(sync, workers, 3, None), Over::Mem, &data);
            assert_same(&format!("{workers} workers, buckets of {bucket:?}"), &together, &alone);
        }
    }
}

#[test]
fn every_way_follows_one_rank_by_any_algorithm_over_any_transport() {
    let data = data(40);
    for (over, workers) in
        [Over::Mem, Over::Tcp, Over::Shm].into_iter().flat_map(|over| [(over, 2), (over, 3), (over, 5)])
    {
        let alone = train(&job(SyncMethod::Single, 1, 3 * workers, None), Over::Mem, &data);
        for algorithm in Algorithm::ALL {
            if algorithm.needs_shared_memory() && matches!(over, Over::Tcp) {
                continue;
            }
            let algorithm = Some(algorithm);
            for sync in [SyncMethod::AllReduce { algorithm }, SyncMethod::Ddp { algorithm, bucket: Some(1000) }] {
                let what = format!("{workers} workers, {sync:?} over {over:?}");
                assert_same(&what, &train(&job(sync, workers, 3, None), over, &data), &alone);
            }
        }
        for sync in [SyncMethod::GatherScatter, SyncMethod::DataParallel, SyncMethod::AllReduce { algorithm: None }] {
            let what = format!("{workers} workers, {sync:?} over {over:?}");
            assert_same(&what, &train(&job(sync, workers, 3, None), over, &data), &alone);
        }
    }
}

#[test]
fn with_synchronised_batch_norm_ranks_follow_one_with_the_whole_batch() {
    let data = data(47);
    for workers in 1..=5 {
        let alone = train(&job(SyncMethod::Single, 1, 3 * workers, Some(BatchNorm::Local)), Over::Mem, &data);
        let ddp = SyncMethod::Ddp { algorithm: RING, bucket: Some(1000) };
        for sync in [ddp, ALL_REDUCE, SyncMethod::GatherScatter, SyncMethod::DataParallel] {
            let together = train(&job(sync, workers, 3, Some(BatchNorm::Sync)), Over::Mem, &data);
            assert_same(&format!("{workers} workers, {sync:?}"), &together, &alone);
        }
    }
    // Over TCP the statistics have connections of their own, beside those of the gradients.
    let alone = train(&job(SyncMethod::Single, 1, 9, Some(BatchNorm::Local)), Over::Mem, &data);
    let sync = SyncMethod::Ddp { algorithm: RING, bucket: Some(1) };
    for over in [Over::Tcp, Over::Shm] {
        assert_same("own connections", &train(&job(sync, 3, 3, Some(BatchNorm::Sync)), over, &data), &alone);
    }
}

#[test]
fn statistics_of_each_rank_are_another_trajectory_and_broadcasting_rank_0s_changes_none_but_the_others() {
    let data = data(40);
    let sync = SyncMethod::Ddp { algorithm: RING, bucket: None };
    let [local, broadcast, joint] =
        BatchNorm::ALL.map(|mode| train(&job(sync, 4, 3, Some(mode)), Over::Mem, &data).summary.weights_sha256);
    assert_eq!(local, broadcast);
    assert_ne!(local, joint);
}

#[test]
fn accumulated_batches_equal_one_large_batch() {
    let data = data(53);
    // Epochs of 9 batches: steps of 2, 2, 2, 2 and 1.
    for sync in [
        SyncMethod::Ddp { algorithm: RING, bucket: Some(700) },
        ALL_REDUCE,
        SyncMethod::GatherScatter,
        SyncMethod::DataParallel,
    ] {
        let accumulating = Job { accumulate: 2, ..job(sync, 3, 2, None) };
        let large = job(SyncMethod::Single, 1, 12, None);
        assert_same(&format!("{sync:?}"), &train(&accumulating, Over::Mem, &data), &train(&large, Over::Mem, &data));
    }
}

/// Contiguous shards put other images together, so it is another trajectory; each image is still seen once an epoch.
#[test]
fn contiguous_shards_train_on_every_image() {
    let data = data(47);
    let contiguous = Job { deal: Deal::Contiguous, ..job(ALL_REDUCE, 4, 3, None) };
    let ranks = run_ranks(&contiguous, Over::Mem, &data);
    for epoch in 0..3 {
        assert_eq!(ranks.iter().map(|rank| rank.record.epochs[epoch].images).sum::<usize>(), 47);
    }
    let strided = train(&Job { deal: Deal::Strided, ..contiguous.clone() }, Over::Mem, &data);
    assert_ne!(losses(&train(&contiguous, Over::Mem, &data)), losses(&strided));
}

#[test]
fn spans_lie_within_their_steps_on_both_tracks() {
    let data = data(40);
    let job = Job { trace_steps: 2, ..job(SyncMethod::Ddp { algorithm: RING, bucket: Some(1) }, 3, 3, None) };
    for RankRun { record, steps, spans, .. } in run_ranks(&job, Over::Mem, &data) {
        assert!(spans.iter().all(|span| span.step < 2 && span.seconds >= 0.0));
        for step in 0..2 {
            let of = |track| spans.iter().filter(move |span| span.step == step && span.track == track);
            let names: Vec<&str> = of(Track::Computation).map(|span| span.name.as_str()).collect();
            assert!(
                names.contains(&"forward") && names.contains(&"optimizer") && names.contains(&"conv0"),
                "{names:?}"
            );
            // A bucket a parameter.
            assert_eq!(of(Track::Communication).count(), 6);
            // Nothing of a track overlaps with itself.
            for track in [Track::Computation, Track::Communication] {
                let mut spans: Vec<&Span> = of(track).collect();
                spans.sort_by(|a, b| a.began.total_cmp(&b.began));
                assert!(spans.windows(2).all(|pair| pair[0].began + pair[0].seconds <= pair[1].began + 1e-9));
            }
        }
        let shares = |step: &Step| split(step, |exchange| exchange.began);
        let computed = steps.iter().map(|step| shares(step).compute as f64 / 1e9).sum::<f64>();
        assert!((computed - record.outcome.parts.compute).abs() < 1e-6);
        for step in &steps {
            let Shares { compute, hidden, exposed, waiting, data, other } = shares(step);
            assert_eq!(compute + exposed + waiting + data + other, step.length());
            assert!(hidden <= compute && waiting == 0 && exposed > 0);
            // What is told of the first steps is the same as what is accounted for.
            let of_step = spans.iter().filter(|span| span.step == step.step && span.track == Track::Communication);
            assert!(step.step >= 2 || of_step.count() == step.exchanges.len());
        }
    }
}

/// What a prediction rests on is there on every rank if one is wanted, and all of it takes some time.
#[test]
fn what_predictions_rest_on_is_measured_when_asked_for() {
    let data = data(40);
    let basis = |sync, workers, predict| {
        let job = Job { predict, length: Length::Steps(3), ..job(sync, workers, 3, None) };
        let ranks = run_ranks(&job, Over::Mem, &data);
        ranks.into_iter().map(|rank| rank.record.outcome.basis).collect::<Vec<_>>()
    };
    for sync in [SyncMethod::GatherScatter, ALL_REDUCE, SyncMethod::Ddp { algorithm: RING, bucket: None }] {
        let ranks = basis(sync, 3, true);
        for basis in &ranks {
            let basis = basis.as_ref().unwrap();
            assert!(basis.profile.forward > 0.0 && basis.profile.backward_seconds() > 0.0, "{sync:?}");
            assert_eq!(basis.timings, ranks[0].as_ref().unwrap().timings);
            assert_eq!(basis.topology.world(), 3);
        }
    }
    assert!(basis(SyncMethod::Single, 1, true)[0].is_some());
    assert_eq!(basis(SyncMethod::Single, 1, false), [None]);
}
