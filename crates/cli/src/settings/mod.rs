//! What a user asks for, by flags and by an experiment file, and the runs that this means.
//!
//! What was typed is an [`Experiment`] of [`Settings`]; what it means is a [`Run`] for each row, and
//! [`Experiment::resolve`] is the one place where the first becomes the second. Each group of flags has a file, in which
//! stand the flags, their defaults and their meaning.

mod data;
mod file;
mod model;
mod names;
mod network;
mod records;
mod sync;
mod training;
mod workers;

use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use ringstep_data::mnist::MNIST;
use ringstep_train::Job;
use ringstep_train::batch_norm::BatchNorm;
use serde::{Deserialize, Deserializer, Serialize};
use toml::Table;

pub use self::data::DataFlags;
pub use self::model::{ModelFlags, ModelName};
pub use self::network::{NetworkFlags, ProcessTransport};
pub use self::records::RecordFlags;
pub use self::sync::{SyncFlags, SyncName};
pub use self::training::TrainingFlags;
pub use self::workers::{Launch, LaunchName, Processes, WorkerFlags, Workers, crowd};
use crate::datasets::{Choice, DataPlan};
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
    pub workers: WorkerFlags,
    #[command(flatten)]
    #[serde(flatten)]
    pub network: NetworkFlags,
    #[command(flatten)]
    #[serde(flatten)]
    pub records: RecordFlags,
}

/// An experiment: what all its rows have in common, and what each row says besides. Without rows there is one for each
/// way of synchronising that the common settings name.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Experiment {
    #[serde(flatten)]
    pub common: Settings,
    #[serde(rename = "row", skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<Settings>,
}

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
            "shard" | "launch" => data_parallel,
            "transport" | "meet" | "start-with" | "pin" => {
                data_parallel || self.workers.launch == Some(ByName(LaunchName::Threads))
            }
            _ => !ways.is_empty() && !sync::has_meaning(key, &ways),
        }
    }

    /// Decides whatever was left open, and says what it means: a run for each of these ways, without names yet. All do the
    /// same job: in a comparison `single` takes in a step what all workers of the others take together.
    fn runs(&mut self, ways: &[SyncName], mode: Mode) -> Result<Vec<Run>> {
        let Self { model, data, training, sync, workers, network, records } = self;
        let alone = mode == Mode::Train && *ways == [SyncName::Single];
        let length = training.length()?;
        records.check(ways, mode)?;
        let deal = data.deal(ways)?;
        let (count, batch) = (workers.count(alone, training.batch)?, training.batch(alone));
        let design = model.design()?;
        let plan = data.plan(design.input())?;
        let start = workers.launch(network, ways, mode)?;
        let job = Job {
            batch_norm: sync.batch_norm(&design)?,
            model: design,
            sync: sync.method(ways[0]),
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
        };
        let run = |&way: &SyncName| {
            let mut job = Job { sync: sync.method(way), ..job.clone() };
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
                bail!("direct needs memory that workers share: --transport auto, or --launch threads");
            }
            Ok(Run { name: String::new(), title: String::new(), job, data: plan.clone(), workers })
        };
        ways.iter().map(run).collect()
    }
}

impl Experiment {
    /// Reads an experiment file.
    pub fn read(path: &Path) -> Result<Self> {
        file::read(path)
    }

    /// The same with these flags before all that the file says. If they name ways, these are the rows.
    pub fn under(self, flags: &Settings) -> Result<Self> {
        let given = flags.table()?;
        let rows = if flags.sync.named().is_empty() { self.rows } else { Vec::new() };
        let rows = rows.iter().map(|row| row.without(|key| given.contains_key(key) || flags.displaces(key, row)));
        Ok(Self { rows: rows.collect::<Result<_>>()?, common: flags.over(&self.common)? })
    }

    /// Whether somebody has said how many workers or threads there are.
    pub fn says_how_many(&self) -> bool {
        let says = |settings: &Settings| settings.workers.workers.is_some() || settings.workers.threads.is_some();
        says(&self.common) || self.rows.iter().any(says)
    }

    /// What it means: the same experiment with everything that was left open decided, and its runs.
    pub fn resolve(self, mode: Mode) -> Result<(Self, Vec<Run>)> {
        let mut rows = match self.rows.is_empty() {
            true => vec![self.common.clone()],
            false => self.rows.iter().map(|row| row.over(&self.common)).collect::<Result<Vec<_>>>()?,
        };
        ensure!(
            mode == Mode::Compare || rows.len() == 1,
            "train runs one way of synchronising, not {}: choose with --sync, or use compare",
            rows.len()
        );
        let ways = rows.iter_mut().map(|row| row.sync.ways(mode)).collect::<Result<Vec<_>>>()?;
        sync::refuse_foreign(&self.common.table()?, &ways.concat())?;
        for (row, ways) in self.rows.iter().zip(&ways) {
            sync::refuse_foreign(&row.table()?, ways)?;
        }
        let (mut runs, mut tables) = (Vec::new(), Vec::new());
        for (row, ways) in rows.iter_mut().zip(&ways) {
            // What is common to all rows may be another way's.
            *row = row.without(|key| !sync::has_meaning(key, ways))?;
            runs.extend(row.runs(ways, mode)?);
            let table = row.table()?;
            tables.extend(ways.iter().map(|&way| (way, table.clone())));
        }
        names::tell_apart(&mut runs, &tables)?;
        Ok((Self::of_rows(&rows)?, runs))
    }

