//! How workers stay in step.

use anyhow::{Result, bail, ensure};
use ringstep_comm::Algorithm;
use ringstep_train::SyncMethod;
use ringstep_train::batch_norm::BatchNorm;
use ringstep_train::job::Design;
use ringstep_train::strategy::AUTO;
use serde::{Deserialize, Serialize};
use toml::Table;

use super::{Mode, one_or_many};
use crate::names::{ByName, Bytes, Named, choices};

/// Flags about synchronising.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
#[command(next_help_heading = "Synchronisation")]
pub struct SyncFlags {
    /// How workers stay in step: single, gather-scatter, all-reduce (a collective a parameter, after backward), ddp
    /// (buckets of gradients, while backward goes on), data-parallel (rank 0 holds the model); alone for a while: local-sgd,
    /// post-local-sgd, diloco, sma, none; with a server: parameter-server, stale, async; for compare a list
    /// [default: all-reduce; for compare the first four]
    #[arg(long, value_name = "WAY", value_delimiter = ',')]
    #[serde(deserialize_with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub sync: Vec<ByName<SyncName>>,
    /// How an all-reduce goes about it: ring, gather-scatter, tree, recursive-doubling, halving-doubling, direct,
    /// hierarchical, or auto: the best by measurement [default: ring]
    #[arg(long)]
    pub algorithm: Option<ByName<Option<Algorithm>>>,
    /// Size of ddp's buckets, such as 4MiB; the first is an eighth of it [default: from the cost model]
    #[arg(long, value_name = "BYTES", hide_short_help = true)]
    pub bucket: Option<Bytes>,
    /// What workers share of batch norm's statistics: local, nothing; broadcast, rank 0's running ones; or sync, all of
    /// them, as one worker with the whole batch would have them [default: local]
    #[arg(long, value_name = "MODE", hide_short_help = true)]
    pub batch_norm: Option<ByName<BatchNorm>>,
}

choices! {
    /// The ways of [`SyncMethod`], by name.
    pub enum SyncName: "way to synchronise" {
        /// One worker.
        Single = "single",
        /// Rank 0 averages each parameter's gradients.
        GatherScatter = "gather-scatter",
        /// An all-reduce a parameter.
        AllReduce = "all-reduce",
        /// Buckets of gradients, while backward goes on.
        Ddp = "ddp",
        /// Rank 0 holds the model.
        DataParallel = "data-parallel",
        /// Workers that never talk.
        None = "none",
        /// Models are averaged from time to time.
        LocalSgd = "local-sgd",
        /// First ddp, then local-sgd.
        PostLocalSgd = "post-local-sgd",
        /// The model follows averages with momentum.
        DiLoCo = "diloco",
        /// Replicas around a central model.
        Sma = "sma",
        /// Servers hold the parameters.
        ParameterServer = "parameter-server",
        /// The same, and workers may be ahead of others.
        Stale = "stale",
        /// Servers apply what has arrived.
        Async = "async",
    }
}

/// Options of some ways only, by their key, and the ways that have them.
const OPTIONS: [(&str, &[SyncName]); 2] =
    [("algorithm", &[SyncName::AllReduce, SyncName::Ddp]), ("bucket", &[SyncName::Ddp])];

/// What `compare` compares unless told otherwise: the course's ways, and the one that hides its communication.
const COMPARED: [SyncName; 4] = [SyncName::Single, SyncName::GatherScatter, SyncName::AllReduce, SyncName::Ddp];

/// Whether an option means something to one of these ways.
pub fn has_meaning(key: &str, ways: &[SyncName]) -> bool {
    OPTIONS.iter().all(|(option, of)| *option != key || ways.iter().any(|way| of.contains(way)))
}

/// Refuses options that mean nothing to any of these ways, instead of ignoring them.
pub fn refuse_foreign(given: &Table, ways: &[SyncName]) -> Result<()> {
    for (option, of) in OPTIONS {
        if given.contains_key(option) && !has_meaning(option, ways) {
            let names = |ways: &[SyncName]| ways.iter().map(|way| way.spelling()).collect::<Vec<_>>().join(", ");
            let (last, others) = of.split_last().expect("an option belongs to a way");
            let and = if others.is_empty() { "" } else { " and " };
            bail!("--{option} belongs to {}{and}{}, not to {}", names(others), last.spelling(), names(ways));
        }
    }
    Ok(())
}

impl Named for Option<Algorithm> {
    const KIND: &'static str = "algorithm";

    fn all() -> Vec<Self> {
        [None].into_iter().chain(Algorithm::ALL.map(Some)).collect()
    }

    fn spelling(self) -> &'static str {
        self.map_or(AUTO, Algorithm::name)
    }
}

