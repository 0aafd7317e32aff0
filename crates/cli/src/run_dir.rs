//! What a run leaves behind: `runs/NAME/` with config.toml, metrics.jsonl, steps.jsonl,
//! summary.json, report.html, trace.json, the weights and the checkpoints; `eval` adds eval.html.

use std::fs::{self, File};
use std::io::{Seek, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use ringstep_data::file;
use ringstep_train::accounts::StepSummary;
use ringstep_train::records::{Epoch, Parts};
use serde::Serialize;

use crate::checkpoints::{self, RankSoFar};
use crate::settings::Run;

/// Every run begins it, so it tells a run's folder from others.
const METRICS: &str = "metrics.jsonl";
const STEPS: &str = "steps.jsonl";
/// The settings, as they were.
pub const CONFIG: &str = "config.toml";
/// The network, if it came from a file.
pub const MODEL: &str = "model.toml";
/// The final weights.
pub const WEIGHTS: &str = "model.safetensors";
/// The same in integers.
pub const QUANTIZED: &str = "quantized.safetensors";
/// The cells of `bench scaling`.
pub const CELLS: &str = "cells.csv";
/// What `eval` says about them.
pub const EVALUATION: &str = "eval.html";

/// The folder of a run.
pub struct RunDir {
    path: PathBuf,
    metrics: File,
    steps: File,
}

/// One line of metrics.jsonl: one rank's part of an epoch of one row.
#[derive(Serialize)]
struct Metric<'a> {
    row: &'a str,
    sync: &'a str,
    rank: usize,
    epoch: usize,
    images: usize,
    loss: Option<f64>,
    accuracy: Option<f64>,
    seconds: f64,
    #[serde(flatten)]
    parts: Parts,
    bytes_sent: u64,
}

/// One line of steps.jsonl: one step of one row, over all ranks.
#[derive(Serialize)]
struct StepLine<'a> {
    row: &'a str,
    sync: &'a str,
    #[serde(flatten)]
    summary: &'a StepSummary,
}

/// The scheduler's job that a run belongs to.
const SCHEDULED: &str = "slurm-job-id";

/// Whether a run is that of a scheduler's job.
pub fn belongs_to(folder: &Path, job: &str) -> bool {
    fs::read_to_string(folder.join(SCHEDULED)).is_ok_and(|of| of.trim_end() == job)
}

impl RunDir {
    /// Writes down which job of a scheduler the run belongs to, if it does to one.
    pub fn assign_to(&self, job: Option<&str>) -> Result<()> {
        match job {
            Some(job) => self.write(SCHEDULED, &format!("{job}\n")),
            None => remove(&self.path.join(SCHEDULED)),
        }
    }

    /// Makes the folder: the given one, or the next free `runs/COMMAND-N`. Only an empty folder will do or, if it may be
    /// overwritten, that of an earlier run; what that run has left is replaced, its summary and report at once, so that they
    /// are never taken for this run's.
    pub fn create(given: Option<PathBuf>, overwrite: bool, command: &str) -> Result<Self> {
        let path = match given {
            Some(path) => {
                fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
                let mut entries = fs::read_dir(&path).with_context(|| path.display().to_string())?;
                if entries.next().is_some() {
                    ensure!(
                        path.join(METRICS).exists(),
                        "--out {}: the folder is neither empty nor that of an earlier run",
                        path.display()
                    );
                    ensure!(
                        overwrite,
                        "--out {}: an earlier run is there: --overwrite replaces it, --resume goes on with it",
                        path.display()
                    );
                }
                path
            }
            None => next_free(Path::new("runs"), command)?,
        };
        let metrics = path.join(METRICS);
        let metrics = lock(&metrics).with_context(|| metrics.display().to_string())?;
        remove_results(&path)?;
        let checkpoints = path.join(checkpoints::FOLDER);
        if checkpoints.is_dir() {
            fs::remove_dir_all(&checkpoints).with_context(|| checkpoints.display().to_string())?;
        }
        let steps = path.join(STEPS);
        let steps = File::create(&steps).with_context(|| steps.display().to_string())?;
        Ok(Self { path, metrics, steps })
    }

    /// Opens the folder of a run that is gone on with, whose records stop where `ranks` had come to. Returns its steps so far.
    pub fn reopen(path: PathBuf, run: &Run, ranks: &[RankSoFar]) -> Result<(Self, Vec<StepSummary>)> {
        let metrics = path.join(METRICS);
        let metrics = lock(&metrics).with_context(|| metrics.display().to_string())?;
        remove_results(&path)?;
        let file = path.join(STEPS);
        let place = || file.display().to_string();
        // A line may be missing or torn if the machine was switched off: then so it is.
        let text = String::from_utf8_lossy(&fs::read(&file).with_context(place)?).into_owned();
        let read = text.lines().filter_map(|line| Some((line, serde_json::from_str::<StepSummary>(line).ok()?)));
        let done = |summary: &StepSummary| ranks.get(summary.rank.unwrap_or(0)).map_or(0, |rank| rank.total.steps);
        let (lines, kept): (Vec<&str>, Vec<_>) = read.filter(|(_, summary)| summary.step < done(summary)).unzip();
        let lines: String = lines.into_iter().flat_map(|line| [line, "\n"]).collect();
        file::write_whole(&file, lines.as_bytes()).with_context(place)?;
        let steps = File::options().append(true).open(&file).with_context(place)?;
        let mut dir = Self { path, metrics, steps };
        for (rank, so_far) in ranks.iter().enumerate() {
            so_far.epochs.iter().try_for_each(|epoch| dir.record(run, rank, epoch))?;
        }
        Ok((dir, kept))
    }

