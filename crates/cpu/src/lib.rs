//! What this processor can do for `nn` and `comm`.
//!
//! | look for | in |
//! | --- | --- |
//! | vectors, and the operations that kernels are written in | [`simd`] |
//! | instruction levels, and the proof that the machine has one | [`level`] |
//! | functions that are compiled once for each level | [`kernels!`] |
//! | the cores that this process may use | [`cores`] |

pub mod cores;
mod dispatch;
pub mod level;
pub mod simd;

pub use level::{Instructions, Level, MissingInstructions};
pub use simd::{Simd, Vector};
