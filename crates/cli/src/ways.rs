//! How workers stay in step: the settings of synchronising, and what they mean.

use anyhow::{Result, bail, ensure};
use ringstep_comm::Algorithm;
use ringstep_data::shard::Deal;
use ringstep_train::SyncMethod;
use ringstep_train::batch_norm::BatchNorm;
use ringstep_train::strategy::AUTO;

use crate::names::{lookup, parse_bytes};
use crate::settings::{Mode, Settings};
use crate::workers::{Launch, ProcessTransport};

/// Steps that a trace holds unless told otherwise: enough to look at, little enough to open.
const TRACED_STEPS: usize = 50;

/// What `compare` compares unless told otherwise: the course's ways, and the one that hides its communication.
const COMPARED: [SyncMethod; 4] = [
    SyncMethod::Single,
    SyncMethod::GatherScatter,
    SyncMethod::AllReduce { algorithm: None },
    SyncMethod::Ddp { algorithm: None, bucket: None },
];

/// The algorithm of this name; `None` for auto.
pub fn named_algorithm(name: &str) -> Result<Option<Algorithm>> {
    let known: Vec<Option<Algorithm>> = [None].into_iter().chain(Algorithm::ALL.map(Some)).collect();
    lookup("algorithm", name, &known, |algorithm| algorithm.map_or(AUTO, Algorithm::name))
}

/// The way of this name, with nothing else said about it.
fn named_way(name: &str) -> Result<SyncMethod> {
    lookup("way to synchronise", name, &SyncMethod::ALL, SyncMethod::name)
}

impl Settings {
    /// Decides which ways there are.
    pub(crate) fn complete_ways(&mut self, mode: Mode) -> Result<()> {
        if self.sync.is_empty() {
            self.sync = match mode {
                Mode::Compare => COMPARED.iter().map(|sync| sync.name().to_owned()).collect(),
                Mode::Train => vec![SyncMethod::AllReduce { algorithm: None }.name().to_owned()],
            };
        }
        if let Some(twice) = (1..self.sync.len()).find(|&at| self.sync[..at].contains(&self.sync[at])) {
            bail!("{} is given twice", self.sync[twice]);
        }
        if mode == Mode::Train && self.sync.len() > 1 {
            bail!("train runs one way of synchronising, not {}: choose with --sync, or use compare", self.sync.len());
        }
        let ways = self.sync.iter().map(|name| named_way(name)).collect::<Result<Vec<_>>>()?;
        let ddp = SyncMethod::Ddp { algorithm: None, bucket: None }.name();
        if self.bucket.is_some() && !self.sync.iter().any(|way| way == ddp) {
            bail!("--bucket belongs to {ddp}, not to {}", self.sync.join(", "));
        }
        let data_parallel = SyncMethod::DataParallel.name();
        if mode == Mode::Train && self.sync[0] == data_parallel {
            let launch = self.launch.get_or_insert_with(|| Launch::Threads.name().to_owned());
            if *launch != Launch::Threads.name() {
                bail!("{data_parallel} is one process: its workers are threads, not {launch}");
            }
        }
        if mode == Mode::Train && self.sync[0] == data_parallel && self.verify_every.is_some() {
            bail!("--verify-every: {data_parallel} has one model, that of rank 0: nothing can differ");
        }
        if ways.iter().any(|way| matches!(way, SyncMethod::AllReduce { .. } | SyncMethod::Ddp { .. })) {
            self.algorithm.get_or_insert_with(|| Algorithm::Ring.name().to_owned());
        } else if self.algorithm.is_some() {
            bail!(
                "--algorithm belongs to {} and {ddp}, not to {}",
                SyncMethod::AllReduce { algorithm: None }.name(),
                self.sync.join(", ")
            );
        }
        self.accumulate.get_or_insert(1);
        if ways != [SyncMethod::DataParallel] {
            self.shard.get_or_insert_with(|| Deal::default().name().to_owned());
        } else if self.shard.is_some() {
            bail!("--shard: in {data_parallel} rank 0 deals every batch out, and no worker has a shard");
        }
        ensure!(self.log_every != Some(0), "0 steps from line to line: at least 1 is needed");
        self.trace.get_or_insert(TRACED_STEPS);
        self.predict.get_or_insert(mode == Mode::Compare);
        Ok(())
    }

    /// Without what belongs to other ways than those that the flags name.
    pub(crate) fn for_ways_of(mut self, flags: &Self) -> Self {
        let named = |names: &[SyncMethod]| flags.sync.iter().any(|way| names.iter().any(|sync| sync.name() == way));
        let (all_reduce, ddp) =
            (SyncMethod::AllReduce { algorithm: None }, SyncMethod::Ddp { algorithm: None, bucket: None });
        if !flags.sync.is_empty() {
            self.algorithm = self.algorithm.filter(|_| named(&[all_reduce, ddp]));
            self.bucket = self.bucket.filter(|_| named(&[ddp]));
        }
        let data_parallel = flags.sync == [SyncMethod::DataParallel.name()];
        if data_parallel {
            (self.shard, self.launch) = (None, None);
        }
        if data_parallel || flags.launch.as_deref() == Some(Launch::Threads.name()) {
            (self.transport, self.meet, self.start_with, self.pin) = (None, None, None, None);
        }
        self
    }

