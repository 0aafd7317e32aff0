//! Ranks that are processes of MPI: messages and collectives are MPI's, and connections only tell who is still there.
//!
//! [`start`] comes first in every process, and [`end`] last. In between ranks meet as they do for other transports, and
//! [`Mpi::over`] turns their connections into a communicator of their own.
//!
//! | look for | in |
//! | --- | --- |
//! | MPI as safe functions | [`ffi`] |
//! | how it begins and ends | `runtime.rs` |
//! | which process a rank is in | `seats.rs` |
//! | messages, by MPI's point-to-point calls | `messages.rs` |
//! | MPI's own collectives | `collectives.rs` |
//! | calls that never return, and who is missing | `watch.rs` |

mod collectives;
pub mod ffi;
mod messages;
mod runtime;
mod seats;
mod watch;

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use ringstep_cpu::cores;
use ringstep_cpu::wait::Patience;

pub use self::ffi::{MpiError, World};
pub use self::runtime::{end, start};
pub use self::watch::{leave, listen};

use self::ffi::{Buffer, Comm};
use self::seats::{Kind, Seats};
use self::watch::{GRACE, Post};
use super::tcp::Tcp;
use super::{Aborter, Cause, Data, Incoming, Outgoing, Traffic, Transport, TransportError};
use crate::call::{Call, Collective};
use crate::element::ElementType;

/// How often it asks MPI between two looks at the clock.
const LOOKS: u32 = 16;
/// MPI rings no bell, so a rank that waits for long sleeps for a moment at a time: at first, and at most.
const NAPS: [Duration; 2] = [Duration::from_micros(20), Duration::from_micros(200)];
/// How often it looks meanwhile whether those it waits for are still there.
const ROUND: Duration = Duration::from_millis(20);

/// One rank's part in a communicator.
#[derive(Debug)]
pub struct Mpi {
    /// Tells who is still there, and lets sub-groups meet.
    tcp: Tcp,
    post: Arc<Post>,
    call: Option<Call>,
    patience: Patience,
    /// Memory that no message is in.
    pool: Vec<Buffer>,
    /// The same for the words by which ranks meet.
    words: Option<Buffer>,
    traffic: Traffic,
}

impl Mpi {
    /// A communicator of the ranks that these connections are between, all of them in processes in which MPI runs.
    pub fn over(mut tcp: Tcp) -> Result<Self, TransportError> {
        let (rank, world) = (tcp.rank(), tcp.world());
        let failed = |text: String| TransportError::receiving((rank + 1) % world, Cause::Io(io::Error::other(text)));
        let process = start().map_err(|error| failed(error.to_string()))?.rank;
        let mut name = [0; 8];
        getrandom::fill(&mut name).map_err(|error| failed(error.to_string()))?;
        // Everyone's process and cores; and a name for the communicator, which is rank 0's.
        let mut words = vec![[0u64; 3]; world];
        words[rank] = [process as u64, cores::which(), u64::from_le_bytes(name)];
        tcp.begin(Call::plain(0, Collective::Split, ElementType::U8, size_of_val(&words[0])));
        for step in 1..world {
            let (to, from, own) = ((rank + step) % world, (rank + world - step) % world, words[rank]);
            tcp.exchange(to, bytemuck::bytes_of(&own), from, bytemuck::bytes_of_mut(&mut words[from]))?;
        }
        let seats = Seats::new(&words.iter().map(|word| word[0] as usize).collect::<Vec<_>>());
        let lifelines = (0..world).map(|peer| (peer != rank).then(|| tcp.peer(peer).clone())).collect();
        let comm = communicator(&tcp, &seats, words[0][2])?;
        let (timeout, aborter) = (tcp.timeout(), tcp.aborter());
        let post = Arc::new(Post::new(rank, (comm, seats), lifelines, timeout, aborter));
        watch::watch(&post).map_err(|error| failed(error.to_string()))?;
        // mpirun binds processes to cores, and those that have others are no crowd on these.
        let place = |rank: usize| (tcp.hosts()[rank], words[rank][1]);
        let here = (0..world).filter(|&other| place(other) == place(rank)).count();
        let (patience, pool, traffic) = (Patience::among(here), Vec::new(), Traffic::default());
        Ok(Self { tcp, post, call: None, patience, pool, words: None, traffic })
    }

    fn call(&self) -> Call {
        self.call.expect("a call has begun")
    }

    /// Waits until `look` finds something: looks for a while, then sleeps between two looks. Gives up when one of those that
    /// this depends on is gone or all have been silent for too long, or when it is aborted; and names it if it can.
    fn wait<R>(
        &self,
        limit: Option<Duration>,
        owing: impl Iterator<Item = usize> + Clone,
        look: impl FnMut() -> Result<Option<R>, MpiError>,
    ) -> Result<R, (Option<usize>, Cause)> {
        let look = RefCell::new(look);
        let asked = || look.borrow_mut()().map_err(|error| (None, Cause::from(error))).transpose();
        let sleep = || {
            let ([mut nap, longest], mut waited, mut round) = (NAPS, Duration::ZERO, Duration::ZERO);
            let mut gone: Option<(usize, Duration)> = None;
            loop {
                let began = Instant::now();
                thread::sleep(nap);
                nap = longest.min(2 * nap);
                if let Some(found) = asked() {
                    return found;
                }
                // A process that was suspended for long has waited no longer than a nap.
                let slept = began.elapsed().min(ROUND);
                (waited, round) = (waited + slept, round + slept);
                if limit.is_some_and(|limit| waited >= limit) {
                    return Err((None, Cause::TimedOut(self.post.timeout)));
                }
                if round < ROUND {
                    continue;
                }
                if self.post.aborter.is_aborted() {
                    return Err((None, Cause::Aborted));
                }
                gone = match gone {
                    // It may have finished its part before it left.
                    Some((rank, since)) if since >= GRACE => return Err((Some(rank), Cause::Closed)),
                    Some((rank, since)) => Some((rank, since + round)),
                    None => owing.clone().find(|&rank| self.post.is_gone(rank)).map(|rank| (rank, Duration::ZERO)),
                };
                round = Duration::ZERO;
            }
        };
        self.patience.wait(LOOKS, asked, sleep)
    }

