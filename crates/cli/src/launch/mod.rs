//! Starting workers, listening to them, and ending them all when one fails or the user has had enough.

mod cluster;
mod diagnosis;
mod halting;
pub mod member;
mod processes;
pub(crate) mod protocol;
mod pulse;
mod recovery;
mod threads;
pub mod worker;

use std::fmt;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use ringstep_comm::Group;
use ringstep_comm::cost::Tuning;
use ringstep_comm::rendezvous::{Invitation, Meeting, RendezvousError, Secret};
use ringstep_comm::transport::{Shaped, Transport};
use ringstep_train::halt::{Held, Order};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM, SIGUSR1};

pub use self::cluster::Cluster;
use self::diagnosis::Diagnosis;
use self::halting::Halting;
use self::processes::Starter;
use self::protocol::Work;
pub use self::protocol::{Message, Origin, Resume, Task};
use self::recovery::{Failed, State};
pub use self::recovery::{Loss, Next, Seat};
use crate::settings::{Launch, Link, ProcessTransport, Workers};

/// Where workers that are processes run, and who starts them.
pub enum Site {
    /// This process starts them, here.
    Here,
    /// This process starts as many on each of these hosts, by ssh.
    Hosts {
        /// Their names.
        names: Vec<String>,
        /// The address of this host at which they find it.
        meet: IpAddr,
    },
    /// Somebody else has started them, or what starts them.
    Cluster(Cluster),
}

impl Site {
    /// Whether workers may be on other machines.
    pub fn is_elsewhere(&self) -> bool {
        !matches!(self, Self::Here)
    }

    /// All has been done: processes that somebody else has started may end.
    pub fn dismiss(&self) {
        if let Self::Cluster(cluster) = self {
            cluster.dismiss();
        }
    }
}

/// Runs a task on so many ranks to the end. `listener` is told what each of them says. Returns the signal for which they have
/// ended earlier, if there was one.
pub fn run(
    task: &Task,
    world: usize,
    workers: &Workers,
    site: &Site,
    interrupts: &Interrupts,
    listener: &mut dyn Listener,
) -> Result<Option<usize>> {
    let (timeout, link) = (workers.timeout, workers.link.clone());
    let diagnosis = Diagnosis::new(world, timeout);
    let Launch::Processes(how) = &workers.launch else {
        let (mut crew, events) = threads::start(task, world, workers)?;
        return supervise(&mut crew, &events, diagnosis, (task.halting(), interrupts), listener)?.or_fail();
    };
    let mut work = Work { task: task.clone(), world, transport: how.transport, timeout, link };
    ensure!(
        how.transport.0 != ProcessTransport::Mpi || matches!(site, Site::Cluster(_)),
        "--transport mpi is for processes that MPI has started, and these are started here"
    );
    let (sender, events) = channel();
    let (mut crew, mut host): (Box<dyn Crew + '_>, Host) = match site {
        Site::Cluster(cluster) => {
            let host = Host::hold(cluster.meeting(), &work, &sender)?;
            (Box::new(cluster.start(&work, &sender)?), host)
        }
        Site::Here | Site::Hosts { .. } => {
            let (hosts, meet) = match site {
                Site::Hosts { names, meet } => (names.clone(), *meet),
                _ => (Vec::new(), how.meet),
            };
            let secret = Secret::random().context("no randomness for the job's secret")?;
            let secret = secret.encrypting(how.encryption);
            let meeting = Meeting::open(SocketAddr::new(meet, 0), secret.clone())?;
            let invitation = Invitation::new(meeting.address(), secret);
            let starter = Starter { start_with: how.start_with.clone(), hosts, pin: how.pin };
            let host = Host::hold(Arc::new(Mutex::new(meeting)), &work, &sender)?;
            (Box::new(processes::start(&work, &task.places(world), starter, &invitation, &sender)?), host)
        }
    };
    let most = task.restarts();
    if most == 0 {
        drop(sender);
        return supervise(&mut *crew, &events, diagnosis, (task.halting(), interrupts), listener)?.or_fail();
    }
    for number in 1.. {
        let halting = (work.task.halting(), interrupts);
        let failed = match supervise(&mut *crew, &events, Diagnosis::new(work.world, timeout), halting, listener)? {
            Watched::Failed(failed) if failed.may_go_on && number <= most => failed,
            watched => return watched.or_fail(),
        };
        host.call_off();
        let loss = recovery::settle(*failed, &mut *crew, &events, (timeout, interrupts), listener)?;
        let Some(Next { task, seats }) = listener.go_on(&loss, [number, most])? else {
            return Err(loss.error);
        };
        work = Work { task, world: seats.len(), ..work };
        host = Host::hold(host.meeting, &work, &sender)?;
        crew.again(&work, &seats)?;
    }
    unreachable!("it does not go on for ever")
}

