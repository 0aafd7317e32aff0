//! `ringstep bench collectives`: all-reduces timed as nccl-tests does it, checked, and beside what the cost model says.

use std::net::Ipv4Addr;
use std::str::FromStr;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use ringstep_comm::rendezvous::Encryption;
use ringstep_comm::transport::DEFAULT_TIMEOUT;
use ringstep_comm::{Algorithm, CollectiveError, Group, How, Op, tune};
use ringstep_train::job::MAX_WORKERS;
use serde::{Deserialize, Serialize};

use crate::args::CollectivesArgs;
use crate::cluster;
use crate::launch::{self, Interrupts, Message, Site, Task};
use crate::mpi;
use crate::names::{ByName, Bytes, Named, Refusal, choices};
use crate::settings::{Launch, ProcessTransport, Processes, Settings, Workers};
use crate::show;

/// What to time: the same on all ranks.
#[derive(Clone, Serialize, Deserialize)]
pub struct Plan {
    /// None within is auto.
    algorithms: Vec<ByName<Option<Algorithm>>>,
    /// Bytes of each slice.
    sizes: Vec<usize>,
    op: ByName<Op>,
    /// Calls that are timed together.
    in_a_row: usize,
}

choices! {
    /// What ranks that are timed talk through.
    pub enum BenchTransport: "transport" {
        /// Shared memory, between processes.
        Shm = "shm",
        /// Connections, between processes.
        Tcp = "tcp",
        /// The same, encrypted.
        Tls = "tls",
        /// Memory, between threads.
        Mem = "mem",
        /// MPI, between processes that it has started.
        Mpi = "mpi" if cfg!(feature = "mpi"),
    }
}

/// Algorithms to time, as a user names them.
#[derive(Debug, Clone, Copy)]
pub enum Algorithms {
    /// All that the transport allows.
    All,
    /// This one.
    One(ByName<Option<Algorithm>>),
}

impl FromStr for Algorithms {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        if text == "all" { Ok(Self::All) } else { text.parse().map(Self::One) }
    }
}

impl Named for Op {
    const KIND: &'static str = "operation";

    fn all() -> Vec<Self> {
        Self::ALL.to_vec()
    }

    fn spelling(self) -> &'static str {
        self.name()
    }
}

/// One rank's times for one size and algorithm.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Timing {
    algorithm: String,
    bytes: usize,
    seconds: Vec<f64>,
    predicted: f64,
    wrong: usize,
}

/// Which algorithm `auto` takes for slices of so many bytes and more.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub struct Choices(Vec<(usize, String)>);

/// One row of the result.
#[derive(Serialize)]
struct Row {
    collective: &'static str,
    algorithm: String,
    transport: String,
    workers: usize,
    bytes: usize,
    us_min: f64,
    us_p50: f64,
    us_p99: f64,
    algbw: f64,
    busbw: f64,
    predicted_us: f64,
    wrong: usize,
}

#[derive(Serialize)]
struct Rows {
    rows: Vec<Row>,
}

/// Iterations that are not counted.
const WARM_UP: usize = 10;
/// Workers, where nobody says how many.
const WORKERS: usize = 4;
/// For each size and algorithm: as many iterations as fit this, but not fewer than MIN nor more than MAX.
const BUDGET: Duration = Duration::from_millis(250);
const MIN: usize = 7;
const MAX: usize = 2000;
/// The most calls that are timed together.
const MAX_IN_A_ROW: usize = 1000;

#[cfg(test)]
impl Plan {
    /// One algorithm and size.
    pub fn small() -> Self {
        Self { algorithms: vec![ByName(Some(Algorithm::Ring))], sizes: vec![64], op: ByName(Op::Sum), in_a_row: 1 }
    }
}

