//! The engine: layers, models and optimizers on one rank's CPU. It knows nothing of other ranks.
//!
//! Activations are NHWC, so that convolution and pooling run along contiguous channels. A model's parameters and its
//! gradients are two flat buffers, laid out in the order in which backward finishes them: last layer first. Whoever
//! synchronises gradients takes slices of that buffer, and the optimizer walks it once; nothing is copied.
//!
//! | look for | in |
//! | --- | --- |
//! | forward and backward of each layer | [`layers`] |
//! | how layers make a model, and where its numbers live | [`model`] |
//! | the models by name | [`models`] |
//! | what turns gradients into new parameters | [`optim`] |
//! | matrix products and other inner loops | [`kernels`] |

pub mod kernels;
pub mod layers;
pub mod model;
pub mod models;
pub mod optim;

pub use model::{Model, Parameter, Score};
pub use models::Architecture;
