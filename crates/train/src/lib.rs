//! Training: what one rank does, how ranks stay in step, and what a run is summed up to.
//!
//! | look for | in |
//! | --- | --- |
//! | the training loop | [`worker`] |
//! | what there is to do, validated | [`job`] |
//! | how images stand in a model's input | [`fit`] |
//! | how workers stay in step | [`strategy`] |
//! | how to send less than the gradients | [`compress`] |
//! | who is there, and what for | [`world`] |
//! | ranks that are made slow | [`slow`] |
//! | a model in training, and where its batches come from | `replica`, `feed` |
//! | how good a model is on the test images | `evaluate`, `snapshots` |
//! | why a rank stops before the end | [`error`] |
//! | batch norm over all ranks' images | [`batch_norm`] |
//! | whether ranks are still equal | [`verify`] |
//! | how long a worker computes | [`profile`] |
//! | where the time goes | `recorder`, [`clock`], [`timebase`], [`trace`] |
//! | what a rank says | [`records`] |
//! | what goes over the network | [`content`] |
//! | what all ranks together did | [`accounts`], [`summary`] |
//! | weights as files | [`checkpoint`] |
//! | what a rank remembers, in files | [`saving`] |
//! | stopping all ranks at one moment | [`halt`] |

pub mod accounts;
pub mod batch_norm;
pub mod checkpoint;
pub mod clock;
pub mod compress;
pub mod content;
pub mod error;
mod evaluate;
mod feed;
pub mod fit;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod halt;
pub mod job;
pub mod memory;
pub mod profile;
mod recorder;
pub mod records;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod replica;
pub mod saving;
pub mod slow;
mod snapshots;
pub mod strategy;
pub mod summary;
pub mod timebase;
pub mod trace;
pub mod verify;
pub mod worker;
pub mod world;

pub use job::Job;
pub use strategy::SyncMethod;
