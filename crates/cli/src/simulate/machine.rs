//! What this machine takes for computing and for messages.

use anyhow::{Context, Result, ensure};
use ringstep_comm::Topology;
use ringstep_comm::transport::Net;
use ringstep_comm::tune::Timings;
use ringstep_cpu::{Level, cores};
use ringstep_sim::Cluster;
use ringstep_train::Job;
use ringstep_train::memory::Need;
use ringstep_train::profile::Profile;

use super::args::{Messages, SimulateArgs};
use crate::datasets::Choice;
use crate::launch::{self, Interrupts, Message, Site, Task};
use crate::memory;
use crate::names::ByName;
use crate::settings::{
    DataFlags, Experiment, Mode, ModelFlags, NetworkFlags, ProcessTransport, RecordFlags, Run, Settings, SyncFlags,
    SyncName, TrainingFlags, WorkerFlags,
};

/// Bytes of a message that the system takes at once and sends by and by, over TCP.
const TCP_BUFFER: f64 = 2e6;
/// Workers for each that has cores of its own, where they are to crowd each other.
const CROWD: usize = 4;
/// Ranks whose messages are timed.
const PAIR: usize = 2;
/// For how long steps of workers are timed, and the fewest and the most of them.
const SECONDS: f64 = 2.0;
const STEPS: [f64; 2] = [6.0, 500.0];

/// How long a worker computes.
pub struct Speed {
    pub profile: Profile,
    /// How many times as long that takes of a core when all cores are busy, and when there are several workers for each.
    contention: [f64; 2],
    /// Workers that each of these was measured with.
    workers: [usize; 2],
}

impl Speed {
    /// How many times as long computing takes of a core on a host with so many workers: what each of them wants in the caches
    /// is there the less often the more there are.
    pub fn contention(&self, workers: usize) -> f64 {
        let ([busy, crowded], [few, many]) = (self.contention, self.workers);
        let beyond = (workers.clamp(few, many) as f64 / few as f64).ln() / (many as f64 / few as f64).ln();
        busy + (crowded - busy) * beyond
    }
}

/// Times workers of this job that never talk, each a process that does all that a training does: one alone, one on each core,
/// and several. A single worker says how its step is divided.
pub fn speed(args: &SimulateArgs, job: &Job, interrupts: &Interrupts) -> Result<Speed> {
    let (design, batch, threads, cores) = (&job.model, job.batch, job.threads, cores::allowed());
    ensure!(
        threads <= cores,
        "--compute measured: {threads} threads a worker cannot be measured on {cores} cores; say how many GFLOP/s it does"
    );
    let at_once = cores / threads;
    memory::check(design, Need::new(design, batch, threads, job.rule), CROWD * at_once)?;
    let parts = Profile::measure(design, batch, (threads, Level::best()), job.rule, 1);
    let step = |workers: usize| {
        let share = workers.div_ceil(at_once) as f64;
        let steps = (SECONDS / (share * parts.alone())).clamp(STEPS[0], STEPS[1]) as usize;
        // Where there are more workers than cores, each has its share of the time.
        Ok::<_, anyhow::Error>(mean_step(args, workers, steps, interrupts)? / share)
    };
    let alone = step(1)?;
    let profile = parts.scaled(alone / parts.alone());
    let workers = [at_once, CROWD * at_once];
    let contention = [(step(workers[0])? / alone).max(1.0), (step(workers[1])? / alone).max(1.0)];
    Ok(Speed { profile, contention, workers })
}

