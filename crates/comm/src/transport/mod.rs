//! Moving bytes between two ranks.
//!
//! | transport | ranks are | bytes go through |
//! | --- | --- | --- |
//! | [`mem`] | threads of one process | memory that they share anyway |
//! | [`shm`] | processes, on one host or on several | shared memory within a host, TCP between hosts |
//! | [`tcp`] | processes | TCP |
#![cfg_attr(feature = "mpi", doc = "| [`mpi`] | processes that MPI has started | MPI |")]
//!
//! [`Shaped`] can be worn by any of them.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use crate::call::{Call, Header};
use crate::watch::Watch;

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
pub mod mem;
#[cfg(feature = "mpi")]
pub mod mpi;
mod segment;
mod shaped;
pub mod shared;
pub mod shm;
mod stream;
pub mod tcp;
mod traffic;

pub use shaped::{Links, Net, Shaped};
pub use shared::Shared;
pub use traffic::Traffic;

/// How long a rank waits for a peer that neither sends nor accepts what it owes.
pub const DEFAULT_TIMEOUT: Duration = Duration::from_secs(60);

/// A message to another rank.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// Who gets it.
    pub to: usize,
    /// What it says.
    pub data: &'a [u8],
}

/// A message from another rank.
pub struct Incoming<'a> {
    /// Who sends it.
    pub from: usize,
    /// What becomes of it.
    pub sink: Sink<'a>,
}

/// What becomes of a message that arrives.
pub enum Sink<'a> {
    /// It fills a slice.
    Fill(&'a mut [u8]),
    /// It is handed on piece by piece, in order, while the rest is still on its way.
    Fold {
        /// The length of the message.
        bytes: usize,
        /// Pieces are aligned to this power of two up to 8, and as long as a multiple of it.
        grain: usize,
        /// Gets the pieces.
        fold: &'a mut dyn FnMut(&[u8]),
    },
    /// It becomes all that is in a buffer; its length is the sender's to decide.
    Take {
        /// Gets the message.
        into: &'a mut Vec<u8>,
        /// The longest that is taken.
        limit: usize,
    },
}

impl Sink<'_> {
    /// The length of the message, unless the sender decides it.
    pub fn bytes(&self) -> Option<usize> {
        match self {
            Self::Fill(data) => Some(data.len()),
            Self::Fold { bytes, .. } => Some(*bytes),
            Self::Take { .. } => None,
        }
    }

    /// What the header of the message must be; of the length only if that is known.
    fn expected(&self, call: &Call) -> Header {
        Header::new(call, self.bytes().unwrap_or(0))
    }

    /// Compares the header of a message with the expected one, makes room for the message, and says how long it is.
    fn accept(&mut self, expected: &Header, got: &Header) -> Result<usize, Cause> {
        let Self::Take { into, limit } = self else {
            check(expected, got)?;
            return Ok(expected.bytes as usize);
        };
        let mut expected = *expected;
        expected.bytes = got.bytes;
        check(&expected, got)?;
        let (got, limit) = (usize::try_from(got.bytes).unwrap_or(usize::MAX), *limit);
        if got > limit {
            return Err(Cause::TooLong { limit, got });
        }
        into.resize(got, 0);
        Ok(got)
    }
}

/// What a collective works on, as bytes.
#[cfg(feature = "mpi")]
pub enum Data<'a> {
    /// A slice that goes through it in place.
    InPlace(&'a mut [u8]),
    /// A slice that is sent, and another that is received.
    Apart(&'a [u8], &'a mut [u8]),
}

/// Moves bytes between the ranks of a fixed world.
///
/// Messages between a pair of ranks arrive in the order in which they were sent, and a receiver knows how long the
/// next one is, or may be. Sending and receiving at once is the primitive: a ring in which everyone sends before receiving
/// deadlocks as soon as the messages no longer fit into the buffers on the way.
pub trait Transport: Send {
    /// This rank, from 0.
    fn rank(&self) -> usize;

    /// How many ranks there are.
    fn world(&self) -> usize;

    /// Messages from now on belong to this call; each carries it, and one that carries another is an error. The call also
    /// says whether a peer that is silent for too long is one.
    fn begin(&mut self, call: Call);

    /// Sends one message and receives another at once; either may be missing.
    fn transfer(
        &mut self,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
    ) -> Result<(), TransportError>;

    /// Which of these has sent something that was not received yet; of several the first in this order. `None` if that is
    /// nobody until then. One that is gone is an error, silence is none: nobody owes anything.
    fn wait_any(&mut self, from: &[usize], until: Option<Instant>) -> Result<Option<usize>, TransportError>;

    /// The host of each rank, as small numbers.
    fn hosts(&self) -> &[usize];

    /// The memory that this rank shares with the others of its host, if it does.
    fn shared(&mut self) -> Option<&mut Shared> {
        None
    }

    /// Does a call by a collective of its own, as a library has them; `false` if that is left to messages. `beside` says
    /// whether the caller does something else meanwhile.
    #[cfg(feature = "mpi")]
    fn perform(&mut self, _call: &Call, _data: Data<'_>, _beside: bool) -> Result<bool, TransportError> {
        Ok(false)
    }

    /// What this rank has sent and received so far.
    fn traffic(&self) -> Traffic;

    /// How long a peer may be silent that owes something.
    fn timeout(&self) -> Duration;

