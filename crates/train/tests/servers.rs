//! Parameter servers: what must be equal is, to the bit or to rounding; nobody is further ahead than allowed; and whoever
//! makes no sense or is gone is named, while nobody waits for ever.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::sleep;
use std::time::Duration;

use common::{Over, RankRun, Run, on_ranks, run_ranks, train};
use ringstep_comm::Group;
use ringstep_comm::transport::mem;
use ringstep_data::synthetic::Recipe;
use ringstep_data::{Dataset, Shape};
use ringstep_nn::Network;
use ringstep_nn::network::{Kind, Layer, Pair};
use ringstep_nn::optim::Rule;
use ringstep_train::batch_norm::BatchNorm;
use ringstep_train::compress::{Compression, Method};
use ringstep_train::job::{Design, Length};
use ringstep_train::records::Report;
use ringstep_train::strategy::Servers;
use ringstep_train::timebase::Timebase;
use ringstep_train::{Job, SyncMethod, worker};

const OVER: [Over; 3] = [Over::Mem, Over::Tcp, Over::Shm];

/// One layer of convolutions and a classifier; `hidden` numbers between, if there are any, make it large.
fn network(hidden: usize, batch_norm: bool) -> Network {
    let (kernel, stride, padding) = (Pair::Both(3), Pair::Both(1), Pair::Both(1));
    let conv = Layer::new("conv", Kind::Conv { filters: 6, kernel, stride, padding, bias: true });
    let mut layers = vec![conv];
    if batch_norm {
        layers.push(Layer::new("bn", Kind::BatchNorm));
    }
    layers.push(Layer::new("", Kind::Tanh));
    if hidden > 0 {
        layers.push(Layer::new("hidden", Kind::Linear { outputs: hidden, bias: true }));
        layers.push(Layer::new("", Kind::Tanh));
    }
    layers.push(Layer::new("fc", Kind::Linear { outputs: 4, bias: true }));
    Network { input: [6, 6, 2], layers }
}

fn data(images: usize) -> Dataset {
    Recipe { shape: Shape::new(6, 6, 2), classes: 4, train: images, test: 20, seed: 3 }.make()
}

fn job(sync: SyncMethod, workers: usize, batch: usize) -> Job {
    Job {
        rule: Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 1e-3 },
        lr: 0.02,
        seed: 5,
        shuffle: true,
        test_every: Some(1),
        ..Job::new(Design::new("small", network(0, false)).unwrap(), sync, workers, batch, Length::Epochs(3))
    }
}

fn stale(servers: usize, staleness: usize) -> SyncMethod {
    SyncMethod::Stale { servers: Servers::Apart(servers), staleness }
}

fn asynchronous(servers: usize, period: f64, staleness_aware: bool) -> SyncMethod {
    SyncMethod::Async { servers: Servers::Apart(servers), period, staleness_aware }
}

fn assert_same(what: &str, ours: &Run, theirs: &Run) {
    assert_eq!(ours.steps.len(), theirs.steps.len(), "{what}: steps");
    for (step, (ours, theirs)) in ours.steps.iter().zip(&theirs.steps).enumerate() {
        let (ours, theirs) = (ours.loss, theirs.loss);
        assert!((ours - theirs).abs() <= 1e-5 * theirs.abs(), "{what}, step {step}: loss {ours} is not {theirs}");
    }
    assert_eq!(ours.summary.epoch_test_accuracies, theirs.summary.epoch_test_accuracies, "{what}");
}

#[test]
fn stale_without_staleness_is_the_parameter_server_bit_for_bit() {
    // 47 images: uneven shards, a short last batch, and workers that run out before others.
    let data = data(47);
    for rule in [
        Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-3 },
        Rule::Adam { betas: [0.9, 0.999], weight_decay: 1e-3 },
        Rule::Lars { momentum: 0.9, weight_decay: 1e-3, trust: 0.01 },
    ] {
        let weights = |sync| train(&Job { rule, ..job(sync, 3, 3) }, Over::Mem, &data).summary.weights_sha256;
        let one = weights(SyncMethod::ParameterServer { servers: Servers::Apart(1) });
        for servers in 1..=3 {
            // Shards are whole tensors, so their number changes nothing either.
            assert_eq!(
                weights(SyncMethod::ParameterServer { servers: Servers::Apart(servers) }),
                one,
                "{servers} servers, {rule:?}"
            );
            assert_eq!(weights(stale(servers, 0)), one, "{servers} servers, {rule:?}");
        }
    }
}

