//! What can go wrong.

use std::path::PathBuf;

/// A model that cannot be quantized, or a file that is not a quantized model.
#[derive(Debug, thiserror::Error)]
pub enum QuantError {
    /// No images.
    #[error("there are no images to calibrate with")]
    NothingToCalibrateWith,
    /// Weights or activations that no integer stands for.
    #[error("layer {name}: not all of its numbers are finite")]
    NotFinite {
        /// The layer.
        name: String,
    },
    /// A layer whose sums could be larger than 32 bits hold.
    #[error("layer {name}: a sum of {products} products may not fit in 32 bits; up to {most} do")]
    TooLong {
        /// The layer.
        name: String,
        /// Products of one sum.
        products: usize,
        /// The most that are possible.
        most: usize,
    },
    /// An activation that its bits do not have.
    #[error("{name}: an integer of {integer} came out, which is not from {low} to {high}")]
    OutOfRange {
        /// The layer.
        name: String,
        /// What came out.
        integer: i8,
        /// The least that can.
        low: i32,
        /// The largest that can.
        high: i32,
    },
    /// A file that cannot be read or written.
    #[error("{}: {error}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        error: std::io::Error,
    },
    /// A file that is something else.
    #[error("{}: not a quantized model: {problem}", path.display())]
    Malformed {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        problem: String,
    },
}
