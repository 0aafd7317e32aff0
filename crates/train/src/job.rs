//! What there is to do: parsed and validated once, then trusted.

use std::fmt;
use std::ops::Range;
use std::path::PathBuf;

use ringstep_cpu::{Instructions, Level};
use ringstep_data::Shape;
use ringstep_data::augment::Augment;
use ringstep_data::shard::{Deal, Shard};
use ringstep_nn::optim::Rule;
use ringstep_nn::schedule::{Curve, Schedule, WarmUp};
use ringstep_nn::team::Team;
use ringstep_nn::{Model, Network, NetworkError};
use serde::{Deserialize, Serialize};

use crate::SyncMethod;
use crate::batch_norm::BatchNorm;
use crate::compress::Compression;
use crate::compress::method::Unusable;
use crate::slow::Slow;
use crate::strategy::Round;
use crate::world::Role;

/// One training job, the same on all ranks.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Job {
    /// What to train.
    pub model: Design,
    /// How the workers stay in step.
    pub sync: SyncMethod,
    /// Which of them are made slow.
    pub slow: Vec<Slow>,
    /// How they send less than their gradients, if they do.
    pub compress: Option<Compression>,
    /// How many there are.
    pub workers: usize,
    /// Images that a worker takes at once.
    pub batch: usize,
    /// Batches in a step, whose gradients are added up before workers synchronise.
    pub accumulate: usize,
    /// When to stop.
    pub length: Length,
    /// Threads that a worker computes on.
    pub threads: usize,
    /// The instructions that it computes with; whether its machine has them is seen there.
    pub instructions: Instructions,
    /// A file with the initial weights; without one the seed decides.
    pub init: Option<PathBuf>,
    /// How parameters follow their gradients.
    pub rule: Rule,
    /// The full learning rate.
    pub lr: f32,
    /// How it begins.
    pub warm_up: WarmUp,
    /// How it goes on.
    pub curve: Curve,
    /// How much of the right class's probability is spread over all classes.
    pub label_smoothing: f32,
    /// Decides the initial weights, the order of the images and what happens to them at random.
    pub seed: u64,
    /// Whether each epoch has an order of its own.
    pub shuffle: bool,
    /// How the images are dealt out to workers.
    pub deal: Deal,
    /// What happens to training images at random.
    pub augment: Augment,
    /// What workers share of batch norm's statistics.
    pub batch_norm: BatchNorm,
    /// Also test after every so many epochs, not only at the end.
    pub test_every: Option<usize>,
    /// Compare the ranks' parameters after every so many steps.
    pub verify_every: Option<usize>,
    /// Say of so many steps what went on when.
    pub trace_steps: usize,
    /// Say what the cost model would have expected.
    pub predict: bool,
}

/// A network and what it is called.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "NamedNetwork", into = "NamedNetwork")]
pub struct Design {
    /// A name, or the file that it came from.
    pub name: String,
    /// The layers; known to be buildable.
    network: Network,
    classes: usize,
}

impl Design {
    /// Checks that the network can be built.
    pub fn new(name: impl Into<String>, network: Network) -> Result<Self, NetworkError> {
        let classes = network.classes()?;
        Ok(Self { name: name.into(), network, classes })
    }

    /// The shape of an image.
    pub fn input(&self) -> Shape {
        let [height, width, channels] = self.network.input;
        Shape::new(height, width, channels)
    }

    /// How many classes it tells apart.
    pub fn classes(&self) -> usize {
        self.classes
    }

    /// Whether there is batch norm in it.
    pub fn normalises(&self) -> bool {
        self.network.has_batch_norm()
    }

    /// The layers.
    pub fn network(&self) -> &Network {
        &self.network
    }

    /// The model, with room for `batch` images, on the threads of this team; known to have a size.
    pub fn build(&self, batch: usize, team: Team) -> Model {
        Model::new(&self.network, batch, team).expect("its layers and its size are checked")
    }

    /// A model that holds weights and trains on one image at most.
    pub fn build_small(&self) -> Model {
        self.build(1, Team::new(1, Level::best()))
    }
}

