//! Who keeps others waiting: a thread that watches over calls of MPI that may never return.
//!
//! MPI's collectives work on the caller's memory, so a call cannot be given up: MPI might write there later. Nor does MPI say
//! whom it waits for. So every rank has a [`Post`] that says which call it is in, and one thread of each process looks after
//! them. It answers whoever asks how far a rank is, also while the rank itself is in a call or computes; and when a rank has
//! been in a call for too long, or a peer is gone meanwhile, it asks all others, finds out who is missing, and reports it to
//! whoever [`listens`](listen). That one ends the process; where nobody listens, MPI is told to end the job.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::thread;
use std::time::{Duration, Instant};

use super::ffi::{self, Comm, MpiError};
use super::seats::{Kind, Seats};
use crate::call::{Call, Header};
use crate::connection::Connection;
use crate::group::{CollectiveError, Failure};
use crate::transport::tcp::is_transient;
use crate::transport::{Aborter, Cause, TransportError};

/// How often the thread looks.
const ROUND: Duration = Duration::from_millis(50);
/// How long those that are asked have to answer.
const ROLL_CALL: Duration = Duration::from_millis(500);
/// How long a call may go on after a peer has left: it may have finished its part before.
pub(super) const GRACE: Duration = Duration::from_millis(300);

/// What one rank says about itself.
#[derive(Debug)]
pub(super) struct Post {
    pub rank: usize,
    pub comm: Arc<Comm>,
    pub seats: Seats,
    /// Connections to the other ranks, which close when they leave.
    pub lifelines: Vec<Option<Connection>>,
    pub timeout: Duration,
    pub aborter: Aborter,
    /// The number of the last call of all ranks that it came to.
    entered: AtomicU32,
    /// Counts when it enters MPI and when it returns: odd while it is inside.
    inside: AtomicU32,
    /// The header of the call that it is in.
    call: [AtomicU64; Header::LENGTH / 8],
    /// What it was found to be stuck in is reported once.
    reported: AtomicBool,
    sight: Mutex<Sight>,
    answering: Mutex<()>,
}

impl Post {
    pub fn new(
        rank: usize,
        (comm, seats): (Arc<Comm>, Seats),
        lifelines: Vec<Option<Connection>>,
        timeout: Duration,
        aborter: Aborter,
    ) -> Self {
        let (entered, inside, call) = (AtomicU32::new(0), AtomicU32::new(0), Default::default());
        let (reported, sight, answering) = (AtomicBool::new(false), Mutex::default(), Mutex::default());
        Self { rank, comm, seats, lifelines, timeout, aborter, entered, inside, call, reported, sight, answering }
    }

    /// This rank has come to a call of all.
    pub fn arrive(&self, call: &Call) {
        self.entered.store(call.sequence, Ordering::Relaxed);
    }

    /// Makes a call of MPI that returns when it is through, under the watch.
    pub fn inside<R>(&self, call: &Call, work: impl FnOnce() -> R) -> R {
        let words: [u64; Header::LENGTH / 8] = bytemuck::must_cast(Header::new(call, 0));
        for (place, word) in self.call.iter().zip(words) {
            place.store(word, Ordering::Relaxed);
        }
        let count = self.inside.load(Ordering::Relaxed);
        self.inside.store(count.wrapping_add(1), Ordering::Release);
        let result = work();
        self.inside.store(count.wrapping_add(2), Ordering::Release);
        result
    }

    /// Whether a rank has left.
    pub fn is_gone(&self, rank: usize) -> bool {
        self.lifelines[rank].as_ref().is_some_and(|stream| match stream.peek() {
            Ok(count) => count == 0,
            Err(error) => !is_transient(&error),
        })
    }

    fn others(&self) -> impl Iterator<Item = usize> {
        let own = self.rank;
        (0..self.seats.world()).filter(move |&rank| rank != own)
    }

    /// Asks all others how far they are, and names the first that is gone, does not answer or has not come so far.
    pub fn missing(&self, sequence: u32) -> Option<usize> {
        if let Some(gone) = self.others().find(|&rank| self.is_gone(rank)) {
            return Some(gone);
        }
        let mut is_there = vec![false; self.seats.world()];
        is_there[self.rank] = true;
        self.roll_call(sequence, &mut is_there).ok()?;
        is_there.iter().position(|is_there| !is_there)
    }

    fn roll_call(&self, sequence: u32, is_there: &mut [bool]) -> Result<(), MpiError> {
        let mut questions = Vec::new();
        for rank in self.others() {
            let (to, tag) = (self.seats.process(rank), self.seats.tag(Kind::Question, self.rank, rank));
            questions.push(self.comm.send(vec![0; 1].into(), 0, to, tag)?);
        }
        let deadline = Instant::now() + ROLL_CALL;
        while is_there.contains(&false) && Instant::now() < deadline {
            for rank in self.others().filter(|&rank| !is_there[rank]).collect::<Vec<_>>() {
                if let Some(word) = self.take(rank, Kind::Answer)? {
                    is_there[rank] = (word as u32).wrapping_sub(sequence) < u32::MAX / 2;
                }
            }
            // Those that are asked may ask at the same time.
            self.answer()?;
            thread::sleep(Duration::from_millis(1));
        }
        questions.iter_mut().try_for_each(|question| question.test().map(drop))
    }

