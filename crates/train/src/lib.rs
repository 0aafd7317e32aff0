//! Training: what one rank does, how ranks stay in step, and what a run is summed up to.
//!
//! | look for | in |
//! | --- | --- |
//! | the training loop | [`worker`] |
//! | what there is to do, validated | [`job`] |
//! | how images stand in a model's input | [`fit`] |
//! | how workers stay in step | [`strategy`] |
//! | where the time goes | [`clock`] |
//! | what all ranks together did | [`summary`] |
//! | weights as files | [`checkpoint`] |

pub mod checkpoint;
pub mod clock;
pub mod fit;
pub mod job;
pub mod strategy;
pub mod summary;
pub mod worker;

pub use job::Job;
pub use strategy::Sync;
