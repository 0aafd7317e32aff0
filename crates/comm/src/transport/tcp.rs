//! Ranks that are processes: one TCP connection between each pair.
//!
//! [`crate::rendezvous::join`] makes the connections. They are non-blocking, and `poll` waits for whichever direction
//! can move next, so that an exchange sends and receives at once without a second thread.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Cause, DEFAULT_TIMEOUT, Transport, TransportError};

/// One rank's connections to all others.
#[derive(Debug)]
pub struct Tcp {
    rank: usize,
    /// Indexed by rank; there is none to oneself.
    peers: Vec<Option<TcpStream>>,
    timeout: Duration,
}

impl Tcp {
    /// Takes over connected streams, one for each other rank.
    pub(crate) fn new(rank: usize, peers: Vec<Option<TcpStream>>) -> std::io::Result<Self> {
        for stream in peers.iter().flatten() {
            stream.set_nonblocking(true)?;
            stream.set_nodelay(true)?;
        }
        Ok(Self { rank, peers, timeout: DEFAULT_TIMEOUT })
    }

    /// Gives up on a peer that has been silent for so long.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.timeout = timeout;
        self
    }

    fn peer(&self, rank: usize) -> &TcpStream {
        self.peers[rank].as_ref().expect("no rank sends to itself")
    }

    /// Moves whatever can move, in both directions, until both are done.
    fn transfer(
        &mut self,
        to: usize,
        mut outgoing: &[u8],
        from: usize,
        mut incoming: &mut [u8],
    ) -> Result<(), TransportError> {
        while !outgoing.is_empty() || !incoming.is_empty() {
            let mut moved = false;
            if !outgoing.is_empty() {
                match self.peer(to).write(outgoing) {
                    Ok(count) => {
                        outgoing = &outgoing[count..];
                        moved = true;
                    }
                    Err(error) if is_transient(&error) => {}
                    Err(error) => return Err(TransportError::sending(to, error)),
                }
            }
            if !incoming.is_empty() {
                match self.peer(from).read(incoming) {
                    Ok(0) => return Err(TransportError::receiving(from, Cause::Closed)),
                    Ok(count) => {
                        incoming = &mut incoming[count..];
                        moved = true;
                    }
                    Err(error) if is_transient(&error) => {}
                    Err(error) => return Err(TransportError::receiving(from, error)),
                }
            }
            if !moved {
                self.wait(to, !outgoing.is_empty(), from, !incoming.is_empty())?;
            }
        }
        Ok(())
    }

    /// Sleeps until one of the wanted directions can move.
    fn wait(&self, to: usize, sending: bool, from: usize, receiving: bool) -> Result<(), TransportError> {
        let blame = |cause: Cause| match receiving {
            true => TransportError::receiving(from, cause),
            false => TransportError::sending(to, cause),
        };
        let mut waiting_for = Vec::with_capacity(2);
        if sending {
            waiting_for.push(PollFd::new(self.peer(to), PollFlags::OUT));
        }
        if receiving {
            waiting_for.push(PollFd::new(self.peer(from), PollFlags::IN));
        }
        match poll_until(&mut waiting_for, Instant::now() + self.timeout) {
            Ok(true) => Ok(()),
            Ok(false) => Err(blame(Cause::TimedOut(self.timeout))),
            Err(error) => Err(blame(error.into())),
        }
    }
}

impl Transport for Tcp {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.peers.len()
    }

    fn send(&mut self, to: usize, data: &[u8]) -> Result<(), TransportError> {
        self.transfer(to, data, to, &mut [])
    }

    fn recv(&mut self, from: usize, data: &mut [u8]) -> Result<(), TransportError> {
        self.transfer(from, &[], from, data)
    }

    fn exchange(&mut self, to: usize, outgoing: &[u8], from: usize, incoming: &mut [u8]) -> Result<(), TransportError> {
        self.transfer(to, outgoing, from, incoming)
    }
}

/// Whether a non-blocking call should simply be made again later.
pub(crate) fn is_transient(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

/// Waits until one of the descriptors is ready; `false` if the deadline came first.
pub(crate) fn poll_until(descriptors: &mut [PollFd<'_>], deadline: Instant) -> std::io::Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout =
            Timespec { tv_sec: left.as_secs().try_into().unwrap_or(i64::MAX), tv_nsec: left.subsec_nanos().into() };
        match poll(descriptors, Some(&timeout)) {
            Ok(ready) => return Ok(ready > 0),
            Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    fn pair(timeout: Duration) -> (Tcp, Tcp) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let left = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let right = listener.accept().unwrap().0;
        let end = |rank, peers| Tcp::new(rank, peers).unwrap().with_timeout(timeout);
        (end(0, vec![None, Some(left)]), end(1, vec![Some(right), None]))
    }

    /// 64 MiB fit into no socket buffer: sending first on both sides would deadlock.
    #[test]
    fn an_exchange_larger_than_all_buffers_gets_through() {
        let (mut left, mut right) = pair(DEFAULT_TIMEOUT);
        const LENGTH: usize = 64 << 20;
        let other = std::thread::spawn(move || {
            let mut received = vec![0; LENGTH];
            right.exchange(0, &vec![1; LENGTH], 0, &mut received).unwrap();
            received
        });
        let mut received = vec![0; LENGTH];
        left.exchange(1, &vec![2; LENGTH], 1, &mut received).unwrap();
        assert!(received.iter().all(|&byte| byte == 1));
        assert!(other.join().unwrap().iter().all(|&byte| byte == 2));
    }

    #[test]
    fn a_silent_peer_and_one_that_is_gone_are_told_apart() {
        let (mut left, right) = pair(Duration::from_millis(20));
        assert_eq!(left.recv(1, &mut [0]).unwrap_err().to_string(), "recv from rank 1: timed out after 20ms");
        drop(right);
        assert_eq!(left.recv(1, &mut [0]).unwrap_err().to_string(), "recv from rank 1: connection closed");
    }
}
