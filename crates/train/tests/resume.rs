//! A job that goes on from a checkpoint ends with the bits of one that never stopped, and its records go on too.

mod common;

use std::path::Path;
use std::sync::Arc;

use common::{ALL_REDUCE, Over, RING, on_ranks};
use ringstep_data::augment::Augment;
use ringstep_data::synthetic::Recipe;
use ringstep_data::{Dataset, Shape};
use ringstep_nn::Network;
use ringstep_nn::network::{Kind, Layer, Pair};
use ringstep_nn::optim::Rule;
use ringstep_nn::schedule::{Curve, WarmUp};
use ringstep_train::batch_norm::BatchNorm;
use ringstep_train::compress::{Compression, Method};
use ringstep_train::halt::{Halt, Halts, Order, Then};
use ringstep_train::job::{Design, Length};
use ringstep_train::records::{Outcome, Report};
use ringstep_train::saving::{Checkpoints, Session, file, rank_file};
use ringstep_train::strategy::{Round, Servers};
use ringstep_train::worker::{self, Ended};
use ringstep_train::{Job, SyncMethod};
use tempfile::TempDir;

const WORKERS: usize = 3;
const MOMENTUM: Rule = Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-3 };

/// Batch norm, and dropout: what is drawn there depends on the step.
fn network() -> Network {
    let (kernel, stride, padding) = (Pair::Both(3), Pair::Both(1), Pair::Both(1));
    let layers = vec![
        Layer::new("conv", Kind::Conv { filters: 6, kernel, stride, padding, bias: true }),
        Layer::new("bn", Kind::BatchNorm),
        Layer::new("", Kind::Tanh),
        Layer::new("", Kind::Dropout { rate: 0.2 }),
        Layer::new("fc", Kind::Linear { outputs: 4, bias: true }),
    ];
    Network { input: [8, 8, 1], layers }
}

fn data() -> Dataset {
    Recipe { shape: Shape::new(8, 8, 1), classes: 4, train: 50, test: 20, seed: 3 }.make()
}

/// Six steps an epoch, of which the last is a small one.
fn job(sync: SyncMethod) -> Job {
    Job {
        rule: MOMENTUM,
        lr: 0.02,
        curve: Curve::Cosine,
        warm_up: WarmUp::Linear { epochs: 1.0 },
        seed: 5,
        shuffle: true,
        augment: Augment { crop: true, flip: true },
        test_every: Some(1),
        ..Job::new(Design::new("small", network()).unwrap(), sync, WORKERS, 3, Length::Epochs(3))
    }
}

/// What a rank ended with, and what it said.
struct Rank {
    outcome: Outcome,
    weights: Vec<u8>,
    reports: Vec<Report>,
}

/// Runs a job, from a checkpoint if there is one, with checkpoints every so many steps.
fn run(job: &Job, data: &Dataset, folder: &Path, every: Option<usize>, from: Option<&Path>) -> Vec<Rank> {
    job.validate(data.train.len()).unwrap();
    let checkpoints = Checkpoints { folder: folder.to_owned(), every };
    on_ranks(Over::Mem, job.ranks(), |mut group| {
        let saved = from.map(|folder| file::read(&rank_file(folder, group.rank())).unwrap());
        let mut reports = Vec::new();
        let session = Session {
            report: &mut |report| reports.push(report),
            halts: &Halts::default(),
            checkpoints: Some(&checkpoints),
            from: saved.as_ref(),
            joins: false,
            memory: None,
        };
        let Ended::Done(outcome, weights) = worker::run_in(job, data, &mut group, session).unwrap() else {
            panic!("nobody told it to leave");
        };
        Rank { outcome: *outcome, weights, reports }
    })
}

