//! What this processor can do for `nn`, `comm` and `train`.
//!
//! | look for | in |
//! | --- | --- |
//! | vectors, and the operations that kernels are written in | [`simd`] |
//! | instruction levels, and the proof that the machine has one | [`level`] |
//! | a loop over slices, vector by vector | [`along!`] |
//! | functions that are compiled once for each level | [`kernels!`] |
//! | dot products of bytes | [`dots`] |
//! | floats of 16 bits | [`half`] |
//! | random numbers that vectorise | [`random`] |
//! | the cores that this process may use | [`cores`] |
//! | how a thread waits | [`wait`] |
//! | a thread that works beside its owner | [`background`] |
//! | threads that work in rounds, and members that wait until all have come | [`rounds`], [`gate`] |

pub mod background;
pub mod cores;
mod dispatch;
pub mod dots;
pub mod gate;
pub mod half;
pub mod level;
pub mod random;
pub mod rounds;
pub mod simd;
pub mod wait;

pub use dots::{DotLevel, Dots};
pub use level::{Instructions, Level, MissingInstructions};
pub use simd::{Simd, Vector};
