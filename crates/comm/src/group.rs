//! What a trainer holds: one rank's view of all ranks, and the collectives they do together.

use std::time::{Duration, Instant};

use crate::call::{Call, Collective};
use crate::collective::live::{Apart, Scratch, Slice, Wire};
use crate::collective::{self, Algorithm, all_to_all, at_once, barrier, chunk, deterministic, ring, rooted, tree};
use crate::cost::Tuning;
use crate::element::{Element, Op};
use crate::log::{Log, With};
use crate::overlap::CommunicationThread;
use crate::topology::Topology;
#[cfg(feature = "mpi")]
use crate::transport::Data;
use crate::transport::{Aborter, Cause, Transport, TransportError};
use crate::watch::Watch;

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
    topology: Topology,
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
    pub(crate) watch: Watch,
    /// The communication thread, from the first [`Group::while_doing`] on.
    pub(crate) thread: Option<CommunicationThread>,
}

impl Group {
    /// A group of all ranks that the transport connects.
    pub fn new(transport: impl Transport + 'static) -> Self {
        let world = transport.world();
        let mut transport: Box<dyn Transport> = Box::new(transport);
        let topology = Topology::of(&mut transport);
        let tuning = Tuning::typical(&topology);
        let (scratch, pairs, watch) = (Scratch::default(), vec![[0; 2]; world], transport.watch());
        Self {
            transport,
            topology,
            scratch,
            tuning,
            chosen: None,
            sequence: 0,
            pairs,
            served: 0,
            failed: None,
            log: Log::default(),
            watch,
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

    /// Which ranks are on one host, and share memory.
    pub fn topology(&self) -> &Topology {
        &self.topology
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
        let algorithm = self.tuning.choose(&self.topology, bytes);
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
        // The order in which MPI reduces is MPI's.
        #[cfg(feature = "mpi")]
        let algorithm = if how.deterministic && algorithm == Algorithm::Mpi { Algorithm::Ring } else { algorithm };
        let call = Call { algorithm: Some(algorithm), ..self.call::<T>(Collective::AllReduce, data.len()) };
        self.on_slice(call, data, op, |lane| match how.deterministic {
            false => at_once(collective::all_reduce(algorithm, lane)),
            true => at_once(deterministic::all_reduce(algorithm, lane)),
        })
    }

    /// Replaces the root's `data` by the reduction over all ranks. What the others then hold is of no use.
    pub fn reduce<T: Element>(&mut self, data: &mut [T], op: Op, root: usize) -> Result<(), CollectiveError> {
        let call = self.rooted::<T>(Collective::Reduce, data.len(), root);
        self.on_slice(call, data, op, |lane| at_once(tree::reduce(lane, root)))
    }

    /// Replaces `data` on all ranks by the root's.
    pub fn broadcast<T: Element>(&mut self, data: &mut [T], root: usize) -> Result<(), CollectiveError> {
        let call = self.rooted::<T>(Collective::Broadcast, data.len(), root);
        self.on_slice(call, data, None, |lane| at_once(tree::broadcast(lane, root)))
    }

    /// Collects everyone's `part` at the root, in the order of the ranks. `all` is as long as all parts together; on
    /// the other ranks it is not looked at.
    pub fn gather<T: Element>(&mut self, part: &[T], all: &mut [T], root: usize) -> Result<(), CollectiveError> {
        let call = self.rooted::<T>(Collective::Gather, part.len(), root);
        self.check_whole(call, part.len(), all.len(), root)?;
        let rank = self.rank();
        self.apart(call, part, all, |lane| {
            if rank == root {
                lane.incoming[root * part.len()..][..part.len()].copy_from_slice(part);
            }
            at_once(rooted::gather(lane, root))
        })
    }

    /// Hands everyone its `part` of the root's `all`, in the order of the ranks. `all` is as long as all parts together;
    /// on the other ranks it is not looked at.
    pub fn scatter<T: Element>(&mut self, all: &[T], part: &mut [T], root: usize) -> Result<(), CollectiveError> {
        let call = self.rooted::<T>(Collective::Scatter, part.len(), root);
        self.check_whole(call, part.len(), all.len(), root)?;
        let rank = self.rank();
        self.apart(call, all, part, |lane| {
            if rank == root {
                let length = lane.incoming.len();
                lane.incoming.copy_from_slice(&all[root * length..][..length]);
            }
            at_once(rooted::scatter(lane, root))
        })
    }

    /// Collects everyone's chunk on all ranks: `data` has room for all, and this rank's [chunk] of it is filled.
    pub fn all_gather<T: Element>(&mut self, data: &mut [T]) -> Result<(), CollectiveError> {
        let call = self.call::<T>(Collective::AllGather, data.len());
        self.on_slice(call, data, None, |lane| at_once(ring::all_gather(lane)))
    }

    /// Reduces `data` over all ranks and leaves each with its [chunk] of the result; the other chunks are then of no use.
    pub fn reduce_scatter<T: Element>(&mut self, data: &mut [T], op: Op) -> Result<(), CollectiveError> {
        let call = self.call::<T>(Collective::ReduceScatter, data.len());
        self.on_slice(call, data, op, |lane| at_once(ring::reduce_scatter(lane)))
    }

    /// Sends part j of `outgoing` to rank j and receives part i of `incoming` from rank i; all parts are as long.
    pub fn all_to_all<T: Element>(&mut self, outgoing: &[T], incoming: &mut [T]) -> Result<(), CollectiveError> {
        let (out, into, world) = (outgoing.len(), incoming.len(), self.world());
        let call = self.call::<T>(Collective::AllToAll, out);
        self.check(call, out == into, || format!("{out} elements go out and {into} come in"))?;
        self.check(call, out.is_multiple_of(world), || format!("{out} elements are no equal parts for {world} ranks"))?;
        let own = chunk(out, world, self.rank());
        self.apart(call, outgoing, incoming, |lane| {
            lane.incoming[own.clone()].copy_from_slice(&outgoing[own]);
            at_once(all_to_all::exchange(lane))
        })
    }

    /// Returns once all ranks have called it.
    pub fn barrier(&mut self) -> Result<(), CollectiveError> {
        self.wait_for_all(Collective::Barrier)
    }

    /// Returns once all ranks have called it, however long that takes: a barrier for ranks that come from work of their own,
    /// where one that is slow is not at fault. One that is gone is an error.
    pub fn meet(&mut self) -> Result<(), CollectiveError> {
        self.wait_for_all(Collective::Meet)
    }

    fn wait_for_all(&mut self, collective: Collective) -> Result<(), CollectiveError> {
        let call = self.call::<u8>(collective, 0);
        self.apart::<u8>(call, &[], &mut [], |lane| at_once(barrier::wait(lane)))
    }

    /// Sends `data` to a rank that calls [`Group::recv`].
    pub fn send<T: Element>(&mut self, data: &[T], to: usize) -> Result<(), CollectiveError> {
        let call = self.pair_call::<T>(Collective::SendRecv, data.len(), With::To(to));
        self.make(call, With::To(to), |wire| wire.transport.send(to, bytemuck::cast_slice(data)))
    }

    /// Receives `data` from a rank that calls [`Group::send`].
    pub fn recv<T: Element>(&mut self, data: &mut [T], from: usize) -> Result<(), CollectiveError> {
        let call = self.pair_call::<T>(Collective::SendRecv, data.len(), With::From(from));
        self.make(call, With::From(from), |wire| wire.transport.recv(from, bytemuck::cast_slice_mut(data)))
    }

    /// Splits the group: ranks with the same `colour` make a new one, ordered by `key`, then by rank. The new group has
    /// connections of its own, so both can be used at the same time.
    pub fn split(&mut self, colour: i64, key: i64) -> Result<Group, CollectiveError> {
        let (rank, world) = (self.rank(), self.world());
        let mut wishes = vec![0i64; 2 * world];
        wishes[2 * rank..][..2].copy_from_slice(&[colour, key]);
        let call = self.call::<i64>(Collective::Split, 2 * world);
        self.on_slice(call, &mut wishes, None, |lane| at_once(ring::all_gather(lane)))?;
        let mut members: Vec<usize> = (0..world).filter(|&other| wishes[2 * other] == colour).collect();
        members.sort_by_key(|&member| (wishes[2 * member + 1], member));
        let mut transport = None;
        let call = self.rooted::<u8>(Collective::Split, members.len(), members[0]);
        self.make(call, With::All, |wire| {
            transport = Some(wire.transport.split(&members)?);
            Ok(())
        })?;
        let mut group = Group::new(transport.expect("the split has succeeded"));
        self.watch.adopt(group.watch.clone(), members);
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

    fn on_slice<T: Element>(
        &mut self,
        call: Call,
        data: &mut [T],
        op: impl Into<Option<Op>>,
        work: impl FnOnce(&mut Slice<'_, T>) -> Result<(), TransportError>,
    ) -> Result<(), CollectiveError> {
        let op = op.into();
        let call = Call { op, ..call };
        let op = op.unwrap_or(Op::Sum); // Without one nothing is reduced.
        #[cfg(feature = "mpi")]
        let beside = self.log.beside;
        self.make(call, With::All, |wire| {
            #[cfg(feature = "mpi")]
            if wire.transport.perform(&call, Data::InPlace(bytemuck::cast_slice_mut(data)), beside)? {
                return Ok(());
            }
            work(&mut Slice::new(wire, data, op, call))
        })
    }

    /// The same for a slice that is sent and another that is received.
    fn apart<T: Element>(
        &mut self,
        call: Call,
        outgoing: &[T],
        incoming: &mut [T],
        work: impl FnOnce(&mut Apart<'_, T>) -> Result<(), TransportError>,
    ) -> Result<(), CollectiveError> {
        #[cfg(feature = "mpi")]
        let beside = self.log.beside;
        self.make(call, With::All, |wire| {
            #[cfg(feature = "mpi")]
            {
                let data = Data::Apart(bytemuck::cast_slice(outgoing), bytemuck::cast_slice_mut(incoming));
                if wire.transport.perform(&call, data, beside)? {
                    return Ok(());
                }
            }
            work(&mut Apart { wire, elements: call.elements as usize, outgoing, incoming })
        })
    }

    /// Makes a call, unless it cannot be: the one place where each begins and ends.
    pub(crate) fn make(
        &mut self,
        call: Call,
        with: With,
        work: impl FnOnce(Wire<'_>) -> Result<(), TransportError>,
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
        work: impl FnOnce(Wire<'_>) -> Result<(), TransportError>,
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
        let before = began.map(|began| (began, self.transport.traffic()));
        let Self { transport, topology, scratch, .. } = self;
        match work(Wire { transport, topology, scratch }) {
            Ok(()) => {
                if let Some((began, before)) = before {
                    self.log.end(call, with, began, self.transport.traffic() - before);
                }
                Ok(())
            }
            Err(error) => Err(self.fail(call, error)),
        }
    }

    /// Ends the use of this group.
    pub(crate) fn fail(&mut self, call: Call, error: TransportError) -> CollectiveError {
        self.failed = Some(call);
        self.error(call, Failure::Peer(error))
    }

    fn error(&self, call: Call, error: Failure) -> CollectiveError {
        CollectiveError { rank: self.rank(), about: self.watch.about(), call, error }
    }

    /// Refuses all calls once one has failed.
    pub(crate) fn check_use(&self, call: Call) -> Result<(), CollectiveError> {
        match self.failed {
            None => Ok(()),
            Some(failed) => Err(self.error(call, Failure::Unusable(failed))),
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
        Err(self.error(call, Failure::Argument(otherwise())))
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
#[error("rank {rank}: {}{call}: {error}", prefix(.about))]
pub struct CollectiveError {
    /// The rank that noticed.
    pub rank: usize,
    /// What that was about, if it has a name: a bucket.
    pub about: Option<String>,
    /// What it was doing.
    pub call: Call,
    /// What happened.
    pub error: Failure,
}

fn prefix(about: &Option<String>) -> String {
    about.as_ref().map(|about| format!("{about}, ")).unwrap_or_default()
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
