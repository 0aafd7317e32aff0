//! MPI's own collectives.
//!
//! They are the blocking ones, which every MPI has tuned the best: they work on the caller's memory, and return when they are
//! through. Before a large one ranks meet by a small reduction that does not block: so most waiting is done by the rules of all
//! threads that wait, and ranks that disagree find out. A small one that its caller waits for anyway is called at once, since to
//! meet would take longer than the call. What goes wrong inside a call is found by the [watch](super::watch).
//!
//! On the communication thread ranks always meet, and by their connections: MPI wakes nobody, so a thread would have to ask it
//! again and again while backward needs the core. An all-reduce there is `MPI_Iallreduce`, which is not left before it is
//! through either, but leaves the core to backward where another rank's thread is not at it.

use std::collections::hash_map::DefaultHasher;
use std::hash::Hasher;
use std::thread;
use std::time::{Duration, Instant};

use half::{bf16, f16};

use super::ffi::{Comm, MOST, MpiError, Pending};
use super::{Mpi, NAPS};
use crate::call::{Call, Collective, Header};
use crate::collective::live::{Apart, Scratch, Wire};
use crate::collective::{Algorithm, at_once, barrier, chunk};
use crate::cost;
use crate::element::{Element, ElementType, Op};
use crate::topology::Topology;
use crate::transport::{Cause, Data, Traffic, Transport, TransportError};

/// From here on a call takes so long that ranks meet before.
const LARGE: usize = 1 << 20;
/// How long the communication thread asks MPI without a break while nothing moves. Ranks have just met, so each is about to be
/// at it, and to sleep would take longer than most all-reduces.
const BRISK: Duration = Duration::from_micros(100);
/// MPI moves data while it is asked: whatever took so long has moved some.
const MOVED: Duration = Duration::from_micros(5);

impl Mpi {
    /// Does a call by MPI's own collective, if there is one.
    pub(super) fn perform_collective(
        &mut self,
        call: &Call,
        data: Data<'_>,
        beside: bool,
    ) -> Result<bool, TransportError> {
        // What is decided here is decided alike on all ranks.
        let bytes = call.elements as usize * call.element.size();
        let is_own = match call.collective {
            Collective::AllReduce => call.algorithm == Some(Algorithm::Mpi),
            Collective::Reduce | Collective::Broadcast | Collective::Gather | Collective::Scatter => bytes <= MOST,
            Collective::AllGather | Collective::ReduceScatter | Collective::AllToAll => bytes <= MOST,
            Collective::Barrier | Collective::Meet => true,
            _ => false,
        };
        if !is_own || !self.post.seats.are_processes() {
            return Ok(false);
        }
        let is_barrier = matches!(call.collective, Collective::Barrier | Collective::Meet);
        self.post.arrive(call);
        if beside {
            self.gather(call)?;
        } else if is_barrier || bytes >= LARGE {
            self.agree(call)?;
        }
        if !is_barrier {
            let done = self.post.inside(call, || match (beside, data) {
                (true, Data::InPlace(data)) if call.collective == Collective::AllReduce => self.beside(call, data),
                (_, data) => collective(&self.post.comm, call, data),
            });
            done.map_err(|error| TransportError::among_all(self.post.seats.world(), error))?;
        }
        self.count(call);
        Ok(true)
    }

    /// An all-reduce on the communication thread.
    fn beside(&self, call: &Call, data: &mut [u8]) -> Result<(), MpiError> {
        let (element, op, world) = (call.element, call.op.unwrap_or(Op::Sum), self.post.seats.world());
        self.post.comm.all_reduce_patiently(data, element, op, progress)?;
        finish(data, element, op, world);
        Ok(())
    }

    /// Counts what a rank must send and receive at least, since MPI does not say what it does.
    fn count(&mut self, call: &Call) {
        let (elements, size, world) = (call.elements as usize, call.element.size(), self.post.seats.world());
        let bytes = match call.collective {
            Collective::AllReduce => cost::least_sent(elements, world) * size,
            Collective::Barrier | Collective::Meet => 0,
            Collective::AllGather | Collective::ReduceScatter => chunk(elements, world, self.post.rank).len() * size,
            _ => elements * size,
        };
        self.traffic += Traffic::sent(bytes, bytes) + Traffic::received(bytes, bytes);
    }

    /// Waits until all ranks have come to the same call.
    fn agree(&mut self, call: &Call) -> Result<(), TransportError> {
        let header: [u64; Header::LENGTH / 8] = bytemuck::must_cast(Header::new(call, 0));
        let mut hasher = DefaultHasher::new();
        header.iter().for_each(|&word| hasher.write_u64(word));
        let name = hasher.finish();
        // Of two that differ, one is less than the largest, and the inverse of the other.
        let words = [name, !name];
        let mut memory = std::mem::take(&mut self.words).unwrap_or_else(|| Box::new(words));
        memory.copy_from_slice(&words);
        let pending = self.post.comm.max(memory);
        let largest = self.await_all(call, pending)?;
        let is_same = *largest == words;
        self.words = Some(largest);
        if is_same {
            return Ok(());
        }
        // All know by now that they disagree, so all say what they do.
        let (rank, world) = (self.post.rank, self.post.seats.world());
        let mut headers = vec![[0u64; Header::LENGTH / 8]; world];
        headers[rank] = header;
        let pending = self.post.comm.all_gather_words(headers.concat().into());
        let all = self.await_all(call, pending)?;
        let other = all.chunks_exact(header.len()).position(|theirs| *theirs != header).unwrap_or(rank);
        let theirs: Header =
            bytemuck::pod_read_unaligned(bytemuck::cast_slice(&all[other * header.len()..][..header.len()]));
        Err(TransportError::receiving(other, theirs.call().map_or(Cause::Nonsense, Cause::Elsewhere)))
    }

