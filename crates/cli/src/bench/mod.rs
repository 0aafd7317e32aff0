//! `ringstep bench`: what this machine can do.

pub mod collectives;
pub mod kernels;
pub mod scaling;
