//! The inner loops.

pub mod cross_entropy;
pub mod matmul;
pub mod tanh;
