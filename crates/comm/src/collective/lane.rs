//! What algorithms are written in: one rank's slice, and ways to send parts of it and take others in.

use std::ops::Range;

use super::on_one_host;
use crate::call::Call;
use crate::element::{Element, Op};
use crate::transport::{Incoming, Outgoing, Shared, Sink, Transport, TransportError};

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

/// Memory that a group keeps for its collectives, so that they need not ask for more each time. Counted in u64 for its
/// alignment.
#[derive(Debug, Default)]
pub struct Scratch(Vec<u64>);

impl Scratch {
    /// Room for so many elements, with whatever is in it.
    pub fn of<T: Element>(&mut self, elements: usize) -> &mut [T] {
        let words = (elements * size_of::<T>()).div_ceil(8);
        if self.0.len() < words {
            self.0.resize(words, 0);
        }
        &mut bytemuck::cast_slice_mut(&mut self.0)[..elements]
    }
}

/// One thing that a rank has done: what it sent, what it received, and what it then holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Event<T> {
    /// To whom, and which elements.
    pub sent: Option<(usize, Range<usize>)>,
    /// From whom, which elements, and what became of them. In shared memory one rank takes in from many.
    pub received: Vec<(usize, Range<usize>, Combine)>,
    /// All of the rank's elements afterwards.
    pub holds: Vec<T>,
}

/// Is told what a rank does.
pub type Observer<'a, T> = dyn FnMut(Event<T>) + 'a;

/// One rank's slice on its way through a collective.
pub struct Lane<'a, T: Element> {
    transport: &'a mut dyn Transport,
    data: &'a mut [T],
    op: Op,
    scratch: &'a mut Scratch,
    call: Call,
    observer: Option<&'a mut Observer<'a, T>>,
}

impl<'a, T: Element> Lane<'a, T> {
    /// Begins the call; all ranks must begin the same.
    pub fn begin(
        transport: &'a mut dyn Transport,
        data: &'a mut [T],
        op: Op,
        scratch: &'a mut Scratch,
        call: Call,
    ) -> Self {
        transport.begin(call);
        Self { transport, data, op, scratch, call, observer: None }
    }

    /// Tells somebody all that happens.
    pub fn observed_by(mut self, observer: &'a mut Observer<'a, T>) -> Self {
        self.observer = Some(observer);
        self
    }

    /// This rank.
    pub fn rank(&self) -> usize {
        self.transport.rank()
    }

    /// All ranks.
    pub fn world(&self) -> usize {
        self.transport.world()
    }

    /// The host of each rank.
    pub fn hosts(&self) -> Vec<usize> {
        self.transport.hosts().to_vec()
    }

    /// How many elements there are.
    pub fn len(&self) -> usize {
        self.data.len()
    }

    /// In how many segments chunks go from rank to rank, if the slice is cut into so many chunks. Within a host a message
    /// costs what its way through memory costs, so segments are short enough that what has just arrived is still in the
    /// cache when it is sent on. Between hosts the wire is slower than memory and every message waits for it once more:
    /// there a chunk goes at once.
    pub fn segments(&self, chunks: usize) -> usize {
        let chunk = size_of_val(self.data).div_ceil(chunks);
        if on_one_host(self.transport.hosts()) { chunk.div_ceil(SEGMENT).max(1) } else { 1 }
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.data.is_empty()
    }

    /// Sends a part of the slice.
    pub fn send(&mut self, to: usize, part: Range<usize>) -> Result<(), TransportError> {
        self.transport.send(to, bytemuck::cast_slice(&self.data[part.clone()]))?;
        self.tell(Some((to, part)), Vec::new());
        Ok(())
    }

    /// Receives a part of the slice.
    pub fn recv(&mut self, from: usize, part: Range<usize>, combine: Combine) -> Result<(), TransportError> {
        let (op, data) = (self.op, &mut self.data[part.clone()]);
        receive(self.transport, None, from, data, op, combine)?;
        self.tell(None, vec![(from, part, combine)]);
        Ok(())
    }