    /// The experiment of these rows: what is the same in all of them is common.
    fn of_rows(rows: &[Settings]) -> Result<Self> {
        let tables = rows.iter().map(Settings::table).collect::<Result<Vec<_>>>()?;
        let common = |key: &str| tables.iter().all(|table| table.get(key) == tables[0].get(key));
        let own: Vec<Settings> = rows.iter().map(|row| row.without(common)).collect::<Result<_>>()?;
        let rows_differ = own.len() > 1;
        Ok(Self { common: rows[0].without(|key| !common(key))?, rows: if rows_differ { own } else { Vec::new() } })
    }

    /// As a file that repeats it.
    pub fn to_toml(&self) -> Result<String> {
        toml::to_string(self).context("these settings cannot be written down")
    }
}

#[cfg(test)]
mod tests {
    use ringstep_comm::Algorithm;
    use ringstep_train::SyncMethod;
    use ringstep_train::job::Length;

    use super::*;

    fn settings(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    fn resolve(text: &str, mode: Mode) -> (Experiment, Vec<Run>) {
        Experiment { common: settings(text), rows: Vec::new() }.resolve(mode).unwrap()
    }

    #[test]
    fn without_a_word_it_is_the_courses_job() {
        let (experiment, runs) = resolve("", Mode::Compare);
        let shapes: Vec<_> = runs.iter().map(|run| (run.name.as_str(), run.job.workers, run.job.batch)).collect();
        assert_eq!(shapes, [("single", 1, 20), ("gather-scatter", 4, 5), ("all-reduce", 4, 5), ("ddp", 4, 5)]);
        let titles: Vec<_> = runs.iter().map(|run| run.title.as_str()).collect();
        assert_eq!(titles, ["single", "gather-scatter", "all-reduce, ring", "ddp, ring"]);
        assert_eq!((experiment.common.data.samples, experiment.common.data.data), (Some(100), None));
        assert_eq!(experiment.common.network.transport, Some(ByName(ProcessTransport::Auto)));
    }

    #[test]
    fn what_is_written_is_what_is_read_and_means_the_same() {
        let (experiment, runs) = resolve("lr = 0.1\nweight-decay = 5e-4\nshuffle = true", Mode::Compare);
        let text = experiment.to_toml().unwrap();
        assert!(text.contains("lr = 0.1\n"), "{text}");
        let again = Experiment { common: settings(&text), rows: Vec::new() };
        assert_eq!(again, experiment);
        let (complete, again) = again.resolve(Mode::Compare).unwrap();
        assert_eq!(complete, experiment);
        assert_eq!(runs, again);
    }

    /// As the first versions wrote it, whose settings were one list.
    #[test]
    fn configurations_that_were_recorded_stay_readable() {
        let recorded = "model = \"lenet5\"\ndataset = \"mnist\"\nsamples = 100\n\
            sync = [\"single\", \"gather-scatter\", \"all-reduce\", \"ddp\"]\nalgorithm = \"ring\"\nbucket = \"64kB\"\n\
            transport = \"auto\"\nworkers = 4\nbatch = 5\naccumulate = 1\nepochs = 6\nthreads = 1\n\
            instructions = \"auto\"\noptimizer = \"sgd\"\nlr = 0.01\nmomentum = 0.0\nnesterov = false\n\
            weight-decay = 0.0\nschedule = \"constant\"\nwarm-up = 0.0\nwarm-up-kind = \"linear\"\n\
            label-smoothing = 0.0\nseed = 0\nshuffle = false\nshard = \"strided\"\naugment = [\"none\"]\ntrace = 50\n\
            predict = true\nmeet = \"127.0.0.1\"\npin = false\nlaunch = \"processes\"\n";
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.toml");
        std::fs::write(&path, recorded).unwrap();
        let (_, runs) = Experiment::read(&path).unwrap().resolve(Mode::Compare).unwrap();
        assert_eq!(runs, resolve("epochs = 6\nbucket = \"64kB\"", Mode::Compare).1);
    }

    /// Workers get runs as lines of JSON.
    #[test]
    fn a_run_that_went_over_the_wire_is_the_same() {
        for text in [
            "",
            "dataset = \"synthetic\"\nmeet = \"10.0.0.1\"\nstart-with = \"nice\"\ntimeout = 0.1\ntransport = \"shm\"",
            "data = \"/mnist\"\nlaunch = \"threads\"\nsync = [\"ddp\", \"data-parallel\"]\nbucket = \"1MiB\"",
        ] {
            for run in resolve(text, Mode::Compare).1 {
                let line = serde_json::to_string(&run).unwrap();
                assert_eq!(serde_json::from_str::<Run>(&line).unwrap(), run, "{line}");
            }
        }
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

    #[test]
    fn flags_for_another_way_leave_the_files_options_behind() {
        let (file, _) = resolve("sync = \"ddp\"\nbucket = \"1MiB\"", Mode::Train);
        let with = |flags: &str| file.clone().under(&settings(flags)).unwrap().resolve(Mode::Train).unwrap();
        let method = |flags: &str| with(flags).1[0].job.sync;
        assert_eq!(method("sync = \"gather-scatter\""), SyncMethod::GatherScatter);
        assert_eq!(method("sync = \"all-reduce\""), SyncMethod::AllReduce { algorithm: Some(Algorithm::Ring) });
        assert_eq!(with("launch = \"threads\"").0.common.network.transport, None);
        assert_eq!(with("sync = \"data-parallel\"").1[0].workers.launch, Launch::Threads);
        assert_eq!(with("").0, file);
    }

    #[test]
    fn data_parallel_is_one_process() {
        let (_, runs) = resolve("sync = \"data-parallel\"", Mode::Train);
        assert_eq!(runs[0].workers.launch, Launch::Threads);
        let (_, runs) = resolve("sync = [\"ddp\", \"data-parallel\"]", Mode::Compare);
        assert!(matches!(runs[0].workers.launch, Launch::Processes(_)));
        assert_eq!(runs[1].workers.launch, Launch::Threads);
    }

    #[test]
    fn rows_are_told_apart_by_what_differs_and_repeat() {
        let common = settings("lr = 0.1\nalgorithm = \"tree\"\nsync = [\"single\", \"ddp\"]");
        let rows =
            ["batch = 2", "sync = \"ddp\"\nbucket = \"64kB\"\nsteps = 3", "sync = \"gather-scatter\""].map(settings);
        let experiment = Experiment { common, rows: rows.to_vec() };
        let (complete, runs) = experiment.resolve(Mode::Compare).unwrap();
        let titles: Vec<_> = runs.iter().map(|run| run.title.as_str()).collect();
        assert_eq!(
            titles,
            ["single", "ddp, tree, batch 2, epochs 100", "ddp, tree, batch 5, bucket 64kB, steps 3", "gather-scatter"]
        );
        let names: Vec<_> = runs.iter().map(|run| run.name.as_str()).collect();
        assert_eq!(names, ["single", "ddp-batch-2-epochs-100", "ddp-batch-5-bucket-64kB-steps-3", "gather-scatter"]);
        assert_eq!((runs[0].job.workers, runs[0].job.batch), (1, 8));
        assert_eq!((complete.common.training.lr, complete.rows.len()), (Some(0.1), 3));
        let (again, same) = complete.clone().resolve(Mode::Compare).unwrap();
        assert_eq!(again, complete);
        assert_eq!(runs, same);
    }

    #[test]
    fn flags_go_before_rows_too() {
        let rows = ["sync = \"ddp\"\nepochs = 3\nbatch = 2", "sync = \"single\"\nbatch = 4"].map(settings);
        let file = Experiment { common: Settings::default(), rows: rows.to_vec() };
        let flagged = file.clone().under(&settings("steps = 9\nbatch = 1")).unwrap();
        assert_eq!(flagged.rows, ["sync = \"ddp\"", "sync = \"single\""].map(settings));
        let (_, runs) = flagged.resolve(Mode::Compare).unwrap();
        assert!(runs.iter().all(|run| run.job.length == Length::Steps(9)));
        assert!(file.under(&settings("sync = \"ddp\"")).unwrap().rows.is_empty());
    }

    #[test]
    fn equal_rows_and_options_of_other_ways_are_refused() {
        let refused = |common: &str, rows: [&str; 2]| {
            let experiment = Experiment { common: settings(common), rows: rows.map(settings).to_vec() };
            experiment.resolve(Mode::Compare).unwrap_err().to_string()
        };
        assert_eq!(refused("", ["sync = \"ddp\"", "sync = \"ddp\""]), "ddp, ring is given twice");
        assert_eq!(
            refused("", ["sync = \"ddp\"", "sync = \"single\"\nbucket = \"1kB\""]),
            "--bucket belongs to ddp, not to single"
        );
        assert_eq!(
            refused("bucket = \"1kB\"", ["sync = \"all-reduce\"", "sync = \"single\""]),
            "--bucket belongs to ddp, not to all-reduce, single"
        );
    }
}
