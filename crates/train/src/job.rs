//! What there is to do: parsed and validated once, then trusted.

use ringstep_data::shard::Shard;
use ringstep_nn::Architecture;

use crate::Sync;

/// One training job, the same on all ranks.
#[derive(Debug, Clone, PartialEq)]
pub struct Job {
    /// What to train.
    pub model: Architecture,
    /// How the workers stay in step.
    pub sync: Sync,
    /// How many there are.
    pub workers: usize,
    /// Images that a worker takes in a step.
    pub batch: usize,
    /// When to stop.
    pub length: Length,
    /// Learning rate of SGD.
    pub lr: f32,
    /// Momentum of SGD.
    pub momentum: f32,
    /// Weight decay of SGD.
    pub weight_decay: f32,
    /// Decides the initial weights and the order of the images.
    pub seed: u64,
    /// Whether each epoch has an order of its own.
    pub shuffle: bool,
}

/// When a job is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Length {
    /// After all images have been seen so many times.
    Epochs(usize),
    /// After so many steps.
    Steps(usize),
}

/// Beyond this, connecting everyone with everyone makes no sense.
pub const MAX_WORKERS: usize = 1024;

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
    #[error("{workers} workers for {images} images: each needs at least one")]
    MoreWorkersThanImages {
        /// Workers of the job.
        workers: usize,
        /// Images to train on.
        images: usize,
    },
    /// A batch that no worker can fill.
    #[error(
        "a batch of {batch} is larger than a worker's shard of {shard} images ({images} images, {workers} workers)"
    )]
    BatchLargerThanShard {
        /// Images that a worker should take in a step.
        batch: usize,
        /// Images that the worker with the fewest has.
        shard: usize,
        /// Images to train on.
        images: usize,
        /// Workers of the job.
        workers: usize,
    },
    /// More workers than make sense anywhere.
    #[error("{0} workers: at most {MAX_WORKERS} are possible")]
    TooManyWorkers(usize),
    /// More steps than can be counted.
    #[error("{epochs} epochs of {steps} steps are more than can be counted")]
    TooLong {
        /// Epochs of the job.
        epochs: usize,
        /// Steps in each.
        steps: usize,
    },
    /// `single` is one worker by definition.
    #[error("single has one worker, not {0}")]
    SingleWithWorkers(usize),
}

impl Job {
    /// Checks that the job can be done on so many training images.
    pub fn validate(&self, images: usize) -> Result<(), JobError> {
        let (Length::Epochs(length) | Length::Steps(length)) = self.length;
        let unit = match self.length {
            Length::Epochs(_) => "epochs",
            Length::Steps(_) => "steps",
        };
        for (count, name) in
            [(self.workers, "workers"), (self.batch, "images a step"), (length, unit), (images, "training images")]
        {
            if count == 0 {
                return Err(JobError::Zero(name));
            }
        }
        let check = |name, value: f32, fits: bool, range| match fits {
            true => Ok(()),
            false => Err(JobError::OutOfRange { name, value, range }),
        };
        check("lr", self.lr, self.lr > 0.0 && self.lr.is_finite(), "positive and finite")?;
        check("momentum", self.momentum, (0.0..1.0).contains(&self.momentum), "at least 0 and below 1")?;
        let decay = self.weight_decay;
        check("weight-decay", decay, decay >= 0.0 && decay.is_finite(), "at least 0")?;
        if self.sync == Sync::Single && self.workers > 1 {
            return Err(JobError::SingleWithWorkers(self.workers));
        }
        if self.workers > MAX_WORKERS {
            return Err(JobError::TooManyWorkers(self.workers));
        }
        let (workers, batch, shard) = (self.workers, self.batch, images / self.workers);
        if shard == 0 {
            return Err(JobError::MoreWorkersThanImages { workers, images });
        }
        if batch > shard {
            return Err(JobError::BatchLargerThanShard { batch, shard, images, workers });
        }
        let steps = self.shard(0, images).steps();
        if unit == "epochs" && length.checked_mul(steps).is_none() {
            return Err(JobError::TooLong { epochs: length, steps });
        }
        Ok(())
    }

    /// A rank's part of so many training images.
    pub fn shard(&self, rank: usize, images: usize) -> Shard {
        let shuffle = self.shuffle.then_some(self.seed);
        Shard { images, rank, world: self.workers, batch: self.batch, shuffle }
    }

    /// Steps in the whole job on so many training images.
    pub fn steps(&self, images: usize) -> usize {
        match self.length {
            Length::Epochs(epochs) => epochs * self.shard(0, images).steps(),
            Length::Steps(steps) => steps,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn course_job() -> Job {
        Job {
            model: Architecture::LeNet5,
            sync: Sync::GatherScatter,
            workers: 4,
            batch: 5,
            length: Length::Epochs(100),
            lr: 0.01,
            momentum: 0.0,
            weight_decay: 0.0,
            seed: 0,
            shuffle: false,
        }
    }

    #[test]
    fn what_cannot_be_done_is_refused_and_says_why() {
        let refusal = |change: fn(&mut Job)| {
            let mut job = course_job();
            change(&mut job);
            job.validate(100).unwrap_err().to_string()
        };
        assert_eq!(course_job().validate(100), Ok(()));
        assert_eq!(refusal(|job| job.workers = 0), "0 workers: at least 1 is needed");
        assert_eq!(refusal(|job| job.length = Length::Steps(0)), "0 steps: at least 1 is needed");
        assert_eq!(refusal(|job| job.workers = 101), "101 workers for 100 images: each needs at least one");
        assert_eq!(
            refusal(|job| job.batch = 26),
            "a batch of 26 is larger than a worker's shard of 25 images (100 images, 4 workers)"
        );
        assert_eq!(refusal(|job| job.lr = f32::NAN), "lr is NaN: it must be positive and finite");
        assert_eq!(refusal(|job| job.momentum = 1.0), "momentum is 1: it must be at least 0 and below 1");
        assert_eq!(refusal(|job| job.weight_decay = -1.0), "weight-decay is -1: it must be at least 0");
        assert_eq!(refusal(|job| job.sync = Sync::Single), "single has one worker, not 4");
    }

    #[test]
    fn steps_are_those_of_the_epochs() {
        let mut job = course_job();
        assert_eq!(job.steps(100), 500);
        assert_eq!(job.steps(101), 600);
        job.length = Length::Steps(40);
        assert_eq!(job.steps(100), 40);
    }
}