/// Runs all transports one after the other and prints what came out.
pub fn collectives(args: &CollectivesArgs) -> Result<()> {
    let mut arrangement = args.cluster.arrange(&cluster::environment())?;
    if args.transport.iter().any(|transport| transport.0 == BenchTransport::Mpi) {
        mpi::start(&arrangement)?;
    }
    if let Some(part) = arrangement.member() {
        return launch::member::serve(part, DEFAULT_TIMEOUT);
    }
    let mut settings = Settings::default();
    settings.workers.workers = args.workers;
    arrangement.claim(&mut settings)?;
    let count = settings.workers.workers.unwrap_or(WORKERS);
    ensure!((1..=MAX_WORKERS).contains(&count), "{count} workers: 1 to {MAX_WORKERS} are possible");
    let plans = args.transport.iter().map(|transport| Ok((transport.0, plan(args, transport.0)?)));
    let plans = plans.collect::<Result<Vec<_>>>()?;
    let interrupts = Interrupts::catch()?;
    let site = arrangement.site(DEFAULT_TIMEOUT)?;
    let (mut rows, mut footers) = (Vec::new(), Vec::new());
    for (transport, plan) in plans {
        let (launched, transport) = (workers(transport), transport.spelling());
        let (timed, Choices(choices)) = run(plan, transport, count, &launched, (&site, &interrupts))?;
        rows.extend(timed);
        let choices: Vec<String> =
            choices.iter().map(|(from, name)| format!("{name} from {}", binary(*from))).collect();
        footers.push(format!("auto over {transport} with {count} workers: {}", choices.join(", ")));
    }
    site.dismiss();
    let wrong: usize = rows.iter().map(|row| row.wrong).sum();
    if args.json {
        show::print(format_args!("{}", serde_json::to_string_pretty(&Rows { rows })?))?;
    } else {
        print_table(&rows, args.op.0, &footers)?;
    }
    ensure!(wrong == 0, "{wrong} elements are wrong");
    Ok(())
}

/// The bus bandwidth, in GB/s, of all-reduces of so many bytes that these workers have nothing else to do beside.
pub fn bus_bandwidth(
    algorithm: Option<Algorithm>,
    bytes: usize,
    workers: usize,
    launched: &Workers,
    interrupts: &Interrupts,
) -> Result<f64> {
    let plan = Plan { algorithms: vec![ByName(algorithm)], sizes: vec![bytes], op: ByName(Op::Sum), in_a_row: 1 };
    let (rows, _) = run(plan, "", workers, launched, (&Site::Here, interrupts))?;
    Ok(rows[0].busbw)
}

/// Carries a plan out.
fn run(
    plan: Plan,
    transport: &str,
    workers: usize,
    launched: &Workers,
    (site, interrupts): (&Site, &Interrupts),
) -> Result<(Vec<Row>, Choices)> {
    let mut timings: Vec<Vec<Timing>> = vec![Vec::new(); workers];
    let mut choices = None;
    launch::run(&Task::Bench(plan), workers, launched, site, interrupts, &mut |rank: usize, message| {
        match message {
            Message::Timed(timing) => timings[rank].push(timing),
            Message::Noticed(line) => eprintln!("waiting: {line}"),
            Message::BenchDone(theirs) if rank == 0 => choices = Some(theirs),
            _ => {}
        }
        Ok(())
    })?;
    let of_all_ranks = |at: usize| timings.iter().map(move |rank| &rank[at]).collect::<Vec<_>>();
    let rows = (0..timings[0].len()).map(|at| row(transport, workers, &of_all_ranks(at))).collect();
    Ok((rows, choices.context("rank 0 said nothing of auto")?))
}

fn plan(args: &CollectivesArgs, transport: BenchTransport) -> Result<Plan> {
    let (in_a_row, most) = (args.in_a_row, MAX_IN_A_ROW);
    ensure!((1..=most).contains(&in_a_row), "--in-a-row {in_a_row}: 1 to {most} are possible");
    Ok(Plan { algorithms: algorithms(&args.algorithm, transport)?, sizes: sizes(args)?, op: args.op, in_a_row })
}

/// Who is timed.
fn workers(transport: BenchTransport) -> Workers {
    let encryption = if transport == BenchTransport::Tls { Encryption::Everywhere } else { Encryption::None };
    let processes = |transport| {
        let (meet, encryption) = (Ipv4Addr::LOCALHOST.into(), encryption);
        Launch::Processes(Processes { transport: ByName(transport), encryption, meet, start_with: None, pin: false })
    };
    let launch = match transport {
        BenchTransport::Shm => processes(ProcessTransport::Shm),
        BenchTransport::Tcp | BenchTransport::Tls => processes(ProcessTransport::Tcp),
        BenchTransport::Mpi => processes(ProcessTransport::Mpi),
        BenchTransport::Mem => Launch::Threads,
    };
    Workers { launch, timeout: DEFAULT_TIMEOUT, link: None }
}

