//! What a step computes and exchanges, as plain numbers.

use ringstep_comm::Algorithm;
use ringstep_train::strategy::Exchange;

use crate::cluster::Cluster;
use crate::served::Served;
use crate::slow::Slowness;

/// Something that all workers exchange.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Slice {
    /// What.
    pub exchange: Exchange,
    /// How it is all-reduced, if it is; by what the cluster's numbers say is best if nothing is said.
    pub algorithm: Option<Algorithm>,
    /// Seconds from the beginning of backward until it is all computed.
    pub ready: f64,
}

impl Slice {
    /// So many numbers of four bytes that are all-reduced by whatever is best.
    pub fn of_f32(elements: usize, ready: f64) -> Self {
        Self { exchange: Exchange::of_f32s(elements), algorithm: None, ready }
    }

    /// The same by an algorithm.
    pub fn by(self, algorithm: Algorithm) -> Self {
        Self { algorithm: Some(algorithm), ..self }
    }
}

/// When slices are summed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sync {
    /// Each as soon as it is ready and those before it are through, on a communication thread: `ddp`.
    DuringBackward,
    /// One after the other when backward is over: `all-reduce`, `gather-scatter`.
    AfterBackward,
    /// One after the other after the update of every so many steps: `local-sgd`.
    EverySteps(usize),
}

/// Steps of a training.
#[derive(Debug, Clone, PartialEq)]
pub struct Workload {
    /// Seconds of a worker's forward pass, with the cores to itself.
    pub forward: f64,
    /// Seconds of its backward pass.
    pub backward: f64,
    /// Seconds of its optimizer.
    pub update: f64,
    /// What is exchanged, in this order.
    pub slices: Vec<Slice>,
    /// When.
    pub sync: Sync,
    /// Who holds the parameters, where it is not the workers: nothing is exchanged then but with them.
    pub served: Option<Served>,
    /// Who is slower than others.
    pub slow: Slowness,
    /// Of the random numbers.
    pub seed: u64,
    /// How many steps there are.
    pub steps: usize,
    /// The first so many workers tell what they did when.
    pub traced: usize,
}

impl Workload {
    /// One step of workers that are all as fast.
    pub fn new(forward: f64, backward: f64, update: f64, slices: Vec<Slice>, sync: Sync) -> Self {
        let (served, slow) = (None, Slowness::None);
        Self { forward, backward, update, slices, sync, served, slow, seed: 0, steps: 1, traced: 0 }
    }

    /// Seconds of a step of one worker that has nobody to wait for.
    pub fn alone(&self) -> f64 {
        self.forward + self.backward + self.update
    }

    /// Whether slices are summed in this step.
    pub(crate) fn sums_in(&self, step: usize) -> bool {
        let due = match self.sync {
            Sync::DuringBackward | Sync::AfterBackward => true,
            Sync::EverySteps(every) => (step + 1).is_multiple_of(every),
        };
        due && !self.slices.is_empty()
    }

    /// Refuses what makes no sense.
    pub(crate) fn check(&self, cluster: &Cluster) -> Result<(), Invalid> {
        let workers = cluster.topology.world();
        let seconds = [
            ("forward", self.forward),
            ("backward", self.backward),
            ("update", self.update),
            ("overhead", cluster.overhead),
            ("wake", cluster.wake),
            ("touch", cluster.touch),
            ("touch beyond the cache", cluster.touch_far),
            ("reduce", cluster.reduce),
            ("turn", cluster.turn),
            ("sync", cluster.sync),
            ("copy", cluster.copy),
        ];
        if let Some(&(what, seconds)) = seconds.iter().find(|(_, seconds)| !(*seconds >= 0.0 && seconds.is_finite())) {
            return Err(Invalid::Seconds { what, seconds });
        }
        if let Some((at, slice)) =
            self.slices.iter().enumerate().find(|(_, slice)| !(0.0..=self.backward).contains(&slice.ready))
        {
            return Err(Invalid::Ready { at, ready: slice.ready, backward: self.backward });
        }
        for net in [cluster.uplink, cluster.inside] {
            if net.bytes_per_second.is_nan() || net.bytes_per_second <= 0.0 {
                return Err(Invalid::Bandwidth(net.bytes_per_second));
            }
        }
        if self.steps == 0 || self.sync == Sync::EverySteps(0) {
            return Err(Invalid::NoSteps);
        }
        if cluster.cores == Some(0) || cluster.threads == 0 {
            return Err(Invalid::NoCores);
        }
        let shares = |slice: &Slice| slice.algorithm.is_some_and(Algorithm::needs_shared_memory);
        if self.slices.iter().any(shares) && !cluster.topology.all_share_memory() {
            return Err(Invalid::NoSharedMemory);
        }
        self.slow.check(workers)
    }
}

/// What cannot be simulated.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[allow(missing_docs)]
pub enum Invalid {
    #[error("{what} takes {seconds} seconds: it must be a number from 0 on")]
    Seconds { what: &'static str, seconds: f64 },
    #[error("slice {at} is ready after {ready} seconds, and backward goes from 0 to {backward}")]
    Ready { at: usize, ready: f64, backward: f64 },
    #[error("a link of {0} bytes a second: it must pass something")]
    Bandwidth(f64),
    #[error("there is at least one step")]
    NoSteps,
    #[error("there is at least one core and one thread")]
    NoCores,
    #[error("direct needs memory that all workers share")]
    NoSharedMemory,
    #[error("worker {rank} cannot be slow: there are {workers}")]
    NoSuchWorker { rank: usize, workers: usize },
    #[error("a worker cannot be slower by {0}")]
    Slowness(f64),
    #[error("workers wait for each other for ever")]
    Deadlock,
}
