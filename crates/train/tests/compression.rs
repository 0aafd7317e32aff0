//! Gradients that are compressed on their way: the same curve where nothing is left out, the same bits on all ranks and in every
//! repetition, as many bytes as the formulas say, and an error that names whoever sends what is no code.

mod common;

use std::thread;
use std::time::{Duration, Instant};

use common::{ALL_REDUCE, Over, RING, RankRun, Run, run_ranks, train};
use ringstep_comm::call::{Call, Collective};
use ringstep_comm::collective::chunk;
use ringstep_comm::transport::{Aborter, Incoming, Outgoing, Shared, Traffic, Transport, TransportError, mem};
use ringstep_comm::{Algorithm, Group, cost};
use ringstep_data::synthetic::Recipe;
use ringstep_data::{Dataset, Shape};
use ringstep_nn::Network;
use ringstep_nn::network::{Kind, Layer, Pair};
use ringstep_nn::optim::Rule;
use ringstep_train::compress::{Compression, Method};
use ringstep_train::job::{Design, Length};
use ringstep_train::{Job, SyncMethod, worker};

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

/// Numbers of its gradients.
const NUMBERS: usize = 6 * 19 + 10 * 55 + 4 * 361;

/// Layers that multiply by matrices: the gradient of one has a rank of at most the images of a step.
fn perceptron() -> Network {
    let linear = |name: &str, outputs| Layer::new(name, Kind::Linear { outputs, bias: true });
    let layers = vec![linear("fc0", 40), Layer::new("", Kind::Tanh), linear("fc1", 4)];
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
        verify_every: Some(1),
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

/// Uneven shards, a short last batch, and ranks that run out before others.
const IMAGES: usize = 47;

#[test]
fn at_full_rate_nothing_is_lost() {
    let data = data(IMAGES);
    let methods = [
        Method::TopK { keep: 1.0 },
        Method::Threshold { threshold: 0.0 },
        Method::RandomK { keep: 1.0 },
        Method::PowerSgd { rank: 1000 },
    ];
    for workers in [1, 2, 3, 5] {
        let single = train(&alone(3 * workers), Over::Mem, &data);
        for (method, error_feedback) in methods.into_iter().flat_map(|method| [(method, true), (method, false)]) {
            for sync in [ddp(1), ddp(3000), ddp(usize::MAX), ALL_REDUCE] {
                let job = job(sync, workers, Compression { method, error_feedback });
                let what = format!("{workers} workers, {method:?}, {sync:?}");
                assert_near(&what, &train(&job, Over::Mem, &data), &single, 1e-5);
            }
        }
    }
}

#[test]
fn every_algorithm_carries_codes() {
    let data = data(IMAGES);
    let single = train(&alone(9), Over::Mem, &data);
    for algorithm in Algorithm::ALL.map(Some).into_iter().chain([None]) {
        for method in [Method::RandomK { keep: 1.0 }, Method::PowerSgd { rank: 1000 }, Method::Fp16] {
            let sync = SyncMethod::Ddp { algorithm, bucket: Some(3000) };
            let run = train(&job(sync, 3, Compression::new(method)), Over::Mem, &data);
            assert_near(&format!("{method:?}, {sync:?}"), &run, &single, 1e-3);
        }
    }
}

/// Three workers with two images each: six vectors are enough.
#[test]
fn power_sgd_is_exact_where_gradients_have_its_rank() {
    let data = data(IMAGES);
    let of = |job| Job { model: Design::new("perceptron", perceptron()).unwrap(), ..job };
    let single = train(&of(alone(6)), Over::Mem, &data);
    let run = |rank, sync| {
        let job = of(Job { batch: 2, ..job(sync, 3, Compression::new(Method::PowerSgd { rank })) });
        train(&job, Over::Mem, &data)
    };
    for sync in [ddp(usize::MAX), ddp(1), ALL_REDUCE] {
        // Vectors that are nearly parallel cost some of the last digits.
        assert_near(&format!("{sync:?}"), &run(6, sync), &single, 1e-3);
        let too_few = losses(&run(3, sync));
        let far = |(ours, theirs): (&f64, &f64)| (ours - theirs).abs() > 1e-2 * theirs.abs();
        assert!(too_few.iter().zip(&losses(&single)).any(far), "{too_few:?}");
    }
}

#[test]
fn accumulated_batches_are_compressed_once() {
    let data = data(53);
    let single = train(&alone(18), Over::Mem, &data);
    for sync in [ddp(700), ALL_REDUCE] {
        let compressed = job(sync, 3, Compression::new(Method::TopK { keep: 1.0 }));
        let accumulating = Job { accumulate: 2, ..compressed };
        assert_near(&format!("{sync:?}"), &train(&accumulating, Over::Mem, &data), &single, 1e-5);
    }
}

#[test]
fn halves_are_close() {
    let data = data(IMAGES);
    let single = train(&alone(9), Over::Mem, &data);
    for (method, tolerance) in [(Method::Fp16, 1e-3), (Method::Bf16, 1e-2)] {
        for sync in [ddp(3000), ALL_REDUCE] {
            let run = train(&job(sync, 3, Compression::new(method)), Over::Mem, &data);
            assert_near(&format!("{method:?}, {sync:?}"), &run, &single, tolerance);
            assert_ne!(losses(&run), losses(&single));
        }
    }
}

/// Where everything is sent at once there is no momentum to correct, and factor masking leaves none: plain SGD.
#[test]
fn dgc_that_sends_everything_is_sgd_without_momentum() {
    let data = data(IMAGES);
    let single = train(&Job { rule: sgd(0.0), ..alone(9) }, Over::Mem, &data);
    let method = Method::Dgc { keep: 1.0, warm_up_epochs: 0, clip: None };
    let clipping = Method::Dgc { keep: 1.0, warm_up_epochs: 0, clip: Some(1e-3) };
    for sync in [ddp(3000), ALL_REDUCE] {
        let run = |method| train(&job(sync, 3, Compression::new(method)), Over::Mem, &data);
        assert_near(&format!("{sync:?}"), &run(method), &single, 1e-5);
        // Gradients as short as that hardly move anything.
        let (first, last) = (losses(&run(clipping))[0], *losses(&run(clipping)).last().unwrap());
        assert!((first - last).abs() < 0.5 * first, "{first} to {last}");
        assert_ne!(losses(&run(clipping)), losses(&single));
    }
}

/// `verify_every` compares the ranks after each step.
#[test]
fn at_its_defaults_each_keeps_ranks_equal_learns_and_repeats() {
    let data = data(IMAGES);
    for method in Method::ALL {
        for sync in [SyncMethod::Ddp { algorithm: RING, bucket: None }, ddp(2000), ALL_REDUCE] {
            let job = Job { length: Length::Epochs(8), ..job(sync, 4, Compression::new(method)) };
            let [run, again] = [(); 2].map(|()| train(&job, Over::Mem, &data));
            assert_eq!(run.summary.weights_sha256, again.summary.weights_sha256, "{method:?}, {sync:?}");
            let (first, last) = (run.summary.epoch_losses[0], run.summary.train_loss);
            assert!(last < 0.9 * first, "{method:?}, {sync:?}: loss from {first} to {last}");
        }
    }
}

#[test]
fn what_carries_the_codes_does_not_matter() {
    let data = data(IMAGES);
    for method in Method::ALL {
        let job = job(ddp(2000), 3, Compression::new(method));
        let [mem, tcp, shm] =
            [Over::Mem, Over::Tcp, Over::Shm].map(|over| train(&job, over, &data).summary.weights_sha256);
        assert_eq!(mem, tcp, "{method:?}");
        assert_eq!(mem, shm, "{method:?}");
    }
}

/// With and without error feedback it is another trajectory, for all that leave something out.
#[test]
fn any_method_can_wear_error_feedback() {
    let data = data(IMAGES);
    for method in Method::ALL.into_iter().filter(|method| !matches!(method, Method::Dgc { .. })) {
        let [with, without] = [true, false].map(|error_feedback| {
            train(&job(ddp(usize::MAX), 3, Compression { method, error_feedback }), Over::Mem, &data)
        });
        assert_ne!(with.summary.weights_sha256, without.summary.weights_sha256, "{method:?}");
    }
}

const WORKERS: usize = 4;
const STEPS: usize = 3;

/// What each rank sends in a step, of one bucket with all numbers.
fn expected(method: Method, rank: usize) -> usize {
    let ring = |elements, size| cost::bytes_sent(Algorithm::Ring, rank, &[0; WORKERS], false, elements, size);
    let to_all = |code: usize| (WORKERS - 1) * code;
    // Codes of a chunk to each owner, then all codes of sums but that of the right neighbour.
    let in_halves = |bytes: &dyn Fn(usize) -> usize| -> usize {
        let of = |owner: usize| bytes(chunk(NUMBERS, WORKERS, owner).len());
        let but = |left_out: usize| (0..WORKERS).filter(|&owner| owner != left_out).map(of).sum::<usize>();
        but(rank) + but((rank + 1) % WORKERS)
    };
    let share = |keep: f64| (keep * NUMBERS as f64).ceil() as usize;
    match method {
        Method::Fp16 | Method::Bf16 => ring(NUMBERS, 2),
        Method::Int8 => in_halves(&|numbers| numbers + 4 * numbers.div_ceil(256)),
        Method::Int4 => in_halves(&|numbers| numbers.div_ceil(2) + 4 * numbers.div_ceil(256)),
        Method::Sign => to_all(4 + 4 * NUMBERS.div_ceil(32)),
        Method::TopK { keep } | Method::Dgc { keep, .. } => to_all(4 + 8 * share(keep)),
        Method::RandomK { keep } => ring(share(keep), 4),
        Method::Threshold { .. } => to_all(4 + 8 * NUMBERS),
        Method::PowerSgd { rank } => {
            let (rows, columns, biases) = (6 + 10 + 4, 18 + 54 + 360, 6 + 10 + 4);
            ring(rows * rank + biases, 4) + ring(columns * rank, 4)
        }
    }
}

#[test]
fn bytes_are_those_of_the_formulas() {
    let data = data(IMAGES);
    let run = |compress: Option<Compression>| {
        let job = Job { verify_every: None, length: Length::Steps(STEPS), ..job(ddp(usize::MAX), WORKERS, compress) };
        run_ranks(&job, Over::Mem, &data)
    };
    let dense = run(None);
    assert!(dense.iter().all(|rank| rank.record.outcome.compressed.is_none()));
    let small_shares = [
        Method::TopK { keep: 0.01 },
        Method::RandomK { keep: 0.01 },
        Method::Dgc { keep: 0.01, warm_up_epochs: 0, clip: None },
        Method::PowerSgd { rank: 1 },
        Method::PowerSgd { rank: 2 },
        // The longest that there is.
        Method::Threshold { threshold: 0.0 },
    ];
    let of_fixed_length = [Method::Fp16, Method::Bf16, Method::Int8, Method::Int4, Method::Sign];
    for method in of_fixed_length.into_iter().chain(small_shares) {
        for (rank, (RankRun { record, .. }, dense)) in
            run(Some(Compression::new(method))).iter().zip(&dense).enumerate()
        {
            let (outcome, compressed) = (&record.outcome, record.outcome.compressed.unwrap());
            assert_eq!(outcome.bytes_sent, (STEPS * expected(method, rank)) as u64, "{method:?}, rank {rank}");
            assert_eq!(compressed.bytes_dense, dense.record.outcome.bytes_sent, "{method:?}, rank {rank}");
            assert_eq!(
                outcome.bytes_sent < compressed.bytes_dense,
                !matches!(method, Method::Threshold { .. }),
                "{method:?}"
            );
        }
    }
}

/// What is left out is nothing at full rate, little for halves, and less than all for what contracts.
#[test]
fn the_error_is_recorded() {
    let data = data(IMAGES);
    let error = |method| {
        let ranks = run_ranks(&job(ddp(usize::MAX), 3, Compression::new(method)), Over::Mem, &data);
        ranks[0].record.outcome.compressed.unwrap().error()
    };
    assert_eq!(error(Method::TopK { keep: 1.0 }), 0.0);
    assert_eq!(error(Method::Threshold { threshold: 0.0 }), 0.0);
    for (method, least, most) in [
        (Method::Fp16, 1e-5, 1e-3),
        (Method::Bf16, 1e-4, 1e-2),
        (Method::Int8, 1e-4, 0.05),
        (Method::Int4, 0.01, 0.9),
        (Method::Sign, 0.1, 1.0),
        (Method::TopK { keep: 0.5 }, 0.01, 0.7),
        (Method::TopK { keep: 0.01 }, 0.3, 1.0),
        (Method::RandomK { keep: 0.1 }, 0.5, 1.0),
        (Method::Dgc { keep: 0.01, warm_up_epochs: 0, clip: None }, 0.3, 1.0),
        (Method::PowerSgd { rank: 1 }, 0.05, 1.0),
    ] {
        let error = error(method);
        assert!(least < error && error < most, "{method:?}: {error}");
    }
}

/// Sends one code that is changed on its way.
struct Forger<T> {
    inner: T,
    change: fn(&mut [u8]),
    /// Whether the next message has this rank's own code.
    armed: bool,
}

impl<T: Transport> Transport for Forger<T> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world(&self) -> usize {
        self.inner.world()
    }

    fn begin(&mut self, call: Call) {
        self.armed = matches!(call.collective, Collective::AllGatherVaried | Collective::ExchangeVaried);
        self.inner.begin(call);
    }

    fn transfer(
        &mut self,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
    ) -> Result<(), TransportError> {
        match outgoing {
            Some(Outgoing { to, data }) if self.armed => {
                self.armed = false;
                let mut data = data.to_vec();
                (self.change)(&mut data);
                self.inner.transfer(Some(Outgoing { to, data: &data }), incoming)
            }
            outgoing => self.inner.transfer(outgoing, incoming),
        }
    }

    fn wait_any(&mut self, from: &[usize], until: Option<Instant>) -> Result<Option<usize>, TransportError> {
        self.inner.wait_any(from, until)
    }

    fn hosts(&self) -> &[usize] {
        self.inner.hosts()
    }

    fn timeout(&self) -> Duration {
        self.inner.timeout()
    }

    fn shared(&mut self) -> Option<&mut Shared> {
        self.inner.shared()
    }

    fn traffic(&self) -> Traffic {
        self.inner.traffic()
    }

    fn aborter(&self) -> Aborter {
        self.inner.aborter()
    }

    fn split(&mut self, members: &[usize]) -> Result<Box<dyn Transport>, TransportError> {
        self.inner.split(members)
    }
}