#[test]
fn the_parameter_server_follows_one_rank() {
    let data = data(47);
    for (over, workers, servers) in [(Over::Mem, 1, 1), (Over::Mem, 4, 3), (Over::Tcp, 3, 2), (Over::Shm, 3, 2)] {
        let alone = train(&job(SyncMethod::Single, 1, 3 * workers), Over::Mem, &data);
        let served =
            train(&job(SyncMethod::ParameterServer { servers: Servers::Apart(servers) }, workers, 3), over, &data);
        assert_same(&format!("{workers} workers, {servers} servers over {over:?}"), &served, &alone);
    }
    let (accumulating, large) =
        (job(SyncMethod::ParameterServer { servers: Servers::Apart(2) }, 3, 2), job(SyncMethod::Single, 1, 12));
    let accumulating = Job { accumulate: 2, ..accumulating };
    assert_same("accumulated", &train(&accumulating, Over::Mem, &data), &train(&large, Over::Mem, &data));
    let normalising = |sync, workers, batch, batch_norm| {
        let model = Design::new("small", network(0, true)).unwrap();
        train(&Job { model, batch_norm, ..job(sync, workers, batch) }, Over::Mem, &data)
    };
    let served = normalising(SyncMethod::ParameterServer { servers: Servers::Apart(1) }, 3, 3, BatchNorm::Sync);
    assert_same("batch norm", &served, &normalising(SyncMethod::Single, 1, 9, BatchNorm::Local));
}

/// A server's part of the traffic: every gradient of its shard comes in, and as many parameters go out.
#[test]
fn servers_receive_all_gradients_and_send_all_parameters() {
    let data = data(40);
    let job = job(SyncMethod::ParameterServer { servers: Servers::Apart(2) }, 4, 5);
    let ranks = run_ranks(&job, Over::Mem, &data);
    let model =
        4 * job.model.network().parameters().unwrap().iter().map(|tensor| tensor.range().len() as u64).sum::<u64>();
    let outcomes = ranks[4..].iter().map(|rank| &rank.record.outcome);
    let received: u64 = outcomes.clone().map(|outcome| outcome.bytes_received).sum();
    let sent: u64 = outcomes.clone().map(|outcome| outcome.bytes_sent).sum();
    // Each of four workers pushes six times, and pulls six times, once to learn that it is the end, and in the end.
    let (pushed, pulled) = (4 * 6 * model, 4 * 8 * model);
    assert!((pushed..pushed + pushed / 4).contains(&received), "{received} bytes are not {pushed} and some messages");
    assert!((pulled..pulled + pulled / 4).contains(&sent), "{sent} bytes are not {pulled} and some messages");
    assert!(outcomes.clone().all(|outcome| outcome.steps == 6 && outcome.staleness == [4 * 6]));
}

/// Runs a job whose workers pause at random after their steps. Returns what each rank ended with.
fn with_pauses(job: &Job, over: Over, data: &Dataset, pause: impl Fn(usize, u64) -> u64 + Sync) -> Vec<RankRun> {
    let job = &Job { trace_steps: usize::MAX, ..job.clone() };
    job.validate(data.train.len()).unwrap();
    on_ranks(over, job.ranks(), |mut group| {
        let (rank, mut random) = (group.rank(), 0x9e37_79b9_7f4a_7c15 ^ group.rank() as u64);
        let (mut epochs, mut steps) = (Vec::new(), Vec::new());
        let mut keep = |report| match report {
            Report::Epoch(epoch) => epochs.push(epoch),
            Report::Steps(more) => steps.extend(more),
            // After each step of a worker.
            Report::Spans(_) if rank < job.workers => {
                random ^= random << 13;
                random ^= random >> 7;
                random ^= random << 17;
                sleep(Duration::from_micros(pause(rank, random)));
            }
            Report::Spans(_) | Report::Closing(_) | Report::Checkpoint(_) | Report::Point { .. } | Report::Saved(_) => {
            }
        };
        let (outcome, weights) = worker::run(job, data, &mut group, &mut keep).unwrap();
        let record = ringstep_train::summary::RankRecord { epochs, outcome };
        RankRun { record, steps, spans: Vec::new(), weights }
    })
}

