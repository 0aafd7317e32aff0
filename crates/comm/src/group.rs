//! What a trainer holds: one rank's view of all ranks, and the collectives they do together.

use crate::call::{Call, Collective};
use crate::collective::{Algorithm, Lane, Scratch, all_to_all, barrier, deterministic, ring, rooted, tree};
use crate::cost::Tuning;
use crate::element::{Element, Op};
use crate::overlap::CommunicationThread;
use crate::transport::{Counted, Transport, TransportError};

/// How an all-reduce is done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct How {
    /// By this algorithm, or by the one that [`Tuning`] thinks best.
    pub algorithm: Option<Algorithm>,
    /// Reduce in the order of the ranks, so that the result's bits depend on nothing but the inputs.
    pub deterministic: bool,
}

impl From<Algorithm> for How {
    fn from(algorithm: Algorithm) -> Self {
        Self { algorithm: Some(algorithm), deterministic: false }
    }
}

/// One rank among others. All ranks must call the same collectives in the same order with slices of the same length; if
/// they do not, they get an error that says who does what.
pub struct Group {
    transport: Counted<Box<dyn Transport>>,
    scratch: Scratch,
    tuning: Tuning,
    /// The last choice of an algorithm and for how many bytes it was: to choose takes as long as a small all-reduce.
    chosen: Option<(usize, Algorithm)>,
    sequence: u32,
    /// Point-to-point messages to and from each rank.
    pairs: Vec<[u32; 2]>,
    /// The communication thread, from the first [`Group::while_doing`] on.
    pub(crate) thread: Option<CommunicationThread>,
}

impl Group {
    /// A group of all ranks that the transport connects.
    pub fn new(transport: impl Transport + 'static) -> Self {
        let world = transport.world();
        let mut transport = Counted::new(Box::new(transport) as Box<dyn Transport>);
        let tuning = Tuning::typical(transport.shared().is_some());
        let (scratch, pairs) = (Scratch::default(), vec![[0; 2]; world]);
        Self { transport, scratch, tuning, chosen: None, sequence: 0, pairs, thread: None }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.transport.rank()
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.transport.world()
    }

    /// Bytes that this rank has sent so far, or put into shared memory for others.
    pub fn bytes_sent(&mut self) -> u64 {
        self.transport.bytes_sent()
    }

    /// Messages that this rank has sent so far.
    pub fn messages_sent(&mut self) -> u64 {
        self.transport.messages_sent()
    }

    /// What the choice of algorithms rests on.
    pub fn tuning(&mut self) -> Tuning {
        self.tuning
    }

    /// Lets the choice of algorithms rest on these numbers, which must be the same on all ranks.
    pub fn set_tuning(&mut self, tuning: Tuning) {
        self.tuning = tuning;
        self.chosen = None;
    }

    /// Whether all ranks share memory.
    pub fn can_be_direct(&mut self) -> bool {
        let world = self.world();
        self.transport.shared().is_some_and(|shared| shared.members().len() == world)
    }

    /// The host of each rank.
    pub fn hosts(&mut self) -> Vec<usize> {
        self.transport.hosts().to_vec()
    }

    /// Which algorithm an all-reduce of so many bytes takes if it is not told.
    pub fn choice(&mut self, bytes: usize) -> Algorithm {
        if let Some((last, algorithm)) = self.chosen
            && last == bytes
        {
            return algorithm;
        }
        let (world, hosts) = (self.transport.world(), self.transport.hosts().to_vec());
        let shared = self.transport.shared().is_some();
        let algorithm = self.tuning.choose(world, &hosts, shared, bytes);
        self.chosen = Some((bytes, algorithm));
        algorithm
    }

