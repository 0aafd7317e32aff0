//! A step of thousands of workers, simulated: the real schedules of `comm` over simulated links and clocks.
//!
//! ```
//! use std::time::Duration;
//! use ringstep_comm::Algorithm;
//! use ringstep_comm::transport::Net;
//! use ringstep_sim::{Cluster, Slice, Sync, Workload, simulate};
//!
//! let net = Net { bytes_per_second: 25e9 / 8.0, latency: Duration::from_micros(20) };
//! let cluster = Cluster::flat(64, net);
//! let slices = [(5_000_000, 0.05), (4_000_000, 0.2)].map(|(elements, ready)| Slice::of_f32(elements, ready).by(Algorithm::Ring));
//! let workload = Workload::new(0.1, 0.2, 0.01, slices.to_vec(), Sync::DuringBackward);
//! let times = simulate(&cluster, &workload).unwrap().times;
//! assert!(times.step_seconds > 0.31 && times.efficiency < 1.0);
//! ```
//!
//! | look for | in |
//! | --- | --- |
//! | machines and what connects them | [`cluster`] |
//! | what a step computes and exchanges | [`workload`] |
//! | the same of a job of `train`, by its own rules | [`plan`] |
//! | ranks that hold the parameters | [`served`] |
//! | the numbers of a machine, from times that it took | [`calibrate`] |
//! | workers that are slower than others | [`slow`] |
//! | threads that share cores | [`cores`] |
//! | workers that fail | [`failures`] |
//! | messages on their way, and whose turn it is | [`network`] |
//! | messages that share links | [`flows`] |
//! | what the collectives' code runs on | [`lane`] |
//! | the workers, and what becomes of their times | [`simulation`] |
//!
//! What it leaves out: memory bandwidth, and everything that happens on a network besides, as lost packets.

pub mod calibrate;
pub mod cluster;
pub mod cores;
pub mod failures;
pub mod flows;
pub mod lane;
pub mod network;
pub mod plan;
pub mod served;
pub mod simulation;
pub mod slow;
pub mod workload;

pub use cluster::Cluster;
pub use failures::Failures;
pub use plan::{Unpredictable, predict, workload};
pub use simulation::{Simulation, Span, StepTimes, What, simulate};
pub use slow::Slowness;
pub use workload::{Invalid, Slice, Sync, Workload};