#[test]
fn nobody_is_further_ahead_than_allowed_whoever_is_slow() {
    let data = data(40);
    for (staleness, servers, steps) in [(2, 2, 1000), (0, 1, 100), (5, 1, 100)] {
        let job =
            Job { length: Length::Steps(steps), test_every: None, lr: 1e-3, ..job(stale(servers, staleness), 3, 2) };
        // Some pauses of all, and more of the last worker.
        let pause = |rank: usize, random: u64| match random % 16 {
            0 => 300,
            1..4 if rank == 2 => 400,
            _ => 0,
        };
        let ranks = with_pauses(&job, Over::Mem, &data, pause);
        let done: Vec<usize> = ranks[..3].iter().map(|rank| rank.record.outcome.steps).collect();
        assert_eq!(done.iter().sum::<usize>(), 3 * steps, "{done:?}");
        // Nobody can have done more than the bound beyond the slowest, and the end does not change that.
        let spread = done.iter().max().unwrap() - done.iter().min().unwrap();
        assert!(spread <= staleness + 1, "{done:?} with a staleness of {staleness}");
        for server in &ranks[3..] {
            let seen = &server.record.outcome.staleness;
            assert!(seen.len() <= staleness + 1, "{seen:?}");
            assert!(staleness == 0 || seen[1..].iter().sum::<u64>() > 0, "nobody was ahead, so this shows nothing");
        }
        assert!(ranks[..3].iter().all(|rank| rank.weights == ranks[0].weights));
    }
}

#[test]
fn asynchronous_workers_share_the_steps_and_end_with_the_same_bits() {
    let data = data(40);
    for (over, sync) in [
        (Over::Mem, asynchronous(2, 0.0, false)),
        (Over::Mem, asynchronous(1, 0.002, true)),
        (Over::Tcp, asynchronous(2, 0.0, true)),
        (Over::Shm, asynchronous(1, 0.0, false)),
    ] {
        let job = Job {
            length: Length::Epochs(20),
            rule: Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
            ..job(sync, 3, 4)
        };
        let ranks = with_pauses(&job, over, &data, |rank, _| if rank == 2 { 4000 } else { 500 });
        let steps = job.steps(40);
        let done: Vec<usize> = ranks[..3].iter().map(|rank| rank.record.outcome.steps).collect();
        assert_eq!(done.iter().sum::<usize>(), 3 * steps, "{done:?}");
        // Who is slow does less, and nobody waits for it.
        assert!(done[2] < done[0] && done[2] < done[1], "{done:?}");
        assert!(ranks[..3].iter().all(|rank| rank.weights == ranks[0].weights));
        let loss = |of: &[ringstep_train::records::Step]| {
            of.iter().map(|step| step.loss_sum).sum::<f64>() / of.iter().map(|step| step.images as f64).sum::<f64>()
        };
        let steps = &ranks[0].steps;
        let (early, late) = (loss(&steps[..10]), loss(&steps[steps.len() - 10..]));
        assert!(late < 0.9 * early, "{sync:?}: from {early} to {late}");
        for server in &ranks[3..] {
            assert_eq!(server.record.outcome.staleness.iter().sum::<u64>(), 3 * job.steps(40) as u64);
        }
    }
}

/// One worker alone has nobody to be stale beside: `single`, by any of the ways.
/// With as many steps as workers some get several and others none, who end like those that did.
#[test]
fn a_worker_that_comes_too_late_for_a_step_ends_with_the_others() {
    let (job, data) = (Job { length: Length::Steps(1), ..job(asynchronous(2, 0.0, false), 6, 2) }, data(24));
    let one_did_none = |round: usize| {
        let ranks = run_ranks(&job, OVER[round % 3], &data);
        let done: Vec<usize> = ranks[..6].iter().map(|rank| rank.steps.len()).collect();
        assert_eq!(done.iter().sum::<usize>(), 6, "{done:?}");
        assert!(ranks[1..6].iter().all(|rank| rank.weights == ranks[0].weights));
        done.contains(&0)
    };
    assert!((0..400).filter(|&round| one_did_none(round)).take(9).count() == 9, "nobody ever came too late");
}

#[test]
fn one_worker_is_served_as_if_it_were_alone() {
    let data = data(40);
    let alone = train(&job(SyncMethod::Single, 1, 8), Over::Mem, &data);
    for sync in [SyncMethod::ParameterServer { servers: Servers::Apart(2) }, stale(2, 3), asynchronous(2, 0.0, true)] {
        let served = train(&job(sync, 1, 8), Over::Mem, &data);
        assert_eq!(served.summary.weights_sha256, alone.summary.weights_sha256, "{sync:?}");
    }
}