    /// What lets another thread end a transfer that this one waits in.
    fn aborter(&self) -> Aborter;

    /// Where it shows what it waits in.
    fn watch(&self) -> Watch {
        Watch::default()
    }

    /// A transport of its own for these ranks, in this order; all of them must call it, and this one is among them.
    fn split(&mut self, members: &[usize]) -> Result<Box<dyn Transport>, TransportError>;

    /// Sends a message.
    fn send(&mut self, to: usize, data: &[u8]) -> Result<(), TransportError> {
        self.transfer(Some(Outgoing { to, data }), None)
    }

    /// Fills a slice with a message.
    fn recv(&mut self, from: usize, data: &mut [u8]) -> Result<(), TransportError> {
        self.transfer(None, Some(Incoming { from, sink: Sink::Fill(data) }))
    }

    /// Sends to one rank and receives from another (or the same) at once.
    fn exchange(&mut self, to: usize, outgoing: &[u8], from: usize, incoming: &mut [u8]) -> Result<(), TransportError> {
        self.transfer(Some(Outgoing { to, data: outgoing }), Some(Incoming { from, sink: Sink::Fill(incoming) }))
    }
}

impl<T: Transport + ?Sized> Transport for Box<T> {
    fn rank(&self) -> usize {
        (**self).rank()
    }

    fn world(&self) -> usize {
        (**self).world()
    }

    fn begin(&mut self, call: Call) {
        (**self).begin(call);
    }

    fn transfer(
        &mut self,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
    ) -> Result<(), TransportError> {
        (**self).transfer(outgoing, incoming)
    }

    fn wait_any(&mut self, from: &[usize], until: Option<Instant>) -> Result<Option<usize>, TransportError> {
        (**self).wait_any(from, until)
    }

    fn hosts(&self) -> &[usize] {
        (**self).hosts()
    }

    fn shared(&mut self) -> Option<&mut Shared> {
        (**self).shared()
    }

    #[cfg(feature = "mpi")]
    fn perform(&mut self, call: &Call, data: Data<'_>, beside: bool) -> Result<bool, TransportError> {
        (**self).perform(call, data, beside)
    }

    fn traffic(&self) -> Traffic {
        (**self).traffic()
    }

    fn timeout(&self) -> Duration {
        (**self).timeout()
    }

    fn aborter(&self) -> Aborter {
        (**self).aborter()
    }

    fn watch(&self) -> Watch {
        (**self).watch()
    }

    fn split(&mut self, members: &[usize]) -> Result<Box<dyn Transport>, TransportError> {
        (**self).split(members)
    }
}

/// Ends what a rank waits for from another thread.
#[derive(Debug, Clone, Default)]
pub struct Aborter(Arc<AtomicBool>);

impl Aborter {
    /// The transfer under way, or the next one that has to wait, ends within a moment with [`Cause::Aborted`].
    pub fn abort(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    fn is_aborted(&self) -> bool {
        self.0.load(Ordering::Relaxed)
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

    #[cfg(feature = "mpi")]
    pub(crate) fn among_all(world: usize, cause: impl Into<Cause>) -> Self {
        Self { direction: Direction::AmongAll, peer: world - 1, cause: cause.into() }
    }
}

/// Which way the bytes were to go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    /// This rank was sending.
    SendTo,
    /// This rank was receiving.
    RecvFrom,
    /// All ranks, of which the other is the last, were sending and receiving.
    #[cfg(feature = "mpi")]
    AmongAll,
}

impl fmt::Display for Direction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::SendTo => "send to",
            Self::RecvFrom => "recv from",
            #[cfg(feature = "mpi")]
            Self::AmongAll => "among all up to",
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
    /// An [`Aborter`] has ended it.
    #[error("aborted")]
    Aborted,
    /// The peer is doing something else.
    #[error("it is in {0}")]
    Elsewhere(Call),
    /// The peer is in the same call, with a message of another length.
    #[error("expected {expected} bytes, got {got}")]
    Length {
        /// What this rank wanted.
        expected: usize,
        /// What the peer sent.
        got: usize,
    },
    /// The peer sent more than was to be taken.
    #[error("expected at most {limit} bytes, got {got}")]
    TooLong {
        /// The most that this rank takes.
        limit: usize,
        /// What the peer sent.
        got: usize,
    },
    /// The peer does not speak this protocol.
    #[error("it sent no valid message")]
    Nonsense,
    /// A sub-group could not be connected.
    #[error("{0}")]
    Rendezvous(Box<crate::rendezvous::RendezvousError>),
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

impl From<rustix::io::Errno> for Cause {
    fn from(error: rustix::io::Errno) -> Self {
        io::Error::from(error).into()
    }
}

/// Compares what a message says with what was expected.
fn check(expected: &Header, got: &Header) -> Result<(), Cause> {
    if got == expected {
        return Ok(());
    }
    Err(match (got.call(), expected.call()) {
        (Some(theirs), ours) if Some(theirs) != ours => Cause::Elsewhere(theirs),
        (Some(_), _) => Cause::Length { expected: expected.bytes as usize, got: got.bytes as usize },
        (None, _) => Cause::Nonsense,
    })
}

/// The host of each rank, if all are on one.
fn one_host(world: usize) -> Vec<usize> {
    vec![0; world]
}
