//! What a user asks for, by flags and by an experiment file, and the runs that this means.
//!
//! What was typed is an [`Experiment`] of [`Settings`]; what it means is a [`Run`] for each row, and
//! [`Experiment::resolve`] is the one place where the first becomes the second. Each group of flags has a file, in which
//! stand the flags, their defaults and their meaning; here is how they go before one another.

mod compress;
mod data;
mod experiment;
mod faults;
pub(crate) mod file;
mod model;
mod names;
mod network;
mod one_way;
mod options;
mod records;
mod run;
mod saving;
mod slow;
mod sync;
mod training;
mod workers;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};
use ringstep_data::mnist::MNIST;
use serde::{Deserialize, Deserializer, Serialize};
use toml::Table;

pub use self::compress::{CompressFlags, CompressName};
pub use self::data::DataFlags;
pub use self::experiment::Experiment;
pub use self::faults::{FaultFlags, Faults};
pub use self::file::read_toml;
pub use self::model::{ModelFlags, ModelName};
pub use self::network::{Link, NetworkFlags, ProcessTransport, latency, rate};
pub use self::one_way::one_way;
pub use self::records::RecordFlags;
pub use self::run::{Mode, Run};
pub use self::saving::{Every, SavingFlags};
pub use self::slow::SlowRanks;
pub use self::sync::{SyncFlags, SyncName};
pub use self::training::TrainingFlags;
pub use self::workers::{Launch, LaunchName, Processes, WorkerFlags, Workers, crowd};
use crate::datasets::Choice;
use crate::names::{ByName, Refusal};

/// Everything that can be said about a row, by flag or in a file, and nothing that was not said.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default)]
pub struct Settings {
    #[command(flatten)]
    #[serde(flatten)]
    pub model: ModelFlags,
    #[command(flatten)]
    #[serde(flatten)]
    pub data: DataFlags,
    #[command(flatten)]
    #[serde(flatten)]
    pub training: TrainingFlags,
    #[command(flatten)]
    #[serde(flatten)]
    pub sync: SyncFlags,
    #[command(flatten)]
    #[serde(flatten)]
    pub compress: CompressFlags,
    #[command(flatten)]
    #[serde(flatten)]
    pub workers: WorkerFlags,
    #[command(flatten)]
    #[serde(flatten)]
    pub network: NetworkFlags,
    #[command(flatten)]
    #[serde(flatten)]
    pub records: RecordFlags,
    #[command(flatten)]
    #[serde(flatten)]
    pub saving: SavingFlags,
    #[command(flatten)]
    #[serde(flatten)]
    pub faults: FaultFlags,
}

/// A path that means the same from anywhere, so that a run's configuration repeats it.
fn absolute(path: &Path) -> Result<PathBuf> {
    std::path::absolute(path).with_context(|| path.display().to_string())
}

/// Names in a file: one, or a list.
fn one_or_many<'de, D: Deserializer<'de>, T: FromStr<Err = Refusal>>(deserializer: D) -> Result<Vec<T>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a name, or a list of names")]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    let names = match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(name) => vec![name],
        OneOrMany::Many(names) => names,
    };
    names.iter().map(|name| name.parse().map_err(serde::de::Error::custom)).collect()
}

impl Settings {
    /// What was said, by key.
    fn table(&self) -> Result<Table> {
        // By way of text: a Table made of the settings themselves would hold the digits of an f64.
        let text = toml::to_string(self).context("these settings cannot be written down")?;
        Ok(toml::from_str(&text)?)
    }

    /// These settings where they say something, and `base` where they do not.
    fn over(&self, base: &Self) -> Result<Self> {
        let mut table = base.without(|key| self.displaces(key, base))?.table()?;
        table.extend(self.table()?);
        Ok(table.try_into()?)
    }

    /// These settings without some keys.
    fn without(&self, unwanted: impl Fn(&str) -> bool) -> Result<Self> {
        let mut table = self.table()?;
        table.retain(|key, _| !unwanted(key));
        Ok(table.try_into()?)
    }

    /// Whether a setting of `base` means nothing any more where these settings go before it.
    fn displaces(&self, key: &str, base: &Self) -> bool {
        let ways = self.sync.named();
        let data_parallel = ways == [SyncName::DataParallel];
        match key {
            "epochs" | "steps" => self.training.epochs.is_some() || self.training.steps.is_some(),
            // A folder holds one data set: the base's is none of another's.
            "data" => {
                let of_base = base.data.dataset.unwrap_or(Choice::Files(&MNIST));
                self.data.dataset.is_some_and(|dataset| dataset != of_base)
            }
            "shard" | "launch" | "net" => data_parallel,
            "transport" | "meet" | "tls" | "start-with" | "pin" => {
                data_parallel || self.workers.launch == Some(ByName(LaunchName::Threads))
            }
            "every" | "period" if self.sync.every.is_some() || self.sync.period.is_some() => true,
            _ => {
                let compressions = self.compress.named();
                (!ways.is_empty() && !sync::OPTIONS.has_meaning(key, &ways))
                    || (!compressions.is_empty() && !compress::OPTIONS.has_meaning(key, &compressions))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn settings(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn flags_go_before_the_file() {
        let file = settings("sync = \"single\"\nepochs = 3\nlr = 0.5\nweight-decay = 0.1");
        let merged = settings("steps = 7\nlr = 0.25").over(&file).unwrap();
        assert_eq!(merged, settings("sync = \"single\"\nsteps = 7\nlr = 0.25\nweight-decay = 0.1"));
    }

    #[test]
    fn a_folder_belongs_to_its_data_set() {
        let file = settings("dataset = \"mnist\"\ndata = \"/mnist\"");
        let folder = |flags: &str| settings(flags).over(&file).unwrap().data.data;
        assert_eq!(folder("dataset = \"mnist\""), Some("/mnist".into()));
        assert_eq!(folder("dataset = \"cifar10\""), None);
        assert_eq!(folder(""), Some("/mnist".into()));
    }
}
