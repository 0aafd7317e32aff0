//! What a trainer holds: one rank's view of all ranks, and the collectives they do together.

use crate::collective::{Algorithm, barrier, broadcast, gather_scatter, ring};
use crate::transport::{Counted, Transport, TransportError};

/// One rank among others. All ranks must call the same collectives in the same order with slices of the same length.
pub struct Group {
    transport: Counted<Box<dyn Transport>>,
    scratch: Vec<f32>,
}

impl Group {
    /// A group of all ranks that the transport connects.
    pub fn new(transport: impl Transport + 'static) -> Self {
        Self { transport: Counted::new(Box::new(transport)), scratch: Vec::new() }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.transport.rank()
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.transport.world()
    }

    /// Bytes that this rank has sent so far.
    pub fn bytes_sent(&self) -> u64 {
        self.transport.bytes_sent()
    }

    /// Replaces `data` by its sum over all ranks. All ranks end with the same bits.
    pub fn all_reduce(&mut self, data: &mut [f32], algorithm: Algorithm) -> Result<(), CollectiveError> {
        let result = match algorithm {
            Algorithm::GatherScatter => gather_scatter::all_reduce(&mut self.transport, data, &mut self.scratch),
            Algorithm::Ring => ring::all_reduce(&mut self.transport, data, &mut self.scratch),
        };
        self.named("all_reduce", result)
    }

    /// Replaces `data` on all ranks by rank 0's.
    pub fn broadcast(&mut self, data: &mut [f32]) -> Result<(), CollectiveError> {
        let result = broadcast::from_rank_0(&mut self.transport, data);
        self.named("broadcast", result)
    }

    /// Returns once all ranks have called it.
    pub fn barrier(&mut self) -> Result<(), CollectiveError> {
        let result = barrier::wait(&mut self.transport);
        self.named("barrier", result)
    }

    fn named<T>(&self, collective: &'static str, result: Result<T, TransportError>) -> Result<T, CollectiveError> {
        result.map_err(|source| CollectiveError { rank: self.rank(), collective, source })
    }
}

/// A collective that failed, and where.
#[derive(Debug, thiserror::Error)]
#[error("rank {rank}: {collective}: {source}")]
pub struct CollectiveError {
    /// The rank that noticed.
    pub rank: usize,
    /// What it was doing.
    pub collective: &'static str,
    /// What happened between it and a peer.
    pub source: TransportError,
}
