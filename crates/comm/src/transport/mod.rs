//! Moving bytes between two ranks.

use std::fmt;
use std::io;
use std::time::Duration;

mod counted;
pub mod mem;
pub mod tcp;

pub use counted::Counted;

/// How long a rank waits for a peer that neither sends nor accepts anything.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// Moves bytes between two ranks of a fixed world.
///
/// Messages between a pair of ranks arrive in the order in which they were sent, and a receiver knows how long the
/// next one is. `exchange` is primitive: a ring in which everyone sends before receiving deadlocks as soon as the
/// messages no longer fit into the buffers on the way.
pub trait Transport: Send {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world(&self) -> usize;

    /// Sends `data` to rank `to`.
    fn send(&mut self, to: usize, data: &[u8]) -> Result<(), TransportError>;

    /// Fills `data` with the next bytes from rank `from`.
    fn recv(&mut self, from: usize, data: &mut [u8]) -> Result<(), TransportError>;

    /// Sends to one rank and receives from another (or the same) at once.
    fn exchange(&mut self, to: usize, outgoing: &[u8], from: usize, incoming: &mut [u8]) -> Result<(), TransportError>;
}

impl<T: Transport + ?Sized> Transport for Box<T> {
    fn rank(&self) -> usize {
        (**self).rank()
    }

    fn world(&self) -> usize {
        (**self).world()
    }

    fn send(&mut self, to: usize, data: &[u8]) -> Result<(), TransportError> {
        (**self).send(to, data)
    }

    fn recv(&mut self, from: usize, data: &mut [u8]) -> Result<(), TransportError> {
        (**self).recv(from, data)
    }

    fn exchange(&mut self, to: usize, outgoing: &[u8], from: usize, incoming: &mut [u8]) -> Result<(), TransportError> {
        (**self).exchange(to, outgoing, from, incoming)
    }
}

/// What went wrong between this rank and one peer.
#[derive(Debug, thiserror::Error)]
#[error("{direction} rank {peer}: {cause}")]
pub struct TransportError {
    /// Whether this rank was sending or receiving.
    pub direction: Direction,
    /// The rank at the other end.
    pub peer: usize,
    /// What happened.
    pub cause: Cause,
}

impl TransportError {
    pub(crate) fn sending(peer: usize, cause: impl Into<Cause>) -> Self {
        Self { direction: Direction::SendTo, peer, cause: cause.into() }
    }

    pub(crate) fn receiving(peer: usize, cause: impl Into<Cause>) -> Self {
        Self { direction: Direction::RecvFrom, peer, cause: cause.into() }
    }
}

/// Which way the bytes were to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// This rank was sending.
    SendTo,
    /// This rank was receiving.
    RecvFrom,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SendTo => "send to",
            Self::RecvFrom => "recv from",
        })
    }
}

/// Why bytes did not get through.
#[derive(Debug, thiserror::Error)]
pub enum Cause {
    /// The peer has gone.
    #[error("connection closed")]
    Closed,
    /// The peer is there, and silent.
    #[error("timed out after {0:?}")]
    TimedOut(Duration),
    /// The peer sent a message of another length: the two ranks are not in the same collective.
    #[error("expected {expected} bytes, got {got}")]
    Length {
        /// What this rank wanted.
        expected: usize,
        /// What the peer sent.
        got: usize,
    },
    /// The system said no.
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for Cause {
    fn from(error: io::Error) -> Self {
        use io::ErrorKind::{BrokenPipe, ConnectionAborted, ConnectionReset, UnexpectedEof};
        match error.kind() {
            BrokenPipe | ConnectionAborted | ConnectionReset | UnexpectedEof => Self::Closed,
            _ => Self::Io(error),
        }
    }
}
