//! What a message belongs to. Each one carries it, so that ranks that disagree find out instead of adding up the wrong
//! numbers.

use std::fmt;

use bytemuck::{Pod, Zeroable};

use crate::collective::Algorithm;
use crate::element::{ElementType, Op};

/// Bytes that stand in front of the data of every message.
pub const HEADER: usize = Header::LENGTH;

/// What ranks do together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum Collective {
    AllReduce,
    Reduce,
    Broadcast,
    Gather,
    Scatter,
    AllGather,
    ReduceScatter,
    AllToAll,
    Barrier,
    SendRecv,
    Split,
    AllGatherVaried,
    ExchangeVaried,
    SendVaried,
    Meet,
}

impl Collective {
    const ALL: [Self; 15] = [
        Self::AllReduce,
        Self::Reduce,
        Self::Broadcast,
        Self::Gather,
        Self::Scatter,
        Self::AllGather,
        Self::ReduceScatter,
        Self::AllToAll,
        Self::Barrier,
        Self::SendRecv,
        Self::Split,
        Self::AllGatherVaried,
        Self::ExchangeVaried,
        Self::SendVaried,
        Self::Meet,
    ];

    /// The name of the method of [`Group`](crate::Group).
    pub fn name(self) -> &'static str {
        match self {
            Self::AllReduce => "all_reduce",
            Self::Reduce => "reduce",
            Self::Broadcast => "broadcast",
            Self::Gather => "gather",
            Self::Scatter => "scatter",
            Self::AllGather => "all_gather",
            Self::ReduceScatter => "reduce_scatter",
            Self::AllToAll => "all_to_all",
            Self::Barrier => "barrier",
            Self::SendRecv => "send/recv",
            Self::Split => "split",
            Self::AllGatherVaried => "all_gather_varied",
            Self::ExchangeVaried => "exchange_varied",
            Self::SendVaried => "send/recv_varied",
            Self::Meet => "meet",
        }
    }

    /// Whether those that take part owe each other messages, so that silence is a fault.
    pub(crate) fn counts_silence(self) -> bool {
        self != Self::Meet
    }
}

/// One call of a collective, as one rank sees it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Call {
    /// The how-manieth of this group; point-to-point messages are counted for each pair.
    pub sequence: u32,
    /// What the ranks do.
    pub collective: Collective,
    /// How an all-reduce goes about it.
    pub algorithm: Option<Algorithm>,
    /// How numbers are reduced, if they are.
    pub op: Option<Op>,
    /// What the numbers are.
    pub element: ElementType,
    /// How many there are, or may be where the sender decides.
    pub elements: u64,
    /// Where they come from or go to, if that is one rank.
    pub root: Option<u32>,
}

impl Call {
    /// A call in which nothing is reduced and no rank is the root.
    pub(crate) fn plain(sequence: u32, collective: Collective, element: ElementType, elements: usize) -> Self {
        let elements = elements as u64;
        Self { sequence, collective, algorithm: None, op: None, element, elements, root: None }
    }
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} #{} (", self.collective.name(), self.sequence)?;
        if let Some(algorithm) = self.algorithm {
            write!(f, "{}, ", algorithm.name())?;
        }
        if let Some(op) = self.op {
            write!(f, "{} of ", op.name())?;
        }
        write!(f, "{} {}", self.elements, self.element.name())?;
        if let Some(root) = self.root {
            write!(f, ", root {root}")?;
        }
        f.write_str(")")
    }
}

/// A [`Call`] and the length of one of its messages, as they go over the wire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Pod, Zeroable)]
#[repr(C)]
pub(crate) struct Header {
    sequence: u32,
    collective: u8,
    algorithm: u8,
    op: u8,
    element: u8,
    elements: u64,
    /// The length of the message.
    pub bytes: u64,
    root: u32,
    /// Bytes between the header and its message.
    pub lead: u32,
}

impl Header {
    pub const LENGTH: usize = size_of::<Self>();
    const NONE: u8 = u8::MAX;

    pub fn new(call: &Call, bytes: usize) -> Self {
        Self {
            sequence: call.sequence,
            collective: call.collective as u8,
            algorithm: call.algorithm.map_or(Self::NONE, |algorithm| algorithm as u8),
            op: call.op.map_or(Self::NONE, |op| op as u8),
            element: call.element as u8,
            elements: call.elements,
            bytes: bytes as u64,
            root: call.root.unwrap_or(u32::MAX),
            lead: 0,
        }
    }

    /// What it says, if it makes sense.
    pub fn call(&self) -> Option<Call> {
        const TYPES: [ElementType; 7] = [
            ElementType::F32,
            ElementType::F64,
            ElementType::F16,
            ElementType::Bf16,
            ElementType::I32,
            ElementType::I64,
            ElementType::U8,
        ];
        #[cfg(feature = "mpi")]
        const ALGORITHMS: [Algorithm; Algorithm::ALL.len() + 1] = {
            let mut all = [Algorithm::Mpi; Algorithm::ALL.len() + 1];
            all.first_chunk_mut::<{ Algorithm::ALL.len() }>().unwrap().copy_from_slice(&Algorithm::ALL);
            all
        };
        #[cfg(not(feature = "mpi"))]
        const ALGORITHMS: [Algorithm; Algorithm::ALL.len()] = Algorithm::ALL;
        fn optional<T: Copy>(code: u8, all: &[T]) -> Option<Option<T>> {
            if code == Header::NONE { Some(None) } else { all.get(usize::from(code)).copied().map(Some) }
        }
        Some(Call {
            sequence: self.sequence,
            collective: *Collective::ALL.get(usize::from(self.collective))?,
            algorithm: optional(self.algorithm, &ALGORITHMS)?,
            op: optional(self.op, &Op::ALL)?,
            element: *TYPES.get(usize::from(self.element))?,
            elements: self.elements,
            root: (self.root != u32::MAX).then_some(self.root),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_encoded_is_decoded_and_shown() {
        let call = Call {
            sequence: 17,
            collective: Collective::AllReduce,
            algorithm: Some(Algorithm::Ring),
            op: Some(Op::Sum),
            element: ElementType::F32,
            elements: 1000,
            root: None,
        };
        assert_eq!(Header::new(&call, 5).call(), Some(call));
        assert_eq!(call.to_string(), "all_reduce #17 (ring, sum of 1000 f32)");
        let broadcast = Call { collective: Collective::Broadcast, algorithm: None, op: None, root: Some(2), ..call };
        assert_eq!(Header::new(&broadcast, 5).call(), Some(broadcast));
        assert_eq!(broadcast.to_string(), "broadcast #17 (1000 f32, root 2)");
        for collective in Collective::ALL {
            let call = Call { collective, ..call };
            assert_eq!(Header::new(&call, 5).call(), Some(call));
        }
    }

    #[test]
    fn nonsense_is_no_call() {
        let nonsense: [u8; Header::LENGTH] = *b"GET / HTTP/1.1\r\nHost: example...";
        assert_eq!(bytemuck::pod_read_unaligned::<Header>(&nonsense).call(), None);
    }
}
