//! An experiment: rows of settings, and the runs that they mean.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use ringstep_train::SyncMethod;
use serde::Serialize;

use super::run::Choices;
use super::{Mode, ProcessTransport, Run, Settings, file, names};
use crate::names::{ByName, NumberOr};

/// An experiment: what all its rows have in common, and what each row says besides. Without rows there is one for each
/// way of synchronising that the common settings name, with each of their compressions and each of their stragglers.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Experiment {
    #[serde(flatten)]
    pub common: Settings,
    #[serde(rename = "row", skip_serializing_if = "Vec::is_empty")]
    pub rows: Vec<Settings>,
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

    /// Whether some of its workers talk so.
    pub fn uses(&self, transport: ProcessTransport) -> bool {
        self.rows.iter().chain([&self.common]).any(|row| row.network.transport == Some(ByName(transport)))
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
        let choices = rows.iter_mut().map(|row| row.choices(mode)).collect::<Result<Vec<_>>>()?;
        let of_all = Choices {
            ways: choices.iter().flat_map(|row| row.ways.clone()).collect(),
            compressions: choices.iter().flat_map(|row| row.compressions.clone()).collect(),
            stragglers: Vec::new(),
        };
        of_all.refuse_foreign(&self.common.table()?)?;
        for (row, choices) in self.rows.iter().zip(&choices) {
            choices.refuse_foreign(&row.table()?)?;
        }
        let (mut runs, mut tables) = (Vec::new(), Vec::new());
        for (row, choices) in rows.iter_mut().zip(&choices) {
            // What is common to all rows may be another way's.
            *row = row.without(|key| !choices.has_meaning(key))?;
            runs.extend(row.runs(choices, mode)?);
            let table = row.table()?;
            tables.extend(choices.all(mode).into_iter().map(|(way, ..)| (way, table.clone())));
        }
        names::tell_apart(&mut runs, &tables)?;
        Ok((Self::of_rows(&rows)?, runs))
    }

    /// Whether there are rows whose learners are left to measurement.
    pub fn leaves_learners_open(&self) -> bool {
        self.rows.iter().chain([&self.common]).any(|row| row.sync.leaves_learners_open())
    }

    /// An experiment that is resolved, and its runs, with as many learners as `find` says where that was left open.
    pub fn with_learners(self, mode: Mode, find: &dyn Fn(&Run) -> Result<usize>) -> Result<(Self, Vec<Run>)> {
        let rows = if self.rows.is_empty() { vec![Settings::default()] } else { self.rows };
        let mut rows = rows.iter().map(|row| row.over(&self.common)).collect::<Result<Vec<_>>>()?;
        // Of each run, whether its row leaves that open: a row may have several.
        let mut open = Vec::new();
        for row in &mut rows {
            let (_, runs) = Self { common: row.clone(), rows: Vec::new() }.resolve(mode)?;
            let is_sma = |run: &&Run| matches!(run.job.sync, SyncMethod::Sma { .. });
            open.extend(runs.iter().map(|run| row.sync.leaves_learners_open() && is_sma(&run)));
            if row.sync.leaves_learners_open() {
                let run = runs.iter().find(is_sma);
                row.sync.learners = Some(NumberOr::Number(find(run.expect("learners belong to sma"))? as i64));
            }
        }
        let (experiment, mut runs) = Self { common: Settings::default(), rows }.resolve(mode)?;
        runs.iter_mut().zip(open).for_each(|(run, open)| run.learners_found = open);
        Ok((experiment, runs))
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
    use ringstep_train::compress::{Compression, Method};
    use ringstep_train::job::Length;

    use super::super::Launch;
    use super::super::tests::settings;
    use super::*;

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
            "net = \"latency=1ms\"\nslow = [\"none\", \"1:2:0.5\"]\ncompress = [\"dgc\", \"sign\"]\ntarget = \"97%\"",
            "data = \"/mnist\"\nlaunch = \"threads\"\nsync = [\"ddp\", \"data-parallel\"]\nbucket = \"1MiB\"",
        ] {
            for run in resolve(text, Mode::Compare).1 {
                let line = serde_json::to_string(&run).unwrap();
                assert_eq!(serde_json::from_str::<Run>(&line).unwrap(), run, "{line}");
            }
        }
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
    fn lists_make_rows_of_each_with_each() {
        let text = "sync = [\"single\", \"ddp\", \"async\"]\nslow = [\"none\", \"3:4\"]";
        let (complete, runs) = resolve(text, Mode::Compare);
        let titles: Vec<_> = runs.iter().map(|run| run.title.as_str()).collect();
        let slow = ["ddp, ring, rank 3 slowed 4x", "async, rank 3 slowed 4x"];
        assert_eq!(titles, ["single", "ddp, ring", slow[0], "async", slow[1]]);
        assert_eq!(runs[4].name, "async-rank-3-slowed-4x");
        assert_eq!(complete.clone().resolve(Mode::Compare).unwrap(), (complete, runs));

        // Where compressions are compared, the way is one that can use them.
        let (_, runs) = resolve("compress = [\"none\", \"top-k\", \"power-sgd\"]\nkeep = \"5%\"", Mode::Compare);
        let names: Vec<_> = runs.iter().map(|run| (run.title.as_str(), run.name.as_str())).collect();
        let expected =
            [("ddp, ring", "ddp"), ("ddp, top-k 5%", "ddp-top-k-5"), ("ddp, power-sgd rank 4", "ddp-power-sgd-rank-4")];
        assert_eq!(names, expected);
        assert_eq!(runs[1].job.compress, Some(Compression::new(Method::TopK { keep: 0.05 })));

        // Rows with options of their own, over what is common to all.
        let common = settings("staleness = 1\nevery = 8\ncompress = \"none\"");
        let rows = ["sync = \"stale\"", "sync = \"stale\"\nstaleness = 3", "sync = \"local-sgd\"\nperiod = 0.5"];
        let experiment = Experiment { common, rows: rows.map(settings).to_vec() };
        let (_, runs) = experiment.resolve(Mode::Compare).unwrap();
        let titles: Vec<_> = runs.iter().map(|run| run.title.as_str()).collect();
        assert_eq!(titles, ["stale, staleness 1", "stale, staleness 3", "local-sgd"]);
    }

    #[test]
    fn a_warm_up_of_no_epochs_is_not_told() {
        let rows = ["lr = 0.1", "lr = 0.1\nwarm-up = 2\nwarm-up-kind = \"constant\""].map(settings);
        let experiment = Experiment { common: settings("sync = \"ddp\""), rows: rows.to_vec() };
        let (_, runs) = experiment.resolve(Mode::Compare).unwrap();
        let titles: Vec<_> = runs.iter().map(|run| run.title.as_str()).collect();
        assert_eq!(titles, ["ddp, ring", "ddp, ring, warm-up 2.0, warm-up-kind constant"]);
    }

    #[test]
    fn all_that_are_slow_in_a_training_are_slow_together() {
        let (experiment, runs) = resolve("slow = [\"1:2\", \"3:4:0.5\"]", Mode::Train);
        assert_eq!(runs[0].job.slow.len(), 2);
        assert_eq!(experiment.common.workers.slow, ["1:2+3:4:0.5".parse().unwrap()]);
    }

    #[test]
    fn learners_that_were_found_are_written_down() {
        let rows = ["sync = \"ddp\"", "sync = \"sma\"\nlearners = \"auto\"", "sync = \"sma\"\nlearners = 2"];
        let file = Experiment { common: Settings::default(), rows: rows.map(settings).to_vec() };
        let (experiment, _) = file.resolve(Mode::Compare).unwrap();
        assert!(experiment.leaves_learners_open());
        let (experiment, runs) = experiment.with_learners(Mode::Compare, &|_| Ok(3)).unwrap();
        assert!(!experiment.leaves_learners_open());
        assert_eq!(runs.iter().map(|run| run.job.sync.learners()).collect::<Vec<_>>(), [1, 3, 2]);
        assert_eq!(runs.iter().map(|run| run.learners_found).collect::<Vec<_>>(), [false, true, false]);
        // What was found is repeated.
        let again = experiment.clone().resolve(Mode::Compare).unwrap();
        let runs = runs.into_iter().map(|run| Run { learners_found: false, ..run }).collect();
        assert_eq!(again, (experiment, runs));
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
            "--bucket belongs to ddp and post-local-sgd, not to single"
        );
        assert_eq!(
            refused("bucket = \"1kB\"", ["sync = \"all-reduce\"", "sync = \"single\""]),
            "--bucket belongs to ddp and post-local-sgd, not to all-reduce, single"
        );
    }
}