/// Shards of more numbers than any buffer on the way holds, pushed and pulled by all at once.
#[test]
fn large_shards_of_many_workers_and_servers_get_through() {
    let data = data(40);
    let model = Design::new("large", network(4000, false)).unwrap();
    for over in OVER {
        for sync in
            [SyncMethod::ParameterServer { servers: Servers::Apart(3) }, stale(3, 1), asynchronous(3, 0.0, false)]
        {
            let length = Length::Steps(3);
            let job = Job { model: model.clone(), length, test_every: None, lr: 1e-3, ..job(sync, 5, 2) };
            let ranks = run_ranks(&job, over, &data);
            assert_eq!(ranks[..5].iter().map(|rank| rank.record.outcome.steps).sum::<usize>(), 15);
            assert!(ranks[..5].iter().all(|rank| rank.weights == ranks[0].weights), "{sync:?} over {over:?}");
        }
    }
}

/// Numbers of all parameters.
fn parameters_of(job: &Job) -> usize {
    job.model.network().parameters().unwrap().iter().map(|tensor| tensor.range().len()).sum()
}

/// What every rank does before the first step, by one that will do nothing that it should after it.
fn get_ready(job: &Job, group: &mut Group) {
    let mut values = vec![0f32; parameters_of(job)];
    let is_server = group.rank() >= job.workers;
    let mut own_kind = group.split(i64::from(is_server), group.rank() as i64).unwrap();
    group.broadcast(&mut values, 0).unwrap();
    if !is_server {
        own_kind.broadcast(&mut [0f32; 0], 0).unwrap();
    }
    Timebase::agree(group).unwrap();
    group.barrier().unwrap();
}

/// What each rank says in the end, if `strange` ranks do something else; `None` of these.
fn errors(job: &Job, over: Over, strange: &(dyn Fn(&mut Group) -> bool + Sync)) -> Vec<Option<String>> {
    let data = data(40);
    on_ranks(over, job.ranks(), |mut group| {
        let ended = catch_unwind(AssertUnwindSafe(|| {
            if strange(&mut group) {
                return None;
            }
            Some(worker::run(job, &data, &mut group, &mut |_| ()).unwrap_err().to_string())
        }));
        // Whatever a rank ends of, its connections end with it.
        drop(group);
        ended.unwrap_or(None)
    })
}

#[test]
fn a_message_that_makes_no_sense_names_its_rank() {
    let job = job(SyncMethod::ParameterServer { servers: Servers::Apart(1) }, 2, 3);
    let all = parameters_of(&job);
    // A message, and so many numbers after it.
    let message = |numbers: [u64; 5]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let push = |version, start, length| message([0, version, 1, start, length]);
    let (pull, finish) = (message([1, 0, 0, 0, 0]), message([2, 0, 0, 0, 0]));
    let cases = [
        ("it means nothing", vec![(vec![7; 40], 0)]),
        ("it means nothing", vec![(vec![], 0)]),
        ("it comes before the answer to the last", vec![(finish, 0), (pull.clone(), 0)]),
        ("it comes in the middle of a gradient", vec![(push(0, 0, 1), 1), (pull, 0)]),
        ("it does not go on where the gradient before it ended", vec![(push(0, 3, 1), 0)]),
        ("it does not go on where the gradient before it ended", vec![(push(0, 0, 1), 1), (push(1, 1, 1), 0)]),
        ("it is no piece of a gradient of the shard", vec![(push(0, 0, u64::MAX), 0)]),
        ("it is no piece of a gradient of the shard", vec![(push(0, 0, 0), 0)]),
        ("a clock before which the worker has left one out", vec![(push(9, 0, all as u64), all)]),
    ];
    for (over, (problem, messages)) in OVER.into_iter().flat_map(|over| cases.iter().map(move |case| (over, case))) {
        let ends = errors(&job, over, &|group| {
            if group.rank() != 1 {
                return false;
            }
            get_ready(&job, group);
            for (message, numbers) in messages {
                group.send_varied(message, 40, 2).unwrap();
                if *numbers > 0 {
                    group.send(&vec![0f32; *numbers], 2).unwrap();
                }
            }
            // It stays until the server has had enough of it.
            while group.recv_any(&[2], 40, &mut Vec::new(), None).is_ok() {}
            true
        });
        let expected = format!("rank 2: a message of rank 1 makes no sense: {problem}");
        assert_eq!(ends[2].as_ref(), Some(&expected), "over {over:?}");
        assert!(ends[0].as_ref().unwrap().contains("rank 2: connection closed"), "{ends:?}");
    }
}

