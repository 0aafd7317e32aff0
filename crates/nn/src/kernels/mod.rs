//! The inner loops.

pub mod correlate;
pub mod cross_entropy;
pub mod dots;
pub mod matmul;
pub mod peak;
pub mod planes;
pub mod rows;
pub mod simd;
pub mod tanh;
pub mod transpose;
pub mod windows;
