//! Ranks that exchange slices of numbers. This crate knows nothing of tensors, models or training.
//!
//! Four threads, one all-reduce:
//!
//! ```
//! use ringstep_comm::{Algorithm, Group, transport::mem};
//!
//! let workers: Vec<_> = mem::mesh(4)
//!     .into_iter()
//!     .map(|transport| {
//!         std::thread::spawn(move || {
//!             let mut group = Group::new(transport);
//!             let mut values = [group.rank() as f32; 3];
//!             group.all_reduce(&mut values, Algorithm::Ring).unwrap();
//!             values
//!         })
//!     })
//!     .collect();
//! for worker in workers {
//!     assert_eq!(worker.join().unwrap(), [6.0; 3]); // 0 + 1 + 2 + 3
//! }
//! ```
//!
//! | look for | in |
//! | --- | --- |
//! | what a trainer holds: `all_reduce`, `broadcast`, `barrier` | [`group`] |
//! | the algorithms, one a file, each like its paper | [`collective`] |
//! | how bytes get from one rank to another | [`transport`] |
//! | how processes find each other, and who may come in | [`rendezvous`] |

pub mod collective;
pub mod group;
pub mod rendezvous;
pub mod transport;

pub use collective::Algorithm;
pub use group::{CollectiveError, Group};
