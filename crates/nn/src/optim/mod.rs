//! What turns gradients into new parameters.

mod sgd;

pub use sgd::Sgd;
