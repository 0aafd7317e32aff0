//! The data that workers train on: where it comes from, who gets which part, and how it becomes a batch.
//!
//! | look for | in |
//! | --- | --- |
//! | the MNIST files and the embedded sample | [`mnist`], [`idx`] |
//! | downloading and verifying them | [`fetch`] |
//! | who trains on what, in which order | [`shard`] |
//! | pixels to numbers: padding, normalisation | [`loader`] |

use std::io;
use std::path::{Path, PathBuf};

pub mod fetch;
pub mod file;
pub mod idx;
pub mod loader;
pub mod mnist;
pub mod shard;

/// Grey images of one size, with a label each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// Rows of an image.
    pub height: usize,
    /// Columns of an image.
    pub width: usize,
    /// One byte a pixel, image after image, row after row. // N,H,W
    pub pixels: Vec<u8>,
    /// One label an image. // N
    pub labels: Vec<u8>,
}

impl Images {
    /// How many images there are.
    pub fn len(&self) -> usize {
        self.labels.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.labels.is_empty()
    }

    /// Keeps the first `count` images.
    pub fn truncate(&mut self, count: usize) {
        self.pixels.truncate(count * self.height * self.width);
        self.labels.truncate(count);
    }
}

/// What to train on and what to test on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Dataset {
    /// The images to train on.
    pub train: Images,
    /// The images to test on, never trained on.
    pub test: Images,
}

/// Data that is not there, or not what it should be.
#[derive(Debug, thiserror::Error)]
pub enum DataError {
    /// The folder is not there.
    #[error("data folder {} does not exist", .0.display())]
    NoFolder(PathBuf),
    /// The folder is there, a file in it is not.
    #[error("{} has neither {file} nor {file}.gz", folder.display())]
    NoFile {
        /// The folder.
        folder: PathBuf,
        /// The file's name without `.gz`.
        file: &'static str,
    },
    /// The file cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        error: io::Error,
    },
    /// The file is there, and not what its name says.
    #[error("{}: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
    /// Nobody could be asked for the file, or nobody had the right one.
    #[error("{0}")]
    Fetch(String),
}

impl DataError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { path: path.to_owned(), error }
    }

    fn malformed(path: &Path, problem: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), problem: problem.into() }
    }
}
