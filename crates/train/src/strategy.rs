//! How workers stay in step.

use ringstep_comm::{Algorithm, CollectiveError, Group, How, Op};

/// A way of keeping replicas equal.
pub trait Strategy {
    /// Replaces this rank's gradients by their sum over all ranks, after backward and before the optimizer step.
    ///
    /// Each rank has divided its gradients by the images of the whole step, not by its own, so the sum is the average
    /// over all images, also where ranks have different numbers of them.
    fn synchronise(&mut self, group: &mut Group, gradients: &mut [f32]) -> Result<(), CollectiveError>;
}

/// One worker: nobody to keep in step with.
struct Single;

impl Strategy for Single {
    fn synchronise(&mut self, _: &mut Group, _: &mut [f32]) -> Result<(), CollectiveError> {
        Ok(())
    }
}

/// One all-reduce over all gradients at once.
struct AllReduce {
    /// `None`: whichever the cost model thinks best.
    algorithm: Option<Algorithm>,
}

impl Strategy for AllReduce {
    fn synchronise(&mut self, group: &mut Group, gradients: &mut [f32]) -> Result<(), CollectiveError> {
        group.all_reduce(gradients, Op::Sum, How { algorithm: self.algorithm, deterministic: false })
    }
}

/// The name for leaving the choice of an algorithm to the cost model.
pub const AUTO: &str = "auto";

/// The ways of synchronising, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// One worker.
    Single,
    /// Rank 0 collects the gradients, averages them and hands the average back.
    GatherScatter,
    /// An all-reduce, by this algorithm or by whichever the cost model thinks best.
    AllReduce(Option<Algorithm>),
}

impl Sync {
    /// All of them; an all-reduce goes around a ring unless told otherwise.
    pub const ALL: [Self; 3] = [Self::Single, Self::GatherScatter, Self::AllReduce(Some(Algorithm::Ring))];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::GatherScatter => "gather-scatter",
            Self::AllReduce(_) => "all-reduce",
        }
    }

    /// The name of the algorithm behind it.
    pub fn algorithm_name(self) -> &'static str {
        match self {
            Self::Single => "none",
            Self::GatherScatter => Algorithm::GatherScatter.name(),
            Self::AllReduce(algorithm) => algorithm.map_or(AUTO, Algorithm::name),
        }
    }

    pub(crate) fn strategy(self) -> Box<dyn Strategy> {
        match self {
            Self::Single => Box::new(Single),
            Self::GatherScatter => Box::new(AllReduce { algorithm: Some(Algorithm::GatherScatter) }),
            Self::AllReduce(algorithm) => Box::new(AllReduce { algorithm }),
        }
    }
}