/// A design on its way to another process, which checks it again.
#[derive(Serialize, Deserialize)]
struct NamedNetwork {
    name: String,
    network: Network,
}

impl TryFrom<NamedNetwork> for Design {
    type Error = NetworkError;

    fn try_from(NamedNetwork { name, network }: NamedNetwork) -> Result<Self, NetworkError> {
        Self::new(name, network)
    }
}

impl From<Design> for NamedNetwork {
    fn from(Design { name, network, .. }: Design) -> Self {
        Self { name, network }
    }
}

/// When a job is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Length {
    /// After all images have been seen so many times.
    Epochs(usize),
    /// After so many steps.
    Steps(usize),
}

/// Beyond this, threads only get in each other's way.
pub const MAX_THREADS: usize = 1024;

/// Beyond this, connecting everyone with everyone makes no sense.
pub const MAX_WORKERS: usize = 1024;

/// Beyond this, in seconds, nobody would see the parameters of servers change.
const MAX_PERIOD: f64 = 86_400.0;

/// A job that cannot be done.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum JobError {
    /// A count that must be positive is zero.
    #[error("0 {0}: at least 1 is needed")]
    Zero(&'static str),
    /// A number is out of its range.
    #[error("{name} is {value}: it must be {range}")]
    OutOfRange {
        /// Which number.
        name: &'static str,
        /// What it is.
        value: f32,
        /// What it may be.
        range: &'static str,
    },
    /// Some workers would have nothing to train on.
    #[error("{learners} for {images} images: each needs at least one")]
    MoreWorkersThanImages {
        /// Workers of the job, and their replicas.
        learners: Learners,
        /// Images to train on.
        images: usize,
    },
    /// A batch that no worker can fill.
    #[error(
        "a batch of {batch} is larger than a {}'s shard of {shard} images ({images} images, {learners})", .learners.kind()
    )]
    BatchLargerThanShard {
        /// Images that a worker should take in a step.
        batch: usize,
        /// Images that the worker with the fewest has.
        shard: usize,
        /// Images to train on.
        images: usize,
        /// Workers of the job, and their replicas.
        learners: Learners,
    },
    /// A step that is longer than an epoch.
    #[error("a step of {accumulate} batches is longer than an epoch of {epoch}: accumulate less")]
    AccumulatesBeyondEpoch {
        /// Batches that a step should have.
        accumulate: usize,
        /// Batches of a worker in an epoch.
        epoch: usize,
    },
    /// More workers than make sense anywhere, their servers included.
    #[error("{0} workers: at most {MAX_WORKERS} are possible")]
    TooManyWorkers(usize),
    /// More threads than make sense anywhere.
    #[error("{0} threads: at most {MAX_THREADS} are possible")]
    TooManyThreads(usize),
    /// More steps than can be counted.
    #[error("{epochs} epochs of {steps} steps are more than can be counted")]
    TooLong {
        /// Epochs of the job.
        epochs: usize,
        /// Steps in each.
        steps: usize,
    },
    /// Some servers would have nothing to hold.
    #[error("{servers} servers for a model of {tensors} tensors: each needs at least one")]
    MoreServersThanTensors {
        /// Servers of the job.
        servers: usize,
        /// Tensors of the model.
        tensors: usize,
    },
    /// Batch norm over workers that are not in step.
    #[error("batch norm cannot be {batch_norm} with {sync}, whose workers are at different steps")]
    BatchNormOutOfStep {
        /// What they would share.
        batch_norm: &'static str,
        /// How they are to synchronise.
        sync: &'static str,
    },
    /// `single` is one worker by definition.
    #[error("single has one worker, not {0}")]
    SingleWithWorkers(usize),
    /// Batch norm would keep workers in step that step alone.
    #[error("{way}: workers step alone, so each has batch norm of its own: local, not {batch_norm}")]
    BatchNormTogether {
        /// The way to stay in step.
        way: &'static str,
        /// What batch norm should share.
        batch_norm: &'static str,
    },
    /// A comparison of what is not meant to be equal.
    #[error("{0}: there is no step after which all workers know that they are equal, so they cannot be compared")]
    NeverEqual(&'static str),
    /// A rank that is made slow but does not train.
    #[error("slow: there is no rank {rank} among {workers} workers")]
    NoSlowRank {
        /// The rank.
        rank: usize,
        /// Workers of the job.
        workers: usize,
    },
    /// Its compression cannot be used.
    #[error(transparent)]
    Compression(#[from] Unusable),
}

/// Those who share a job's images.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Learners {
    /// Workers of the job.
    pub workers: usize,
    /// Replicas of each.
    pub each: usize,
}