/// Seconds of a step of so many workers that never talk, on average.
fn mean_step(args: &SimulateArgs, workers: usize, steps: usize, interrupts: &Interrupts) -> Result<f64> {
    let images = workers * args.batch;
    let settings = Settings {
        model: ModelFlags { model: Some(args.model.clone()), ..ModelFlags::default() },
        data: DataFlags { dataset: Some(Choice::Synthetic(None)), samples: Some(images), ..DataFlags::default() },
        training: TrainingFlags {
            batch: Some(args.batch),
            steps: Some(steps),
            // What is learned is of no interest, but must stay finite.
            lr: Some(1e-6),
            momentum: Some(0.9),
            ..TrainingFlags::default()
        },
        sync: SyncFlags { sync: vec![ByName(SyncName::None)], ..SyncFlags::default() },
        workers: WorkerFlags { workers: Some(workers), threads: Some(args.threads), ..WorkerFlags::default() },
        network: NetworkFlags { transport: Some(ByName(ProcessTransport::Tcp)), ..NetworkFlags::default() },
        records: RecordFlags { trace: Some(0), predict: Some(false), ..RecordFlags::default() },
        ..Settings::default()
    };
    let (_, mut runs) = Experiment { common: settings, rows: Vec::new() }.resolve(Mode::Train)?;
    let mut run: Run = runs.remove(0);
    run.data.tests = Some(1);
    let folder = tempfile::tempdir().context("a folder for weights that nobody wants")?;
    let (world, workers, model_file) = (run.job.ranks(), run.workers.clone(), folder.path().join("model.safetensors"));
    let task = Task::Train { run: Box::new(run), model_file, checkpoints: None, resume: None };
    let mut steps = Vec::new();
    launch::run(&task, world, &workers, &Site::Here, interrupts, &mut |_, message| {
        if let Message::Done(outcome) = message {
            steps.push(outcome.mean_seconds_per_step);
        }
        Ok(())
    })?;
    ensure!(steps.len() == world, "only {} of {world} workers have told how long their steps took", steps.len());
    Ok(steps.iter().sum::<f64>() / world as f64)
}

/// What messages cost on this machine: two ranks, and several for each core.
pub struct Costs {
    pair: Cluster,
    crowd: Option<Cluster>,
    /// Ranks for each core in each of these.
    ranks_a_core: [f64; 2],
}

impl Costs {
    /// The same cluster with what messages cost where so many ranks share a core: who waits has to get the core back from others.
    pub fn of(&self, ranks_a_core: f64, cluster: Cluster) -> Cluster {
        let [few, many] = self.ranks_a_core;
        let crowd = self.crowd.as_ref().unwrap_or(&self.pair);
        let beyond = (ranks_a_core.clamp(few, many) / few).ln() / (many / few).ln();
        let between = |of: fn(&Cluster) -> f64| of(&self.pair) + (of(crowd) - of(&self.pair)) * beyond;
        Cluster {
            overhead: between(|it| it.overhead),
            wake: between(|it| it.wake),
            touch: between(|it| it.touch),
            touch_far: between(|it| it.touch_far),
            reduce: self.pair.reduce,
            turn: between(|it| it.turn),
            sync: between(|it| it.sync),
            copy: between(|it| it.copy),
            buffer: self.pair.buffer,
            ..cluster
        }
    }
}

/// Times messages between two ranks, and between several for each core if workers are to crowd each other.
pub fn costs(args: &SimulateArgs, crowded: bool, interrupts: &Interrupts) -> Result<Option<Costs>> {
    let ByName(messages) = args.messages;
    let transport = match messages {
        Messages::Free => return Ok(None),
        Messages::Tcp => ProcessTransport::Tcp,
        Messages::Shm => ProcessTransport::Shm,
    };
    let cores = cores::allowed();
    let buffer = if messages == Messages::Tcp { TCP_BUFFER } else { 0.0 };
    let calibrated = |ranks: usize| {
        let topology = Topology::new(vec![0; ranks], messages == Messages::Shm);
        let instant = Net { bytes_per_second: f64::INFINITY, latency: Default::default() };
        let cluster = Cluster { topology, cores: Some(cores), ..Cluster::of_hosts(1, 1, instant, instant) };
        let times = time(args, ranks, transport, interrupts)?;
        Ok::<_, anyhow::Error>(Cluster { buffer, ..cluster.calibrated(&times) })
    };
    let many = CROWD * cores.max(PAIR);
    let crowd = if crowded { Some(calibrated(many)?) } else { None };
    let ranks_a_core = [PAIR, many].map(|ranks| ranks as f64 / cores as f64);
    Ok(Some(Costs { pair: calibrated(PAIR)?, crowd, ranks_a_core }))
}

/// What so many processes take for messages, as the first of them sees it.
fn time(args: &SimulateArgs, ranks: usize, transport: ProcessTransport, interrupts: &Interrupts) -> Result<Timings> {
    let mut workers = WorkerFlags { start_with: args.start_with.clone(), ..WorkerFlags::default() };
    let mut network = NetworkFlags { transport: Some(ByName(transport)), meet: args.meet, ..NetworkFlags::default() };
    let workers = workers.launch(&mut network, &[], Mode::Train)?;
    let mut times = None;
    launch::run(&Task::Timings, ranks, &workers, &Site::Here, interrupts, &mut |rank, message| {
        match message {
            Message::Timings(theirs) if rank == 0 => times = Some(theirs),
            _ => {}
        }
        Ok(())
    })?;
    times.context("the ranks whose messages are timed have ended without a word")
}
