//! What a run leaves behind: `runs/NAME/` with config.toml, metrics.jsonl, steps.jsonl,
//! summary.json, report.html, trace.json and the weights; `eval` adds eval.html.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use ringstep_data::file;
use ringstep_train::accounts::StepSummary;
use ringstep_train::records::{Epoch, Parts};
use serde::Serialize;

use crate::settings::Run;

/// Every run begins it, so it tells a run's folder from others.
const METRICS: &str = "metrics.jsonl";
const STEPS: &str = "steps.jsonl";
/// The final weights.
pub const WEIGHTS: &str = "model.safetensors";
/// What `eval` says about them.
pub const EVALUATION: &str = "eval.html";

/// The folder of a run.
pub struct RunDir {
    path: PathBuf,
    metrics: File,
    steps: File,
    /// Of which row the next step is, and its number.
    last_row: String,
    next_step: usize,
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
    step: usize,
    #[serde(flatten)]
    summary: &'a StepSummary,
}

impl RunDir {
    /// Makes the folder: the given one, or the next free `runs/COMMAND-N`. Only an empty folder or that of an earlier run
    /// will do; what that run has left is replaced, its summary and report at once, so that they are never taken for
    /// this run's.
    pub fn create(given: Option<PathBuf>, command: &str) -> Result<Self> {
        let path = match given {
            Some(path) => {
                fs::create_dir_all(&path).with_context(|| path.display().to_string())?;
                let mut entries = fs::read_dir(&path).with_context(|| path.display().to_string())?;
                if entries.next().is_some() && !path.join(METRICS).exists() {
                    bail!("--out {}: the folder is neither empty nor that of an earlier run", path.display());
                }
                path
            }
            None => next_free(Path::new("runs"), command)?,
        };
        let metrics = path.join(METRICS);
        let metrics = lock(&metrics).with_context(|| metrics.display().to_string())?;
        for name in ["summary.json", "report.html"] {
            remove(&path.join(name))?;
        }
        let steps = path.join(STEPS);
        let steps = File::create(&steps).with_context(|| steps.display().to_string())?;
        Ok(Self { path, metrics, steps, last_row: String::new(), next_step: 0 })
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
            // Each row begins anew.
            if self.last_row != row {
                (self.last_row, self.next_step) = (row.to_owned(), 0);
            }
            lines += &serde_json::to_string(&StepLine { row, sync, step: self.next_step, summary })?;
            lines.push('\n');
            self.next_step += 1;
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

/// A run's settings are in its folder; those of a way of a comparison in the folder above.
pub fn config_of(folder: &Path) -> Option<PathBuf> {
    // Even if the folder is written as `.`, it has one above it.
    let folder = folder.canonicalize().ok()?;
    folder.ancestors().take(2).map(|folder| folder.join("config.toml")).find(|path| path.is_file())
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

fn next_free(parent: &Path, command: &str) -> Result<PathBuf> {
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
