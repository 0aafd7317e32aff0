//! Starting workers, listening to them, and ending them all when one fails or the user has had enough.

mod cluster;
mod diagnosis;
mod halting;
mod interrupts;
pub mod member;
mod own;
mod processes;
pub(crate) mod protocol;
mod pulse;
mod recovery;
mod threads;
pub mod worker;

use std::net::{IpAddr, SocketAddr};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail, ensure};
use ringstep_comm::Group;
use ringstep_comm::cost::Tuning;
use ringstep_comm::rendezvous::{Invitation, Line, Meeting, RendezvousError, Secret};
use ringstep_comm::transport::{Shaped, Transport};
use ringstep_train::halt::{Held, Order};

pub use self::cluster::Cluster;
use self::diagnosis::{Blame, Diagnosis};
use self::halting::Halting;
use self::interrupts::SIGNALS;
pub use self::interrupts::{Interrupted, Interrupts};
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
    if !task.stays() {
        drop(sender);
        return supervise(&mut *crew, &events, diagnosis, (task.halting(), interrupts), listener)?.or_fail();
    }
    let (mut number, most) = (0, task.restarts());
    loop {
        let halting = (work.task.halting(), interrupts);
        let diagnosis = Diagnosis::new(work.world, timeout).with_joining(work.task.joining());
        let failed = match supervise(&mut *crew, &events, diagnosis, halting, listener)? {
            Watched::Failed(failed) if failed.grows || failed.may_go_on && number < most => failed,
            watched => return watched.or_fail(),
        };
        let grows = failed.grows;
        host.call_off();
        let loss =
            recovery::settle(*failed, work.task.joining(), &mut *crew, &events, (timeout, interrupts), listener)?;
        let counts = !grows || !loss.lost.is_empty();
        number += usize::from(counts);
        let restart = Some([number, most]).filter(|_| counts);
        let Some(Next { task, seats }) = listener.go_on(&loss, restart)? else {
            return Err(loss.error);
        };
        work = Work { task, world: seats.len(), ..work };
        let mut tell = |line| listener.hear(0, Message::Noticed(line));
        let all = crew.wait_for_others(&seats, timeout, interrupts, &mut tell);
        if let Some(signal) = interrupts.take() {
            return Err(Interrupted { signal, saved: None }.into());
        }
        all.map_err(|error| anyhow!("{:#}; {error:#}", loss.error))?;
        host = Host::hold(Arc::clone(&host.meeting), &work, &sender)?;
        crew.again(&work, &work.task.places(work.world), &seats)?;
    }
}

/// A meeting of the ranks of a task, which is hosted on a thread.
struct Host {
    meeting: Arc<Mutex<Meeting>>,
    off: Arc<AtomicBool>,
}

impl Host {
    fn hold(meeting: Arc<Mutex<Meeting>>, work: &Work, events: &Sender<Event>) -> Result<Self> {
        let (world, timeout, events, grows) = (work.world, work.timeout, events.clone(), work.task.grows());
        let host = Self { meeting: Arc::clone(&meeting), off: Arc::default() };
        let off = Arc::clone(&host.off);
        processes::spawn("rendezvous", move || {
            let mut meeting = meeting.lock().unwrap_or_else(PoisonError::into_inner);
            match meeting.host_unless(&off, world, timeout) {
                Err(error) if !off.load(Ordering::Relaxed) => drop(events.send(Event::NoMeeting(error))),
                _ => {}
            }
            while grows && let Ok((process, line)) = meeting.welcome_unless(&off, timeout) {
                let _ = events.send(Event::Came(process, line));
            }
        })?;
        Ok(host)
    }

