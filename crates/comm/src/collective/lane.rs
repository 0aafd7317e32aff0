//! What algorithms are written in: one rank's part in a collective, and ways to send elements and take others in.
//!
//! An algorithm is a schedule. What it moves, and whether anything moves at all, is up to the lane: a [live](super::live)
//! one has numbers and a transport, [`crate::proof`]'s has the contributions that each element is made of, and a simulated
//! one has lengths and a clock. They wait differently, so transfers are futures: live ones are ready when they are first
//! polled, others when their peer has come. See `docs/decisions/8-one-source-of-schedules.md`.

use std::ops::Range;
use std::pin::pin;
use std::task::{Context, Poll, Waker};

use crate::topology::Topology;
use crate::transport::TransportError;

/// The most of a chunk that passes between ranks of one host at a time.
const SEGMENT: usize = 256 << 10;

/// What becomes of elements that arrive.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Combine {
    /// They replace what was there.
    Copy,
    /// They are reduced with what was there.
    Reduce,
}

/// To whom, and which elements.
pub type Sent = (usize, Range<usize>);
/// From whom, which elements, and what becomes of them.
pub type Received = (usize, Range<usize>, Combine);

/// One rank's part in a collective. All ranks send and receive in the same elements' terms; a rank's own part is where it
/// belongs before the first of them moves.
pub trait Lane {
    /// This rank.
    fn rank(&self) -> usize;

    /// All ranks.
    fn topology(&self) -> &Topology;

    /// How many elements there are, as the collective counts them.
    fn len(&self) -> usize;

    /// The bytes of an element.
    fn element_size(&self) -> usize;

    /// Sends elements and receives others at once; either may be missing. What is sent is what was there before.
    fn transfer(
        &mut self,
        sent: Option<Sent>,
        received: Option<Received>,
    ) -> impl Future<Output = Result<(), TransportError>>;

    /// How many ranks there are.
    fn world(&self) -> usize {
        self.topology().world()
    }

    /// Whether there are no elements.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// In how many segments chunks go from rank to rank, if the slice is cut into so many chunks. Within a host a message
    /// costs what its way through memory costs, so segments are short enough that what has just arrived is still in the
    /// cache when it is sent on. Between hosts the wire is slower than memory and every message waits for it once more:
    /// there a chunk goes at once.
    fn segments(&self, chunks: usize) -> usize {
        let chunk = (self.len() * self.element_size()).div_ceil(chunks);
        if self.topology().is_one_host() { chunk.div_ceil(SEGMENT).max(1) } else { 1 }
    }

    /// Sends elements.
    fn send(&mut self, to: usize, part: Range<usize>) -> impl Future<Output = Result<(), TransportError>> {
        self.transfer(Some((to, part)), None)
    }

    /// Receives elements.
    fn recv(
        &mut self,
        from: usize,
        part: Range<usize>,
        combine: Combine,
    ) -> impl Future<Output = Result<(), TransportError>> {
        self.transfer(None, Some((from, part, combine)))
    }

    /// Sends elements and receives others at once. They may be the same.
    fn exchange(
        &mut self,
        to: usize,
        outgoing: Range<usize>,
        from: usize,
        incoming: Range<usize>,
        combine: Combine,
    ) -> impl Future<Output = Result<(), TransportError>> {
        self.transfer(Some((to, outgoing)), Some((from, incoming, combine)))
    }
}

/// A lane whose elements can be reduced.
pub trait Reducing: Lane {
    /// A part has been reduced over all ranks; for a mean that was a sum.
    fn finish(&mut self, part: Range<usize>);

    /// Reduces over the ranks of this host, which read straight out of each other's memory; a mean is still a sum. Only
    /// where [they share it](Topology::shares_memory_within_hosts).
    fn reduce_in_host(&mut self) -> impl Future<Output = Result<(), TransportError>>;

    /// Sends elements and keeps as many as this rank's `mine` of another aside.
    fn exchange_aside(
        &mut self,
        to: usize,
        outgoing: Range<usize>,
        from: usize,
        mine: Range<usize>,
    ) -> impl Future<Output = Result<(), TransportError>>;

    /// Reduces what was received aside from all other ranks with this rank's own part, in the order of the ranks.
    fn reduce_aside(&mut self, mine: Range<usize>);
}

/// Runs an algorithm on a live lane, whose transfers are over when they return.
pub fn at_once<R>(algorithm: impl Future<Output = R>) -> R {
    match pin!(algorithm).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(result) => result,
        Poll::Pending => unreachable!("a live lane waits inside its transfers"),
    }
}
