//! The data that workers train on: where it comes from, who gets which part, and how it becomes a batch.
//!
//! | look for | in |
//! | --- | --- |
//! | MNIST and Fashion-MNIST, and the embedded sample | [`mnist`], [`idx`] |
//! | CIFAR-10 | [`cifar10`] |
//! | images made from a seed | [`synthetic`] |
//! | downloading and verifying | [`fetch`] |
//! | who trains on what, in which order | [`shard`] |
//! | changing training images at random | [`augment`] |
//! | pixels to numbers: padding, normalisation | [`canvas`] |
//! | batches, filled ahead on a thread of their own | [`loader`] |

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

pub mod augment;
pub mod canvas;
pub mod cifar10;
pub mod fetch;
pub mod file;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod idx;
pub mod loader;
pub mod mnist;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
pub mod shard;
pub mod synthetic;

/// Every data set that comes in files.
pub const SOURCES: [&fetch::Source; 3] = [&mnist::MNIST, &mnist::FASHION_MNIST, &cifar10::CIFAR10];

/// The shape of one image. // H,W,C
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    /// Rows.
    pub height: usize,
    /// Columns.
    pub width: usize,
    /// Bytes a pixel: 1 for grey, 3 for colour.
    pub channels: usize,
}

impl Shape {
    /// Rows, columns and channels.
    pub const fn new(height: usize, width: usize, channels: usize) -> Self {
        Self { height, width, channels }
    }

    /// Bytes in one image.
    pub const fn len(self) -> usize {
        self.height * self.width * self.channels
    }

    /// Whether there are none.
    pub const fn is_empty(self) -> bool {
        self.len() == 0
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}x{}x{}", self.height, self.width, self.channels)
    }
}

/// Images of one shape, with a label each.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Images {
    /// Of each image.
    pub shape: Shape,
    /// One byte a pixel and channel, image after image. // N,H,W,C
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

    /// The pixels of one image. // H,W,C
    pub fn image(&self, index: usize) -> &[u8] {
        &self.pixels[index * self.shape.len()..][..self.shape.len()]
    }

    /// Gives all images up, and the memory that they took.
    pub fn clear(&mut self) {
        (self.pixels, self.labels) = (Vec::new(), Vec::new());
    }

    /// Keeps the first `count` images.
    pub fn truncate(&mut self, count: usize) {
        self.pixels.truncate(count * self.shape.len());
        self.labels.truncate(count);
    }
}

/// What to train on and what to test on, with all that a loader must know of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Dataset {
    /// Its name on the command line.
    pub name: &'static str,
    /// Who made it, and under which licence it comes.
    pub licence: &'static str,
    /// Labels go from 0 to one below this.
    pub classes: usize,
    /// What each class is called; empty where labels speak for themselves, as digits do.
    pub class_names: &'static [&'static str],
    /// For each channel mean and standard deviation of the training images, where the brightest is 1.
    pub normalisation: Vec<(f32, f32)>,
    /// The images to train on, shared with the loader's thread.
    pub train: Arc<Images>,
    /// The images to test on, never trained on.
    pub test: Arc<Images>,
}

impl Dataset {
    /// What a class is called: its name, or its number.
    pub fn class_name(&self, class: usize) -> String {
        self.class_names.get(class).map_or_else(|| class.to_string(), |&name| name.to_owned())
    }

    /// Keeps the first `count` of the images to train on.
    pub fn keep_first(&mut self, count: usize) {
        Arc::make_mut(&mut self.train).truncate(count);
    }

    /// Keeps the first `count` of the images to test with.
    pub fn test_with_first(&mut self, count: usize) {
        Arc::make_mut(&mut self.test).truncate(count);
    }
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
    /// Images that cannot be made.
    #[error("{0}")]
    Synthetic(String),
}

impl DataError {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |error| Self::Io { path: path.to_owned(), error }
    }

    fn malformed(path: &Path, problem: impl Into<String>) -> Self {
        Self::Malformed { path: path.to_owned(), problem: problem.into() }
    }
}