impl Learners {
    fn kind(self) -> &'static str {
        if self.each == 1 { "worker" } else { "learner" }
    }
}

impl fmt::Display for Learners {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} workers", self.workers)?;
        if self.each == 1 { Ok(()) } else { write!(formatter, " of {} learners", self.each) }
    }
}

impl Job {
    /// A job of which nothing else is said: plain SGD with a learning rate of 0.01, one thread a worker, images in the
    /// order of the files.
    pub fn new(model: Design, sync: SyncMethod, workers: usize, batch: usize, length: Length) -> Self {
        Self {
            model,
            sync,
            slow: Vec::new(),
            compress: None,
            workers,
            batch,
            accumulate: 1,
            length,
            threads: 1,
            instructions: Instructions::Auto,
            init: None,
            rule: Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 },
            lr: 0.01,
            warm_up: WarmUp::Linear { epochs: 0.0 },
            curve: Curve::Constant,
            label_smoothing: 0.0,
            seed: 0,
            shuffle: false,
            deal: Deal::Strided,
            augment: Augment::default(),
            batch_norm: BatchNorm::Local,
            test_every: None,
            verify_every: None,
            trace_steps: 0,
            predict: false,
        }
    }

    /// Checks that the job can be done on so many training images.
    pub fn validate(&self, images: usize) -> Result<(), JobError> {
        let (Length::Epochs(length) | Length::Steps(length)) = self.length;
        let unit = match self.length {
            Length::Epochs(_) => "epochs",
            Length::Steps(_) => "steps",
        };
        let bucket = match self.sync {
            SyncMethod::Ddp { bucket, .. } | SyncMethod::PostLocalSgd { bucket, .. } => bucket.unwrap_or(1),
            _ => 1,
        };
        let round = if let Some(Round::Every(steps)) = self.sync.round() { steps } else { 1 };
        let counts = [
            (bucket, "bytes a bucket"),
            (round, "steps from average to average"),
            (self.sync.learners(), "learners"),
            (self.workers, "workers"),
            (self.threads, "threads"),
            (self.batch, "images a step"),
            (self.accumulate, "batches a step"),
            (length, unit),
            (images, "training images"),
            (self.test_every.unwrap_or(1), "epochs from test to test"),
            (self.verify_every.unwrap_or(1), "steps from one comparison of the ranks to the next"),
        ];
        for (count, name) in counts {
            if count == 0 {
                return Err(JobError::Zero(name));
            }
        }
        let check = |name, value: f32, fits: bool, range| match fits {
            true => Ok(()),
            false => Err(JobError::OutOfRange { name, value, range }),
        };
        check("lr", self.lr, self.lr > 0.0 && self.lr.is_finite(), "positive and finite")?;
        let at_least_0 = |value: f32| value >= 0.0 && value.is_finite();
        let (Rule::Sgd { weight_decay, .. }
        | Rule::Adam { weight_decay, .. }
        | Rule::AdamW { weight_decay, .. }
        | Rule::Lars { weight_decay, .. }) = self.rule;
        check("weight-decay", weight_decay, at_least_0(weight_decay), "at least 0")?;
        if let Rule::Sgd { momentum, .. } | Rule::Lars { momentum, .. } = self.rule {
            check("momentum", momentum, (0.0..1.0).contains(&momentum), "at least 0 and below 1")?;
        }
        if let Rule::Lars { trust, .. } = self.rule {
            check("trust", trust, trust > 0.0 && trust.is_finite(), "positive and finite")?;
        }
        let warm_up = self.warm_up.epochs();
        check("warm-up", warm_up, at_least_0(warm_up), "at least 0")?;
        match self.curve {
            Curve::Step { every, factor } => {
                check("decay-every", every, every > 0.0 && every.is_finite(), "positive and finite")?;
                check("decay-factor", factor, factor > 0.0 && factor.is_finite(), "positive and finite")?;
            }
            Curve::Polynomial { power } => check("power", power, at_least_0(power), "at least 0")?,
            Curve::Constant | Curve::Cosine => {}
        }
        if let Some(Round::Period(seconds)) = self.sync.round() {
            check("period", seconds as f32, at_least_0(seconds as f32), "at least 0")?;
        }
        const BELOW_1: &str = "at least 0 and below 1";
        match self.sync {
            SyncMethod::PostLocalSgd { switch_at: Some(epochs), .. } => {
                check("switch-at", epochs, at_least_0(epochs), "at least 0")?;
            }
            SyncMethod::DiLoCo { outer_lr: lr, outer_momentum: momentum, .. } => {
                check("outer-lr", lr, lr > 0.0 && lr.is_finite(), "positive and finite")?;
                check("outer-momentum", momentum, (0.0..1.0).contains(&momentum), BELOW_1)?;
            }
            SyncMethod::Sma { pull, momentum, .. } => {
                let pull = pull.unwrap_or(0.0);
                check("pull", pull, (0.0..=1.0).contains(&pull), "at least 0 and at most 1")?;
                check("central-momentum", momentum, (0.0..1.0).contains(&momentum), BELOW_1)?;
            }
            _ => {}
        }
        for slow in &self.slow {
            let (factor, probability) = (slow.factor as f32, slow.probability as f32);
            check("slow's factor", factor, (1.0..=1e6).contains(&factor), "at least 1 and at most a million")?;
            check("slow's probability", probability, (0.0..=1.0).contains(&probability), "at least 0 and at most 1")?;
            if slow.rank >= self.workers {
                return Err(JobError::NoSlowRank { rank: slow.rank, workers: self.workers });
            }
        }
        let smoothing = self.label_smoothing;
        check("label-smoothing", smoothing, (0.0..1.0).contains(&smoothing), "at least 0 and below 1")?;
        if let Some(compression) = self.compress {
            compression.check(self.sync, self.rule)?;
        }
        if self.threads > MAX_THREADS {
            return Err(JobError::TooManyThreads(self.threads));
        }
        if self.sync == SyncMethod::Single && self.workers > 1 {
            return Err(JobError::SingleWithWorkers(self.workers));
        }
        if self.ranks() > MAX_WORKERS {
            return Err(JobError::TooManyWorkers(self.ranks()));
        }
        self.validate_servers()?;
        if self.sync.steps_alone() && self.batch_norm != BatchNorm::Local {
            let (way, batch_norm) = (self.sync.name(), self.batch_norm.name());
            return Err(JobError::BatchNormTogether { way, batch_norm });
        }
        if self.verify_every.is_some() && !self.sync.has_equal_replicas() {
            return Err(JobError::NeverEqual(self.sync.name()));
        }
        let learners = Learners { workers: self.workers, each: self.sync.learners() };
        let (batch, shard) = (self.batch, images / self.workers.saturating_mul(learners.each));
        if shard == 0 {
            return Err(JobError::MoreWorkersThanImages { learners, images });
        }
        if batch > shard {
            return Err(JobError::BatchLargerThanShard { batch, shard, images, learners });
        }
        let (accumulate, epoch) = (self.accumulate, self.shard(0, images).steps());
        if accumulate > epoch {
            return Err(JobError::AccumulatesBeyondEpoch { accumulate, epoch });
        }
        let steps = self.steps_an_epoch(images);
        if unit == "epochs" && length.checked_mul(steps).is_none() {
            return Err(JobError::TooLong { epochs: length, steps });
        }
        Ok(())
    }

    /// What concerns servers alone.
    fn validate_servers(&self) -> Result<(), JobError> {
        let (SyncMethod::ParameterServer { servers }
        | SyncMethod::Stale { servers, .. }
        | SyncMethod::Async { servers, .. }) = self.sync
        else {
            return Ok(());
        };
        if servers == 0 {
            return Err(JobError::Zero("servers"));
        }
        let parameters = self.model.network.parameters().expect("its layers are checked");
        let tensors = parameters.iter().filter(|parameter| parameter.trained).count();
        if servers > tensors {
            return Err(JobError::MoreServersThanTensors { servers, tensors });
        }
        if let SyncMethod::Async { period, .. } = self.sync
            && !(0.0..=MAX_PERIOD).contains(&period)
        {
            let (name, range) = ("period", "at least 0 and at most a day");
            return Err(JobError::OutOfRange { name, value: period as f32, range });
        }
        if self.sync.lets_workers_differ() && self.batch_norm != BatchNorm::Local {
            let (batch_norm, sync) = (self.batch_norm.name(), self.sync.name());
            return Err(JobError::BatchNormOutOfStep { batch_norm, sync });
        }
        Ok(())
    }

    /// How many ranks there are: workers first, then those that serve them.
    pub fn ranks(&self) -> usize {
        self.workers + self.sync.servers(self.workers)
    }

    /// What a rank is there for.
    pub fn role(&self, rank: usize) -> Role {
        rank.checked_sub(self.workers).map_or(Role::Worker, Role::Server)
    }

    /// What each rank is there for.
    pub fn roles(&self) -> Vec<Role> {
        (0..self.ranks()).map(|rank| self.role(rank)).collect()
    }

    /// The part of so many training images that a learner has, of which there are as many on each worker; where each has
    /// one, they have their workers' ranks.
    pub fn shard(&self, learner: usize, images: usize) -> Shard {
        let shuffle = self.shuffle.then_some(self.seed);
        Shard {
            images,
            rank: learner,
            world: self.workers * self.sync.learners(),
            batch: self.batch,
            shuffle,
            deal: self.deal,
        }
    }

    /// The learning rate of each step on so many training images.
    pub fn schedule(&self, images: usize) -> Schedule {
        let (epoch, steps) = (self.steps_an_epoch(images), self.steps(images));
        Schedule { lr: self.lr, warm_up: self.warm_up, curve: self.curve, epoch, steps }
    }

    /// Steps in the whole job on so many training images.
    pub fn steps(&self, images: usize) -> usize {
        match self.length {
            Length::Epochs(epochs) => epochs * self.steps_an_epoch(images),
            Length::Steps(steps) => steps,
        }
    }

    /// Steps in an epoch.
    pub fn steps_an_epoch(&self, images: usize) -> usize {
        self.shard(0, images).steps().div_ceil(self.accumulate)
    }

    /// Tests in the course of the training; the last is that of the final model and comes on top.
    pub fn tests_before_the_last(&self, images: usize) -> usize {
        let whole_epochs = (self.steps(images) - 1) / self.steps_an_epoch(images);
        self.test_every.map_or(0, |every| whole_epochs / every)
    }

    /// Which of an epoch's batches belong to one of its steps; the last step may have fewer.
    pub fn batches(&self, step: usize, images: usize) -> Range<usize> {
        let start = step * self.accumulate;
        start..self.shard(0, images).steps().min(start + self.accumulate)
    }

    /// Batches that a worker takes in the whole job; those that are not in step take as many as they can.
    pub fn batches_in_all(&self, images: usize) -> usize {
        if self.sync.lets_workers_differ() {
            return usize::MAX;
        }
        let (steps, an_epoch) = (self.steps(images), self.steps_an_epoch(images));
        let rest = steps % an_epoch;
        (steps / an_epoch)
            .saturating_mul(self.shard(0, images).steps())
            .saturating_add(self.batches(rest, images).start)
    }
}

