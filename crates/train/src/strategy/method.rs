//! The ways of staying in step by name, with what there is to choose in each.

use ringstep_comm::cost::Tuning;
use ringstep_comm::{Algorithm, Topology};
use ringstep_nn::schedule::Schedule;
use ringstep_nn::{Model, Parameter};
use serde::{Deserialize, Serialize};

use super::buckets::{Buckets, best_size};
use super::central::Central;
use super::data_parallel::DataParallel;
use super::ddp::Ddp;
use super::diloco::{DiLoCo, Outer};
use super::local_sgd::{LocalSgd, Round};
use super::none::Unconnected;
use super::per_parameter::PerParameter;
use super::post_local_sgd::PostLocalSgd;
use super::reducer::Reducer;
use super::server::Client;
use super::sma::Sma;
use super::{Single, Strategy, Weighting};
use crate::Job;
use crate::content::Content;
use crate::world::World;

/// The name for leaving the choice of an algorithm to the cost model.
pub const AUTO: &str = "auto";

/// Bytes of a bucket's numbers, at the least, if nothing is said and they are compressed.
const COMPRESSED_BUCKET: usize = 1 << 20;

/// The ways of synchronising, by name.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum SyncMethod {
    /// One worker.
    Single,
    /// Rank 0 collects the gradients of each parameter, averages them and hands the average back.
    GatherScatter,
    /// An all-reduce a parameter after backward.
    AllReduce {
        /// How, or `None` for whatever the cost model thinks best.
        algorithm: Option<Algorithm>,
    },
    /// DistributedDataParallel: buckets of gradients are reduced while backward goes on.
    Ddp {
        /// How a bucket is reduced, as for [`SyncMethod::AllReduce`].
        algorithm: Option<Algorithm>,
        /// Bytes of a bucket, or `None` for whatever the cost model thinks best.
        bucket: Option<usize>,
    },
    /// One process whose rank 0 holds the model: each step it is replicated, the batch scattered, the gradients
    /// gathered.
    DataParallel,
    /// Workers that never talk, as the floor: the final model is that of rank 0, which has seen its own shard alone.
    None,
    /// Workers step alone; their models are averaged from time to time.
    LocalSgd {
        /// When.
        round: Round,
        /// How an average is made, as for [`SyncMethod::AllReduce`].
        algorithm: Option<Algorithm>,
    },
    /// [`SyncMethod::Ddp`] at first, [`SyncMethod::LocalSgd`] afterwards.
    PostLocalSgd {
        /// Epochs of the first, or `None` for half of the job.
        switch_at: Option<f32>,
        /// When models are averaged afterwards.
        round: Round,
        /// As for the two.
        algorithm: Option<Algorithm>,
        /// As for the first.
        bucket: Option<usize>,
    },
    /// [`SyncMethod::LocalSgd`], where the average is not the new model but says where that is to go, with momentum.
    #[serde(rename = "diloco")]
    DiLoCo {
        /// When models are averaged.
        round: Round,
        /// The learning rate with which the model follows the averages.
        outer_lr: f32,
        /// Its momentum, in Nesterov's form.
        outer_momentum: f32,
        /// How an average is made, as for [`SyncMethod::AllReduce`].
        algorithm: Option<Algorithm>,
    },
    /// CROSSBOW's synchronous model averaging: several replicas a worker that learn alone, held together by a central
    /// model.
    Sma {
        /// Replicas of each worker.
        learners: usize,
        /// How far a replica is pulled to the central model in a step, or `None` for one over the number of replicas.
        pull: Option<f32>,
        /// That of the central model.
        momentum: f32,
        /// How corrections are summed, as for [`SyncMethod::AllReduce`].
        algorithm: Option<Algorithm>,
    },
    /// Servers hold the parameters: they add up the gradients of all workers, take the steps and hand the parameters back.
    ParameterServer {
        /// Ranks beside the workers, with a shard each.
        servers: Servers,
    },
    /// The same, but a worker may be ahead of others.
    Stale {
        /// As for [`SyncMethod::ParameterServer`].
        servers: Servers,
        /// By how many steps.
        staleness: usize,
    },
    /// Servers apply what has arrived, whoever is missing.
    Async {
        /// As for [`SyncMethod::ParameterServer`].
        servers: Servers,
        /// Seconds from one step of the parameters to the next; with 0 each gradient is a step.
        period: f64,
        /// Whether gradients count for less the more steps the parameters have taken since they were read.
        staleness_aware: bool,
    },
}

/// The ranks that hold the parameters for the workers: those after the workers' own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Servers {
    /// So many, in places of their own.
    Apart(usize),
    /// As many as there are workers: one stands beside each and shares its process, as a thread.
    Colocated,
}

