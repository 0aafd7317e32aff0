//! Ways to send less than the numbers themselves.
//!
//! A [`Codec`] makes a code of bytes out of a slice of numbers and adds what such a code stands for to another slice. Where
//! the sum of codes is a code, as with 16-bit floats, [`random_k`] and [`power_sgd`], ranks can all-reduce it instead. All of
//! it works on slices alone: who sends what to whom is the caller's affair.
//!
//! | look for | in |
//! | --- | --- |
//! | 16-bit floats | [`half`] |
//! | 8 or 4 bits a number, rounded at random | [`qsgd`] |
//! | one bit a number | [`sign`] |
//! | the numbers of largest magnitude | [`sparse`], found by [`select`] |
//! | numbers chosen at random | [`random_k`] |
//! | the largest numbers with momentum | [`dgc`] |
//! | matrices of low rank | [`power_sgd`], as codes [`factors`] |
//! | what was not sent is sent later | [`error_feedback`] |
//! | all of them by name, and which ways can use which | [`method`] |
//! | what random numbers depend on, and what is remembered | [`key`], [`memory`] |
//!
//! Encoding and decoding round alike on every instruction level, so ranks on machines of several kinds find the same sums.
//! That is why no kernel here has a multiply-add: the portable level would round twice.

#[cfg(test)]
mod check;
pub mod dgc;
pub mod error_feedback;
pub mod factors;
pub mod half;
pub mod key;
pub mod memory;
pub mod method;
pub mod power_sgd;
pub mod qsgd;
pub mod random_k;
pub mod select;
pub mod sign;
pub mod sparse;

pub use error_feedback::ErrorFeedback;
pub use key::Key;
pub use method::{Compression, Method};

use thiserror::Error;

/// One way from numbers to bytes and back.
pub trait Codec: Send {
    /// Makes `out` the code of `values`, which are fewer than 2^32, whatever it held before.
    fn encode(&mut self, key: Key, values: &[f32], out: &mut Vec<u8>);

    /// Adds the numbers that a code stands for, which was made with the same key of as many numbers. A code comes from
    /// another machine: all of it is checked before anything is written.
    fn add(&self, key: Key, code: &[u8], into: &mut [f32]) -> Result<(), Malformed>;

    /// The bytes of the longest code of so many numbers.
    fn limit(&self, length: usize) -> usize;
}

/// What is wrong with a code.
#[derive(Debug, Clone, Copy, PartialEq, Error)]
pub enum Malformed {
    /// It is longer or shorter than what it is a code of takes.
    #[error("{found} bytes instead of {expected}")]
    Length {
        /// Bytes that came.
        found: usize,
        /// Bytes that should have come.
        expected: usize,
    },
    /// It says how many numbers it holds, and has another length.
    #[error("{found} bytes for {count} numbers")]
    Count {
        /// Bytes that came.
        found: usize,
        /// Numbers that it should hold.
        count: u32,
    },
    /// It holds more numbers than its sender may send.
    #[error("{count} numbers instead of {most} at most")]
    Many {
        /// Numbers that it holds.
        count: u32,
        /// How many there may be.
        most: usize,
    },
    /// It has a number for a place that is not there.
    #[error("index {index} of {length}")]
    Index {
        /// The place.
        index: u32,
        /// How many places there are.
        length: usize,
    },
    /// Its places are in no ascending order, so one might come twice.
    #[error("index {index} after index {before}")]
    Order {
        /// The place.
        index: u32,
        /// The one that stands before it.
        before: u32,
    },
    /// Numbers are multiples of a scale that is negative, infinite or not a number. The encoder writes the latter two if a
    /// number is.
    #[error("block {block} has the scale {scale}")]
    Scale {
        /// The block of numbers that have this scale.
        block: usize,
        /// The scale.
        scale: f32,
    },
    /// A number is a multiple of its scale that no encoder writes.
    #[error("block {block} has a number beyond its scale")]
    Level {
        /// The block of numbers that it is in.
        block: usize,
    },
    /// It is to be about a part of a parameter, where all of it goes at once.
    #[error("it is not of whole parameters")]
    Cut,
    /// There are bits after those of the last number.
    #[error("bits are set after the last number")]
    Padding,
}

/// A scale at the head of a block of numbers, if it is one.
fn scale(block: usize, bytes: [u8; 4]) -> Result<f32, Malformed> {
    let scale = f32::from_le_bytes(bytes);
    if scale.is_finite() && scale.is_sign_positive() { Ok(scale) } else { Err(Malformed::Scale { block, scale }) }
}

/// Numbers that are kept of so many: this share of them, rounded up.
pub fn kept(share: f64, length: usize) -> usize {
    ((share * length as f64).ceil() as usize).min(length)
}
