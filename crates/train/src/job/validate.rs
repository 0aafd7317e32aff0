//! Whether a job can be done.

use ringstep_nn::optim::Rule;
use ringstep_nn::schedule::Curve;

use super::error::Learners;
use super::{Job, JobError, Length};
use crate::SyncMethod;
use crate::batch_norm::BatchNorm;
use crate::strategy::Round;

/// Beyond this, threads only get in each other's way.
pub const MAX_THREADS: usize = 1024;

/// Beyond this, connecting everyone with everyone makes no sense.
pub const MAX_WORKERS: usize = 1024;

/// Beyond this, in seconds, nobody would see the parameters of servers change.
const MAX_PERIOD: f64 = 86_400.0;

impl Job {
    /// Checks that the job can be done on so many training images.
    pub fn validate(&self, images: usize) -> Result<(), JobError> {
        self.validate_counts(images)?;
        self.validate_training()?;
        self.validate_way()?;
        if let Some(compression) = self.compress {
            compression.check(self.sync, self.rule)?;
        }
        self.validate_ranks()?;
        self.validate_servers()?;
        self.validate_shards(images)
    }

    /// What must not be zero.
    fn validate_counts(&self, images: usize) -> Result<(), JobError> {
        let (Length::Epochs(length) | Length::Steps(length)) = self.length;
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
            (length, if let Length::Epochs(_) = self.length { "epochs" } else { "steps" }),
            (images, "training images"),
            (self.test_every.unwrap_or(1), "epochs from test to test"),
            (self.verify_every.unwrap_or(1), "steps from one comparison of the ranks to the next"),
        ];
        match counts.into_iter().find(|(count, _)| *count == 0) {
            Some((_, name)) => Err(JobError::Zero(name)),
            None => Ok(()),
        }
    }

    /// Numbers of the optimizer and its schedule.
    fn validate_training(&self) -> Result<(), JobError> {
        positive("lr", self.lr)?;
        let (Rule::Sgd { weight_decay, .. }
        | Rule::Adam { weight_decay, .. }
        | Rule::AdamW { weight_decay, .. }
        | Rule::Lars { weight_decay, .. }) = self.rule;
        at_least_0("weight-decay", weight_decay)?;
        if let Rule::Sgd { momentum, .. } | Rule::Lars { momentum, .. } = self.rule {
            below_1("momentum", momentum)?;
        }
        if let Rule::Lars { trust, .. } = self.rule {
            positive("trust", trust)?;
        }
        at_least_0("warm-up", self.warm_up.epochs())?;
        match self.curve {
            Curve::Step { every, factor } => {
                positive("decay-every", every)?;
                positive("decay-factor", factor)?;
            }
            Curve::Polynomial { power } => at_least_0("power", power)?,
            Curve::Constant | Curve::Cosine => {}
        }
        below_1("label-smoothing", self.label_smoothing)
    }

    /// Numbers of the way to stay in step, and of those that are made slow.
    fn validate_way(&self) -> Result<(), JobError> {
        if let Some(Round::Period(seconds)) = self.sync.round() {
            at_least_0("period", seconds as f32)?;
        }
        match self.sync {
            SyncMethod::PostLocalSgd { switch_at: Some(epochs), .. } => at_least_0("switch-at", epochs)?,
            SyncMethod::DiLoCo { outer_lr, outer_momentum, .. } => {
                positive("outer-lr", outer_lr)?;
                below_1("outer-momentum", outer_momentum)?;
            }
            SyncMethod::Sma { pull, momentum, .. } => {
                at_most_1("pull", pull.unwrap_or(0.0))?;
                below_1("central-momentum", momentum)?;
            }
            _ => {}
        }
        for slow in &self.slow {
            let factor = slow.factor as f32;
            within("slow's factor", factor, (1.0..=1e6).contains(&factor), "at least 1 and at most a million")?;
            at_most_1("slow's probability", slow.probability as f32)?;
            if slow.rank >= self.workers {
                return Err(JobError::NoSlowRank { rank: slow.rank, workers: self.workers });
            }
        }
        Ok(())
    }

    /// How many there are, and what they are to do together.
    fn validate_ranks(&self) -> Result<(), JobError> {
        if self.threads > MAX_THREADS {
            return Err(JobError::TooManyThreads(self.threads));
        }
        if self.sync == SyncMethod::Single && self.workers > 1 {
            return Err(JobError::SingleWithWorkers(self.workers));
        }
        if self.ranks() > MAX_WORKERS {
            return Err(JobError::TooManyWorkers(self.ranks()));
        }
        if self.sync.steps_alone() && self.batch_norm != BatchNorm::Local {
            let (way, batch_norm) = (self.sync.name(), self.batch_norm.name());
            return Err(JobError::BatchNormTogether { way, batch_norm });
        }
        if self.verify_every.is_some() && !self.sync.has_equal_replicas() {
            return Err(JobError::NeverEqual(self.sync.name()));
        }
        Ok(())
    }

    /// What concerns servers alone.
    fn validate_servers(&self) -> Result<(), JobError> {
        if self.sync.held_by().is_none() {
            return Ok(());
        }
        let servers = self.sync.servers(self.workers);
        if servers == 0 {
            return Err(JobError::Zero("servers"));
        }
        let parameters = self.model.network().parameters().expect("its layers are checked");
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

    /// Whether everyone has enough images.
    fn validate_shards(&self, images: usize) -> Result<(), JobError> {
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
        match self.length {
            Length::Epochs(epochs) if epochs.checked_mul(steps).is_none() => Err(JobError::TooLong { epochs, steps }),
            _ => Ok(()),
        }
    }
}

