//! What is to be simulated, validated, and what came out.

use anyhow::{Context, Result, ensure};
use ringstep_nn::optim::Rule;
use ringstep_sim::{Cluster, Failures, Slowness, predict};
use ringstep_train::Job;
use ringstep_train::job::{Length, MAX_THREADS};
use ringstep_train::profile::Profile;

use super::args::{Compute, Messages, SimulateArgs};
use super::machine::{self, Costs, Speed};
use super::search::{self, Best};
use crate::launch::Interrupts;
use crate::settings::{SyncName, one_way};

/// A job, and the cluster that it would run on.
pub struct Study {
    /// Of one worker.
    pub job: Job,
    pub profile: Profile,
    /// What this machine does, if it was asked.
    measured: Option<Speed>,
    /// How fast a worker computes, in words.
    pub speed: String,
    pub slow: Slowness,
    pub failures: Option<Failures>,
    /// Steps of each simulation, if that is said.
    pub steps: Option<usize>,
    /// Whether the algorithm is to be found.
    pub open: bool,
    /// Makes the cluster of so many workers.
    cluster: Cluster,
    /// What messages cost, if that was measured.
    costs: Option<Costs>,
    per_host: usize,
    /// The network in words.
    pub network: String,
}

/// A scale, and what it comes to.
pub struct Row {
    pub workers: usize,
    pub best: Best,
    /// Seconds of a step that failures cost on average.
    pub lost_seconds: f64,
    /// A step of one worker alone, as a part of this one.
    pub efficiency: f64,
}

impl Row {
    /// Seconds of a step, with what failures cost.
    pub fn step_seconds(&self) -> f64 {
        self.best.simulation.times.step_seconds + self.lost_seconds
    }
}

impl Study {
    /// Refuses what makes no sense; measures this machine last.
    pub fn new(args: &SimulateArgs, interrupts: &Interrupts) -> Result<Self> {
        for (count, name) in [
            (args.batch, "images a step"),
            (args.hosts, "workers a host"),
            (args.threads, "threads"),
            (args.cores.unwrap_or(1), "cores"),
            (args.steps.unwrap_or(1), "steps"),
        ] {
            ensure!(count > 0, "0 {name}: at least 1 is needed");
        }
        ensure!(args.threads <= MAX_THREADS, "{} threads: at most {MAX_THREADS} are possible", args.threads);
        let design = args.model.design()?;
        let (sync, compress) = one_way(&args.sync, &args.compress, SyncName::Ddp)?;
        let sync = if args.sync.algorithm.is_none() { search::with_algorithm(sync, None) } else { sync };
        let open = sync.algorithm() == Some(None);
        let rule = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 5e-4 };
        if let Some(compression) = compress {
            compression.check(sync, rule)?;
        }
        let job =
            Job { compress, threads: args.threads, rule, ..Job::new(design, sync, 1, args.batch, Length::Steps(1)) };
        let cluster = Cluster {
            cores: args.cores,
            threads: args.threads,
            burst: args.burst.0 as f64,
            ..Cluster::of_hosts(1, args.hosts, args.network.net, args.inside.net)
        };
        let network = match args.hosts {
            1 => format!("links of {}", args.network),
            hosts => format!("hosts of {hosts} workers with links of {}, inside {}", args.network, args.inside),
        };
        let mut study = Self {
            profile: Profile::of_operations(&job.model, job.batch, 1e12),
            job,
            measured: None,
            speed: String::new(),
            slow: args.slow.0.clone(),
            failures: args.failures.map(|failing| failing.0),
            steps: args.steps,
            open,
            cluster,
            costs: None,
            per_host: args.hosts,
            network,
        };
        // What cannot be simulated is refused before anything is measured.
        for &workers in &args.workers.0 {
            study.slow.check(workers).with_context(|| format!("--slow with {workers} workers"))?;
        }
        ensure!(
            args.messages.0 != Messages::Free || (args.start_with.is_none() && args.meet.is_none()),
            "--start-with and --meet are for messages that are timed: --messages tcp or shm"
        );
        predict(&study.job, &study.profile, &study.cluster(args.workers.0[0].min(2)))?;
        match args.compute {
            Compute::Rate(rate) => {
                study.profile = Profile::of_operations(&study.job.model, args.batch, rate);
                study.speed = format!("{} GFLOP/s a worker", rate / 1e9);
            }
            Compute::Measured => {
                let speed = machine::speed(args, &study.job, interrupts)?;
                study.profile = speed.profile.clone();
                study.measured = Some(speed);
                study.speed = "workers as fast as this machine".to_owned();
            }
        }
        let crowded = args.workers.0.iter().any(|&workers| {
            let cluster = study.cluster(workers);
            cluster.cores.is_some_and(|cores| cluster.topology.largest_host() > cores)
        });
        study.costs = machine::costs(args, crowded, interrupts)?;
        Ok(study)
    }

    /// The cluster of so many workers.
    pub fn cluster(&self, workers: usize) -> Cluster {
        let Cluster { uplink, inside, .. } = self.cluster;
        let placed = Cluster::of_hosts(workers, self.per_host, uplink, inside);
        let on_host = placed.topology.largest_host();
        let ranks_a_core = on_host as f64 / self.cluster.cores.unwrap_or(on_host) as f64;
        let contention = self.measured.as_ref().filter(|_| on_host > 1).map_or(1.0, |speed| speed.contention(on_host));
        let cluster = Cluster { topology: placed.topology, contention, ..self.cluster.clone() };
        match &self.costs {
            Some(costs) => costs.of(ranks_a_core, cluster),
            None => cluster,
        }
    }

    /// What so many workers come to.
    pub fn row(&self, workers: usize) -> Result<Row> {
        let best = search::best(self, workers)?;
        let step = best.simulation.times.step_seconds;
        let lost_seconds = self.failures.map_or(0.0, |failures| failures.step_seconds(workers, step) - step);
        let efficiency = self.alone() / (step + lost_seconds);
        Ok(Row { workers, best, lost_seconds, efficiency })
    }

    /// Seconds of a step of one worker alone.
    pub fn alone(&self) -> f64 {
        self.job.sync.learners() as f64 * self.profile.alone()
    }
}