fn algorithms(asked: &[Algorithms], transport: BenchTransport) -> Result<Vec<ByName<Option<Algorithm>>>> {
    let has_memory = matches!(transport, BenchTransport::Shm | BenchTransport::Mem);
    let possible = |algorithm: &Algorithm| !algorithm.needs_shared_memory() || has_memory;
    let mut chosen = Vec::new();
    for &algorithms in asked {
        match algorithms {
            Algorithms::All => {
                #[cfg(feature = "mpi")]
                chosen.extend((transport == BenchTransport::Mpi).then_some(ByName(Some(Algorithm::Mpi))));
                chosen.extend(Algorithm::ALL.into_iter().filter(possible).map(|algorithm| ByName(Some(algorithm))));
                chosen.push(ByName(None));
            }
            Algorithms::One(algorithm) => {
                let fits = algorithm.0.as_ref().is_none_or(possible);
                ensure!(fits, "{algorithm} needs memory that workers share, which {} has not", transport.spelling());
                #[cfg(feature = "mpi")]
                ensure!(
                    algorithm.0 != Some(Algorithm::Mpi) || transport == BenchTransport::Mpi,
                    "--algorithm mpi is MPI's own all-reduce: {} has none",
                    transport.spelling()
                );
                chosen.push(algorithm);
            }
        }
    }
    Ok(chosen)
}

fn sizes(args: &CollectivesArgs) -> Result<Vec<usize>> {
    let (Bytes(min), Bytes(max)) = (args.min, args.max);
    ensure!(min >= 4 && min <= max, "sizes from {min} to {max} bytes: the smallest is 4, and not above the largest");
    ensure!(max <= 4 << 30, "{} is more than 4 GiB", args.max);
    ensure!(args.factor >= 2, "--factor {}: sizes grow by at least 2", args.factor);
    // Whole elements of f32.
    Ok(std::iter::successors(Some(min), |size| size.checked_mul(args.factor))
        .take_while(|&size| size <= max)
        .map(|size| size / 4 * 4)
        .collect())
}

/// One rank's part: for each algorithm and size some checked numbers, then the times.
pub fn time_all(plan: &Plan, group: &mut Group, say: &dyn Fn(Timing)) -> Result<Message> {
    let ByName(op) = plan.op;
    tune::measure(group)?;
    let tuning = group.tuning();
    let mut buffer = vec![0f32; plan.sizes.iter().max().copied().unwrap_or(0) / 4];
    for name in &plan.algorithms {
        let ByName(algorithm) = *name;
        for &bytes in &plan.sizes {
            let data = &mut buffer[..bytes / 4];
            let how = How { algorithm, deterministic: false };
            let chosen = algorithm.unwrap_or_else(|| group.choice(bytes));
            let wrong = check(group, data, op, how)?;
            let seconds = time(group, data, op, how, plan.in_a_row)?;
            let predicted = tuning.predict(chosen, group.topology(), bytes);
            say(Timing { algorithm: name.to_string(), bytes, seconds, predicted, wrong });
        }
    }
    let mut choices: Vec<(usize, String)> = Vec::new();
    for bytes in std::iter::successors(Some(4), |size| Some(size * 2)).take_while(|&size| size <= 1 << 28) {
        let name = group.choice(bytes).name().to_owned();
        if choices.last().is_none_or(|(_, last)| *last != name) {
            choices.push((bytes, name));
        }
    }
    Ok(Message::BenchDone(Choices(choices)))
}

/// After so many elements the inputs of [`check`] repeat.
const PERIOD: usize = 56;

/// How many elements of this rank's result differ from the closed form.
fn check(group: &mut Group, data: &mut [f32], op: Op, how: How) -> Result<usize, CollectiveError> {
    let world = group.world();
    // Small integers, of which even the product of many is exact.
    let input = |rank: usize, index: usize| match op {
        Op::Product if (rank + index).is_multiple_of(8) => 2.0,
        Op::Product => 1.0,
        _ => ((rank * 3 + index) % 7) as f32,
    };
    for (index, value) in data.iter_mut().enumerate() {
        *value = input(group.rank(), index);
    }
    group.all_reduce(data, op, how)?;
    let expected = |index: usize| {
        let values = (0..world).map(|rank| input(rank, index));
        match op {
            Op::Sum => values.sum(),
            Op::Mean => values.sum::<f32>() / world as f32,
            Op::Max => values.fold(f32::NEG_INFINITY, f32::max),
            Op::Min => values.fold(f32::INFINITY, f32::min),
            Op::Product => values.product(),
        }
    };
    let period: Vec<f32> = (0..PERIOD).map(expected).collect();
    Ok(data.iter().enumerate().filter(|(index, value)| **value != period[index % PERIOD]).count())
}