fn ways() -> Vec<(&'static str, Job)> {
    let ring = RING;
    let ddp = SyncMethod::Ddp { algorithm: ring, bucket: Some(600) };
    let (every, one) = (Round::Every(4), Servers::Apart(1));
    let compress = |sync, method, error_feedback| Job {
        compress: Some(Compression { method, error_feedback }),
        rule: Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 },
        ..job(sync)
    };
    let adam = Rule::Adam { betas: [0.9, 0.999], weight_decay: 1e-3 };
    let lars = Rule::Lars { momentum: 0.9, weight_decay: 1e-3, trust: 0.01 };
    let dgc = Method::Dgc { keep: 0.05, warm_up_epochs: 2, clip: Some(1.0) };
    let local = SyncMethod::LocalSgd { round: every, algorithm: ring };
    let server = SyncMethod::ParameterServer { servers: Servers::Apart(2) };
    vec![
        ("ddp", job(ddp)),
        ("ddp, adam", Job { rule: adam, ..job(ddp) }),
        ("ddp, lars", Job { rule: lars, ..job(ddp) }),
        ("ddp, batch norm over all", Job { batch_norm: BatchNorm::Sync, ..job(ddp) }),
        ("ddp, accumulated", Job { accumulate: 2, ..job(ddp) }),
        ("all-reduce", job(ALL_REDUCE)),
        ("all-reduce, measured", job(SyncMethod::AllReduce { algorithm: None })),
        ("ddp, measured", job(SyncMethod::Ddp { algorithm: None, bucket: None })),
        ("gather-scatter", job(SyncMethod::GatherScatter)),
        ("data-parallel", job(SyncMethod::DataParallel)),
        ("single", Job { workers: 1, ..job(SyncMethod::Single) }),
        ("none", job(SyncMethod::None)),
        ("local-sgd", job(local)),
        ("local-sgd by epochs", job(SyncMethod::LocalSgd { round: Round::EveryEpoch, algorithm: ring })),
        (
            "post-local-sgd",
            job(SyncMethod::PostLocalSgd { switch_at: Some(1.0), round: every, algorithm: ring, bucket: None }),
        ),
        ("diloco", job(SyncMethod::DiLoCo { round: every, outer_lr: 0.7, outer_momentum: 0.9, algorithm: ring })),
        ("sma", job(SyncMethod::Sma { learners: 2, pull: None, momentum: 0.9, algorithm: ring })),
        ("parameter-server", job(server)),
        ("parameter-server, adam", Job { rule: adam, ..job(SyncMethod::ParameterServer { servers: one }) }),
        ("stale 0", job(SyncMethod::Stale { servers: Servers::Colocated, staleness: 0 })),
        ("top-k", compress(ddp, Method::TopK { keep: 0.1 }, true)),
        ("power-sgd", compress(ddp, Method::PowerSgd { rank: 2 }, true)),
        ("dgc", compress(ddp, dgc, false)),
        ("int8", compress(ALL_REDUCE, Method::Int8, false)),
        ("sign", compress(ALL_REDUCE, Method::Sign, true)),
        ("random-k", compress(ddp, Method::RandomK { keep: 0.1 }, true)),
        ("local-sgd, top-k", compress(local, Method::TopK { keep: 0.1 }, true)),
        ("parameter-server, top-k", compress(server, Method::TopK { keep: 0.1 }, true)),
        ("parameter-server, dgc", compress(server, dgc, false)),
    ]
}

fn steps(reports: &[Report]) -> Vec<(usize, u64)> {
    let steps = reports.iter().filter_map(|report| if let Report::Steps(steps) = report { Some(steps) } else { None });
    steps.flatten().map(|step| (step.step, step.loss_sum.to_bits())).collect()
}

/// From the middle of the first epoch, from an epoch's end, and from the second to the last step.
#[test]
fn whoever_goes_on_ends_with_the_bits_of_those_that_never_stopped() {
    let data = data();
    for (name, job) in ways() {
        let folder = TempDir::new().unwrap();
        let whole = run(&job, &data, folder.path(), Some(1), None);
        let last = job.steps(data.train.len()) - 1;
        // Measured anew, choices could be others than those of the first run: it must not depend on that.
        for step in [2, job.steps_an_epoch(data.train.len()), last] {
            let from = folder.path().join(format!(".{step}.partial"));
            let rest = run(&job, &data, folder.path(), None, Some(&from));
            for (rank, (rest, whole)) in rest.iter().zip(&whole).enumerate() {
                let what = format!("{name}, rank {rank}, from {step}");
                assert!(rest.weights == whole.weights, "{what}: other weights");
                if rank < job.workers {
                    assert_eq!(steps(&rest.reports), steps(&whole.reports)[step..], "{what}");
                    let (ours, theirs) = (&rest.outcome, &whole.outcome);
                    assert_eq!((ours.steps, ours.bytes_sent), (theirs.steps, theirs.bytes_sent), "{what}");
                    let tests = |outcome: &Outcome| -> Vec<_> {
                        outcome
                            .tests
                            .iter()
                            .map(|test| (test.epoch, test.step, test.correct, test.bytes_sent))
                            .collect()
                    };
                    assert_eq!(tests(ours), tests(theirs), "{what}");
                }
            }
        }
    }
}

