//! Lanes of the real thing: numbers in memory, and a transport.

use std::ops::Range;

use super::direct;
use super::lane::{Combine, Lane, Received, Reducing, Sent};
use crate::call::Call;
use crate::element::{Element, Op};
use crate::topology::Topology;
use crate::transport::{Incoming, Outgoing, Sink, Transport, TransportError};

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

/// What a rank communicates through.
pub struct Wire<'a> {
    /// What moves bytes.
    pub transport: &'a mut (dyn Transport + 'static),
    /// Who is where.
    pub topology: &'a Topology,
    /// Room for what cannot be received where it belongs.
    pub scratch: &'a mut Scratch,
}

/// One thing that a rank has done: what it sent, what it received, and what it then holds.
#[derive(Debug, Clone, PartialEq)]
pub struct Event<T> {
    /// To whom, and which elements.
    pub sent: Option<Sent>,
    /// From whom, which elements, and what became of them. In shared memory one rank takes in from many.
    pub received: Vec<Received>,
    /// All of the rank's elements afterwards.
    pub holds: Vec<T>,
}

/// Is told what a rank does.
pub type Observer<'a, T> = dyn FnMut(Event<T>) + 'a;

/// A slice that goes through a collective in place.
pub struct Slice<'a, T: Element> {
    wire: Wire<'a>,
    data: &'a mut [T],
    op: Op,
    call: Call,
    observer: Option<&'a mut Observer<'a, T>>,
}

impl<'a, T: Element> Slice<'a, T> {
    /// For a call that the transport has begun.
    pub fn new(wire: Wire<'a>, data: &'a mut [T], op: Op, call: Call) -> Self {
        Self { wire, data, op, call, observer: None }
    }

    /// Tells somebody all that happens.
    pub fn observed_by(mut self, observer: &'a mut Observer<'a, T>) -> Self {
        self.observer = Some(observer);
        self
    }

    fn tell(&mut self, sent: Option<Sent>, received: impl IntoIterator<Item = Received>) {
        if let Some(observer) = &mut self.observer {
            observer(Event { sent, received: received.into_iter().collect(), holds: self.data.to_vec() });
        }
    }
}

impl<T: Element> Lane for Slice<'_, T> {
    fn rank(&self) -> usize {
        self.wire.transport.rank()
    }

    fn topology(&self) -> &Topology {
        self.wire.topology
    }

    fn len(&self) -> usize {
        self.data.len()
    }

    fn element_size(&self) -> usize {
        size_of::<T>()
    }

    async fn transfer(&mut self, sent: Option<Sent>, received: Option<Received>) -> Result<(), TransportError> {
        let Wire { transport, scratch, .. } = &mut self.wire;
        match (&sent, &received) {
            (None, None) => {}
            (Some((to, part)), None) => transport.send(*to, bytemuck::cast_slice(&self.data[part.clone()]))?,
            (None, Some((from, part, combine))) => {
                receive(*transport, None, *from, &mut self.data[part.clone()], self.op, *combine)?;
            }
            (Some((to, outgoing)), Some((from, incoming, combine))) => {
                if let Ok([out, data]) = self.data.get_disjoint_mut([outgoing.clone(), incoming.clone()]) {
                    let out = Outgoing { to: *to, data: bytemuck::cast_slice(out) };
                    receive(*transport, Some(out), *from, data, self.op, *combine)?;
                } else {
                    // What is still being sent must not change yet.
                    let arrived = scratch.of::<T>(incoming.len());
                    let out = bytemuck::cast_slice(&self.data[outgoing.clone()]);
                    transport.exchange(*to, out, *from, bytemuck::cast_slice_mut(arrived))?;
                    let data = &mut self.data[incoming.clone()];
                    match combine {
                        Combine::Copy => data.copy_from_slice(arrived),
                        Combine::Reduce => T::reduce(self.op, data, arrived),
                    }
                }
            }
        }
        self.tell(sent, received);
        Ok(())
    }
}