/// A meeting of the ranks of a task, which is hosted on a thread.
struct Host {
    meeting: Arc<Mutex<Meeting>>,
    off: Arc<AtomicBool>,
}

impl Host {
    fn hold(meeting: Arc<Mutex<Meeting>>, work: &Work, events: &Sender<Event>) -> Result<Self> {
        let (world, timeout, events) = (work.world, work.timeout, events.clone());
        let host = Self { meeting: Arc::clone(&meeting), off: Arc::default() };
        let off = Arc::clone(&host.off);
        processes::spawn("rendezvous", move || {
            let mut meeting = meeting.lock().unwrap_or_else(PoisonError::into_inner);
            match meeting.host_unless(&off, world, timeout) {
                Err(error) if !off.load(Ordering::Relaxed) => drop(events.send(Event::NoMeeting(error))),
                _ => {}
            }
        })?;
        Ok(host)
    }

    /// Whoever still waits there learns that it has ended.
    fn call_off(&self) {
        self.off.store(true, Ordering::Relaxed);
    }
}

/// The group of a rank whose messages pass as fast as they can, or as a link lets them: its algorithms are then chosen for
/// such a link.
pub fn group(transport: impl Transport + 'static, link: Option<&Link>) -> Group {
    let Some(net) = link.map(Link::net) else { return Group::new(transport) };
    let mut group = Group::new(Shaped::new(transport, net));
    group.set_tuning(Tuning::of_wire(net));
    group
}

/// Is told what each rank says; an error ends the run.
pub trait Listener {
    /// A rank says something.
    fn hear(&mut self, rank: usize, message: Message) -> Result<()>;

    /// Ranks are lost, and this would be the restart of that number, of so many: says how to go on, if that can be done.
    fn go_on(&mut self, _loss: &Loss, _restart: [usize; 2]) -> Result<Option<Next>> {
        Ok(None)
    }
}

impl<F: FnMut(usize, Message) -> Result<()>> Listener for F {
    fn hear(&mut self, rank: usize, message: Message) -> Result<()> {
        self(rank, message)
    }
}

/// What the supervisor hears.
enum Event {
    /// A worker speaks.
    Said(usize, Message),
    /// A worker will never speak again.
    Gone(usize),
    /// Nor will any of the ranks of this process.
    Closed(u32),
    /// The ranks did not come together.
    NoMeeting(RendezvousError),
}

/// The workers of a run.
trait Crew {
    /// How a worker that is gone ended.
    fn obituary(&mut self, rank: usize) -> String;

    /// Where a worker is, if that is another host than this one.
    fn host(&self, _rank: usize) -> Option<String> {
        None
    }

    /// The ranks of a process; none, if others have taken its place.
    fn ranks_of(&self, _process: u32) -> Vec<usize> {
        Vec::new()
    }

    /// Whether processes stay when they are done.
    fn stays(&self) -> bool {
        false
    }

    /// Whether the process of a rank is there.
    fn is_there(&mut self, _rank: usize) -> bool {
        true
    }

    /// The steps after which states of a rank are kept where they outlive it.
    fn points(&mut self, _rank: usize) -> Vec<usize> {
        Vec::new()
    }

    /// Ends the process of a rank.
    fn end(&mut self, _rank: usize) {}

    /// Begins another task, with those that are left in these seats and new ones in the others.
    fn again(&mut self, _work: &Work, _seats: &[Seat]) -> Result<()> {
        bail!("these workers cannot be started anew")
    }

    /// Tells a worker something. One that is gone does not hear it. If the answer is not there at once, it comes as an event.
    fn order(&mut self, rank: usize, order: Order) -> Option<Held>;
}

/// How soon Ctrl-C is noticed.
const ATTENTION: Duration = Duration::from_millis(30);

/// How listening to workers ended.
enum Watched {
    /// All are done, or were told to end by a signal.
    Done(Option<usize>),
    /// Some have failed.
    Failed(Box<Failed>),
}

impl Watched {
    fn or_fail(self) -> Result<Option<usize>> {
        match self {
            Self::Done(signal) => Ok(signal),
            Self::Failed(failed) => Err(failed.error),
        }
    }
}