/// Where nothing repeats, those that go on do as much as was left.
#[test]
fn asynchronous_workers_go_on_too() {
    let (data, one) = (data(), Servers::Apart(1));
    let asynchronous = |period| SyncMethod::Async { servers: one, period, staleness_aware: true };
    for sync in [asynchronous(0.0), asynchronous(0.002), SyncMethod::Stale { servers: one, staleness: 2 }] {
        let (job, folder) = (job(sync), TempDir::new().unwrap());
        run(&job, &data, folder.path(), Some(3), None);
        let rest = run(&job, &data, folder.path(), None, Some(&folder.path().join(".3.partial")));
        assert!(rest[1..WORKERS].iter().all(|rank| rank.weights == rest[0].weights));
        let all: usize = rest[..WORKERS].iter().map(|rank| rank.outcome.steps).sum();
        assert_eq!(all, WORKERS * job.steps(data.train.len()), "{sync:?}");
    }
}

/// All are told to end at a moment that nobody has agreed on: with what was done so far, or without a word.
#[test]
fn a_job_can_be_halted_at_any_time_and_goes_on() {
    let data = data();
    let period = SyncMethod::LocalSgd { round: Round::Period(0.003), algorithm: RING };
    let one = Servers::Apart(1);
    for sync in [ALL_REDUCE, SyncMethod::None, period, SyncMethod::Stale { servers: one, staleness: 1 }] {
        for then in [Then::Finish, Then::Leave] {
            let (job, folder) = (Job { length: Length::Epochs(1000), ..job(sync) }, TempDir::new().unwrap());
            let checkpoints = Checkpoints { folder: folder.path().to_owned(), every: None };
            let halts: Arc<Vec<Halts>> = Arc::new((0..job.ranks()).map(|_| Halts::default()).collect());
            let orders = Arc::clone(&halts);
            let watcher = std::thread::spawn(move || {
                let held: Vec<_> = orders[..WORKERS].iter().map(|halts| halts.take(Order::Hold).unwrap()).collect();
                let after = held.iter().map(|held| held.passed).max().unwrap() + 2;
                for halts in &orders[..WORKERS] {
                    halts.take(Order::Until(Halt { after, save: Some(7), then }));
                }
            });
            let ended = on_ranks(Over::Mem, job.ranks(), |mut group| {
                let (halts, checkpoints) = (&halts[group.rank()], Some(&checkpoints));
                let session =
                    Session { report: &mut |_| (), halts, checkpoints, from: None, joins: false, memory: None };
                worker::run_in(&job, &data, &mut group, session).unwrap()
            });
            watcher.join().unwrap();
            for (rank, ended) in ended.iter().enumerate() {
                match ended {
                    Ended::Left => assert_eq!(then, Then::Leave),
                    Ended::Done(outcome, _) => assert!(rank >= WORKERS || outcome.interrupted && outcome.steps > 0),
                }
                assert!(rank_file(&folder.path().join(".7.partial"), rank).exists());
            }
        }
    }
}

#[test]
fn the_state_of_another_job_is_refused() {
    let (data, folder) = (data(), TempDir::new().unwrap());
    let first = job(ALL_REDUCE);
    run(&first, &data, folder.path(), Some(2), None);
    let saved = file::read(&rank_file(&folder.path().join(".2.partial"), 1)).unwrap();
    let other = Job { rule: Rule::Adam { betas: [0.9, 0.999], weight_decay: 0.0 }, ..first };
    let errors = on_ranks(Over::Mem, WORKERS, |mut group| {
        let session = Session {
            report: &mut |_| (),
            halts: &Halts::default(),
            checkpoints: None,
            from: Some(&saved),
            joins: false,
            memory: None,
        };
        worker::run_in(&other, &data, &mut group, session).err().map(|error| error.to_string())
    });
    for (rank, error) in errors.into_iter().enumerate() {
        let text = "what was saved is of another job: replica.0.optimizer.second: 0 numbers, not";
        assert!(error.unwrap().starts_with(&format!("rank {rank}: {text}")));
    }
}
