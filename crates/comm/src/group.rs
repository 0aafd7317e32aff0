//! What a trainer holds: one rank's view of all ranks, and the collectives they do together.

use std::time::{Duration, Instant};

use crate::call::{Call, Collective};
use crate::collective::{Algorithm, Lane, Scratch, all_to_all, barrier, deterministic, ring, rooted, tree};
use crate::cost::Tuning;
use crate::element::{Element, Op};
use crate::log::{Log, With};
use crate::overlap::CommunicationThread;
use crate::transport::{Aborter, Cause, Transport, TransportError};

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
/// they do not, they get an error that says who does what. After an error of a peer or of the connection to it, messages
/// may be half-way: the group then refuses every further call. Arguments that make no sense are refused before anything
/// is sent, and do no harm.
pub struct Group {
    pub(crate) transport: Box<dyn Transport>,
    scratch: Scratch,
    tuning: Tuning,
    /// The last choice of an algorithm and for how many bytes it was: to choose takes as long as a small all-reduce.
    chosen: Option<(usize, Algorithm)>,
    /// Calls of all ranks so far.
    sequence: u32,
    /// Point-to-point messages to and from each rank.
    pairs: Vec<[u32; 2]>,
    /// The last rank that [`Group::recv_any`] has received from.
    pub(crate) served: usize,
    /// The call that failed, if one has.
    failed: Option<Call>,
    pub(crate) log: Log,
    /// The communication thread, from the first [`Group::while_doing`] on.
    pub(crate) thread: Option<CommunicationThread>,
}

impl Group {
    /// A group of all ranks that the transport connects.
    pub fn new(transport: impl Transport + 'static) -> Self {
        let world = transport.world();
        let mut transport: Box<dyn Transport> = Box::new(transport);
        let tuning = Tuning::typical(transport.shared().is_some());
        let (scratch, pairs) = (Scratch::default(), vec![[0; 2]; world]);
        Self {
            transport,
            scratch,
            tuning,
            chosen: None,
            sequence: 0,
            pairs,
            served: 0,
            failed: None,
            log: Log::default(),
            thread: None,
        }
    }

    /// This rank, from 0.
    pub fn rank(&self) -> usize {
        self.transport.rank()
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.transport.world()
    }

    /// Bytes of data that this rank has sent so far, or put into shared memory for others.
    pub fn bytes_sent(&self) -> u64 {
        self.traffic().payload[0]
    }

    /// Messages that this rank has sent so far.
    pub fn messages_sent(&self) -> u64 {
        self.traffic().messages[0]
    }

