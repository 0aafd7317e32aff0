//! Ranks that exchange slices of numbers. This crate knows nothing of tensors, models or training.
//!
//! Four threads, one all-reduce:
//!
//! ```
//! use ringstep_comm::{Algorithm, Group, Op, transport::mem};
//!
//! let workers: Vec<_> = mem::mesh(4)
//!     .into_iter()
//!     .map(|transport| {
//!         std::thread::spawn(move || {
//!             let mut group = Group::new(transport);
//!             let mut values = [group.rank() as f32; 3];
//!             group.all_reduce(&mut values, Op::Sum, Algorithm::Ring).unwrap();
//!             values
//!         })
//!     })
//!     .collect();
//! for worker in workers {
//!     assert_eq!(worker.join().unwrap(), [6.0; 3]); // 0 + 1 + 2 + 3
//! }
//! ```
//!
//! `examples/two_processes.rs` does the same with processes.
//!
//! | look for | in |
//! | --- | --- |
//! | what a trainer holds, and all that ranks can do together | [`group`] |
//! | collectives that go on while the caller computes | [`overlap`] |
//! | messages whose length the sender decides | [`varied`] |
//! | what a group has done, and when; what it has sent and received | [`log`] |
//! | the algorithms, one a file, each like its paper | [`collective`] |
//! | what is wrong with a schedule, if anything | [`proof`] |
//! | how bytes get from one rank to another | [`transport`] |
//! | which ranks are on one host, and share memory | [`topology`] |
//! | how processes find each other, and who may come in | [`rendezvous`] |
//! | what can be reduced, and how | [`element`] |
//! | what each algorithm costs, and which is the best where | [`cost`], [`tune`] |
//! | what a rank waits in, seen from another thread | [`watch`] |
//! | what every message says it belongs to | [`call`] |

pub mod call;
pub mod collective;
mod connection;
mod copy;
pub mod cost;
pub mod element;
pub mod group;
pub mod log;
pub mod overlap;
pub mod proof;
pub mod rendezvous;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
pub mod topology;
pub mod transport;
pub mod tune;
pub mod varied;
pub mod watch;

pub use collective::Algorithm;
pub use element::{Element, Op};
pub use group::{CollectiveError, Failure, Group, How};
pub use topology::Topology;
pub use varied::Gathered;