#[test]
fn a_code_that_makes_no_sense_names_its_rank() {
    let sync = SyncMethod::ParameterServer { servers: Servers::Apart(1) };
    let all = parameters_of(&job(sync, 2, 3));
    let matrices = Method::PowerSgd { rank: 1 };
    // So many numbers are pushed by these numbers of four bytes, which might have been so many bytes.
    let cases = [
        // One number of two, for a place that is not there.
        (Method::TopK { keep: 0.5 }, 2, vec![1u32, 7, 0], 12, "index 7 of 2"),
        (matrices, 1, vec![0], 4, "it is not of whole parameters"),
        (matrices, all, vec![0; 3], 4 * all, "12 bytes instead of "),
    ];
    for (over, (method, length, code, limit, problem)) in
        OVER.into_iter().flat_map(|over| cases.iter().map(move |case| (over, case)))
    {
        let job = Job { compress: Some(Compression::new(*method)), ..job(sync, 2, 3) };
        let ends = errors(&job, over, &|group| {
            if group.rank() != 1 {
                return false;
            }
            get_ready(&job, group);
            let push: Vec<u8> = [0, 0, 1, 0, *length as u64].iter().flat_map(|number| number.to_le_bytes()).collect();
            group.send_varied(&push, 40, 2).unwrap();
            let code: Vec<u8> = code.iter().flat_map(|number| number.to_le_bytes()).collect();
            group.send_varied(&code, *limit, 2).unwrap();
            while group.recv_any(&[2], 40, &mut Vec::new(), None).is_ok() {}
            true
        });
        let expected = format!("rank 2: step 0, piece 0: rank 1 sent no valid {} code: {problem}", method.name());
        assert!(ends[2].as_ref().unwrap().starts_with(&expected), "over {over:?}: {ends:?}");
    }
}

/// Every rank has its part in the summary, servers too, and out of lockstep every worker's step has its own line.
#[test]
fn summaries_tell_workers_and_servers_apart() {
    let data = data(40);
    for (sync, lockstep) in [
        (SyncMethod::ParameterServer { servers: Servers::Apart(2) }, true),
        (SyncMethod::ParameterServer { servers: Servers::Colocated }, true),
        (asynchronous(2, 0.0, false), false),
    ] {
        let job = job(sync, 4, 5);
        let Run { summary, steps, .. } = train(&job, Over::Mem, &data);
        let (ranks, done) = (job.ranks(), job.steps(40));
        assert_eq!((summary.servers, summary.repeatable), (ranks - 4, lockstep));
        assert_eq!((summary.wait_seconds.len(), summary.rank_updates_per_second.len()), (ranks, ranks));
        assert_eq!(summary.rank_bytes.len(), ranks);
        assert!(summary.rank_bytes.iter().all(|bytes| bytes[2] >= bytes[0] && bytes[3] >= bytes[1]));
        assert_eq!(summary.bytes_sent, summary.rank_bytes.iter().map(|bytes| bytes[0]).max().unwrap());
        assert_eq!(summary.bytes_dense, summary.bytes_sent);
        // Every byte on the way is told by what it is.
        assert_eq!(summary.sent.total(), summary.rank_bytes.iter().map(|bytes| bytes[2]).sum::<u64>());
        assert!(summary.sent.gradients > 0 && summary.sent.parameters > 0 && summary.sent.images == 0);
        assert_eq!(summary.rank_images_per_second.len(), 4);
        assert_eq!(summary.steps, done);
        assert_eq!(steps.len(), if lockstep { done } else { 4 * done });
        assert!(steps.iter().all(|step| step.rank.is_none() == lockstep && step.staleness.is_some()), "{steps:?}");
        let observed: u64 = summary.staleness_histogram.iter().sum();
        assert_eq!(observed, (4 * done * summary.servers) as u64);
        assert_eq!(summary.tests.last().map(|test| test.accuracy), Some(summary.test_accuracy));
        assert!(summary.tests.windows(2).all(|pair| pair[0].bytes < pair[1].bytes), "{:?}", summary.tests);
    }
}