#[cfg(test)]
mod tests {
    use ringstep_comm::Algorithm;
    use ringstep_nn::Architecture;

    use super::*;
    use crate::compress::Method;

    fn course_job() -> Job {
        let lenet5 = Design::new("lenet5", Architecture::LeNet5.network()).unwrap();
        Job::new(lenet5, SyncMethod::GatherScatter, 4, 5, Length::Epochs(100))
    }

    #[test]
    fn what_cannot_be_done_is_refused_and_says_why() {
        let refusal = |change: &dyn Fn(&mut Job)| {
            let mut job = course_job();
            change(&mut job);
            job.validate(100).unwrap_err().to_string()
        };
        assert_eq!(course_job().validate(100), Ok(()));
        assert_eq!(refusal(&|job: &mut Job| job.workers = 0), "0 workers: at least 1 is needed");
        assert_eq!(refusal(&|job: &mut Job| job.length = Length::Steps(0)), "0 steps: at least 1 is needed");
        assert_eq!(refusal(&|job: &mut Job| job.workers = 101), "101 workers for 100 images: each needs at least one");
        assert_eq!(
            refusal(&|job: &mut Job| job.batch = 26),
            "a batch of 26 is larger than a worker's shard of 25 images (100 images, 4 workers)"
        );
        assert_eq!(refusal(&|job: &mut Job| job.lr = f32::NAN), "lr is NaN: it must be positive and finite");
        let sgd = |momentum, weight_decay| Rule::Sgd { momentum, nesterov: false, weight_decay };
        assert_eq!(
            refusal(&|job: &mut Job| job.rule = sgd(1.0, 0.0)),
            "momentum is 1: it must be at least 0 and below 1"
        );
        assert_eq!(refusal(&|job: &mut Job| job.rule = sgd(0.0, -1.0)), "weight-decay is -1: it must be at least 0");
        assert_eq!(refusal(&|job: &mut Job| job.threads = 0), "0 threads: at least 1 is needed");
        assert_eq!(
            refusal(&|job: &mut Job| job.warm_up = WarmUp::Linear { epochs: -1.0 }),
            "warm-up is -1: it must be at least 0"
        );
        assert_eq!(
            refusal(&|job: &mut Job| job.label_smoothing = 1.0),
            "label-smoothing is 1: it must be at least 0 and below 1"
        );
        assert_eq!(
            refusal(&|job: &mut Job| job.test_every = Some(0)),
            "0 epochs from test to test: at least 1 is needed"
        );
        assert_eq!(refusal(&|job: &mut Job| job.sync = SyncMethod::Single), "single has one worker, not 4");
        assert_eq!(refusal(&|job: &mut Job| job.accumulate = 0), "0 batches a step: at least 1 is needed");
        assert_eq!(
            refusal(&|job: &mut Job| job.accumulate = 6),
            "a step of 6 batches is longer than an epoch of 5: accumulate less"
        );
        assert_eq!(
            refusal(&|job: &mut Job| job.sync = SyncMethod::Ddp { algorithm: None, bucket: Some(0) }),
            "0 bytes a bucket: at least 1 is needed"
        );
        assert_eq!(
            refusal(&|job: &mut Job| job.compress = Some(Compression::new(Method::Int8))),
            "gather-scatter cannot use int8: rank 0 averages whole gradients"
        );
    }