impl Named for BatchNorm {
    const KIND: &'static str = "batch norm mode";

    fn all() -> Vec<Self> {
        Self::ALL.to_vec()
    }

    fn spelling(self) -> &'static str {
        self.name()
    }
}

impl SyncFlags {
    /// The ways that are named, if any are.
    pub fn named(&self) -> Vec<SyncName> {
        self.sync.iter().map(|way| way.0).collect()
    }

    /// The ways to run.
    pub fn ways(&mut self, mode: Mode) -> Result<Vec<SyncName>> {
        if self.sync.is_empty() {
            self.sync = match mode {
                Mode::Compare => COMPARED.map(ByName).to_vec(),
                Mode::Train => vec![ByName(SyncName::AllReduce)],
            };
        }
        if let Some(twice) = (1..self.sync.len()).find(|&at| self.sync[..at].contains(&self.sync[at])) {
            bail!("{} is given twice", self.sync[twice]);
        }
        ensure!(
            mode == Mode::Compare || self.sync.len() == 1,
            "train runs one way of synchronising, not {}: choose with --sync, or use compare",
            self.sync.len()
        );
        let ways = self.named();
        if has_meaning("algorithm", &ways) {
            self.algorithm.get_or_insert(ByName(Some(Algorithm::Ring)));
        }
        Ok(ways)
    }

    /// What a way means with these options.
    pub fn method(&self, way: SyncName) -> SyncMethod {
        let algorithm = self.algorithm.map_or(Some(Algorithm::Ring), |algorithm| algorithm.0);
        match way {
            SyncName::Single => SyncMethod::Single,
            SyncName::GatherScatter => SyncMethod::GatherScatter,
            SyncName::AllReduce => SyncMethod::AllReduce { algorithm },
            SyncName::Ddp => SyncMethod::Ddp { algorithm, bucket: self.bucket.map(|bytes| bytes.0) },
            SyncName::DataParallel => SyncMethod::DataParallel,
            SyncName::None
            | SyncName::LocalSgd
            | SyncName::PostLocalSgd
            | SyncName::DiLoCo
            | SyncName::Sma
            | SyncName::ParameterServer
            | SyncName::Stale
            | SyncName::Async => {
                let named = |method: &SyncMethod| method.name() == way.spelling();
                SyncMethod::ALL.into_iter().find(named).expect("ways have the names of their methods")
            }
        }
    }

    /// What workers share of batch norm's statistics.
    pub fn batch_norm(&self, design: &Design) -> Result<BatchNorm> {
        let Some(ByName(mode)) = self.batch_norm else { return Ok(BatchNorm::default()) };
        ensure!(design.normalises(), "--batch-norm {}: {} has no batch norm", mode.name(), design.name);
        Ok(mode)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_way_and_its_method_have_one_name() {
        for way in SyncName::all() {
            assert_eq!(SyncFlags::default().method(way).name(), way.spelling());
        }
        assert_eq!(SyncName::all().len(), SyncMethod::ALL.len());
    }

    #[test]
    fn a_bucket_is_ddps_and_ddp_needs_none() {
        let given: Table = toml::from_str("bucket = '1MiB'").unwrap();
        let error = refuse_foreign(&given, &[SyncName::AllReduce]).unwrap_err();
        assert_eq!(error.to_string(), "--bucket belongs to ddp, not to all-reduce");
        refuse_foreign(&given, &[SyncName::AllReduce, SyncName::Ddp]).unwrap();
        let algorithm = Some(Algorithm::Ring);
        let flags = SyncFlags { bucket: Some(Bytes(1 << 20)), ..SyncFlags::default() };
        assert_eq!(flags.method(SyncName::Ddp), SyncMethod::Ddp { algorithm, bucket: Some(1 << 20) });
        assert_eq!(SyncFlags::default().method(SyncName::Ddp), SyncMethod::Ddp { algorithm, bucket: None });
    }

    #[test]
    fn a_batch_norm_mode_needs_batch_norm() {
        use ringstep_nn::Architecture;
        let mode = |model: Architecture, mode: BatchNorm| {
            let design = Design::new(model.name(), model.network()).unwrap();
            let flags = SyncFlags { batch_norm: Some(ByName(mode)), ..SyncFlags::default() };
            flags.batch_norm(&design).map_err(|error| error.to_string())
        };
        assert_eq!(mode(Architecture::ResNet20, BatchNorm::Sync), Ok(BatchNorm::Sync));
        assert_eq!(
            mode(Architecture::LeNet5, BatchNorm::Local),
            Err("--batch-norm local: lenet5 has no batch norm".into())
        );
    }
}