    /// One row for each way of synchronising. All rows do the same job: `single` takes in a step what all workers of
    /// the others take together.
    pub fn rows(&self) -> Vec<Self> {
        let row = |way: &String| {
            let mut row = Self { sync: vec![way.clone()], ..self.clone() };
            if way == SyncMethod::Single.name() {
                row.batch = row.batch.zip(row.workers).map(|(batch, workers)| batch.saturating_mul(workers));
                row.workers = row.workers.map(|workers| workers.min(1));
            }
            if way == SyncMethod::DataParallel.name() {
                row.launch = Some(Launch::Threads.name().to_owned());
            }
            row
        };
        self.sync.iter().map(row).collect()
    }

    /// The way of a completed row.
    pub(crate) fn way(&self) -> Result<SyncMethod> {
        let algorithm = self.algorithm.as_deref().map_or(Ok(None), named_algorithm)?;
        if algorithm.is_some_and(Algorithm::needs_shared_memory)
            && (self.launch()?, self.transport()?) == (Launch::Processes, ProcessTransport::Tcp)
        {
            bail!("direct needs memory that workers share: --transport auto, or --launch threads");
        }
        let bucket = self.bucket.as_deref().map(parse_bytes).transpose()?;
        Ok(match named_way(&self.sync[0])? {
            SyncMethod::AllReduce { .. } => SyncMethod::AllReduce { algorithm },
            SyncMethod::Ddp { .. } => SyncMethod::Ddp { algorithm, bucket },
            other => other,
        })
    }

    /// What the workers of a completed row share of batch norm's statistics.
    pub(crate) fn batch_norm(&self) -> Result<BatchNorm> {
        let Some(name) = &self.batch_norm else { return Ok(BatchNorm::default()) };
        let mode = lookup("batch norm mode", name, &BatchNorm::ALL, BatchNorm::name)?;
        let design = self.design()?;
        if !design.normalises() {
            bail!("--batch-norm {name}: {} has no batch norm", design.name);
        }
        // There each step begins with all of rank 0's model anyway.
        let replicated = self.way()? == SyncMethod::DataParallel;
        Ok(if replicated && mode == BatchNorm::Broadcast { BatchNorm::Local } else { mode })
    }

    /// How images are dealt out to the workers of a completed row.
    pub(crate) fn deal(&self) -> Result<Deal> {
        self.shard.as_deref().map_or(Ok(Deal::default()), |name| lookup("way to shard", name, &Deal::ALL, Deal::name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ways(names: &[&str]) -> Settings {
        Settings { sync: names.iter().map(|name| (*name).to_owned()).collect(), ..Settings::default() }
    }

    #[test]
    fn a_bucket_is_ddps_and_ddp_needs_none() {
        let bucket = |names: &[&str]| Settings { bucket: Some("1MiB".into()), ..ways(names) };
        let error = bucket(&["all-reduce"]).complete(Mode::Train).unwrap_err();
        assert_eq!(error.to_string(), "--bucket belongs to ddp, not to all-reduce");
        let row = bucket(&["ddp"]).complete(Mode::Train).unwrap();
        assert_eq!(row.way().unwrap(), SyncMethod::Ddp { algorithm: Some(Algorithm::Ring), bucket: Some(1 << 20) });
        let row = ways(&["ddp"]).complete(Mode::Train).unwrap();
        assert_eq!(row.way().unwrap(), SyncMethod::Ddp { algorithm: Some(Algorithm::Ring), bucket: None });
    }

    #[test]
    fn data_parallel_is_one_process() {
        let row = ways(&["data-parallel"]).complete(Mode::Train).unwrap();
        assert_eq!(row.launch().unwrap(), Launch::Threads);
        let processes = Settings { launch: Some("processes".into()), ..ways(&["data-parallel"]) };
        let error = processes.complete(Mode::Train).unwrap_err();
        assert_eq!(error.to_string(), "data-parallel is one process: its workers are threads, not processes");
        let rows = ways(&["ddp", "data-parallel"]).complete(Mode::Compare).unwrap().rows();
        let launches: Vec<Launch> = rows.iter().map(|row| row.launch().unwrap()).collect();
        assert_eq!(launches, [Launch::Processes, Launch::Threads]);
    }

    #[test]
    fn flags_for_another_way_leave_the_files_options_behind() {
        let file = Settings { bucket: Some("1MiB".into()), ..ways(&["ddp"]) }.complete(Mode::Train).unwrap();
        let with = |flags: Settings| flags.over(file.clone()).complete(Mode::Train).unwrap();
        assert_eq!(with(ways(&["gather-scatter"])).way().unwrap(), SyncMethod::GatherScatter);
        assert_eq!(
            with(ways(&["all-reduce"])).way().unwrap(),
            SyncMethod::AllReduce { algorithm: Some(Algorithm::Ring) }
        );
        assert_eq!(with(Settings { launch: Some("threads".into()), ..Settings::default() }).transport, None);
        assert_eq!(with(ways(&["data-parallel"])).launch().unwrap(), Launch::Threads);
        assert_eq!(with(Settings::default()), file);
    }

    #[test]
    fn a_batch_norm_mode_needs_batch_norm() {
        let mode = |model: &str, mode: &str| {
            let settings = Settings { model: Some(model.into()), dataset: Some("synthetic".into()), ..ways(&["ddp"]) };
            let settings = Settings { batch_norm: Some(mode.into()), ..settings };
            settings.complete(Mode::Train).unwrap().batch_norm().map_err(|error| error.to_string())
        };
        assert_eq!(mode("resnet20", "sync"), Ok(BatchNorm::Sync));
        assert_eq!(mode("lenet5", "local"), Err("--batch-norm local: lenet5 has no batch norm".into()));
    }
}
