//! Checkpoints: the state of each rank in a file of its own, written beside the training.
//!
//! ```text
//! checkpoints/400/rank-0.safetensors    what rank 0 remembered between two steps
//! checkpoints/400/rank-1.safetensors
//! checkpoints/400/...                   what whoever started the ranks adds, and seals with the sums of all files
//! checkpoints/tests/200.safetensors     a model that is to be tested at the end, which does not change any more
//! ```
//!
//! A rank copies what it remembers, and goes on; a thread writes the copy. Until it is sealed, a checkpoint is called
//! `.400.partial`.

pub mod file;
pub mod memory;
pub(crate) mod writer;

use std::path::{Path, PathBuf};

use ringstep_nn::state::Saved;
use serde::{Deserialize, Serialize};

use crate::halt::Halts;
use crate::records::Report;
use crate::saving::memory::Memory;

/// Where the state of ranks is saved.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Checkpoints {
    /// All ranks can write there.
    pub folder: PathBuf,
    /// After how many steps each, where workers are in step.
    pub every: Option<usize>,
}

impl Checkpoints {
    /// The folder of a checkpoint that is not complete yet.
    pub fn partial(&self, name: usize) -> PathBuf {
        self.folder.join(format!(".{name}.partial"))
    }
}

/// The state of a rank in the folder of a checkpoint.
pub fn rank_file(checkpoint: &Path, rank: usize) -> PathBuf {
    checkpoint.join(format!("rank-{rank}.safetensors"))
}

/// What a rank has beside its job.
pub struct Session<'a> {
    /// Is told what it does.
    pub report: &'a mut dyn FnMut(Report),
    /// By this it can be halted.
    pub halts: &'a Halts,
    /// If it can be saved.
    pub checkpoints: Option<&'a Checkpoints>,
    /// What it was at a halt before, with which it goes on.
    pub from: Option<&'a Saved>,
    /// Whether it joins others, and that is what their chief was.
    pub joins: bool,
    /// Where it keeps its last states, if it may have to go back to them.
    pub memory: Option<&'a Memory>,
}

/// A file of a checkpoint, by its path from the checkpoint's folder.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct FileSum {
    /// The path.
    pub path: String,
    /// Of its content.
    pub sha256: String,
}
