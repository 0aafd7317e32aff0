//! Checkpoints as the launcher sees them: it seals what all ranks have written, and finds the last one that is whole.
//!
//! ```text
//! runs/NAME/checkpoints/400/rank-0.safetensors   each rank's state, written by the rank
//!                           manifest.json        what job it is, and what the records go on from
//!                           SHA256SUMS           of all these files; without it there is no checkpoint
//! ```

pub(crate) mod find;

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use ringstep_data::file::{sha256, write_whole};
use ringstep_train::Job;
use ringstep_train::accounts::{Accounts, Total};
use ringstep_train::records::{Epoch, SavedRank};
use ringstep_train::saving::{Checkpoints, FileSum};
use serde::{Deserialize, Serialize};

pub use self::find::{Found, are_left, find};
use crate::datasets::DataPlan;
use crate::settings::{Every, Run};
use crate::show;

/// The folder of a run's checkpoints.
pub const FOLDER: &str = "checkpoints";
const MANIFEST: &str = "manifest.json";
const SUMS: &str = "SHA256SUMS";

/// What is true of all files of a checkpoint.
#[derive(Debug, Serialize, Deserialize)]
pub struct Manifest {
    /// How the files are to be read.
    format: u32,
    /// Steps that are done; where workers take their own, about that of rank 0.
    pub step: usize,
    /// What is trained, how.
    pub job: Job,
    /// On what.
    data: DataPlan,
    images: usize,
    /// What each rank has done so far.
    pub ranks: Vec<RankSoFar>,
}

const FORMAT: u32 = 1;

/// A rank's records up to a checkpoint.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub struct RankSoFar {
    /// The epochs that were over.
    pub epochs: Vec<Epoch>,
    /// Its steps, summed up.
    pub total: Total,
}

/// The checkpoints of a run that goes on.
pub struct Vault {
    /// Where ranks write.
    pub checkpoints: Checkpoints,
    run: Run,
    images: usize,
    /// Those that are not sealed yet, by name.
    open: BTreeMap<usize, Open>,
    /// The last one that is.
    pub last: Option<usize>,
}

/// A checkpoint as far as ranks have reported it.
struct Open {
    epochs: Vec<Option<Vec<Epoch>>>,
    files: Vec<Option<Vec<FileSum>>>,
    /// A rank could not write its state.
    failed: bool,
}

impl Vault {
    /// For a run on so many images in this folder. What was left half-written there is removed.
    pub fn new(run: &Run, images: usize, folder: &Path) -> Result<Self> {
        // Where workers are not in step, it is not they who know when it is time.
        let every = match run.checkpoint_every {
            Some(Every::Steps(steps)) if !run.job.sync.lets_workers_differ() => Some(steps),
            _ => None,
        };
        let folder = std::path::absolute(folder.join(FOLDER)).with_context(|| folder.display().to_string())?;
        let vault = Self {
            checkpoints: Checkpoints { folder, every },
            run: run.clone(),
            images,
            open: BTreeMap::new(),
            last: None,
        };
        vault.remove_partial(usize::MAX);
        Ok(vault)
    }

    /// From now on it is the ranks of this run that are saved. Checkpoints that are not sealed will not be: their ranks go back to
    /// before them, or are gone.
    pub fn go_on(&mut self, run: &Run) {
        self.run = run.clone();
        self.open.clear();
    }

    /// A rank has copied its state, after these epochs.
    pub fn copied(&mut self, name: usize, rank: usize, epochs: &[Epoch]) {
        let ranks = self.run.job.ranks();
        let open = self.open.entry(name).or_insert_with(|| Open {
            epochs: vec![None; ranks],
            files: vec![None; ranks],
            failed: false,
        });
        open.epochs[rank] = Some(epochs.to_vec());
    }

    /// A rank has written its state, or could not.
    pub fn saved(&mut self, rank: usize, SavedRank { name, files }: SavedRank) {
        let Some(open) = self.open.get_mut(&name) else { return };
        open.files[rank] = Some(files.unwrap_or_else(|error| {
            if !std::mem::replace(&mut open.failed, true) {
                show::warn(&format!("no checkpoint after step {name}: {error}"));
            }
            Vec::new()
        }));
    }

