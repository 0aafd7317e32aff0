//! What a row means: what there is to choose in it, and the run of each choice.

use anyhow::{Result, bail, ensure};
use ringstep_data::shard::Deal;
use ringstep_train::Job;
use ringstep_train::batch_norm::BatchNorm;
use ringstep_train::job::Leg;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::slow::SlowRanks;
use super::{CompressName, Every, Faults, Settings, SyncName, Workers, compress, sync};
use crate::datasets::DataPlan;
use crate::mpi;
use crate::names::Named;

/// What one row means: whatever its workers need to know.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// No other row has it. Its records and its folder are called so.
    pub name: String,
    /// How tables and plots call it.
    pub title: String,
    /// What each rank does.
    pub job: Job,
    /// What it is done on.
    pub data: DataPlan,
    /// Who does it.
    pub workers: Workers,
    /// The test accuracy whose time is of interest.
    pub target: Option<f64>,
    /// How often it is saved on the way, if it is.
    pub checkpoint_every: Option<Every>,
    /// How many checkpoints stay.
    pub keep_checkpoints: usize,
    /// What becomes of it if workers die.
    pub faults: Faults,
    /// Whether its number of learners was measured: another time it may be another one.
    pub learners_found: bool,
}

/// Which of the two commands asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Several rows.
    Compare,
    /// One row.
    Train,
}

impl Mode {
    /// The command's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compare => "compare",
            Self::Train => "train",
        }
    }
}

/// What a row leaves to choose: each of these ways is run with each compression, and so with each set of slow workers.
pub(super) struct Choices {
    pub ways: Vec<SyncName>,
    pub compressions: Vec<CompressName>,
    pub stragglers: Vec<SlowRanks>,
}

impl Choices {
    pub fn has_meaning(&self, key: &str) -> bool {
        sync::OPTIONS.has_meaning(key, &self.ways) && compress::OPTIONS.has_meaning(key, &self.compressions)
    }

    pub fn refuse_foreign(&self, given: &Table) -> Result<()> {
        sync::OPTIONS.refuse_foreign(given, &self.ways)?;
        compress::OPTIONS.refuse_foreign(given, &self.compressions)
    }

    /// All that can be chosen, in order.
    pub fn all(&self, mode: Mode) -> Vec<(SyncName, CompressName, SlowRanks)> {
        let (mut all, nobody) = (Vec::new(), [SlowRanks::default()]);
        for &way in &self.ways {
            // One worker that does the work of all keeps nobody waiting.
            let alone = mode == Mode::Compare && way == SyncName::Single;
            let stragglers = if alone { &nobody[..] } else { &self.stragglers };
            for &compression in &self.compressions {
                all.extend(stragglers.iter().map(|slow| (way, compression, slow.clone())));
            }
        }
        all
    }
}

impl Settings {
    /// What there is to choose.
    pub(super) fn choices(&mut self, mode: Mode) -> Result<Choices> {
        let compresses = !self.compress.compress.is_empty();
        let transport = self.network.transport.map(|transport| transport.0);
        let algorithm = mpi::algorithm(transport, self.network.net.as_ref());
        Ok(Choices {
            ways: self.sync.ways(mode, compresses, algorithm)?,
            compressions: self.compress.methods(mode)?,
            stragglers: self.workers.stragglers(mode)?,
        })
    }

    /// Decides whatever was left open, and says what it means: a run for each of these choices, without names yet. All do the
    /// same job: in a comparison `single` takes in a step what all workers of the others take together.
    pub(super) fn runs(&mut self, choices: &Choices, mode: Mode) -> Result<Vec<Run>> {
        let Self { model, data, training, sync, compress, workers, network, records, saving, faults } = self;
        let ways = &choices.ways[..];
        let alone = mode == Mode::Train && *ways == [SyncName::Single];
        let length = training.length()?;
        records.check(ways, mode)?;
        let target = records.target()?;
        let (checkpoint_every, keep_checkpoints) = (saving.every(mode)?, saving.keep(mode)?);
        let deal = data.deal(ways)?;
        let (count, batch) = (workers.count(alone, training.batch)?, training.batch(alone));
        let design = model.design()?;
        let plan = data.plan(design.input())?;
        let start = workers.launch(network, ways, mode)?;
        let faults = faults.faults(mode, count, &start)?;
        let job = Job {
            batch_norm: sync.batch_norm(&design)?,
            model: design,
            sync: sync.method(ways[0])?,
            slow: Vec::new(),
            compress: None,
            workers: count,
            batch,
            accumulate: training.accumulate(),
            length,
            threads: workers.threads(),
            instructions: workers.instructions()?,
            init: model.init()?,
            rule: training.rule()?,
            lr: training.lr(),
            warm_up: training.warm_up(),
            curve: training.curve()?,
            label_smoothing: training.label_smoothing(),
            seed: training.seed(),
            shuffle: data.shuffle(),
            deal,
            augment: data.augment()?,
            test_every: records.test_every,
            verify_every: records.verify_every,
            trace_steps: records.trace(),
            predict: records.predict(mode),
            leg: Leg::default(),
        };
        let run = |(way, compression, SlowRanks(slow))| {
            let compress = compress.compression(compression)?;
            let mut job = Job { sync: sync.method(way)?, compress, slow, ..job.clone() };
            if way == SyncName::Single {
                (job.workers, job.batch) = (count.min(1), batch.saturating_mul(count));
            }
            // There each step begins with all of rank 0's model anyway.
            if way == SyncName::DataParallel && job.batch_norm == BatchNorm::Broadcast {
                job.batch_norm = BatchNorm::Local;
            }
            let workers = start.of(way);
            let direct = matches!(job.sync.algorithm(), Some(Some(algorithm)) if algorithm.needs_shared_memory());
            if direct && !workers.may_share_memory() {
                ensure!(workers.link.is_none(), "direct needs memory that workers share, which --net takes from them");
                bail!("direct needs memory that workers share: --transport auto, or --launch threads");
            }
            mpi::check(job.sync.algorithm().flatten(), &workers)?;
            if let Some(elastic) = faults.elastic {
                let differ = job.sync.lets_workers_differ() || job.sync.held_by().is_some();
                ensure!(
                    !differ,
                    "--elastic {elastic}: {} needs all its workers; --max-restarts starts new ones",
                    way.spelling()
                );
                let whole = job.deal == Deal::Strided;
                ensure!(whole, "--elastic {elastic}: pieces of --shard contiguous cannot be shared out anew");
            }
            let (name, title, data) = (String::new(), String::new(), plan.clone());
            let learners_found = false;
            Ok(Run {
                name,
                title,
                job,
                data,
                workers,
                target,
                checkpoint_every,
                keep_checkpoints,
                faults,
                learners_found,
            })
        };
        choices.all(mode).into_iter().map(run).collect()
    }
}