/// Rank 2 of 3 forges; its right neighbour gets it first.
#[test]
fn a_forged_code_is_an_error_that_names_its_rank() {
    let data = data(IMAGES);
    type Case = (Method, fn(&mut [u8]), &'static str);
    let cases: [Case; 6] = [
        (Method::TopK { keep: 0.01 }, |code| code[4 + 21 * 4..][..4].fill(0xff), "index 4294967295 of 2108"),
        (Method::TopK { keep: 0.01 }, |code| code[0] = 21, "180 bytes for 21 numbers"),
        (Method::Threshold { threshold: 0.0 }, |code| code[8..12].fill(0), "index 0 after index 0"),
        (Method::Sign, |code| code[3] = 0xff, "block 0 has the scale -"),
        (Method::Int8, |code| code[4] = 0, "block 0 has a number beyond its scale"),
        (Method::Dgc { keep: 0.01, warm_up_epochs: 0, clip: None }, |code| code[0] = 1, "180 bytes for 1 numbers"),
    ];
    for (method, change, problem) in cases {
        let job = job(ddp(usize::MAX), 3, Compression::new(method));
        let errors: Vec<String> = thread::scope(|scope| {
            let (job, data) = (&job, &data);
            let ranks = mem::mesh(3).into_iter().map(|inner| {
                scope.spawn(move || {
                    let mut group = match inner.rank() {
                        2 => Group::new(Forger { inner, change, armed: false }),
                        _ => Group::new(inner),
                    };
                    worker::run(job, data, &mut group, &mut |_| ()).unwrap_err().to_string()
                })
            });
            ranks.collect::<Vec<_>>().into_iter().map(|rank| rank.join().unwrap()).collect()
        });
        let expected = format!("rank 0: bucket 0: rank 2 sent no valid {} code: {problem}", method.name());
        assert!(errors[0].starts_with(&expected), "{errors:?}");
    }
}
