//! Why a job cannot be done.

use std::fmt;

use super::{MAX_THREADS, MAX_WORKERS};
use crate::compress::method::Unusable;

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