impl SyncMethod {
    /// All of them as they are unless told otherwise: an all-reduce goes around a ring; there is one server; outer steps are those of Douillard
    /// et al. (2023), and CROSSBOW's central model has the momentum of its paper.
    pub const ALL: [Self; 13] = [
        Self::Single,
        Self::GatherScatter,
        Self::AllReduce { algorithm: Some(Algorithm::Ring) },
        Self::Ddp { algorithm: Some(Algorithm::Ring), bucket: None },
        Self::DataParallel,
        Self::None,
        Self::LocalSgd { round: Round::Every(8), algorithm: Some(Algorithm::Ring) },
        Self::PostLocalSgd { switch_at: None, round: Round::Every(8), algorithm: Some(Algorithm::Ring), bucket: None },
        Self::DiLoCo { round: Round::Every(32), outer_lr: 0.7, outer_momentum: 0.9, algorithm: Some(Algorithm::Ring) },
        Self::Sma { learners: 1, pull: None, momentum: 0.9, algorithm: Some(Algorithm::Ring) },
        Self::ParameterServer { servers: Servers::Apart(1) },
        Self::Stale { servers: Servers::Apart(1), staleness: 1 },
        Self::Async { servers: Servers::Apart(1), period: 0.0, staleness_aware: false },
    ];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::GatherScatter => "gather-scatter",
            Self::AllReduce { .. } => "all-reduce",
            Self::Ddp { .. } => "ddp",
            Self::DataParallel => "data-parallel",
            Self::None => "none",
            Self::LocalSgd { .. } => "local-sgd",
            Self::PostLocalSgd { .. } => "post-local-sgd",
            Self::DiLoCo { .. } => "diloco",
            Self::Sma { .. } => "sma",
            Self::ParameterServer { .. } => "parameter-server",
            Self::Stale { .. } => "stale",
            Self::Async { .. } => "async",
        }
    }

    /// The algorithm behind it, where there is a choice: `None` within means the cost model's.
    pub fn algorithm(self) -> Option<Option<Algorithm>> {
        match self {
            Self::AllReduce { algorithm }
            | Self::Ddp { algorithm, .. }
            | Self::LocalSgd { algorithm, .. }
            | Self::PostLocalSgd { algorithm, .. }
            | Self::DiLoCo { algorithm, .. }
            | Self::Sma { algorithm, .. } => Some(algorithm),
            _ => None,
        }
    }

    /// The name of the algorithm behind it.
    pub fn algorithm_name(self) -> &'static str {
        match self {
            Self::GatherScatter => Algorithm::GatherScatter.name(),
            Self::DataParallel => Algorithm::Tree.name(),
            _ => self.algorithm().map_or("none", |algorithm| algorithm.map_or(AUTO, Algorithm::name)),
        }
    }

    /// Who holds the parameters, where it is not the workers.
    pub fn held_by(self) -> Option<Servers> {
        match self {
            Self::ParameterServer { servers } | Self::Stale { servers, .. } | Self::Async { servers, .. } => {
                Some(servers)
            }
            _ => None,
        }
    }

    /// How many ranks there are beside so many workers, to hold the parameters for them.
    pub fn servers(self, workers: usize) -> usize {
        match self.held_by() {
            None => 0,
            Some(Servers::Apart(servers)) => servers,
            Some(Servers::Colocated) => workers,
        }
    }

    /// How many replicas of the model each worker trains.
    pub fn learners(self) -> usize {
        if let Self::Sma { learners, .. } = self { learners } else { 1 }
    }

    /// How many numbers a worker holds for each parameter to stay in step, beside replicas and their optimizers.
    pub(crate) fn holds(self) -> usize {
        match self {
            // The outer model, its gradient and its velocity.
            Self::DiLoCo { .. } => 3,
            // The central model and its velocity, the sum of all corrections, and one of them.
            Self::Sma { .. } => 4,
            _ => 0,
        }
    }

    /// When models are averaged, where they are.
    pub fn round(self) -> Option<Round> {
        match self {
            Self::LocalSgd { round, .. } | Self::PostLocalSgd { round, .. } | Self::DiLoCo { round, .. } => Some(round),
            _ => None,
        }
    }

    /// Whether workers may be at different steps. The job's steps are then those of all workers together, of which a fast one
    /// does more than a slow one.
    pub fn lets_workers_differ(self) -> bool {
        matches!(self.round(), Some(Round::Period(_)))
            || matches!(self, Self::Stale { staleness: 1.., .. } | Self::Async { .. })
    }

    /// Whether workers are never further apart than they have agreed on: sooner or later each waits for the others.
    pub fn keeps_workers_together(self) -> bool {
        !matches!(self, Self::None | Self::Async { .. })
    }

    /// Whether a job gives the same bits each time: nothing in it depends on how long something takes.
    pub fn repeats(self) -> bool {
        !self.lets_workers_differ() && self.algorithm() != Some(None)
    }

    /// Whether workers take steps of their own, at least for some time.
    pub fn steps_alone(self) -> bool {
        self.round().is_some() || matches!(self, Self::None | Self::Sma { .. })
    }

    /// Whether there are steps after which all workers know that their models are equal.
    pub fn has_equal_replicas(self) -> bool {
        !self.lets_workers_differ() && self.servers(1) == 0 && !matches!(self, Self::None | Self::Sma { .. })
    }

    /// For a job on so many images that synchronises like this.
    pub(crate) fn strategy(
        self,
        job: (&Job, usize),
        model: &mut Model,
        schedule: &Schedule,
        world: &mut World<'_>,
    ) -> Box<dyn Strategy> {
        match self {
            Self::Single => Box::new(Single),
            Self::GatherScatter => Box::new(PerParameter::new(job, model, Some(Algorithm::GatherScatter), world)),
            Self::AllReduce { algorithm } => Box::new(PerParameter::new(job, model, algorithm, world)),
            Self::Ddp { algorithm, .. } => Box::new(self.ddp(job, model, algorithm, world)),
            Self::DataParallel => Box::new(DataParallel::new(world)),
            Self::None => Box::new(Unconnected::new(world)),
            Self::LocalSgd { round, algorithm } => {
                Box::new(LocalSgd::new(job, model, (round, algorithm), schedule, world))
            }
            Self::PostLocalSgd { switch_at, round, algorithm, .. } => {
                let early = self.ddp(job, model, algorithm, world);
                let late = LocalSgd::new(job, model, (round, algorithm), schedule, world);
                Box::new(PostLocalSgd::new(early, late, switch_at, schedule))
            }
            Self::DiLoCo { round, outer_lr, outer_momentum, algorithm } => {
                let local = LocalSgd::new(job, model, (round, algorithm), schedule, world);
                Box::new(DiLoCo::new(local, Outer::new(model.values_mut().to_vec(), outer_lr, outer_momentum)))
            }
            Self::Sma { learners, pull, momentum, algorithm } => {
                let pull = pull.unwrap_or(1.0 / (world.workers().world() * learners) as f32);
                let central = Central::new(model.values_mut().to_vec(), pull, momentum);
                let slices = vec![("corrections".to_owned(), 0..central.values().len())];
                let reducer = Reducer::new(job, algorithm, model, slices, Content::Parameters, world);
                Box::new(Sma::new(central, reducer, algorithm, schedule, world))
            }
            Self::ParameterServer { .. } | Self::Stale { .. } | Self::Async { .. } => {
                let buckets = self.buckets(
                    model.parameters(),
                    world.all.topology(),
                    &world.all.tuning(),
                    job.0.compress.is_some(),
                );
                let weighting = match self {
                    Self::Async { .. } => Weighting::OwnImages,
                    _ => Weighting::WholeStep,
                };
                Box::new(Client::new(job, model, buckets, weighting, world))
            }
        }
    }

    /// Gradients that leave together while backward goes on: buckets of as many bytes as are said, or of as many as are best
    /// by these numbers.
    pub fn buckets(self, parameters: &[Parameter], topology: &Topology, tuning: &Tuning, compresses: bool) -> Buckets {
        let (algorithm, bucket) = match self {
            Self::Ddp { algorithm, bucket } | Self::PostLocalSgd { algorithm, bucket, .. } => (algorithm, bucket),
            // Gradients to servers are cut like those for a ring: what a message costs decides in both.
            _ => (Some(Algorithm::Ring), None),
        };
        // Codes are short, so that small ones would take as long to begin as to send.
        let least = if compresses { COMPRESSED_BUCKET } else { 0 };
        Buckets::new(
            parameters,
            bucket.unwrap_or_else(|| best_size(parameters, topology, tuning, algorithm).max(least)),
        )
    }

    /// Buckets that are reduced by an algorithm.
    fn ddp(self, job: (&Job, usize), model: &Model, algorithm: Option<Algorithm>, world: &mut World<'_>) -> Ddp {
        let workers = world.workers();
        let buckets = self.buckets(model.parameters(), workers.topology(), &workers.tuning(), job.0.compress.is_some());
        Ddp::new(job, model, buckets, algorithm, world)
    }
}
