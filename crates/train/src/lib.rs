//! Training: what one rank does, how ranks stay in step, and what a run is summed up to.
//!
//! | look for | in |
//! | --- | --- |
//! | the training loop | [`worker`] |
//! | what there is to do, validated | [`job`] |
//! | how images stand in a model's input | [`fit`] |
//! | how workers stay in step | [`strategy`] |
//! | where a rank's batches come from | `feed` |
//! | how good a model is on the test images | `evaluate` |
//! | why a rank stops before the end | [`error`] |
//! | batch norm over all ranks' images | [`batch_norm`] |
//! | whether ranks are still equal | [`verify`] |
//! | where the time goes | [`clock`], [`timebase`], [`trace`] |
//! | what a rank says | [`records`] |
//! | what all ranks together did | [`steps`], [`summary`] |
//! | weights as files | [`checkpoint`] |

pub mod batch_norm;
pub mod checkpoint;
pub mod clock;
pub mod error;
mod evaluate;
mod feed;
pub mod fit;
pub mod job;
pub mod memory;
pub mod records;
pub mod steps;
pub mod strategy;
pub mod summary;
pub mod timebase;
pub mod trace;
pub mod verify;
pub mod worker;

pub use job::Job;
pub use strategy::Sync;