#[test]
fn a_worker_or_a_server_that_dies_is_named_and_nobody_waits_for_it() {
    for over in OVER {
        for sync in
            [SyncMethod::ParameterServer { servers: Servers::Apart(2) }, stale(2, 2), asynchronous(2, 0.0, false)]
        {
            let job = Job { length: Length::Steps(usize::MAX), test_every: None, lr: 1e-3, ..job(sync, 3, 2) };
            // A worker dies in the middle of its steps.
            let data = data(40);
            let traced = Job { trace_steps: 4, ..job.clone() };
            let ends = errors(&job, over, &|group| {
                if group.rank() != 1 {
                    return false;
                }
                let steps = AtomicU64::new(0);
                let _ = worker::run(&traced, &data, group, &mut |report| {
                    if matches!(report, Report::Spans(_)) && steps.fetch_add(1, Ordering::Relaxed) == 2 {
                        resume_unwind(Box::new("it is gone"));
                    }
                });
                true
            });
            assert!(ends[1].is_none());
            let named = |end: &Option<String>| end.as_ref().unwrap().contains("rank 1: connection closed");
            assert!(ends[3..].iter().any(named), "{sync:?} over {over:?}: {ends:?}");
            assert!(ends[0].as_ref().unwrap().contains("connection closed"), "{ends:?}");

            // A server dies before it has answered anybody.
            let ends = errors(&job, over, &|group| {
                let dies = group.rank() == 4;
                if dies {
                    get_ready(&job, group);
                }
                dies
            });
            assert!(ends[4].is_none());
            let named = |end: &Option<String>| end.as_ref().unwrap().contains("rank 4: connection closed");
            assert!(ends[..3].iter().any(named), "{sync:?} over {over:?}: {ends:?}");
            assert!(ends[..4].iter().all(|end| end.as_ref().unwrap().contains("connection closed")), "{ends:?}");
        }
    }
}

/// A worker in whose place another does something else, with little time to be silent. What the worker beside it and the
/// server say in the end.
fn beside(strange: impl Fn(&mut Group) + Sync) -> [String; 2] {
    let data = data(40);
    let job = Job { length: Length::Steps(1), ..job(SyncMethod::ParameterServer { servers: Servers::Apart(1) }, 2, 3) };
    let (job, data, strange) = (&job, &data, &strange);
    let ends: Vec<String> = std::thread::scope(|scope| {
        let rank = |transport: mem::Mem| {
            scope.spawn(move || {
                let mut group = Group::new(transport.with_timeout(SILENCE));
                if group.rank() == 1 {
                    get_ready(job, &mut group);
                    strange(&mut group);
                    return String::new();
                }
                worker::run(job, data, &mut group, &mut |_| ())
                    .map_or_else(|error| error.to_string(), |_| "done".into())
            })
        };
        let ranks: Vec<_> = mem::mesh(3).into_iter().map(rank).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    });
    [ends[0].clone(), ends[2].clone()]
}

/// After which silence is a fault.
const SILENCE: Duration = Duration::from_millis(400);

#[test]
fn who_owes_a_gradient_and_is_silent_is_named() {
    let [worker, server] = beside(|group| {
        // It is there, until the server is gone.
        while group.recv_any(&[2], 40, &mut Vec::new(), None).is_ok() {}
    });
    assert_eq!(server, "rank 2: nothing from rank 1 for 400ms, and rank 0 waits for it");
    assert!(worker.contains("rank 2: connection closed"), "{worker}");
}

/// It takes four times as long as one may be silent, and says something in between.
#[test]
fn who_is_slow_and_not_silent_is_waited_for() {
    let job = job(SyncMethod::ParameterServer { servers: Servers::Apart(1) }, 2, 3);
    let all: usize = job.model.network().parameters().unwrap().iter().map(|tensor| tensor.range().len()).sum();
    let message = |numbers: [u64; 5]| numbers.iter().flat_map(|number| number.to_le_bytes()).collect::<Vec<u8>>();
    let [worker, server] = beside(|group| {
        let ask = |group: &mut Group, kind| {
            group.send_varied(&message([kind, 0, 0, 0, 0]), 40, 2).unwrap();
            let mut answer = Vec::new();
            while answer.first() != Some(&0) {
                group.recv_varied(2, 40, &mut answer).unwrap();
            }
            group.recv(&mut vec![0f32; all], 2).unwrap();
        };
        ask(group, 1);
        for start in 0..8 {
            sleep(SILENCE / 2);
            let length = if start < 7 { 1 } else { all - 7 };
            group.send_varied(&message([0, 0, 3, start, length as u64]), 40, 2).unwrap();
            group.send(&vec![0f32; length], 2).unwrap();
        }
        ask(group, 1);
        ask(group, 2);
        Timebase::agree(group).unwrap();
    });
    assert_eq!(server, "done");
    // What comes afterwards is the workers' own business.
    assert!(!worker.contains("nothing from"), "{worker}");
}
