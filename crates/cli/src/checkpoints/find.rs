//! The checkpoint that a run goes on from: the last one that is whole and of the same job.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow, bail, ensure};
use ringstep_data::file::{read_text, sha256};
use ringstep_train::Job;
use serde_json::Value;

use super::{FOLDER, FORMAT, MANIFEST, Manifest, SUMS, names, path_of};
use crate::settings::Run;
use crate::show;

/// A checkpoint that is whole.
pub struct Found {
    /// Where it is.
    pub folder: PathBuf,
    /// What it is.
    pub manifest: Manifest,
}

/// Whether a run has left checkpoints in its folder, whole or not.
pub fn are_left(folder: &Path) -> bool {
    names(&folder.join(FOLDER)).is_ok_and(|names| !names.is_empty())
}

/// Finds the one to go on from, for a run on so many images in this folder. Those that are refused are told.
pub fn find(folder: &Path, run: &Run, images: usize) -> Result<Found> {
    let all = folder.join(FOLDER);
    let names = if all.is_dir() { names(&all)? } else { Vec::new() };
    let mut refused = Vec::new();
    for name in names.into_iter().rev() {
        let path = path_of(folder, name);
        let whole = std::path::absolute(&path).with_context(|| path.display().to_string())?;
        match check(&whole, run, images) {
            Ok(manifest) => {
                for error in refused {
                    show::warn(&format!("{error:#}; going on from that after step {name}"));
                }
                return Ok(Found { folder: whole, manifest });
            }
            Err(error) => refused.push(error.context(path.display().to_string())),
        }
    }
    let none = || anyhow!("{}: there is no checkpoint to go on from", folder.display());
    Err(refused.into_iter().next().unwrap_or_else(none))
}

/// Reads a checkpoint's manifest, if all its files are what was written and it is one of this job.
fn check(folder: &Path, run: &Run, images: usize) -> Result<Manifest> {
    let sums = read_text(&folder.join(SUMS)).context(SUMS)?;
    let mut found = Vec::new();
    let mut manifest = None;
    for (sum, path) in listed(&sums)? {
        let file = folder.join(path);
        ensure!(file.is_file(), "{path} is missing");
        let bytes = fs::read(&file).with_context(|| path.to_owned())?;
        ensure!(sha256(&bytes) == sum, "{path} is not what was written: its sha256 differs");
        if path == MANIFEST {
            manifest = Some(bytes);
        }
        found.push(path.to_owned());
    }
    let manifest = parse(&manifest.with_context(|| format!("{MANIFEST} is missing"))?)?;
    let theirs = &manifest.job;
    let ours = &match run.faults.elastic {
        // As many as were left then.
        Some(elastic) if (elastic.least..=elastic.most).contains(&theirs.workers) => {
            Job { workers: theirs.workers, leg: theirs.leg, ..run.job.clone() }
        }
        _ => run.job.clone(),
    };
    if ours.ranks() != theirs.ranks() || ours.workers != theirs.workers {
        let count = |job: &Job| format!("{} workers and {} servers", job.workers, job.ranks() - job.workers);
        bail!("it is of another job: {} there, {} here", count(theirs), count(ours));
    }
    if let Some(key) = difference(ours, theirs)? {
        bail!("it is of another job: {key} is not the same");
    }
    ensure!(
        manifest.images == images && manifest.data == run.data,
        "it is of another job: the images are not the same"
    );
    ensure!(manifest.ranks.len() == ours.ranks(), "{MANIFEST}: records of {} ranks", manifest.ranks.len());
    for rank in 0..ours.ranks() {
        let name = format!("rank-{rank}.safetensors");
        ensure!(found.contains(&name), "{name} is missing in {SUMS}");
    }
    Ok(manifest)
}

/// The sums and paths of a list of them.
pub(crate) fn listed(sums: &str) -> Result<Vec<(&str, &str)>> {
    let one = |line| str::split_once(line, "  ").filter(|(_, path)| belongs(path)).context("malformed").context(SUMS);
    sums.lines().map(one).collect()
}

/// Reads a manifest.
pub(crate) fn parse(manifest: &[u8]) -> Result<Manifest> {
    let format = serde_json::from_slice::<Value>(manifest).context(MANIFEST)?["format"].as_u64();
    ensure!(format == Some(FORMAT.into()), "{MANIFEST}: a format that this program does not know");
    serde_json::from_slice(manifest).context(MANIFEST)
}

/// Whether a path in a list of sums is one that is written there.
fn belongs(path: &str) -> bool {
    let name = path.strip_prefix("../tests/").unwrap_or(path);
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte)) && name != ".."
}

/// What may be another when a job is gone on with: how long it is, and what is looked at on the way.
const FREE: [&str; 7] = ["length", "slow", "init", "test_every", "verify_every", "trace_steps", "predict"];

/// The first thing by which two jobs differ, if they do.
fn difference(ours: &Job, theirs: &Job) -> Result<Option<String>> {
    let fields = |job: &Job| -> Result<Value> {
        let mut fields = serde_json::to_value(job)?;
        // A network may be called something else.
        if let Some(model) = fields["model"].as_object_mut() {
            model.remove("name");
        }
        Ok(fields)
    };
    let (ours, theirs) = (fields(ours)?, fields(theirs)?);
    let keys = ours.as_object().into_iter().flat_map(|fields| fields.keys());
    Ok(keys.filter(|key| !FREE.contains(&key.as_str())).find(|key| ours[*key] != theirs[*key]).cloned())
}