    /// Seals those that all ranks have written and of which all records are there. If that fails, training goes on.
    pub fn seal(&mut self, accounts: &Accounts) {
        let names: Vec<usize> = self.open.keys().copied().collect();
        for name in names {
            let open = &self.open[&name];
            let (epochs, files) = (open.epochs.iter().cloned(), open.files.iter().cloned());
            let whole = epochs.collect::<Option<Vec<_>>>().zip(files.collect::<Option<Vec<_>>>());
            let Some(((epochs, files), totals)) = whole.zip(accounts.marked(name)) else { continue };
            if open.failed {
                self.open.remove(&name);
                self.discard(name);
                continue;
            }
            let ranks = epochs.into_iter().zip(totals).map(|(epochs, total)| RankSoFar { epochs, total }).collect();
            match self.seal_one(name, ranks, files.concat()) {
                Ok(()) => self.last = Some(name),
                Err(error) => {
                    show::warn(&format!("no checkpoint after step {name}: {error:#}"));
                    self.discard(name);
                }
            }
            self.open.remove(&name);
        }
    }

    fn seal_one(&self, step: usize, ranks: Vec<RankSoFar>, mut files: Vec<FileSum>) -> Result<()> {
        let partial = self.checkpoints.partial(step);
        let place = |path: &Path| path.display().to_string();
        let (job, data, images) = (self.run.job.clone(), self.run.data.clone(), self.images);
        let manifest = Manifest { format: FORMAT, step, job, data, images, ranks };
        let manifest = serde_json::to_string(&manifest)? + "\n";
        // A rank that was killed while it wrote has left what its successor does not know of.
        for entry in fs::read_dir(&partial).with_context(|| place(&partial))?.flatten() {
            if !files.iter().any(|file| entry.file_name() == *file.path) {
                let _ = fs::remove_file(entry.path());
            }
        }
        files.push(FileSum { path: MANIFEST.to_owned(), sha256: sha256(manifest.as_bytes()) });
        let sums: String = files.iter().map(|FileSum { path, sha256 }| format!("{sha256}  {path}\n")).collect();
        for (name, content) in [(MANIFEST, manifest), (SUMS, sums)] {
            let path = partial.join(name);
            write_whole(&path, content.as_bytes()).with_context(|| place(&path))?;
        }
        let whole = self.checkpoints.folder.join(step.to_string());
        // One of this name may be left from before; it was not good enough to go on from, or is the same.
        if whole.exists() {
            fs::remove_dir_all(&whole).with_context(|| place(&whole))?;
        }
        let renamed = sync(&partial).and_then(|()| fs::rename(&partial, &whole));
        renamed.and_then(|()| sync(&self.checkpoints.folder)).with_context(|| place(&whole))?;
        let mut old = names(&self.checkpoints.folder)?;
        old.retain(|&name| name < step);
        for name in old.into_iter().rev().skip(self.run.keep_checkpoints - 1) {
            let _ = fs::remove_dir_all(self.checkpoints.folder.join(name.to_string()));
        }
        self.remove_partial(step);
        Ok(())
    }

    /// Removes what cannot become a checkpoint: where a disk is full, it may be the room that the next one needs.
    fn discard(&self, name: usize) {
        let _ = fs::remove_dir_all(self.checkpoints.partial(name));
    }

    /// Removes what was begun before this one and will never be sealed.
    fn remove_partial(&self, before: usize) {
        for entry in fs::read_dir(&self.checkpoints.folder).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let number = name.to_str().and_then(|name| name.strip_prefix('.')?.strip_suffix(".partial")?.parse().ok());
            if number.is_some_and(|number: usize| number < before) {
                let _ = fs::remove_dir_all(entry.path());
            }
        }
    }
}

impl Drop for Vault {
    /// When a run has failed, what was begun is of no use.
    fn drop(&mut self) {
        self.remove_partial(usize::MAX);
    }
}

/// The names of all checkpoints in a folder, in order.
fn names(folder: &Path) -> Result<Vec<usize>> {
    let entries = fs::read_dir(folder).with_context(|| folder.display().to_string())?;
    let mut names: Vec<usize> =
        entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    names.sort_unstable();
    Ok(names)
}

/// Makes what was renamed in a folder outlast a loss of power.
fn sync(folder: &Path) -> io::Result<()> {
    File::open(folder)?.sync_all()
}

/// The folder of a checkpoint.
fn path_of(folder: &Path, name: usize) -> PathBuf {
    folder.join(FOLDER).join(name.to_string())
}
