//! Ranks that are threads of one process: a queue of messages between each pair.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};

use super::{Cause, DEFAULT_TIMEOUT, Transport, TransportError};

/// One rank's ends of the queues to and from all ranks, itself included.
#[derive(Debug)]
pub struct Mem {
    rank: usize,
    to: Vec<Sender<Vec<u8>>>,
    from: Vec<Receiver<Vec<u8>>>,
}

/// Connects `world` ranks with each other; the element at index `r` belongs to rank `r`.
pub fn mesh(world: usize) -> Vec<Mem> {
    let mut ranks: Vec<Mem> = (0..world).map(|rank| Mem { rank, to: Vec::new(), from: Vec::new() }).collect();
    for receiver in 0..world {
        for sender in 0..world {
            let (tx, rx) = channel();
            ranks[sender].to.push(tx);
            ranks[receiver].from.push(rx);
        }
    }
    ranks
}

impl Transport for Mem {
    fn rank(&self) -> usize {
        self.rank
    }

    fn world(&self) -> usize {
        self.to.len()
    }

    fn send(&mut self, to: usize, data: &[u8]) -> Result<(), TransportError> {
        self.to[to].send(data.to_vec()).map_err(|_| TransportError::sending(to, Cause::Closed))
    }

    fn recv(&mut self, from: usize, data: &mut [u8]) -> Result<(), TransportError> {
        let message = self.from[from].recv_timeout(DEFAULT_TIMEOUT).map_err(|error| match error {
            RecvTimeoutError::Timeout => TransportError::receiving(from, Cause::TimedOut(DEFAULT_TIMEOUT)),
            RecvTimeoutError::Disconnected => TransportError::receiving(from, Cause::Closed),
        })?;
        if message.len() != data.len() {
            let cause = Cause::Length { expected: data.len(), got: message.len() };
            return Err(TransportError::receiving(from, cause));
        }
        data.copy_from_slice(&message);
        Ok(())
    }

    // The queues have no bound, so a send never waits for its receiver.
    fn exchange(&mut self, to: usize, outgoing: &[u8], from: usize, incoming: &mut [u8]) -> Result<(), TransportError> {
        self.send(to, outgoing)?;
        self.recv(from, incoming)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_of_a_pair_keep_their_order_and_their_sender() {
        let mut ranks = mesh(3);
        ranks[0].send(2, b"a").unwrap();
        ranks[1].send(2, b"b").unwrap();
        ranks[0].send(2, b"c").unwrap();
        let mut byte = [0];
        for (from, expected) in [(1, b"b"), (0, b"a"), (0, b"c")] {
            ranks[2].recv(from, &mut byte).unwrap();
            assert_eq!(&byte, expected);
        }
    }

    #[test]
    fn a_rank_that_is_gone_is_named() {
        let mut ranks = mesh(2);
        drop(ranks.pop());
        assert_eq!(ranks[0].recv(1, &mut [0]).unwrap_err().to_string(), "recv from rank 1: connection closed");
        assert_eq!(ranks[0].send(1, &[0]).unwrap_err().to_string(), "send to rank 1: connection closed");
    }

    #[test]
    fn another_length_is_an_error() {
        let mut ranks = mesh(2);
        ranks[1].send(0, &[1, 2, 3]).unwrap();
        assert_eq!(ranks[0].recv(1, &mut [0; 2]).unwrap_err().to_string(), "recv from rank 1: expected 2 bytes, got 3");
    }
}