    #[test]
    fn workers_that_step_alone_are_refused_what_they_cannot_do() {
        let refusal = |change: &dyn Fn(&mut Job)| {
            let mut job = course_job();
            change(&mut job);
            job.validate(100).unwrap_err().to_string()
        };
        let local = |round| SyncMethod::LocalSgd { round, algorithm: None };
        let of = |sync| refusal(&|job: &mut Job| job.sync = sync);
        assert_eq!(of(local(Round::Every(0))), "0 steps from average to average: at least 1 is needed");
        assert_eq!(of(local(Round::Period(-1.0))), "period is -1: it must be at least 0");
        assert_eq!(of(local(Round::Period(f64::NAN))), "period is NaN: it must be at least 0");
        let post = |epochs| SyncMethod::PostLocalSgd {
            switch_at: Some(epochs),
            round: Round::EveryEpoch,
            algorithm: None,
            bucket: None,
        };
        assert_eq!(of(post(-0.5)), "switch-at is -0.5: it must be at least 0");
        let diloco = |outer_lr, outer_momentum| SyncMethod::DiLoCo {
            round: Round::EveryEpoch,
            outer_lr,
            outer_momentum,
            algorithm: None,
        };
        assert_eq!(of(diloco(0.0, 0.9)), "outer-lr is 0: it must be positive and finite");
        assert_eq!(of(diloco(0.7, 1.0)), "outer-momentum is 1: it must be at least 0 and below 1");
        let sma = |learners, pull, momentum| SyncMethod::Sma { learners, pull, momentum, algorithm: None };
        assert_eq!(of(sma(0, None, 0.9)), "0 learners: at least 1 is needed");
        assert_eq!(of(sma(1, Some(1.5), 0.9)), "pull is 1.5: it must be at least 0 and at most 1");
        assert_eq!(of(sma(1, None, -0.1)), "central-momentum is -0.1: it must be at least 0 and below 1");
        assert_eq!(of(sma(26, None, 0.9)), "4 workers of 26 learners for 100 images: each needs at least one");
        assert_eq!(
            of(sma(6, None, 0.9)),
            "a batch of 5 is larger than a learner's shard of 4 images (100 images, 4 workers of 6 learners)"
        );
        assert_eq!(
            refusal(&|job: &mut Job| (job.sync, job.batch_norm) = (local(Round::EveryEpoch), BatchNorm::Sync)),
            "local-sgd: workers step alone, so each has batch norm of its own: local, not sync"
        );
        for sync in [SyncMethod::None, sma(2, None, 0.9), local(Round::Period(1.0))] {
            assert_eq!(
                refusal(&|job: &mut Job| (job.sync, job.verify_every) = (sync, Some(1))),
                format!(
                    "{}: there is no step after which all workers know that they are equal, so they cannot be compared",
                    sync.name()
                )
            );
        }
        let slow =
            |rank, factor, probability| refusal(&|job: &mut Job| job.slow = vec![Slow { rank, factor, probability }]);
        assert_eq!(slow(4, 2.0, 1.0), "slow: there is no rank 4 among 4 workers");
        assert_eq!(slow(3, 0.5, 1.0), "slow's factor is 0.5: it must be at least 1 and at most a million");
        assert_eq!(slow(3, 2.0, 1.5), "slow's probability is 1.5: it must be at least 0 and at most 1");
    }