/// Times of single iterations, with a barrier before each. The slice is reduced in place again and again. How far apart ranks leave
/// the barrier is part of the time, and for a small slice most of it; of several calls in a row it is the less, the more there are.
fn time(group: &mut Group, data: &mut [f32], op: Op, how: How, in_a_row: usize) -> Result<Vec<f64>, CollectiveError> {
    // Whatever the operation, this stays what it is.
    data.fill(if op == Op::Product { 1.0 } else { 0.0 });
    let mut once = |group: &mut Group| -> Result<f64, CollectiveError> {
        group.barrier()?;
        let began = Instant::now();
        for _ in 0..in_a_row {
            group.all_reduce(data, op, how)?;
        }
        Ok(began.elapsed().as_secs_f64() / in_a_row as f64)
    };
    let mut warm = 0.0;
    for _ in 0..WARM_UP {
        warm += once(group)?;
    }
    let mut count = [(BUDGET.as_secs_f64() / (warm / WARM_UP as f64 * in_a_row as f64)) as i64];
    group.broadcast(&mut count, 0)?;
    (0..count[0].clamp(MIN as i64, MAX as i64)).map(|_| once(group)).collect()
}

/// Sums up what all ranks say of one algorithm and size: an iteration takes as long as its slowest rank.
fn row(transport: &str, workers: usize, ranks: &[&Timing]) -> Row {
    let iterations = ranks[0].seconds.len();
    let slowest = |at: usize| ranks.iter().map(|rank| rank.seconds[at]).fold(0.0, f64::max);
    let mut seconds: Vec<f64> = (0..iterations).map(slowest).collect();
    seconds.sort_by(f64::total_cmp);
    // Nearest rank.
    let quantile = |share: f64| seconds[((share * iterations as f64).ceil() as usize).clamp(1, iterations) - 1];
    let (p50, p) = (quantile(0.5), workers as f64);
    let algbw = ranks[0].bytes as f64 / p50 / 1e9;
    Row {
        collective: "all_reduce",
        algorithm: ranks[0].algorithm.clone(),
        transport: transport.to_owned(),
        workers,
        bytes: ranks[0].bytes,
        us_min: seconds[0] * 1e6,
        us_p50: p50 * 1e6,
        us_p99: quantile(0.99) * 1e6,
        algbw,
        busbw: algbw * 2.0 * (p - 1.0) / p,
        predicted_us: ranks[0].predicted * 1e6,
        wrong: ranks.iter().map(|rank| rank.wrong).sum(),
    }
}

fn print_table(rows: &[Row], op: Op, footers: &[String]) -> Result<()> {
    let (name, workers) = (op.name(), rows.first().map_or(0, |row| row.workers));
    show::print(format_args!(
        "all_reduce, {name} of f32, {workers} workers; times in us, time is p50; GB = 1e9 bytes"
    ))?;
    show::print(format_args!(
        "{:<9} {:<18} {:>9} {:>9} {:>7} {:>7} {:>6} {:>9} {:>9} {:>9}",
        "transport", "algorithm", "bytes", "time", "algbw", "busbw", "#wrong", "min", "p99", "predicted"
    ))?;
    for row in rows {
        show::print(format_args!(
            "{:<9} {:<18} {:>9} {:>9.1} {:>7.3} {:>7.3} {:>6} {:>9.1} {:>9.1} {:>9.1}",
            row.transport,
            row.algorithm,
            row.bytes,
            row.us_p50,
            row.algbw,
            row.busbw,
            row.wrong,
            row.us_min,
            row.us_p99,
            row.predicted_us
        ))?;
    }
    show::print(format_args!(
        "algbw is bytes / time, in GB/s. busbw is algbw x 2(p-1)/p: the least that a rank must send, by time; whatever \
         the number of ranks, it can be compared with the bandwidth of the wire."
    ))?;
    footers.iter().try_for_each(|footer| show::print(format_args!("{footer}")))
}

/// 65536 as 64 KiB.
fn binary(bytes: usize) -> String {
    match bytes {
        _ if bytes >= 1 << 20 => format!("{} MiB", bytes >> 20),
        _ if bytes >= 1 << 10 => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} B"),
    }
}