    /// What the choice of algorithms rests on.
    pub fn tuning(&self) -> Tuning {
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
    pub fn hosts(&self) -> Vec<usize> {
        self.transport.hosts().to_vec()
    }

    /// How long a peer may be silent that owes something.
    pub fn timeout(&self) -> Duration {
        self.transport.timeout()
    }

    /// What lets another thread end a call that this one waits in.
    pub fn aborter(&self) -> Aborter {
        self.transport.aborter()
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
        let call = Call { algorithm: Some(algorithm), ..self.call::<T>(Collective::AllReduce, data.len()) };
        self.on_lane(call, data, op, |lane| match how.deterministic {
            false => crate::collective::all_reduce(algorithm, lane),
            true => deterministic::all_reduce(algorithm, lane),
        })
    }

    /// Replaces the root's `data` by the reduction over all ranks. What the others then hold is of no use.
    pub fn reduce<T: Element>(&mut self, data: &mut [T], op: Op, root: usize) -> Result<(), CollectiveError> {
        let call = self.rooted::<T>(Collective::Reduce, data.len(), root);
        self.on_lane(call, data, op, |lane| tree::reduce(lane, root))
    }

    /// Replaces `data` on all ranks by the root's.
    pub fn broadcast<T: Element>(&mut self, data: &mut [T], root: usize) -> Result<(), CollectiveError> {
        let call = self.rooted::<T>(Collective::Broadcast, data.len(), root);
        self.on_lane(call, data, None, |lane| tree::broadcast(lane, root))
    }

    /// Collects everyone's `part` at the root, in the order of the ranks. `all` is as long as all parts together; on
    /// the other ranks it is not looked at.
    pub fn gather<T: Element>(&mut self, part: &[T], all: &mut [T], root: usize) -> Result<(), CollectiveError> {
        let call = self.rooted::<T>(Collective::Gather, part.len(), root);
        self.check_whole(call, part.len(), all.len(), root)?;
        self.make(call, With::All, |transport, _| rooted::gather(transport, root, part, all))
    }

    /// Hands everyone its `part` of the root's `all`, in the order of the ranks. `all` is as long as all parts together;
    /// on the other ranks it is not looked at.
    pub fn scatter<T: Element>(&mut self, all: &[T], part: &mut [T], root: usize) -> Result<(), CollectiveError> {
        let call = self.rooted::<T>(Collective::Scatter, part.len(), root);
        self.check_whole(call, part.len(), all.len(), root)?;
        self.make(call, With::All, |transport, _| rooted::scatter(transport, root, all, part))
    }

    /// Collects everyone's chunk on all ranks: `data` has room for all, and this rank's [chunk](crate::collective::chunk)
    /// of it is filled.
    pub fn all_gather<T: Element>(&mut self, data: &mut [T]) -> Result<(), CollectiveError> {
        self.on_lane(self.call::<T>(Collective::AllGather, data.len()), data, None, ring::all_gather)
    }

    /// Reduces `data` over all ranks and leaves each with its [chunk](crate::collective::chunk) of the result; the other
    /// chunks are then of no use.
    pub fn reduce_scatter<T: Element>(&mut self, data: &mut [T], op: Op) -> Result<(), CollectiveError> {
        self.on_lane(self.call::<T>(Collective::ReduceScatter, data.len()), data, op, ring::reduce_scatter)
    }

    /// Sends part j of `outgoing` to rank j and receives part i of `incoming` from rank i; all parts are as long.
    pub fn all_to_all<T: Element>(&mut self, outgoing: &[T], incoming: &mut [T]) -> Result<(), CollectiveError> {
        let (out, into, world) = (outgoing.len(), incoming.len(), self.world());
        let call = self.call::<T>(Collective::AllToAll, out);
        self.check(call, out == into, || format!("{out} elements go out and {into} come in"))?;
        self.check(call, out.is_multiple_of(world), || format!("{out} elements are no equal parts for {world} ranks"))?;
        self.make(call, With::All, |transport, _| all_to_all::exchange(transport, outgoing, incoming))
    }

    /// Returns once all ranks have called it.
    pub fn barrier(&mut self) -> Result<(), CollectiveError> {
        let call = self.call::<u8>(Collective::Barrier, 0);
        self.make(call, With::All, |transport, _| barrier::wait(transport))
    }

    /// Returns once all ranks have called it, however long that takes: a barrier for ranks that come from work of their own,
    /// where one that is slow is not at fault. One that is gone is an error.
    pub fn meet(&mut self) -> Result<(), CollectiveError> {
        let call = self.call::<u8>(Collective::Meet, 0);
        self.make(call, With::All, |transport, _| barrier::wait(transport))
    }

    /// Sends `data` to a rank that calls [`Group::recv`].
    pub fn send<T: Element>(&mut self, data: &[T], to: usize) -> Result<(), CollectiveError> {
        let call = self.pair_call::<T>(Collective::SendRecv, data.len(), With::To(to));
        self.make(call, With::To(to), |transport, _| transport.send(to, bytemuck::cast_slice(data)))
    }

    /// Receives `data` from a rank that calls [`Group::send`].
    pub fn recv<T: Element>(&mut self, data: &mut [T], from: usize) -> Result<(), CollectiveError> {
        let call = self.pair_call::<T>(Collective::SendRecv, data.len(), With::From(from));
        self.make(call, With::From(from), |transport, _| transport.recv(from, bytemuck::cast_slice_mut(data)))
    }

    /// Splits the group: ranks with the same `colour` make a new one, ordered by `key`, then by rank. The new group has
    /// connections of its own, so both can be used at the same time.
    pub fn split(&mut self, colour: i64, key: i64) -> Result<Group, CollectiveError> {
        let (rank, world) = (self.rank(), self.world());
        let mut wishes = vec![0i64; 2 * world];
        wishes[2 * rank..][..2].copy_from_slice(&[colour, key]);
        self.on_lane(self.call::<i64>(Collective::Split, 2 * world), &mut wishes, None, ring::all_gather)?;
        let mut members: Vec<usize> = (0..world).filter(|&other| wishes[2 * other] == colour).collect();
        members.sort_by_key(|&member| (wishes[2 * member + 1], member));
        let mut transport = None;
        let call = self.rooted::<u8>(Collective::Split, members.len(), members[0]);
        self.make(call, With::All, |parent, _| {
            transport = Some(parent.split(&members)?);
            Ok(())
        })?;
        let mut group = Group::new(transport.expect("the split has succeeded"));
        group.set_tuning(self.tuning());
        Ok(group)
    }

    /// The next call of all ranks.
    pub(crate) fn call<T: Element>(&self, collective: Collective, elements: usize) -> Call {
        Call::plain(self.sequence.wrapping_add(1), collective, T::TYPE, elements)
    }

    /// The next call of all ranks, with a root.
    fn rooted<T: Element>(&self, collective: Collective, elements: usize, root: usize) -> Call {
        // One that no message can carry is refused like any other that is not there.
        let root = u32::try_from(root).unwrap_or(u32::MAX - 1);
        Call { root: Some(root), ..self.call::<T>(collective, elements) }
    }

    /// The next message of a pair. They are counted by the pair, since others take no part in them.
    pub(crate) fn pair_call<T: Element>(&self, collective: Collective, elements: usize, with: With) -> Call {
        let sent = match with {
            With::To(peer) => self.pairs.get(peer).map(|pair| pair[0]),
            With::From(peer) => self.pairs.get(peer).map(|pair| pair[1]),
            With::All => unreachable!("a pair is two"),
        };
        Call::plain(sent.unwrap_or(0).wrapping_add(1), collective, T::TYPE, elements)
    }

    fn on_lane<T: Element>(
        &mut self,
        call: Call,
        data: &mut [T],
        op: impl Into<Option<Op>>,
        work: impl FnOnce(&mut Lane<'_, T>) -> Result<(), TransportError>,
    ) -> Result<(), CollectiveError> {
        let op = op.into();
        let call = Call { op, ..call };
        let op = op.unwrap_or(Op::Sum); // Without one nothing is reduced.
        self.make(call, With::All, |transport, scratch| work(&mut Lane::begin(transport, data, op, scratch, call)))
    }

    /// Makes a call, unless it cannot be: the one place where each begins and ends.
    pub(crate) fn make(
        &mut self,
        call: Call,
        with: With,
        work: impl FnOnce(&mut dyn Transport, &mut Scratch) -> Result<(), TransportError>,
    ) -> Result<(), CollectiveError> {
        let began = self.log.begin();
        self.make_since(began, call, with, work)
    }

    /// The same for a call that this rank has come to before.
    pub(crate) fn make_since(
        &mut self,
        began: Option<Instant>,
        call: Call,
        with: With,
        work: impl FnOnce(&mut dyn Transport, &mut Scratch) -> Result<(), TransportError>,
    ) -> Result<(), CollectiveError> {
        self.check_use(call)?;
        let world = self.world();
        let is_there = call.root.is_none_or(|root| (root as usize) < world);
        self.check(call, is_there, || format!("of {world} ranks none is the root"))?;
        let count = match with {
            With::All => &mut self.sequence,
            With::To(peer) | With::From(peer) => {
                self.check_peer(call, peer)?;
                &mut self.pairs[peer][usize::from(matches!(with, With::From(_)))]
            }
        };
        *count = call.sequence;
        self.transport.begin(call);
        match work(&mut self.transport, &mut self.scratch) {
            Ok(()) => {
                self.log.end(call, with, began);
                Ok(())
            }
            Err(error) => Err(self.fail(call, error)),
        }
    }

    /// Ends the use of this group.
    pub(crate) fn fail(&mut self, call: Call, error: TransportError) -> CollectiveError {
        self.failed = Some(call);
        CollectiveError { rank: self.rank(), call, error: Failure::Peer(error) }
    }

    /// Refuses all calls once one has failed.
    pub(crate) fn check_use(&self, call: Call) -> Result<(), CollectiveError> {
        match self.failed {
            None => Ok(()),
            Some(failed) => Err(CollectiveError { rank: self.rank(), call, error: Failure::Unusable(failed) }),
        }
    }

    /// Refuses to exchange messages with a rank that is not there, or with itself.
    pub(crate) fn check_peer(&self, call: Call, peer: usize) -> Result<(), CollectiveError> {
        let (rank, world) = (self.rank(), self.world());
        self.check(call, peer < world, || format!("of {world} ranks none is rank {peer}"))?;
        self.check(call, peer != rank, || format!("rank {rank} is itself"))
    }

    /// Refuses a call whose arguments do not fit.
    pub(crate) fn check(
        &self,
        call: Call,
        fits: bool,
        otherwise: impl FnOnce() -> String,
    ) -> Result<(), CollectiveError> {
        if fits {
            return Ok(());
        }
        Err(CollectiveError { rank: self.rank(), call, error: Failure::Argument(otherwise()) })
    }

    /// Refuses a slice for everyone's parts that is not as long as these.
    fn check_whole(&self, call: Call, part: usize, whole: usize, root: usize) -> Result<(), CollectiveError> {
        let world = self.world();
        let fits = self.rank() != root || (whole.is_multiple_of(world) && whole / world == part);
        self.check(call, fits, || format!("{whole} elements are not {world} parts of {part}"))
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
    /// What happened.
    pub error: Failure,
}

impl CollectiveError {
    /// Why a message did not get through, if that is what happened.
    pub fn cause(&self) -> Option<&Cause> {
        match &self.error {
            Failure::Peer(error) => Some(&error.cause),
            Failure::Argument(_) | Failure::Unusable(_) => None,
        }
    }
}

/// Why a call failed.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    /// Something went wrong between this rank and a peer.
    #[error("{0}")]
    Peer(TransportError),
    /// The arguments make no sense. Nothing was sent, and the call does not count.
    #[error("{0}")]
    Argument(String),
    /// An earlier call had failed.
    #[error("the group is of no use since {0} failed")]
    Unusable(Call),
}
