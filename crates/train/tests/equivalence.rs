//! p ranks of batch b follow the trajectory of one rank of batch p*b, whatever the way of synchronising, the buckets, the
//! algorithm and the transport; and ranks stay bit-identical, which `sum_up` insists on.

use std::net::Ipv4Addr;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use ringstep_comm::rendezvous::{Meeting, join};
use ringstep_comm::transport::{mem, shm::Shm};
use ringstep_comm::{Algorithm, Group};
use ringstep_data::shard::Deal;
use ringstep_data::synthetic::Recipe;
use ringstep_data::{Dataset, Shape};
use ringstep_nn::Network;
use ringstep_nn::network::{Kind, Layer, Pair};
use ringstep_nn::optim::Rule;
use ringstep_train::batch_norm::BatchNorm;
use ringstep_train::job::{Design, Length};
use ringstep_train::records::Report;
use ringstep_train::records::Step;
use ringstep_train::steps::StepBook;
use ringstep_train::summary::{RankRecord, Summary, sum_up};
use ringstep_train::trace::{Lane, Span};
use ringstep_train::{Job, Sync, worker};

const RING: Option<Algorithm> = Some(Algorithm::Ring);

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

fn job(sync: Sync, workers: usize, batch: usize, batch_norm: Option<BatchNorm>) -> Job {
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

#[derive(Clone, Copy, Debug)]
enum Over {
    Mem,
    Tcp,
    Shm,
}

/// A group for each worker, which its thread makes.
fn on_ranks<T: Send>(over: Over, world: usize, work: impl Fn(Group) -> T + Sync_) -> Vec<T> {
    let timeout = Duration::from_secs(60);
    thread::scope(|scope| {
        let work = &work;
        let ranks: Vec<_> = match over {
            Over::Mem => {
                mem::mesh(world).into_iter().map(|transport| scope.spawn(move || work(Group::new(transport)))).collect()
            }
            Over::Tcp | Over::Shm => {
                let token = [7; 16];
                let (sender, receiver) = channel();
                scope.spawn(move || {
                    let meeting = Meeting::open(Ipv4Addr::LOCALHOST.into(), token).unwrap();
                    sender.send(meeting.address()).unwrap();
                    meeting.host(world, timeout).unwrap();
                });
                let address = receiver.recv().unwrap();
                let rank = |rank| {
                    scope.spawn(move || {
                        let tcp = join(address, token, rank, world, timeout).unwrap();
                        work(if let Over::Shm = over { Group::new(Shm::over(tcp).unwrap()) } else { Group::new(tcp) })
                    })
                };
                (0..world).map(rank).collect()
            }
        };
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// The name `Sync` is taken by the ways of synchronising.
trait Sync_: std::marker::Sync {}
impl<T: std::marker::Sync> Sync_ for T {}

fn records(job: &Job, over: Over, data: &Dataset) -> Vec<(RankRecord, Vec<Step>, Vec<Span>)> {
    job.validate(data.train.len()).unwrap();
    on_ranks(over, job.workers, |mut group| {
        let (mut epochs, mut steps, mut spans) = (Vec::new(), Vec::new(), Vec::new());
        let mut keep = |report| match report {
            Report::Epoch(epoch) => epochs.push(epoch),
            Report::Steps(more) => steps.extend(more),
            Report::Spans(more) => spans.extend(more),
        };
        let (outcome, _) = worker::run(job, None, data, &mut group, &mut keep).unwrap();
        (RankRecord { epochs, outcome }, steps, spans)
    })
}

fn train(job: &Job, over: Over, data: &Dataset) -> (Summary, Vec<f64>) {
    let (mut book, mut ranks) = (StepBook::new(job.workers), Vec::new());
    for (rank, (record, steps, _)) in records(job, over, data).into_iter().enumerate() {
        book.add(rank, steps);
        ranks.push(record);
    }
    (sum_up(job, &ranks, &book.steps).unwrap(), book.steps.iter().map(|step| step.loss).collect())
}

fn assert_same(what: &str, ours: &(Summary, Vec<f64>), theirs: &(Summary, Vec<f64>)) {
    assert_eq!(ours.1.len(), theirs.1.len(), "{what}: steps");
    for (step, (ours, theirs)) in ours.1.iter().zip(&theirs.1).enumerate() {
        assert!((ours - theirs).abs() <= 1e-5 * theirs.abs(), "{what}, step {step}: loss {ours} is not {theirs}");
    }
    assert_eq!(ours.0.epoch_test_accuracies, theirs.0.epoch_test_accuracies, "{what}");
}

#[test]
fn ddp_follows_one_rank_for_any_workers_and_buckets() {
    // 47 images: uneven shards, a short last batch, and ranks that run out before others.
    let data = data(47);
    for workers in 1..=5 {
        let alone = train(&job(Sync::Single, 1, 3 * workers, None), Over::Mem, &data);
        for bucket in [Some(1), Some(600), Some(4096), Some(usize::MAX), None] {
            let sync = Sync::Ddp { algorithm: RING, bucket };
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
        let alone = train(&job(Sync::Single, 1, 3 * workers, None), Over::Mem, &data);
        for algorithm in Algorithm::ALL {
            if algorithm.needs_shared_memory() && matches!(over, Over::Tcp) {
                continue;
            }
            let algorithm = Some(algorithm);
            for sync in [Sync::AllReduce(algorithm), Sync::Ddp { algorithm, bucket: Some(1000) }] {
                let what = format!("{workers} workers, {sync:?} over {over:?}");
                assert_same(&what, &train(&job(sync, workers, 3, None), over, &data), &alone);
            }
        }
        for sync in [Sync::GatherScatter, Sync::DataParallel, Sync::AllReduce(None)] {
            let what = format!("{workers} workers, {sync:?} over {over:?}");
            assert_same(&what, &train(&job(sync, workers, 3, None), over, &data), &alone);
        }
    }
}

#[test]
fn with_synchronised_batch_norm_ranks_follow_one_with_the_whole_batch() {
    let data = data(47);
    for workers in 1..=5 {
        let alone = train(&job(Sync::Single, 1, 3 * workers, Some(BatchNorm::Local)), Over::Mem, &data);
        let ddp = Sync::Ddp { algorithm: RING, bucket: Some(1000) };
        for sync in [ddp, Sync::AllReduce(RING), Sync::GatherScatter, Sync::DataParallel] {
            let together = train(&job(sync, workers, 3, Some(BatchNorm::Sync)), Over::Mem, &data);
            assert_same(&format!("{workers} workers, {sync:?}"), &together, &alone);
        }
    }
    // Over TCP the statistics have connections of their own, beside those of the gradients.
    let alone = train(&job(Sync::Single, 1, 9, Some(BatchNorm::Local)), Over::Mem, &data);
    let sync = Sync::Ddp { algorithm: RING, bucket: Some(1) };
    for over in [Over::Tcp, Over::Shm] {
        assert_same("own connections", &train(&job(sync, 3, 3, Some(BatchNorm::Sync)), over, &data), &alone);
    }
}

#[test]
fn statistics_of_each_rank_are_another_trajectory_and_broadcasting_rank_0s_changes_none_but_the_others() {
    let data = data(40);
    let sync = Sync::Ddp { algorithm: RING, bucket: None };
    let [local, broadcast, joint] =
        BatchNorm::ALL.map(|mode| train(&job(sync, 4, 3, Some(mode)), Over::Mem, &data).0.weights_sha256);
    assert_eq!(local, broadcast);
    assert_ne!(local, joint);
}

#[test]
fn accumulated_batches_equal_one_large_batch() {
    let data = data(53);
    // Epochs of 9 batches: steps of 2, 2, 2, 2 and 1.
    for sync in [
        Sync::Ddp { algorithm: RING, bucket: Some(700) },
        Sync::AllReduce(RING),
        Sync::GatherScatter,
        Sync::DataParallel,
    ] {
        let accumulating = Job { accumulate: 2, ..job(sync, 3, 2, None) };
        let large = job(Sync::Single, 1, 12, None);
        assert_same(&format!("{sync:?}"), &train(&accumulating, Over::Mem, &data), &train(&large, Over::Mem, &data));
    }
}

/// Contiguous shards put other images together, so it is another trajectory; each image is still seen once an epoch.
#[test]
fn contiguous_shards_train_on_every_image() {
    let data = data(47);
    let contiguous = Job { deal: Deal::Contiguous, ..job(Sync::AllReduce(RING), 4, 3, None) };
    let ranks = records(&contiguous, Over::Mem, &data);
    for epoch in 0..3 {
        assert_eq!(ranks.iter().map(|(rank, ..)| rank.epochs[epoch].images).sum::<usize>(), 47);
    }
    let strided = train(&Job { deal: Deal::Strided, ..contiguous.clone() }, Over::Mem, &data);
    assert_ne!(train(&contiguous, Over::Mem, &data).1, strided.1);
}

#[test]
fn spans_lie_within_their_steps_on_both_lanes() {
    let data = data(40);
    let job = Job { trace_steps: 2, ..job(Sync::Ddp { algorithm: RING, bucket: Some(1) }, 3, 3, None) };
    for (record, steps, spans) in records(&job, Over::Mem, &data) {
        assert!(spans.iter().all(|span| span.step < 2 && span.seconds >= 0.0));
        for step in 0..2 {
            let of = |lane| spans.iter().filter(move |span| span.step == step && span.lane == lane);
            let names: Vec<&str> = of(Lane::Computation).map(|span| span.name.as_str()).collect();
            assert!(
                names.contains(&"forward") && names.contains(&"optimizer") && names.contains(&"conv0"),
                "{names:?}"
            );
            // A bucket a parameter.
            assert_eq!(of(Lane::Communication).count(), 6);
            // Nothing of a lane overlaps with itself.
            for lane in [Lane::Computation, Lane::Communication] {
                let mut spans: Vec<&Span> = of(lane).collect();
                spans.sort_by(|a, b| a.began.total_cmp(&b.began));
                assert!(spans.windows(2).all(|pair| pair[0].began + pair[0].seconds <= pair[1].began + 1e-9));
            }
        }
        let total = |part: fn(&Step) -> f64| steps.iter().map(part).sum::<f64>();
        assert!((total(|step| step.parts.compute) - record.outcome.parts.compute).abs() < 1e-6);
        assert!(total(|step| step.parts.comm + step.parts.compute + step.parts.data) <= total(|step| step.seconds));
    }
}

/// What the cost model expects of a step is finite and not negative, and nothing is expected of one rank alone.
#[test]
fn predictions_are_made_when_asked_for() {
    let data = data(40);
    let predicted = |sync, workers| {
        let job = Job { predict: true, length: Length::Steps(3), ..job(sync, workers, 3, None) };
        train(&job, Over::Mem, &data).0
    };
    for sync in
        [Sync::GatherScatter, Sync::AllReduce(RING), Sync::Ddp { algorithm: RING, bucket: None }, Sync::DataParallel]
    {
        let summary = predicted(sync, 3);
        let step = summary.predicted_seconds_per_step.unwrap();
        assert!(step.is_finite() && step >= summary.compute_seconds / 3.0, "{sync:?}: {step}");
    }
    let alone = predicted(Sync::Single, 1);
    assert_eq!(alone.predicted_seconds_per_step, Some(alone.compute_seconds / 3.0));
    assert_eq!(train(&job(Sync::Single, 1, 3, None), Over::Mem, &data).0.predicted_seconds_per_step, None);
}