    #[test]
    fn servers_that_cannot_serve_are_refused() {
        let refusal = |sync, batch_norm| {
            let job = Job { sync, batch_norm, ..course_job() };
            job.validate(100).map_err(|error| error.to_string())
        };
        let with = |servers, period| SyncMethod::Async { servers, period, staleness_aware: false };
        let stale = |servers, staleness| SyncMethod::Stale { servers, staleness };
        for sync in [SyncMethod::ParameterServer { servers: 0 }, stale(0, 1), with(0, 0.0)] {
            assert_eq!(refusal(sync, BatchNorm::Local), Err("0 servers: at least 1 is needed".into()));
        }
        // LeNet-5 has five layers, each with weights and a bias.
        let line = "11 servers for a model of 10 tensors: each needs at least one";
        assert_eq!(refusal(SyncMethod::ParameterServer { servers: 11 }, BatchNorm::Local), Err(line.into()));
        assert_eq!(refusal(SyncMethod::ParameterServer { servers: 10 }, BatchNorm::Local), Ok(()));
        let line = "period is -1: it must be at least 0 and at most a day";
        assert_eq!(refusal(with(1, -1.0), BatchNorm::Local), Err(line.into()));
        assert!(refusal(with(1, f64::NAN), BatchNorm::Local).is_err());
        let line = "batch norm cannot be sync with async, whose workers are at different steps";
        assert_eq!(refusal(with(1, 0.0), BatchNorm::Sync), Err(line.into()));
        let line = "batch norm cannot be broadcast with stale, whose workers are at different steps";
        assert_eq!(refusal(stale(1, 1), BatchNorm::Broadcast), Err(line.into()));
        assert_eq!(refusal(stale(1, 0), BatchNorm::Broadcast), Ok(()));
    }