    /// Replaces `data` by its reduction over all ranks. All ranks end with the same bits.
    pub fn all_reduce<T: Element>(
        &mut self,
        data: &mut [T],
        op: Op,
        how: impl Into<How>,
    ) -> Result<(), CollectiveError> {
        let how = how.into();
        let algorithm = how.algorithm.unwrap_or_else(|| self.choice(size_of_val(data)));
        let call =
            Call { algorithm: Some(algorithm), op: Some(op), ..self.call::<T>(Collective::AllReduce, data.len()) };
        let mut lane = Lane::begin(&mut self.transport, data, op, &mut self.scratch, call);
        let result = match how.deterministic {
            false => crate::collective::all_reduce(algorithm, &mut lane),
            true => deterministic::all_reduce(algorithm, &mut lane),
        };
        self.named(call, result)
    }

    /// Replaces the root's `data` by the reduction over all ranks. What the others then hold is of no use.
    pub fn reduce<T: Element>(&mut self, data: &mut [T], op: Op, root: usize) -> Result<(), CollectiveError> {
        self.on_lane(Collective::Reduce, data, op, Some(root), |lane| tree::reduce(lane, root))
    }

    /// Replaces `data` on all ranks by the root's.
    pub fn broadcast<T: Element>(&mut self, data: &mut [T], root: usize) -> Result<(), CollectiveError> {
        self.on_lane(Collective::Broadcast, data, None, Some(root), |lane| tree::broadcast(lane, root))
    }

    /// Collects everyone's `part` at the root, in the order of the ranks. `all` is as long as all parts together; on
    /// the other ranks it is not looked at.
    pub fn gather<T: Element>(&mut self, part: &[T], all: &mut [T], root: usize) -> Result<(), CollectiveError> {
        let call = (Collective::Gather, part.len(), Some(root));
        self.on_transport::<T>(call, |transport| rooted::gather(transport, root, part, all))
    }

    /// Hands everyone its `part` of the root's `all`, in the order of the ranks. `all` is as long as all parts together;
    /// on the other ranks it is not looked at.
    pub fn scatter<T: Element>(&mut self, all: &[T], part: &mut [T], root: usize) -> Result<(), CollectiveError> {
        let call = (Collective::Scatter, part.len(), Some(root));
        self.on_transport::<T>(call, |transport| rooted::scatter(transport, root, all, part))
    }

    /// Collects everyone's chunk on all ranks: `data` has room for all, and this rank's [chunk](crate::collective::chunk)
    /// of it is filled.
    pub fn all_gather<T: Element>(&mut self, data: &mut [T]) -> Result<(), CollectiveError> {
        self.on_lane(Collective::AllGather, data, None, None, ring::all_gather)
    }

    /// Reduces `data` over all ranks and leaves each with its [chunk](crate::collective::chunk) of the result; the other
    /// chunks are then of no use.
    pub fn reduce_scatter<T: Element>(&mut self, data: &mut [T], op: Op) -> Result<(), CollectiveError> {
        self.on_lane(Collective::ReduceScatter, data, op, None, ring::reduce_scatter)
    }

    /// Sends part j of `outgoing` to rank j and receives part i of `incoming` from rank i; all parts are as long.
    pub fn all_to_all<T: Element>(&mut self, outgoing: &[T], incoming: &mut [T]) -> Result<(), CollectiveError> {
        assert_eq!(outgoing.len(), incoming.len());
        assert_eq!(outgoing.len() % self.world(), 0, "all parts are as long");
        let call = (Collective::AllToAll, outgoing.len(), None);
        self.on_transport::<T>(call, |transport| all_to_all::exchange(transport, outgoing, incoming))
    }