    /// Sends one part and receives another at once. They may be the same.
    pub fn exchange(
        &mut self,
        to: usize,
        outgoing: Range<usize>,
        from: usize,
        incoming: Range<usize>,
        combine: Combine,
    ) -> Result<(), TransportError> {
        if let Ok([out, data]) = self.data.get_disjoint_mut([outgoing.clone(), incoming.clone()]) {
            let out = Outgoing { to, data: bytemuck::cast_slice(out) };
            receive(self.transport, Some(out), from, data, self.op, combine)?;
        } else {
            // What is still being sent must not change yet.
            let arrived = self.scratch.of::<T>(incoming.len());
            let out = bytemuck::cast_slice(&self.data[outgoing.clone()]);
            self.transport.exchange(to, out, from, bytemuck::cast_slice_mut(arrived))?;
            let data = &mut self.data[incoming.clone()];
            match combine {
                Combine::Copy => data.copy_from_slice(arrived),
                Combine::Reduce => T::reduce(self.op, data, arrived),
            }
        }
        self.tell(Some((to, outgoing)), vec![(from, incoming, combine)]);
        Ok(())
    }

    /// Sends a part of the slice and receives as many elements as this rank's `mine` aside, in place `slot`.
    pub(super) fn exchange_aside(
        &mut self,
        to: usize,
        outgoing: Range<usize>,
        from: usize,
        mine: Range<usize>,
        slot: usize,
    ) -> Result<(), TransportError> {
        let length = mine.len();
        let aside = &mut self.scratch.of::<T>((slot + 1) * length)[slot * length..];
        let out = bytemuck::cast_slice(&self.data[outgoing.clone()]);
        self.transport.exchange(to, out, from, bytemuck::cast_slice_mut(aside))?;
        self.tell(Some((to, outgoing)), vec![(from, mine, Combine::Reduce)]);
        Ok(())
    }

    /// Reduces what was received aside from all other ranks with this rank's own part, in the order of the ranks.
    pub(super) fn reduce_aside(&mut self, mine: Range<usize>) {
        let (rank, world, length) = (self.rank(), self.world(), mine.len());
        let aside = self.scratch.of::<T>((world + 1) * length);
        let (contributions, sum) = aside.split_at_mut(world * length);
        contributions[rank * length..][..length].copy_from_slice(&self.data[mine.clone()]);
        sum.copy_from_slice(&contributions[..length]);
        for contribution in contributions[length..].chunks_exact(length.max(1)).take(world - 1) {
            T::reduce(self.op, sum, contribution);
        }
        self.data[mine.clone()].copy_from_slice(sum);
        self.finish(mine);
    }

    /// A part has been reduced over all ranks; for a mean that was a sum.
    pub fn finish(&mut self, part: Range<usize>) {
        if self.op == Op::Mean {
            let world = self.world();
            T::divide(&mut self.data[part], world);
        }
    }

    /// For algorithms in shared memory, which read straight out of it instead of exchanging messages. `None` where there
    /// is none.
    pub(super) fn in_shared_memory(&mut self) -> Option<InSharedMemory<'_, T>> {
        let shared = self.transport.shared()?;
        Some(InSharedMemory { shared, data: self.data, op: self.op, call: self.call })
    }

    pub(super) fn tell(&mut self, sent: Option<(usize, Range<usize>)>, received: Vec<(usize, Range<usize>, Combine)>) {
        if let Some(observer) = &mut self.observer {
            observer(Event { sent, received, holds: self.data.to_vec() });
        }
    }
}

/// What an algorithm in shared memory works with.
pub(super) struct InSharedMemory<'a, T> {
    /// The memory.
    pub shared: &'a mut Shared,
    /// This rank's slice.
    pub data: &'a mut [T],
    pub op: Op,
    pub call: Call,
}

/// Receives elements into `data`, reducing them while the rest is still on its way.
fn receive<T: Element>(
    transport: &mut dyn Transport,
    outgoing: Option<Outgoing<'_>>,
    from: usize,
    data: &mut [T],
    op: Op,
    combine: Combine,
) -> Result<(), TransportError> {
    if combine == Combine::Copy {
        let sink = Sink::Fill(bytemuck::cast_slice_mut(data));
        return transport.transfer(outgoing, Some(Incoming { from, sink }));
    }
    let bytes = size_of_val(data);
    let mut rest = data;
    let mut fold = |piece: &[u8]| {
        let piece: &[T] = bytemuck::cast_slice(piece);
        let (now, later) = std::mem::take(&mut rest).split_at_mut(piece.len());
        T::reduce(op, now, piece);
        rest = later;
    };
    let sink = Sink::Fold { bytes, grain: size_of::<T>(), fold: &mut fold };
    transport.transfer(outgoing, Some(Incoming { from, sink }))
}