/// Listens until all workers are done, or one has failed.
fn supervise(
    crew: &mut dyn Crew,
    events: &Receiver<Event>,
    mut diagnosis: Diagnosis,
    (mut halting, interrupts): (Option<Halting>, &Interrupts),
    listener: &mut dyn Listener,
) -> Result<Watched> {
    let mut states = vec![State::Works; diagnosis.world()];
    for rank in 0..diagnosis.world() {
        diagnosis.set_host(rank, crew.host(rank));
    }
    loop {
        if let Some(signal) = interrupts.take()
            && !halting.as_mut().is_some_and(|halting| halting.end(signal))
        {
            return Err(Interrupted { signal, saved: None }.into());
        }
        if let Some(halting) = halting.as_mut().filter(|_| !diagnosis.found_something()) {
            halting.look(crew)?;
        }
        // When all have been heard of there is nothing to wait for.
        if diagnosis.found_something() && !states.contains(&State::Works) {
            diagnosis.conclude();
        }
        match diagnosis.look() {
            Ok(Some(line)) => listener.hear(0, Message::Noticed(line))?,
            Ok(None) => {}
            Err(error) => {
                // Who was asked to end, and fails, has ended.
                let ends = halting.is_some_and(|halting| halting.is_to_end());
                let may_go_on = !diagnosis.is_hopeless() && !ends;
                let failed = Failed { error, may_go_on, worst: diagnosis.worst(), states, noticed: Instant::now() };
                return Ok(Watched::Failed(Box::new(failed)));
            }
        }
        let event = match events.recv_timeout(ATTENTION) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) if crew.stays() && states.iter().all(|state| *state == State::Done) => break,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) if diagnosis.found_something() => {
                diagnosis.conclude();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        match event {
            Event::Said(rank, message) => {
                diagnosis.hear(rank, &message);
                if let Some(halting) = &mut halting {
                    halting.hear(rank, &message, crew);
                }
                match message {
                    Message::Failed { blame, .. } => states[rank] = State::Failed(blame),
                    Message::Waits { done, .. } => states[rank] = State::Waits { done },
                    Message::Pulse(_) => {}
                    message => {
                        if message.is_last() {
                            states[rank] = State::Done;
                        }
                        listener.hear(rank, message)?;
                    }
                }
            }
            Event::Gone(rank) => bury(&[rank], crew, &mut states, &mut diagnosis),
            Event::Closed(process) => bury(&crew.ranks_of(process), crew, &mut states, &mut diagnosis),
            Event::NoMeeting(error) => diagnosis.no_meeting(&error),
        }
    }
    match diagnosis.unfinished() {
        Some(rank) => Err(anyhow!("rank {rank} ended without a result")),
        None => Ok(Watched::Done(halting.and_then(|halting| halting.ended_by()))),
    }
}

/// These ranks are gone: that is a failure unless they have said their last word.
fn bury(ranks: &[usize], crew: &mut dyn Crew, states: &mut [State], diagnosis: &mut Diagnosis) {
    for &rank in ranks {
        diagnosis.lose(rank, || crew.obituary(rank));
        if states[rank] != State::Done {
            states[rank] = State::Gone;
        }
    }
}

/// Remembers whether the user, or the system, wants this to end.
pub struct Interrupts {
    signal: Arc<AtomicUsize>,
}

impl Interrupts {
    /// From now on Ctrl-C and its like end the workers first, and this process afterwards.
    pub fn catch() -> Result<Self> {
        let signal = Arc::new(AtomicUsize::new(0));
        for number in SIGNALS.into_iter().filter(|&number| !is_ignored(number)) {
            signal_hook::flag::register_usize(number, Arc::clone(&signal), number as usize)?;
        }
        Ok(Self { signal })
    }

    /// A signal that has come since the last time.
    fn take(&self) -> Option<usize> {
        Some(self.signal.swap(0, Ordering::Relaxed)).filter(|&signal| signal != 0)
    }
}

/// Those that ask for the end: Ctrl-C; what `kill` and schedulers send; what Slurm is told to send some time before; the end of a
/// terminal.
const SIGNALS: [i32; 4] = [SIGINT, SIGTERM, SIGUSR1, SIGHUP];

/// Whether this process was started with a signal ignored, as `nohup` does with SIGHUP; it then stays ignored.
fn is_ignored(signal: i32) -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

/// A signal asked for the end.
#[derive(Debug)]
pub struct Interrupted {
    /// Which.
    pub signal: usize,
    /// The folder of the run and the steps that it had done, if it can go on from there.
    pub saved: Option<(PathBuf, usize)>,
}

/// `EX_TEMPFAIL` of sysexits.h: try again later. Schedulers can be told to do so.
const TRY_AGAIN: u8 = 75;

impl Interrupted {
    /// What shells expect of a program that a signal ended; and of one that a scheduler ended, that it can go on.
    pub fn exit_code(&self) -> u8 {
        match (self.signal as i32, &self.saved) {
            (SIGTERM | SIGUSR1, Some(_)) => TRY_AGAIN,
            _ => 128 + self.signal as u8,
        }
    }
}

impl fmt::Display for Interrupted {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "interrupted by signal {}; all workers are ended", self.signal)?;
        match &self.saved {
            Some((run, step)) => {
                write!(f, " after step {step}; to go on: ringstep train --resume {}", run.display())
            }
            None => Ok(()),
        }
    }
}

impl std::error::Error for Interrupted {}