    /// How long a call may be silent.
    fn limit(&self) -> Option<Duration> {
        self.call().collective.counts_silence().then_some(self.post.timeout)
    }
}

impl From<MpiError> for Cause {
    fn from(error: MpiError) -> Self {
        Self::Io(io::Error::other(error))
    }
}

/// Communicators by name, each with how many ranks of this process have not picked it up yet.
type Made = HashMap<u64, (Arc<Comm>, usize)>;

/// Those that a rank has made for others of its process.
static MADE: Mutex<Option<Made>> = Mutex::new(None);
static BELL: Condvar = Condvar::new();

/// The communicator of these ranks. The first rank of each process makes it for all that are there.
fn communicator(tcp: &Tcp, seats: &Seats, name: u64) -> Result<Arc<Comm>, TransportError> {
    let (rank, timeout) = (tcp.rank(), tcp.timeout());
    let failed = |cause: Cause| TransportError::receiving((rank + 1) % tcp.world(), cause);
    let others = seats.neighbours(rank) - 1;
    if seats.seat(rank) > 0 {
        let made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        let is_missing = |made: &mut Option<Made>| !made.as_ref().is_some_and(|made| made.contains_key(&name));
        let waited = BELL.wait_timeout_while(made, timeout, is_missing);
        let (mut made, _) = waited.unwrap_or_else(PoisonError::into_inner);
        let made = made.get_or_insert_default();
        let (comm, left) = made.get_mut(&name).ok_or_else(|| failed(Cause::TimedOut(timeout)))?;
        let comm = Arc::clone(comm);
        *left -= 1;
        if *left == 0 {
            made.remove(&name);
        }
        return Ok(comm);
    }
    // It takes for ever if one of them is gone, so it is a thread that waits for it.
    let (processes, own) = (seats.processes().to_vec(), seats.process(rank));
    let (tell, told) = channel();
    let make = move || drop(tell.send(Comm::create(&processes, own, name)));
    thread::Builder::new().name("mpi split".to_owned()).spawn(make).map_err(|error| failed(Cause::Io(error)))?;
    let mut waited = Duration::ZERO;
    let comm = loop {
        match told.recv_timeout(ROUND) {
            Ok(comm) => break comm.map_err(|error| failed(error.into()))?,
            Err(RecvTimeoutError::Disconnected) => return Err(failed(Cause::Aborted)),
            Err(RecvTimeoutError::Timeout) => waited += ROUND,
        }
        let gone = (0..tcp.world()).filter(|&peer| peer != rank).find(|&peer| {
            let read = tcp.peer(peer).peek();
            read.map_or_else(|error| !super::tcp::is_transient(&error), |count| count == 0)
        });
        match gone {
            Some(peer) => return Err(TransportError::receiving(peer, Cause::Closed)),
            None if tcp.aborter().is_aborted() => return Err(failed(Cause::Aborted)),
            None if waited >= timeout => return Err(failed(Cause::TimedOut(timeout))),
            None => {}
        }
    };
    let comm = Arc::new(comm);
    if others > 0 {
        let mut made = MADE.lock().unwrap_or_else(PoisonError::into_inner);
        made.get_or_insert_default().insert(name, (Arc::clone(&comm), others));
        BELL.notify_all();
    }
    Ok(comm)
}

impl Transport for Mpi {
    fn rank(&self) -> usize {
        self.post.rank
    }

    fn world(&self) -> usize {
        self.post.seats.world()
    }

    fn begin(&mut self, call: Call) {
        self.call = Some(call);
    }

    fn transfer(
        &mut self,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
    ) -> Result<(), TransportError> {
        self.transfer_messages(outgoing, incoming)
    }

    fn wait_any(&mut self, from: &[usize], until: Option<Instant>) -> Result<Option<usize>, TransportError> {
        let Post { rank, comm, seats, .. } = &*self.post;
        let mut nobody_yet = true;
        let look = || {
            for &peer in from {
                if comm.probe(Some(seats.process(peer)), seats.tag(Kind::Data, peer, *rank))?.is_some() {
                    return Ok(Some(Some(peer)));
                }
            }
            // At least one look, however late it is.
            let is_late = !nobody_yet && until.is_some_and(|until| until <= Instant::now());
            nobody_yet = false;
            Ok(is_late.then_some(None))
        };
        let found = self.wait(None, from.iter().copied(), look);
        found.map_err(|(gone, cause)| TransportError::receiving(gone.unwrap_or(from[0]), cause))
    }

    fn hosts(&self) -> &[usize] {
        self.tcp.hosts()
    }

    fn perform(&mut self, call: &Call, data: Data<'_>, beside: bool) -> Result<bool, TransportError> {
        self.perform_collective(call, data, beside)
    }

    fn traffic(&self) -> Traffic {
        self.traffic
    }

    fn timeout(&self) -> Duration {
        self.post.timeout
    }

    fn aborter(&self) -> Aborter {
        self.post.aborter.clone()
    }

    fn split(&mut self, members: &[usize]) -> Result<Box<dyn Transport>, TransportError> {
        self.tcp.begin(self.call());
        Ok(Box::new(Self::over(self.tcp.subset(members)?)?))
    }
}