    /// The same on the communication thread, by a barrier over the connections: there whoever comes last wakes those that
    /// sleep, as MPI does not.
    fn gather(&mut self, call: &Call) -> Result<(), TransportError> {
        self.tcp.begin(*call);
        let (mut scratch, topology) = (Scratch::default(), Topology::of(&mut self.tcp));
        let wire = Wire { transport: &mut self.tcp, topology: &topology, scratch: &mut scratch };
        let met = at_once(barrier::wait(&mut Apart::<u8> { wire, elements: 0, outgoing: &[], incoming: &mut [] }));
        met.map_err(|error| match error.cause {
            // The one that this rank waits for may wait for another.
            Cause::TimedOut(_) => {
                let missing = self.post.missing(call.sequence).unwrap_or(error.peer);
                TransportError { peer: missing, ..error }
            }
            _ => error,
        })
    }

    /// Waits for something that all ranks take part in.
    fn await_all(&self, call: &Call, pending: Result<Pending, MpiError>) -> Result<Box<[u64]>, TransportError> {
        let (rank, world) = (self.post.rank, self.post.seats.world());
        let mut pending = pending.map_err(|error| TransportError::among_all(world, error))?;
        let others = (0..world).filter(|&other| other != rank);
        let waited = self.wait(self.limit(), others, || pending.test().map(|done| done.map(drop)));
        match waited {
            Ok(()) => Ok(pending.take()),
            Err((Some(gone), cause)) => Err(TransportError::receiving(gone, cause)),
            Err((None, cause @ Cause::Io(_))) => {
                Err(TransportError { cause, ..TransportError::among_all(world, Cause::Aborted) })
            }
            Err((None, cause)) => {
                let missing = self.post.missing(call.sequence).unwrap_or((rank + 1) % world);
                Err(TransportError::receiving(missing, cause))
            }
        }
    }
}

/// Asks MPI whether it is through until it is, however long that takes: that is the watch's to judge. As long as data moves there
/// is no break; if none does, another rank's thread has no core, and backward gets this one for a while.
fn progress(is_through: &mut dyn FnMut() -> bool) {
    let ([first, longest], mut idle) = (NAPS, Duration::ZERO);
    let mut nap = first;
    loop {
        let began = Instant::now();
        if is_through() {
            return;
        }
        let took = began.elapsed();
        if took >= MOVED {
            (idle, nap) = (Duration::ZERO, first);
        } else if idle < BRISK {
            idle += took;
        } else {
            thread::sleep(nap);
            nap = longest.min(2 * nap);
        }
    }
}

/// The collective of MPI that does a call.
fn collective(comm: &Comm, call: &Call, data: Data<'_>) -> Result<(), MpiError> {
    let (rank, world, element) = (comm.rank(), comm.size(), call.element);
    let (op, root) = (call.op.unwrap_or(Op::Sum), call.root.map_or(0, |root| root as usize));
    let chunks = |of: usize| (0..world).map(|index| chunk(of, world, index).len()).collect::<Vec<_>>();
    let elements = call.elements as usize;
    match (call.collective, data) {
        (Collective::AllReduce, Data::InPlace(data)) => {
            comm.all_reduce(data, element, op)?;
            finish(data, element, op, world);
        }
        (Collective::Reduce, Data::InPlace(data)) => {
            comm.reduce(data, element, op, root)?;
            finish(data, element, op, world);
        }
        (Collective::Broadcast, Data::InPlace(data)) => comm.broadcast(data, root)?,
        (Collective::AllGather, Data::InPlace(data)) => {
            let bytes: Vec<usize> = chunks(elements).iter().map(|count| count * element.size()).collect();
            comm.all_gather(data, &bytes)?;
        }
        (Collective::ReduceScatter, Data::InPlace(data)) => {
            comm.reduce_scatter(data, &chunks(elements), element, op)?;
            // MPI leaves the chunk at the beginning.
            let mine = chunk(elements, world, rank);
            let (start, length) = (mine.start * element.size(), mine.len() * element.size());
            data.copy_within(..length, start);
            finish(&mut data[start..start + length], element, op, world);
        }
        (Collective::Gather, Data::Apart(part, all)) => comm.gather(part, all, root)?,
        (Collective::Scatter, Data::Apart(all, part)) => comm.scatter(all, part, root)?,
        (Collective::AllToAll, Data::Apart(out, into)) => comm.all_to_all(out, into)?,
        _ => unreachable!("what goes in place and what goes apart is the collective's to say"),
    }
    Ok(())
}

/// Makes a sum a mean, if that was wanted.
fn finish(data: &mut [u8], element: ElementType, op: Op, world: usize) {
    if op != Op::Mean {
        return;
    }
    fn divide<T: Element>(data: &mut [u8], world: usize) {
        T::divide(bytemuck::cast_slice_mut(data), world);
    }
    match element {
        ElementType::F32 => divide::<f32>(data, world),
        ElementType::F64 => divide::<f64>(data, world),
        ElementType::F16 => divide::<f16>(data, world),
        ElementType::Bf16 => divide::<bf16>(data, world),
        ElementType::I32 => divide::<i32>(data, world),
        ElementType::I64 => divide::<i64>(data, world),
        ElementType::U8 => divide::<u8>(data, world),
    }
}
