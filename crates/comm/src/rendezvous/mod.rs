//! How processes become ranks: they meet at one address, learn where everyone is, and connect with each other.
//!
//! Whoever starts the job opens a [`Meeting`]. Each rank has an [`Invitation`] to it: it opens a port of its own, introduces
//! itself at the meeting with that port, and once all are there gets everyone's address. Then rank r calls the ranks below
//! it and answers those above. Every connection begins with both sides proving that they know the job's [`Secret`], which
//! itself is never sent. Whoever does not know it is shown the door, and whoever says nothing keeps nobody waiting.
//!
//! A meeting can be held again, for the next generation of ranks. Processes that were started by somebody else come to it
//! too, and keep their [`Line`] to the host: orders go one way, reports the other.
//!
//! | look for | in |
//! | --- | --- |
//! | how both sides of a connection prove what they know | `proof.rs` |
//! | a port with callers before it, of whom most may be strangers | `door.rs` |
//! | whoever hosts | `meeting.rs` |
//! | whoever comes | `join.rs` |
//! | messages between the host and a process | `line.rs` |
//! | what tells one host from another | `host.rs` |
//! | what encrypts, if that is wanted | `keys.rs` |

mod door;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod host;
mod join;
mod keys;
mod line;
mod meeting;
mod proof;

use std::fmt;
use std::io;
use std::time::Duration;

pub use self::join::{Find, Invitation, attend, source_address};
pub use self::line::Line;
pub use self::meeting::Meeting;
pub use self::proof::{Encryption, Secret};

/// A meeting failed, or a rank could not join one.
#[derive(Debug, thiserror::Error)]
pub enum RendezvousError {
    /// The system said no.
    #[error("{action}: {error}")]
    Io {
        /// What was tried.
        action: String,
        /// Why it failed.
        error: io::Error,
    },
    /// Somebody never came.
    #[error("of {of} {who} {} did not come within {waited:?}{}", listed(missing), told(*.strangers))]
    Missing {
        /// What they would have come as.
        who: Role,
        /// Who did not come.
        missing: Vec<usize>,
        /// How many there should have been.
        of: usize,
        /// How long the others waited.
        waited: Duration,
        /// How many callers were sent away meanwhile.
        strangers: usize,
    },
    /// Whoever hosted the meeting ended it.
    #[error("rank {rank}: the rendezvous ended before all ranks were there")]
    Ended {
        /// The rank that was waiting.
        rank: usize,
    },
    /// Whoever waited was told not to.
    #[error("the rendezvous was called off")]
    CalledOff,
    /// Two callers claim the same place, or a place that there is not.
    #[error("{} {number} of {of} is not free in a meeting of {expected}", .who.one())]
    NotFree {
        /// What it came as.
        who: Role,
        /// The place that was claimed.
        number: usize,
        /// How many the caller believes there are.
        of: usize,
        /// How many there are.
        expected: usize,
    },
}

/// What a caller comes as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// A rank that wants to know where the others are.
    Rank,
    /// A rank that calls another.
    Peer,
    /// A process that waits for orders.
    Process,
}

impl Role {
    fn one(self) -> &'static str {
        match self {
            Self::Rank | Self::Peer => "rank",
            Self::Process => "process",
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Rank | Self::Peer => "ranks",
            Self::Process => "processes",
        })
    }
}

fn listed(numbers: &[usize]) -> String {
    numbers.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")
}

fn told(strangers: usize) -> String {
    match strangers {
        0 => String::new(),
        1 => "; a caller did not know the job's secret".to_owned(),
        _ => format!("; {strangers} callers did not know the job's secret"),
    }
}

/// Says what was tried when the system said no.
fn failed(action: impl Into<String>) -> impl FnOnce(io::Error) -> RendezvousError {
    move |error| RendezvousError::Io { action: action.into(), error }
}

#[cfg(test)]
mod encrypted_tests;
#[cfg(test)]
mod tests;