fn within(name: &'static str, value: f32, fits: bool, range: &'static str) -> Result<(), JobError> {
    if fits { Ok(()) } else { Err(JobError::OutOfRange { name, value, range }) }
}

fn positive(name: &'static str, value: f32) -> Result<(), JobError> {
    within(name, value, value > 0.0 && value.is_finite(), "positive and finite")
}

fn at_least_0(name: &'static str, value: f32) -> Result<(), JobError> {
    within(name, value, value >= 0.0 && value.is_finite(), "at least 0")
}

fn below_1(name: &'static str, value: f32) -> Result<(), JobError> {
    within(name, value, (0.0..1.0).contains(&value), "at least 0 and below 1")
}

fn at_most_1(name: &'static str, value: f32) -> Result<(), JobError> {
    within(name, value, (0.0..=1.0).contains(&value), "at least 0 and at most 1")
}

#[cfg(test)]
mod tests {
    use ringstep_nn::schedule::WarmUp;

    use super::super::tests::course_job;
    use super::*;
    use crate::compress::{Compression, Method};
    use crate::slow::Slow;
    use crate::strategy::Servers;

    /// What a job is refused for that differs in this.
    fn refusal(change: &dyn Fn(&mut Job)) -> String {
        let mut job = course_job();
        change(&mut job);
        job.validate(100).unwrap_err().to_string()
    }

    #[test]
    fn what_cannot_be_done_is_refused_and_says_why() {
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
        let with =
            |servers, period| SyncMethod::Async { servers: Servers::Apart(servers), period, staleness_aware: false };
        let stale = |servers, staleness| SyncMethod::Stale { servers: Servers::Apart(servers), staleness };
        for sync in [SyncMethod::ParameterServer { servers: Servers::Apart(0) }, stale(0, 1), with(0, 0.0)] {
            assert_eq!(refusal(sync, BatchNorm::Local), Err("0 servers: at least 1 is needed".into()));
        }
        // LeNet-5 has five layers, each with weights and a bias.
        let line = "11 servers for a model of 10 tensors: each needs at least one";
        assert_eq!(
            refusal(SyncMethod::ParameterServer { servers: Servers::Apart(11) }, BatchNorm::Local),
            Err(line.into())
        );
        assert_eq!(refusal(SyncMethod::ParameterServer { servers: Servers::Apart(10) }, BatchNorm::Local), Ok(()));
        assert_eq!(refusal(SyncMethod::ParameterServer { servers: Servers::Colocated }, BatchNorm::Local), Ok(()));
        let line = "period is -1: it must be at least 0 and at most a day";
        assert_eq!(refusal(with(1, -1.0), BatchNorm::Local), Err(line.into()));
        assert!(refusal(with(1, f64::NAN), BatchNorm::Local).is_err());
        let line = "batch norm cannot be sync with async, whose workers are at different steps";
        assert_eq!(refusal(with(1, 0.0), BatchNorm::Sync), Err(line.into()));
        let line = "batch norm cannot be broadcast with stale, whose workers are at different steps";
        assert_eq!(refusal(stale(1, 1), BatchNorm::Broadcast), Err(line.into()));
        assert_eq!(refusal(stale(1, 0), BatchNorm::Broadcast), Ok(()));
    }
}