    /// Returns once all ranks have called it.
    pub fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.on_transport::<u8>((Collective::Barrier, 0, None), barrier::wait)
    }

    /// Sends `data` to a rank that calls [`Group::recv`].
    pub fn send<T: Element>(&mut self, data: &[T], to: usize) -> Result<(), CollectiveError> {
        self.point_to_point::<T>(to, 0, data.len(), |transport| transport.send(to, bytemuck::cast_slice(data)))
    }

    /// Receives `data` from a rank that calls [`Group::send`].
    pub fn recv<T: Element>(&mut self, data: &mut [T], from: usize) -> Result<(), CollectiveError> {
        let length = data.len();
        self.point_to_point::<T>(from, 1, length, |transport| transport.recv(from, bytemuck::cast_slice_mut(data)))
    }

    /// Splits the group: ranks with the same `colour` make a new one, ordered by `key`, then by rank. The new group has
    /// connections of its own, so both can be used at the same time.
    pub fn split(&mut self, colour: i64, key: i64) -> Result<Group, CollectiveError> {
        let (rank, world) = (self.rank(), self.world());
        let mut wishes = vec![0i64; 2 * world];
        wishes[2 * rank..][..2].copy_from_slice(&[colour, key]);
        self.on_lane(Collective::Split, &mut wishes, None, None, ring::all_gather)?;
        let mut members: Vec<usize> = (0..world).filter(|&other| wishes[2 * other] == colour).collect();
        members.sort_by_key(|&member| (wishes[2 * member + 1], member));
        let mut transport = None;
        let call = (Collective::Split, members.len(), Some(members[0]));
        self.on_transport::<u8>(call, |parent| {
            transport = Some(parent.split(&members)?);
            Ok(())
        })?;
        let mut group = Group::new(transport.expect("the split has succeeded"));
        group.set_tuning(self.tuning());
        Ok(group)
    }

    fn on_lane<T: Element>(
        &mut self,
        collective: Collective,
        data: &mut [T],
        op: impl Into<Option<Op>>,
        root: Option<usize>,
        work: impl FnOnce(&mut Lane<'_, T>) -> Result<(), TransportError>,
    ) -> Result<(), CollectiveError> {
        let op = op.into();
        let root = root.map(|root| root as u32);
        let call = Call { op, root, ..self.call::<T>(collective, data.len()) };
        let op = op.unwrap_or(Op::Sum); // Without one nothing is reduced.
        let result = work(&mut Lane::begin(&mut self.transport, data, op, &mut self.scratch, call));
        self.named(call, result)
    }

    fn on_transport<T: Element>(
        &mut self,
        (collective, elements, root): (Collective, usize, Option<usize>),
        work: impl FnOnce(&mut dyn Transport) -> Result<(), TransportError>,
    ) -> Result<(), CollectiveError> {
        let call = Call { root: root.map(|root| root as u32), ..self.call::<T>(collective, elements) };
        self.transport.begin(call);
        let result = work(&mut self.transport);
        self.named(call, result)
    }

    /// Messages of a pair are counted by the pair, since others take no part in them.
    fn point_to_point<T: Element>(
        &mut self,
        peer: usize,
        direction: usize,
        elements: usize,
        work: impl FnOnce(&mut dyn Transport) -> Result<(), TransportError>,
    ) -> Result<(), CollectiveError> {
        self.pairs[peer][direction] = self.pairs[peer][direction].wrapping_add(1);
        let sequence = self.pairs[peer][direction];
        let call = Call::plain(sequence, Collective::SendRecv, T::TYPE, elements);
        self.transport.begin(call);
        let result = work(&mut self.transport);
        self.named(call, result)
    }

    fn call<T: Element>(&mut self, collective: Collective, elements: usize) -> Call {
        self.sequence = self.sequence.wrapping_add(1);
        Call::plain(self.sequence, collective, T::TYPE, elements)
    }

    fn named<T>(&self, call: Call, result: Result<T, TransportError>) -> Result<T, CollectiveError> {
        result.map_err(|error| CollectiveError { rank: self.transport.rank(), call, error })
    }
}

/// A collective that failed, and where.
#[derive(Debug, thiserror::Error)]
#[error("rank {rank}: {call}: {error}")]
pub struct CollectiveError {
    /// The rank that noticed.
    pub rank: usize,
    /// What it was doing.
    pub call: Call,
    /// What happened between it and a peer.
    pub error: TransportError,
}