    /// Answers those that have asked.
    fn answer(&self) -> Result<(), MpiError> {
        // What one thread has found another must not receive.
        let _only = self.answering.lock().unwrap_or_else(PoisonError::into_inner);
        for rank in self.others() {
            if self.take(rank, Kind::Question)?.is_some() {
                let word = u64::from(self.entered.load(Ordering::Relaxed));
                let (to, tag) = (self.seats.process(rank), self.seats.tag(Kind::Answer, self.rank, rank));
                // A word is under way at once; if not, it keeps its memory.
                self.comm.send(vec![word].into(), 8, to, tag)?.test()?;
            }
        }
        Ok(())
    }

    /// A word that a rank has sent, if it has.
    fn take(&self, from: usize, kind: Kind) -> Result<Option<u64>, MpiError> {
        let (process, tag) = (self.seats.process(from), self.seats.tag(kind, from, self.rank));
        if self.comm.probe(Some(process), tag)?.is_none() {
            return Ok(None);
        }
        let mut word = self.comm.recv(vec![0; 1].into(), process, tag)?;
        while word.test()?.is_none() {}
        Ok(Some(word.take()[0]))
    }

    /// What this rank is stuck in, after it has been inside for so long and a peer gone for so long.
    fn stuck(&self, inside: Duration, gone: Option<(usize, Duration)>) -> Option<CollectiveError> {
        let words = self.call.each_ref().map(|word| word.load(Ordering::Relaxed));
        let call = bytemuck::must_cast::<_, Header>(words).call()?;
        let gone = gone.filter(|(_, since)| *since >= GRACE).map(|(rank, _)| rank);
        let (peer, cause) = match gone {
            Some(rank) => (rank, Cause::Closed),
            None if self.aborter.is_aborted() => ((self.rank + 1) % self.seats.world(), Cause::Aborted),
            None if inside >= self.timeout => (
                self.missing(call.sequence).unwrap_or((self.rank + 1) % self.seats.world()),
                Cause::TimedOut(self.timeout),
            ),
            None => return None,
        };
        let error = Failure::Peer(TransportError::receiving(peer, cause));
        Some(CollectiveError { rank: self.rank, call, about: None, error })
    }
}

/// What the thread has seen of a post.
#[derive(Debug, Default)]
struct Sight {
    /// The call that it was in, by its count, and for how long.
    count: u32,
    inside: Duration,
    /// Who has left meanwhile, and for how long it has been gone.
    gone: Option<(usize, Duration)>,
}

impl Post {
    fn look(&self) {
        // What MPI says here it says to the rank's own calls too.
        let _ = self.answer();
        let count = self.inside.load(Ordering::Acquire);
        let mut sight = self.sight.lock().unwrap_or_else(PoisonError::into_inner);
        if count.is_multiple_of(2) || sight.count != count {
            *sight = Sight { count, ..Sight::default() };
            return;
        }
        // Counted in rounds: a process that was suspended for long has waited no longer than the one that it was in.
        sight.inside += ROUND;
        sight.gone = match sight.gone {
            Some((rank, since)) => Some((rank, since + ROUND)),
            None => self.others().find(|&rank| self.is_gone(rank)).map(|rank| (rank, Duration::ZERO)),
        };
        if !self.reported.load(Ordering::Relaxed)
            && let Some(error) = self.stuck(sight.inside, sight.gone)
            // It may have returned after all, while the others were asked.
            && self.inside.load(Ordering::Acquire) == count
        {
            self.reported.store(true, Ordering::Relaxed);
            report(error);
        }
    }
}

/// The posts of this process.
static POSTS: Mutex<Vec<Weak<Post>>> = Mutex::new(Vec::new());
static STARTED: Mutex<bool> = Mutex::new(false);
/// Who is told what they are stuck in.
static LISTENER: Mutex<Option<Sender<CollectiveError>>> = Mutex::new(None);

/// Watches over a post for as long as it lives.
pub(super) fn watch(post: &Arc<Post>) -> std::io::Result<()> {
    POSTS.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(post));
    let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
    if !*started {
        thread::Builder::new().name("mpi watch".to_owned()).spawn(look_after_all)?;
        *started = true;
    }
    Ok(())
}

fn look_after_all() {
    loop {
        thread::sleep(ROUND);
        let mut posts = POSTS.lock().unwrap_or_else(PoisonError::into_inner);
        posts.retain(|post| post.strong_count() > 0);
        let present: Vec<Arc<Post>> = posts.iter().filter_map(Weak::upgrade).collect();
        drop(posts);
        present.iter().for_each(|post| post.look());
    }
}

fn report(error: CollectiveError) {
    let listener = LISTENER.lock().unwrap_or_else(PoisonError::into_inner).take();
    match listener {
        Some(listener) => {
            let _ = listener.send(error);
            *LISTENER.lock().unwrap_or_else(PoisonError::into_inner) = Some(listener);
        }
        None => {
            eprintln!("error: {error}");
            ffi::abort();
        }
    }
}

/// What ranks of this process are stuck in, from now on, until [`leave`]. They cannot go on, so whoever hears of it should end
/// the process.
pub fn listen() -> Receiver<CollectiveError> {
    let (sender, receiver) = channel();
    *LISTENER.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender);
    receiver
}

/// Nobody listens any more.
pub fn leave() {
    *LISTENER.lock().unwrap_or_else(PoisonError::into_inner) = None;
}