    /// Whoever still waits there learns that it has ended.
    fn call_off(&self) {
        self.off.store(true, Ordering::Relaxed);
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.call_off();
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

    /// Ranks are lost, and this would be the restart of that number, of so many; or others have come: says how to go on, if
    /// that can be done.
    fn go_on(&mut self, _loss: &Loss, _restart: Option<[usize; 2]>) -> Result<Option<Next>> {
        Ok(None)
    }

    /// Whether more ranks may take part.
    fn has_room(&self) -> bool {
        false
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
    Closed(Source),
    /// The ranks did not come together.
    NoMeeting(RendezvousError),
    /// Somebody has started another process.
    Came(usize, Line),
}

/// Where something was heard.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Source {
    /// From a child of this process, of this id.
    Child(u32),
    /// From one of the processes that somebody else has started.
    Process(usize),
}

/// What has become of whoever has started a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Home {
    /// It is there.
    There,
    /// It is gone, and has to come again.
    Gone,
    /// Another has come in its place.
    Another,
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
    fn ranks_of(&self, _process: Source) -> Vec<usize> {
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

    /// The steps after which states of a rank that is gone are there all the same.
    fn points(&mut self, _rank: usize) -> Vec<usize> {
        Vec::new()
    }

    /// Ends the process of a rank; says whether that can be done.
    fn end(&mut self, _rank: usize) -> bool {
        false
    }

    /// Does not listen any more to whoever was told to end the process of a rank.
    fn give_up(&mut self, _rank: usize) {}

    /// What has become of whoever can start a rank anew that is gone.
    fn home(&self, _rank: usize) -> Home {
        Home::There
    }

    /// Somebody has started another process. Says whether it is one that was not there.
    fn welcome(&mut self, _process: usize, _line: Line) -> bool {
        false
    }

    /// Processes that are there and have no rank, and how many each can have.
    fn idle(&self) -> Vec<(usize, usize)> {
        Vec::new()
    }

    /// Waits until whoever has to start the ranks of these seats is there; `tell` says who is missing.
    fn wait_for_others(
        &mut self,
        _seats: &[Seat],
        _timeout: Duration,
        _interrupts: &Interrupts,
        _tell: &mut dyn FnMut(String) -> Result<()>,
    ) -> Result<()> {
        Ok(())
    }

    /// Begins another task, with those that are left in these seats and new ones in the others; `places` are the ranks of each
    /// process.
    fn again(&mut self, _work: &Work, _places: &[Vec<usize>], _seats: &[Seat]) -> Result<()> {
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
                let (worst, noticed) = (diagnosis.worst(), Instant::now());
                let failed = Failed { error, may_go_on, worst, states, noticed, grows: false };
                return Ok(Watched::Failed(Box::new(failed)));
            }
        }
        let event = match events.recv_timeout(ATTENTION) {
            Ok(event) => event,
            Err(RecvTimeoutError::Timeout) if crew.stays() && states.iter().all(State::is_done) => break,
            Err(RecvTimeoutError::Timeout) => continue,
            Err(RecvTimeoutError::Disconnected) if diagnosis.found_something() => {
                diagnosis.conclude();
                continue;
            }
            Err(RecvTimeoutError::Disconnected) => break,
        };
        match event {
            // Of somebody whose number nobody has any more.
            Event::Said(rank, _) if rank >= states.len() => {}
            Event::Said(rank, message) => {
                diagnosis.hear(rank, &message);
                if let Some(halting) = &mut halting {
                    halting.hear(rank, &message, crew);
                }
                match message {
                    Message::Failed { blame, .. } => states[rank] = State::Failed(blame),
                    Message::Waits { done, points } => states[rank].wait(done, points),
                    Message::Gone { obituary, points } => {
                        diagnosis.lose(rank, || obituary);
                        if !states[rank].is_done() {
                            states[rank] = State::Gone { points };
                        }
                    }
                    Message::Pulse(_) => {}
                    message => {
                        if message.is_last() {
                            states[rank] = State::done();
                        }
                        listener.hear(rank, message)?;
                    }
                }
            }
            Event::Gone(rank) => bury(&[rank], crew, &mut states, &mut diagnosis),
            Event::Closed(source) => bury(&crew.ranks_of(source), crew, &mut states, &mut diagnosis),
            Event::NoMeeting(error) => diagnosis.no_meeting(&error),
            Event::Came(process, line) => {
                let all_work = !diagnosis.found_something() && states.iter().all(|state| *state == State::Works);
                let goes_on = all_work && !halting.as_ref().is_some_and(Halting::is_to_end);
                if crew.welcome(process, line) && goes_on && listener.has_room() {
                    let (error, worst) = (anyhow!("process {process} has come"), Blame::LostPeer);
                    let noticed = Instant::now();
                    let failed = Failed { error, may_go_on: true, worst, states, noticed, grows: true };
                    return Ok(Watched::Failed(Box::new(failed)));
                }
            }
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
        if !states[rank].is_done() {
            states[rank] = State::Gone { points: crew.points(rank) };
        }
    }
}
