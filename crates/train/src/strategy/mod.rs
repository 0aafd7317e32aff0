//! How workers stay in step, one way a file.

mod buckets;
mod data_parallel;
mod ddp;
mod per_parameter;

use std::time::Instant;

use ringstep_comm::cost::Tuning;
use ringstep_comm::overlap::Reduced;
use ringstep_comm::{Algorithm, CollectiveError, Group, How};
use ringstep_cpu::Level;
use ringstep_nn::Model;
use ringstep_nn::kernels::rows::add_slice;

pub use self::buckets::Buckets;

/// A way of keeping replicas equal.
pub(crate) trait Strategy {
    /// Before a step's first forward: gives this rank the model, where it does not keep one of its own in step.
    fn replicate(&mut self, _: &mut Group, _: &mut Model) -> Result<(), CollectiveError> {
        Ok(())
    }

    /// The last backward of a step. When it returns, the gradients of all ranks that [take steps](Strategy::steps_on) are
    /// the sum over all ranks.
    ///
    /// Each rank divides its gradients by the images of the whole step, not by its own, so the sum is the average over
    /// all images, also where ranks have different numbers of them.
    fn backward(&mut self, group: &mut Group, model: &mut Model, pass: Pass<'_>) -> Result<Synced, CollectiveError>;

    /// Whether a rank's optimizer takes steps.
    fn steps_on(&self, _rank: usize) -> bool {
        true
    }

    /// What each of a step's collectives is about, in their order.
    fn labels(&self, model: &Model) -> Vec<String>;

    /// Seconds of communication that remain exposed in a step if these numbers hold.
    fn predict(&self, numbers: &Numbers, model: &Model) -> f64;
}

/// What a backward needs.
pub(crate) struct Pass<'a> {
    pub images: &'a [f32],
    pub labels: &'a [u8],
    /// One over the images of the whole step.
    pub scale: f32,
    /// Gradients of the step's earlier batches, to be added; none if there were none.
    pub accumulated: &'a [f32],
}

impl Pass<'_> {
    /// Backward, without anybody else.
    fn alone(&self, model: &mut Model) {
        model.backward(self.images, self.labels, self.scale);
        add(model.gradients_mut(), self.accumulated);
    }
}

/// Adds numbers where there are some.
pub(crate) fn add(to: &mut [f32], numbers: &[f32]) {
    let count = to.len().min(numbers.len());
    add_slice(Level::best(), &mut to[..count], &numbers[..count]);
}

/// How a backward went.
pub(crate) struct Synced {
    /// This rank's last gradient was written.
    pub ready: Instant,
    /// When each collective went on.
    pub reductions: Vec<Reduced>,
    /// All was done.
    pub ended: Instant,
}

impl Synced {
    fn new(ready: Instant, reductions: Vec<Reduced>) -> Self {
        Self { ready, reductions, ended: Instant::now() }
    }
}

/// What predictions rest on.
pub(crate) struct Numbers {
    pub tuning: Tuning,
    pub hosts: Vec<usize>,
    pub shared: bool,
    /// Where each layer's gradients end in the flat buffer, and the seconds of its backward; last layer first.
    pub backward: Vec<(usize, f64)>,
}

impl Numbers {
    /// Seconds that an all-reduce of so many numbers takes.
    fn all_reduce(&self, algorithm: Option<Algorithm>, elements: usize) -> f64 {
        let bytes = elements * size_of::<f32>();
        let algorithm =
            algorithm.unwrap_or_else(|| self.tuning.choose(self.hosts.len(), &self.hosts, self.shared, bytes));
        self.tuning.predict(algorithm, &self.hosts, self.shared, bytes)
    }
}

/// One worker: nobody to keep in step with.
struct Single;

impl Strategy for Single {
    fn backward(&mut self, _: &mut Group, model: &mut Model, pass: Pass<'_>) -> Result<Synced, CollectiveError> {
        pass.alone(model);
        Ok(Synced::new(Instant::now(), Vec::new()))
    }

    fn labels(&self, _: &Model) -> Vec<String> {
        Vec::new()
    }

    fn predict(&self, _: &Numbers, _: &Model) -> f64 {
        0.0
    }
}

/// The name for leaving the choice of an algorithm to the cost model.
pub const AUTO: &str = "auto";

/// The ways of synchronising, by name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// One worker.
    Single,
    /// Rank 0 collects the gradients of each parameter, averages them and hands the average back.
    GatherScatter,
    /// An all-reduce a parameter after backward, by this algorithm or by whichever the cost model thinks best.
    AllReduce(Option<Algorithm>),
    /// DistributedDataParallel: buckets of gradients are reduced while backward goes on.
    Ddp {
        /// How a bucket is reduced, as for [`Sync::AllReduce`].
        algorithm: Option<Algorithm>,
        /// Bytes of a bucket, or whatever the cost model thinks best.
        bucket: Option<usize>,
    },
    /// One process whose rank 0 holds the model: each step it is replicated, the batch scattered, the gradients
    /// gathered.
    DataParallel,
}

impl Sync {
    /// All of them; an all-reduce goes around a ring unless told otherwise.
    pub const ALL: [Self; 5] = [
        Self::Single,
        Self::GatherScatter,
        Self::AllReduce(Some(Algorithm::Ring)),
        Self::Ddp { algorithm: Some(Algorithm::Ring), bucket: None },
        Self::DataParallel,
    ];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Single => "single",
            Self::GatherScatter => "gather-scatter",
            Self::AllReduce(_) => "all-reduce",
            Self::Ddp { .. } => "ddp",
            Self::DataParallel => "data-parallel",
        }
    }

    /// The algorithm behind it, where there is a choice: `None` within means the cost model's.
    pub fn algorithm(self) -> Option<Option<Algorithm>> {
        match self {
            Self::AllReduce(algorithm) | Self::Ddp { algorithm, .. } => Some(algorithm),
            Self::Single | Self::GatherScatter | Self::DataParallel => None,
        }
    }

    /// The name of the algorithm behind it.
    pub fn algorithm_name(self) -> &'static str {
        match self {
            Self::Single => "none",
            Self::GatherScatter => Algorithm::GatherScatter.name(),
            Self::AllReduce(algorithm) | Self::Ddp { algorithm, .. } => algorithm.map_or(AUTO, Algorithm::name),
            Self::DataParallel => Algorithm::Tree.name(),
        }
    }

    pub(crate) fn strategy(self, model: &Model, group: &mut Group) -> Box<dyn Strategy> {
        match self {
            Self::Single => Box::new(Single),
            Self::GatherScatter => Box::new(per_parameter::PerParameter::new(model, Some(Algorithm::GatherScatter))),
            Self::AllReduce(algorithm) => Box::new(per_parameter::PerParameter::new(model, algorithm)),
            Self::Ddp { algorithm, bucket } => {
                let bucket = bucket.unwrap_or_else(|| buckets::best_size(model, group, algorithm));
                Box::new(ddp::Ddp::new(Buckets::new(model, bucket), algorithm))
            }
            Self::DataParallel => Box::new(data_parallel::DataParallel),
        }
    }
}

fn how(algorithm: Option<Algorithm>) -> How {
    How { algorithm, deterministic: false }
}
