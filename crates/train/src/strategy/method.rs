//! The ways of staying in step by name, with what there is to choose in each.

use ringstep_comm::Algorithm;
use ringstep_nn::Model;
use serde::{Deserialize, Serialize};

use super::buckets::{Buckets, best_size};
use super::data_parallel::DataParallel;
use super::ddp::Ddp;
use super::per_parameter::PerParameter;
use super::{Single, Strategy};
use crate::world::World;

/// The name for leaving the choice of an algorithm to the cost model.
pub const AUTO: &str = "auto";

/// The ways of synchronising, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
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
}

impl SyncMethod {
    /// All of them; an all-reduce goes around a ring unless told otherwise.
    pub const ALL: [Self; 5] = [
        Self::Single,
        Self::GatherScatter,
        Self::AllReduce { algorithm: Some(Algorithm::Ring) },
        Self::Ddp { algorithm: Some(Algorithm::Ring), bucket: None },
        Self::DataParallel,
    ];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::GatherScatter => "gather-scatter",
            Self::AllReduce { .. } => "all-reduce",
            Self::Ddp { .. } => "ddp",
            Self::DataParallel => "data-parallel",
        }
    }

    /// The algorithm behind it, where there is a choice: `None` within means the cost model's.
    pub fn algorithm(self) -> Option<Option<Algorithm>> {
        match self {
            Self::AllReduce { algorithm } | Self::Ddp { algorithm, .. } => Some(algorithm),
            Self::Single | Self::GatherScatter | Self::DataParallel => None,
        }
    }

    /// The name of the algorithm behind it.
    pub fn algorithm_name(self) -> &'static str {
        match self {
            Self::Single => "none",
            Self::GatherScatter => Algorithm::GatherScatter.name(),
            Self::AllReduce { algorithm } | Self::Ddp { algorithm, .. } => algorithm.map_or(AUTO, Algorithm::name),
            Self::DataParallel => Algorithm::Tree.name(),
        }
    }

    /// How many ranks there are beside so many workers, to hold the parameters for them.
    pub fn servers(self, _workers: usize) -> usize {
        match self {
            Self::Single | Self::GatherScatter | Self::AllReduce { .. } | Self::Ddp { .. } | Self::DataParallel => 0,
        }
    }

    pub(crate) fn strategy(self, model: &Model, world: &mut World<'_>) -> Box<dyn Strategy> {
        match self {
            Self::Single => Box::new(Single),
            Self::GatherScatter => Box::new(PerParameter::new(model, Some(Algorithm::GatherScatter), world)),
            Self::AllReduce { algorithm } => Box::new(PerParameter::new(model, algorithm, world)),
            Self::Ddp { algorithm, bucket } => {
                let bucket = bucket.unwrap_or_else(|| best_size(model, world.workers(), algorithm));
                Box::new(Ddp::new(Buckets::new(model, bucket), algorithm, world))
            }
            Self::DataParallel => Box::new(DataParallel::new(world)),
        }
    }
}
