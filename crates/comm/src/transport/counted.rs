//! A transport that counts what it sends.

use super::{Transport, TransportError};

/// Counts the bytes and messages that a rank sends over the transport inside.
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
    pub fn bytes_sent(&self) -> u64 {
        self.bytes_sent
    }

    /// Messages sent so far.
    pub fn messages_sent(&self) -> u64 {
        self.messages_sent
    }

    fn count(&mut self, message: &[u8]) {
        self.bytes_sent += message.len() as u64;
        self.messages_sent += 1;
    }
}

impl<T: Transport> Transport for Counted<T> {
    fn rank(&self) -> usize {
        self.inner.rank()
    }

    fn world(&self) -> usize {
        self.inner.world()
    }

    fn send(&mut self, to: usize, data: &[u8]) -> Result<(), TransportError> {
        self.count(data);
        self.inner.send(to, data)
    }

    fn recv(&mut self, from: usize, data: &mut [u8]) -> Result<(), TransportError> {
        self.inner.recv(from, data)
    }

    fn exchange(&mut self, to: usize, outgoing: &[u8], from: usize, incoming: &mut [u8]) -> Result<(), TransportError> {
        self.count(outgoing);
        self.inner.exchange(to, outgoing, from, incoming)
    }
}