    #[test]
    fn a_job_that_went_over_the_wire_is_the_same() {
        let plain = course_job();
        let algorithms = Algorithm::ALL.map(Some).into_iter().chain([None]);
        let syncs = algorithms.flat_map(|algorithm| {
            let ddp = |bucket| SyncMethod::Ddp { algorithm, bucket };
            [SyncMethod::AllReduce { algorithm }, ddp(None), ddp(Some(usize::MAX))]
        });
        let syncs = syncs.chain(SyncMethod::ALL).map(|sync| Job { sync, ..plain.clone() });
        let rules = [
            Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay: 1e-4 },
            Rule::Adam { betas: [0.9, 0.999], weight_decay: 0.1 },
            Rule::AdamW { betas: [0.8, 0.99], weight_decay: 0.3 },
            Rule::Lars { momentum: 0.7, weight_decay: f32::MIN_POSITIVE, trust: 1e-3 },
        ];
        let rules = rules.map(|rule| Job { rule, ..plain.clone() });
        let curves = [
            Curve::Constant,
            Curve::Step { every: 0.3, factor: 0.1 },
            Curve::Cosine,
            Curve::Polynomial { power: 1.0 / 3.0 },
        ];
        let curves = curves.map(|curve| Job { curve, ..plain.clone() });
        let warm_ups = [WarmUp::Linear { epochs: 0.7 }, WarmUp::Constant { epochs: 1.1, factor: 0.1 }];
        let warm_ups = warm_ups.map(|warm_up| Job { warm_up, ..plain.clone() });
        let instructions = Instructions::ALL.map(|instructions| Job { instructions, ..plain.clone() });
        let batch_norms = BatchNorm::ALL.map(|batch_norm| Job { batch_norm, ..plain.clone() });
        let compressions = Method::ALL
            .into_iter()
            .flat_map(|method| [true, false].map(|error_feedback| Compression { method, error_feedback }));
        let clipping = Compression::new(Method::Dgc { keep: 1.0 / 3.0, warm_up_epochs: 0, clip: Some(0.1) });
        let compressions =
            compressions.chain([clipping]).map(|compress| Job { compress: Some(compress), ..plain.clone() });
        let deals = Deal::ALL.map(|deal| Job { deal, ..plain.clone() });
        let models = Architecture::ALL
            .map(|architecture| Job { model: Design::new("some", architecture.network()).unwrap(), ..plain.clone() });
        let other = Job {
            length: Length::Steps(7),
            init: Some("/some/where.safetensors".into()),
            lr: 0.1,
            label_smoothing: 0.1,
            seed: u64::MAX,
            shuffle: true,
            augment: Augment { crop: true, flip: true },
            test_every: Some(1),
            verify_every: Some(2),
            trace_steps: 3,
            predict: true,
            slow: vec![Slow { rank: 3, factor: 4.0, probability: 0.1 }],
            ..plain.clone()
        };
        let rounds = [Round::Every(7), Round::EveryEpoch, Round::Period(0.3)];
        let rounds = rounds.map(|round| Job { sync: SyncMethod::LocalSgd { round, algorithm: None }, ..plain.clone() });
        let jobs =
            syncs.chain(rounds).chain(rules).chain(curves).chain(warm_ups).chain(instructions).chain(batch_norms);
        for job in jobs.chain(compressions).chain(deals).chain(models).chain([plain.clone(), other]) {
            let line = serde_json::to_string(&job).unwrap();
            assert_eq!(serde_json::from_str::<Job>(&line).unwrap(), job, "{line}");
        }
    }

    /// Nobody can slip a network past the checks on the way.
    #[test]
    fn a_design_is_checked_again_when_it_arrives() {
        let mut line = serde_json::to_value(course_job().model).unwrap();
        line["network"]["input"] = serde_json::json!([1, 1, 1]);
        let error = serde_json::from_value::<Design>(line).unwrap_err();
        assert!(error.to_string().starts_with("layer "), "{error}");
    }

    #[test]
    fn steps_are_those_of_the_epochs() {
        let mut job = course_job();
        assert_eq!(job.steps(100), 500);
        assert_eq!(job.steps(101), 600);
        job.length = Length::Steps(40);
        assert_eq!(job.steps(100), 40);
        // Five batches an epoch, two a step: 2, 2, 1.
        job.accumulate = 2;
        assert_eq!((job.steps_an_epoch(100), job.batches(0, 100), job.batches(2, 100)), (3, 0..2, 4..5));
        assert_eq!(job.batches_in_all(100), 13 * 5 + 2);
        job.length = Length::Epochs(4);
        assert_eq!((job.steps(100), job.batches_in_all(100)), (12, 20));
    }
}