impl<T: Element> Reducing for Slice<'_, T> {
    fn finish(&mut self, part: Range<usize>) {
        if self.op == Op::Mean {
            let world = self.world();
            T::divide(&mut self.data[part], world);
        }
    }

    async fn reduce_in_host(&mut self) -> Result<(), TransportError> {
        let shared = self.wire.transport.shared().expect("ranks of one host share memory");
        direct::within_host(shared, self.data, self.op, &self.call)?;
        let (rank, topology, all) = (self.rank(), self.wire.topology, 0..self.len());
        let others = topology.neighbours(rank).filter(|&other| other != rank);
        self.tell(None, others.map(|other| (other, all.clone(), Combine::Reduce)));
        Ok(())
    }

    async fn exchange_aside(
        &mut self,
        to: usize,
        outgoing: Range<usize>,
        from: usize,
        mine: Range<usize>,
    ) -> Result<(), TransportError> {
        let length = mine.len();
        let aside = &mut self.wire.scratch.of::<T>((from + 1) * length)[from * length..];
        let out = bytemuck::cast_slice(&self.data[outgoing.clone()]);
        self.wire.transport.exchange(to, out, from, bytemuck::cast_slice_mut(aside))?;
        self.tell(Some((to, outgoing)), [(from, mine, Combine::Reduce)]);
        Ok(())
    }

    fn reduce_aside(&mut self, mine: Range<usize>) {
        let (rank, world, length) = (self.rank(), self.world(), mine.len());
        let aside = self.wire.scratch.of::<T>((world + 1) * length);
        let (contributions, sum) = aside.split_at_mut(world * length);
        contributions[rank * length..][..length].copy_from_slice(&self.data[mine.clone()]);
        sum.copy_from_slice(&contributions[..length]);
        for contribution in contributions[length..].chunks_exact(length.max(1)).take(world - 1) {
            T::reduce(self.op, sum, contribution);
        }
        self.data[mine.clone()].copy_from_slice(sum);
        self.finish(mine);
    }
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

/// A slice that is sent and another that is received, as by a gather. Nothing is reduced.
pub struct Apart<'a, T: Element> {
    /// What it goes through.
    pub wire: Wire<'a>,
    /// How many elements there are, as the collective counts them.
    pub elements: usize,
    /// What is sent.
    pub outgoing: &'a [T],
    /// What is received.
    pub incoming: &'a mut [T],
}

impl<T: Element> Lane for Apart<'_, T> {
    fn rank(&self) -> usize {
        self.wire.transport.rank()
    }

    fn topology(&self) -> &Topology {
        self.wire.topology
    }

    fn len(&self) -> usize {
        self.elements
    }

    fn element_size(&self) -> usize {
        size_of::<T>()
    }

    async fn transfer(&mut self, sent: Option<Sent>, received: Option<Received>) -> Result<(), TransportError> {
        let outgoing = sent.map(|(to, part)| Outgoing { to, data: bytemuck::cast_slice(&self.outgoing[part]) });
        let incoming = received.map(|(from, part, combine)| {
            assert_eq!(combine, Combine::Copy, "there is nothing to reduce with");
            Incoming { from, sink: Sink::Fill(bytemuck::cast_slice_mut(&mut self.incoming[part])) }
        });
        self.wire.transport.transfer(outgoing, incoming)
    }
}

/// Parts whose lengths differ, one for each rank: each is an element. A message is one of them and says its own length.
pub struct Parts<'a> {
    /// What it goes through.
    pub wire: Wire<'a>,
    /// What is sent, if that is not what was received.
    pub outgoing: Option<&'a [&'a [u8]]>,
    /// What is received.
    pub incoming: &'a mut [Vec<u8>],
    /// The most bytes of a part.
    pub limit: usize,
}

impl Lane for Parts<'_> {
    fn rank(&self) -> usize {
        self.wire.transport.rank()
    }

    fn topology(&self) -> &Topology {
        self.wire.topology
    }

    fn len(&self) -> usize {
        self.incoming.len()
    }

    fn element_size(&self) -> usize {
        self.limit
    }

    async fn transfer(&mut self, sent: Option<Sent>, received: Option<Received>) -> Result<(), TransportError> {
        let one = |part: &Range<usize>| {
            assert_eq!(part.len(), 1, "a message is one part");
            part.start
        };
        let limit = self.limit;
        let (Some((to, out)), Some((from, into, combine))) = (sent, received) else {
            unreachable!("parts are only exchanged");
        };
        assert_eq!(combine, Combine::Copy, "there is nothing to reduce with");
        let (out, into) = (one(&out), one(&into));
        let (data, into) = match self.outgoing {
            Some(outgoing) => (outgoing[out], &mut self.incoming[into]),
            None => {
                let [out, into] = self.incoming.get_disjoint_mut([out, into]).expect("two of several parts");
                (out.as_slice(), into)
            }
        };
        let incoming = Incoming { from, sink: Sink::Take { into, limit } };
        self.wire.transport.transfer(Some(Outgoing { to, data }), Some(incoming))
    }
}
