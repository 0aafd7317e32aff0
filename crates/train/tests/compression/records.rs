//! What is recorded of codes: bytes, errors, and the time that they took.

use ringstep_comm::collective::chunk;
use ringstep_comm::{Algorithm, Topology, cost};
use ringstep_train::Job;
use ringstep_train::compress::{Compression, Method};
use ringstep_train::job::Length;
use ringstep_train::trace::{Kind as SpanKind, Track};

use crate::common::{Over, RankRun, run_ranks, train};
use crate::{IMAGES, averaging, data, ddp, job, serving};

/// Numbers of its gradients.
const NUMBERS: usize = 6 * 19 + 10 * 55 + 4 * 361;

const WORKERS: usize = 4;
const STEPS: usize = 3;

/// What each rank sends in a step, of one bucket with all numbers.
fn expected(method: Method, rank: usize) -> usize {
    let ring = |elements, size| {
        cost::bytes_sent(Algorithm::Ring, rank, &Topology::new(vec![0; WORKERS], false), elements, size)
    };
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

#[test]
fn encoding_is_traced_where_exchanges_go_on() {
    let data = data(IMAGES);
    for sync in [ddp(3000), averaging()[0], serving()[0]] {
        let job = Job { trace_steps: usize::MAX, ..job(sync, 3, Compression::new(Method::TopK { keep: 0.1 })) };
        for RankRun { spans, record, .. } in &run_ranks(&job, Over::Mem, &data)[..3] {
            let encoding: Vec<_> = spans.iter().filter(|span| span.kind == SpanKind::Encode).collect();
            assert!(!encoding.is_empty() && encoding.iter().all(|span| span.track == Track::Communication), "{sync:?}");
            let seconds: f64 = encoding.iter().map(|span| span.seconds).sum();
            assert!(seconds <= record.outcome.compressed.unwrap().encode_seconds + 1e-9, "{sync:?}");
        }
    }
}

#[test]
fn servers_say_how_long_they_decode() {
    let job = Job { trace_steps: usize::MAX, ..job(serving()[0], 3, Compression::new(Method::Int8)) };
    let ranks = run_ranks(&job, Over::Mem, &data(IMAGES));
    for RankRun { spans, record, .. } in &ranks[3..] {
        let (outcome, compressed) = (&record.outcome, record.outcome.compressed.unwrap());
        let decoding = spans.iter().filter(|span| span.kind == SpanKind::Encode);
        assert!(decoding.clone().count() >= 3 * job.steps(IMAGES));
        let seconds: f64 = decoding.map(|span| span.seconds).sum();
        assert!(0.0 < seconds && seconds <= compressed.encode_seconds + 1e-9);
        assert_eq!(compressed.bytes_dense, outcome.bytes_sent);
    }
    let summary = train(&job, Over::Mem, &data(IMAGES)).summary;
    let (workers, servers) = summary.rank_encode_seconds.split_at(3);
    let expected = workers.iter().sum::<f64>() / 3.0 + servers[0].max(servers[1]);
    assert!((summary.encode_seconds - expected).abs() < 1e-9, "{summary:?}");
}
