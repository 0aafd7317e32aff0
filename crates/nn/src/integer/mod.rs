//! Inference in integers: bytes in, sums of 32 bits, bytes out.
//!
//! Activations are bytes without a sign: the integers of the specification, which go from -128 to 127, and 128.
//!
//! | look for | in |
//! | --- | --- |
//! | an integer times a real number | [`fixed`] |
//! | a convolution or a linear layer | [`conv`] |
//! | its windows times its filters | [`direct`] |
//! | fewer multiplications of larger numbers | [`winograd`], [`transforms`] |
//! | the sum of two activations | [`sum`] |

pub mod conv;
mod direct;
pub mod fixed;
pub mod sum;
#[cfg(test)]
mod tests;
mod transforms;
mod winograd;
mod workspace;

pub use conv::{IntegerConv, Recipe};
pub use fixed::FixedPoint;
pub use sum::IntegerSum;
pub use workspace::{Room, Workspace};
