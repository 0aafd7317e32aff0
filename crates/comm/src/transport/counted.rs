//! A transport that counts what it sends.

use super::{Aborter, Incoming, Outgoing, Shared, Transport, TransportError};
use crate::call::Call;

/// Counts the bytes and messages that a rank sends over the transport inside, and the bytes that it puts into shared
/// memory for others to read.
#[derive(Debug)]
pub struct Counted<T> {
    inner: T,
    bytes_sent: u64,
    messages_sent: u64,
}

impl<T: Transport> Counted<T> {
    /// Starts counting at zero.
    pub fn new(inner: T) -> Self {
        Self { inner, bytes_sent: 0, messages_sent: 0 }
    }

    /// Bytes sent so far.
    pub fn bytes_sent(&mut self) -> u64 {
        self.bytes_sent + self.inner.shared().map_or(0, |shared| shared.bytes_written())
    }

    /// Messages sent so far.
    pub fn messages_sent(&self) -> u64 {
        self.messages_sent
    }
}

impl<T: Transport> Transport for Counted<T> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world(&self) -> usize {
        self.inner.world()
    }

    fn begin(&mut self, call: Call) {
        self.inner.begin(call);
    }

    fn transfer(
        &mut self,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
    ) -> Result<(), TransportError> {
        if let Some(Outgoing { data, .. }) = outgoing {
            self.bytes_sent += data.len() as u64;
            self.messages_sent += 1;
        }
        self.inner.transfer(outgoing, incoming)
    }

    fn hosts(&self) -> &[usize] {
        self.inner.hosts()
    }

    fn shared(&mut self) -> Option<&mut Shared> {
        self.inner.shared()
    }

    fn aborter(&self) -> Aborter {
        self.inner.aborter()
    }

    fn split(&mut self, members: &[usize]) -> Result<Box<dyn Transport>, TransportError> {
        self.inner.split(members)
    }
}