    /// Writes the records anew, of a run that goes back to where these ranks had come to in these steps.
    pub fn rewind(&mut self, run: &Run, ranks: &[RankSoFar], steps: &[StepSummary]) -> Result<()> {
        for (file, name) in [(&mut self.metrics, METRICS), (&mut self.steps, STEPS)] {
            let emptied = file.set_len(0).and_then(|()| file.rewind());
            emptied.with_context(|| self.path.join(name).display().to_string())?;
        }
        for (rank, so_far) in ranks.iter().enumerate() {
            so_far.epochs.iter().try_for_each(|epoch| self.record(run, rank, epoch))?;
        }
        self.record_steps(run, steps)
    }

    /// The folder.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Keeps a copy of the file that a network came from, so that the run's settings mean the same network for ever. Returns what
    /// they call it.
    pub fn keep_model(&self, file: &Path) -> Result<PathBuf> {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        self.write(MODEL, &text)?;
        Ok(PathBuf::from(MODEL))
    }

    /// Where a file of this run goes.
    pub fn file(&self, name: impl AsRef<Path>) -> PathBuf {
        self.path.join(name)
    }

    /// Where the weights and the trace of a row go: each row of a comparison has a folder of its own. What was said
    /// about earlier weights there is not true of the new ones.
    pub fn row_folder(&self, row: Option<&str>) -> Result<PathBuf> {
        let folder = row.map_or_else(|| self.path.clone(), |row| self.path.join(row));
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        remove(&folder.join(EVALUATION))?;
        Ok(folder)
    }

    /// Writes a file of this run, whole.
    pub fn write(&self, name: &str, content: &str) -> Result<()> {
        let path = self.file(name);
        file::write_whole(&path, content.as_bytes()).with_context(|| path.display().to_string())
    }

    /// Adds steps to steps.jsonl.
    pub fn record_steps(&mut self, run: &Run, steps: &[StepSummary]) -> Result<()> {
        let (row, sync) = (run.name.as_str(), run.job.sync.name());
        let mut lines = String::new();
        for summary in steps {
            lines += &serde_json::to_string(&StepLine { row, sync, summary })?;
            lines.push('\n');
        }
        self.steps.write_all(lines.as_bytes()).with_context(|| self.file(STEPS).display().to_string())
    }

    /// Adds a line to metrics.jsonl.
    pub fn record(&mut self, run: &Run, rank: usize, epoch: &Epoch) -> Result<()> {
        let per_image = |sum: f64| (epoch.images > 0).then(|| sum / epoch.images as f64);
        let metric = Metric {
            row: &run.name,
            sync: run.job.sync.name(),
            rank,
            epoch: epoch.epoch,
            images: epoch.images,
            loss: per_image(epoch.loss_sum),
            accuracy: per_image(epoch.correct as f64),
            seconds: epoch.seconds,
            parts: epoch.parts,
            bytes_sent: epoch.bytes_sent,
        };
        writeln!(self.metrics, "{}", serde_json::to_string(&metric)?)
            .with_context(|| self.file(METRICS).display().to_string())
    }
}

/// Whether a folder is that of a run.
pub fn is_run(folder: &Path) -> bool {
    folder.join(METRICS).is_file()
}

/// A run's settings are in its folder; those of a way of a comparison in the folder above.
pub fn config_of(folder: &Path) -> Option<PathBuf> {
    // Even if the folder is written as `.`, it has one above it.
    let folder = folder.canonicalize().ok()?;
    folder.ancestors().take(3).map(|folder| folder.join(CONFIG)).find(|path| path.is_file())
}

/// Removes what sums a run up.
fn remove_results(folder: &Path) -> Result<()> {
    ["summary.json", "report.html", CELLS].iter().try_for_each(|name| remove(&folder.join(name)))
}

/// Removes a file, if it is there.
fn remove(path: &Path) -> Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => bail!("{}: {error}", path.display()),
        _ => Ok(()),
    }
}

/// Begins a file that no other run may write to at the same time.
fn lock(path: &Path) -> Result<File> {
    let file = File::options().create(true).truncate(false).write(true).open(path)?;
    file.try_lock().context("another run is writing to this folder")?;
    file.set_len(0)?;
    Ok(file)
}

pub fn next_free(parent: &Path, command: &str) -> Result<PathBuf> {
    fs::create_dir_all(parent).with_context(|| parent.display().to_string())?;
    for number in 1.. {
        let path = parent.join(format!("{command}-{number}"));
        match fs::create_dir(&path) {
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            made => return made.map(|()| path.clone()).with_context(|| path.display().to_string()),
        }
    }
    unreachable!("there is always another number")
}
