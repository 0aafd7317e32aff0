//! The engine: layers, models and optimizers on one rank's CPU. It knows nothing of other ranks.
//!
//! Activations are NHWC, so that convolution and pooling run along contiguous channels. A model's parameters and its
//! gradients are two flat buffers, laid out in the order in which backward finishes them: last layer first. Whoever
//! synchronises gradients takes slices of that buffer, and the optimizer walks it once; nothing is copied.
//!
//! | look for | in |
//! | --- | --- |
//! | what a network is, as data | [`network`] |
//! | the networks by name | [`models`] |
//! | a network that can be trained | [`model`] |
//! | what it says of its layers | [`described`] |
//! | a trained one that only classifies | [`frozen`] |
//! | how its layers pass numbers on | `body` |
//! | where its numbers live, and which of them share memory | `layout`, [`plan`] |
//! | how much memory that takes | [`memory`] |
//! | forward and backward of each layer | [`layers`] |
//! | inference in integers | [`integer`] |
//! | matrix products and other inner loops | [`kernels`] |
//! | the threads of one worker | [`team`] |
//! | what turns gradients into new parameters | [`optim`] |
//! | the learning rate of each step | [`schedule`] |
//! | what must be remembered to go on later | [`state`] |

// Kernels number registers by row and column, as their formulas do.
#![allow(clippy::needless_range_loop)]

mod aligned;
mod body;
pub mod described;
pub mod frozen;
pub mod integer;
pub mod kernels;
pub mod layers;
mod layout;
pub mod memory;
pub mod model;
pub mod models;
pub mod network;
pub mod optim;
pub mod plan;
pub mod schedule;
pub mod state;
pub mod team;

pub use described::InferenceLayer;
pub use frozen::Frozen;
pub use layout::{Parameter, Timing};
pub use model::{Model, Score};
pub use models::Architecture;
pub use network::{Network, NetworkError};
