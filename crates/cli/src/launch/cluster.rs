//! Processes that somebody else has started, as the first of them sees them: it hosts the meeting, tells the others what to
//! do, hears what their ranks say, and does its own part.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringstep_comm::rendezvous::{Invitation, Line, Meeting};
use ringstep_train::halt::{Held, Order};

use super::own::OwnWorker;
use super::processes::{self, Starter, spawn};
use super::protocol::{Answer, Ordered, Request, Work};
use super::{Crew, Event, Home, Interrupts, Seat, Source, pulse};
use crate::cluster::{Note, Part, Share};
use crate::mpi;

/// The number of this process.
const FIRST: usize = 0;

type Lines = Mutex<BTreeMap<usize, Line>>;

/// All processes of a job.
pub struct Cluster {
    /// Who has started them.
    launcher: String,
    meeting: Arc<Mutex<Meeting>>,
    /// How many there were in the beginning.
    processes: usize,
    /// To all that are there but this one, by their numbers.
    lines: Arc<Lines>,
    share: Share,
    /// How many workers each starts or is.
    each: usize,
    /// That of this process's own ranks.
    invitation: Invitation,
    /// What told the others where to come.
    _note: Option<Note>,
}

impl Cluster {
    /// Waits until all are there.
    pub fn assemble(part: &Part, timeout: Duration) -> Result<Self> {
        let (mut meeting, note) = part.place.open(part.interface)?;
        let address = meeting.address();
        let own = match address.ip() {
            IpAddr::V6(ip) if ip == Ipv6Addr::UNSPECIFIED => Ipv4Addr::LOCALHOST.into(),
            IpAddr::V4(ip) if ip == Ipv4Addr::UNSPECIFIED => Ipv4Addr::LOCALHOST.into(),
            ip => ip,
        };
        let listen = part.listen(own);
        let invitation =
            Invitation { meeting: SocketAddr::new(own, address.port()), secret: meeting.secret().clone(), listen };
        let others: Vec<usize> = (FIRST + 1..part.processes).collect();
        let lines = meeting.assemble(&others, part.processes, timeout)?;
        let (launcher, share, each, processes) = (part.launcher.clone(), part.share, part.each, part.processes);
        let (meeting, lines) =
            (Arc::new(Mutex::new(meeting)), Arc::new(Lines::new(others.into_iter().zip(lines).collect())));
        let (pulse, all) = (serde_json::to_vec(&Request::Pulse { timeout })?, Arc::downgrade(&lines));
        spawn("pulse of all", move || {
            while let Some(lines) = all.upgrade() {
                // One that is gone is noticed by the end of its reports.
                lock(&lines).values_mut().for_each(|line| drop(line.send(&pulse)));
                drop(lines);
                thread::sleep(pulse::period(timeout));
            }
        })?;
        Ok(Self { launcher, meeting, processes, lines, share, each, invitation, _note: note })
    }

    /// Where ranks meet.
    pub(super) fn meeting(&self) -> Arc<Mutex<Meeting>> {
        Arc::clone(&self.meeting)
    }

    /// Lets each process do its part of a task, and begins to listen to them.
    pub(super) fn start(&self, work: &Work, sender: &Sender<Event>) -> Result<Started<'_>> {
        let places = work.task.places(work.world);
        let room = self.processes * self.each;
        ensure!(
            places.len() <= room,
            "this takes {} processes, and {} has started {room}",
            places.len(),
            self.launcher
        );
        let mut shares: BTreeMap<usize, Vec<Vec<usize>>> = BTreeMap::new();
        for (process, share) in places.chunks(self.each).enumerate() {
            shares.insert(process, share.to_vec());
        }
        let own = shares.remove(&FIRST).unwrap_or_default();
        // Fewer may go on with a job than have begun it.
        let new = self.lines().keys().copied().filter(|process| !shares.contains_key(process)).collect();
        let homes = Arc::new(Mutex::new(Homes { new, ..Homes::default() }));
        let stays = work.task.stays();
        let own: Box<dyn Crew> = match self.share {
            Share::Worker => Box::new(OwnWorker::start(work, own.concat(), &self.invitation, sender)?),
            Share::Node(_) => Box::new(processes::start(work, &own, Starter::default(), &self.invitation, sender)?),
        };
        let events = stays.then(|| sender.clone());
        let mut started = Started { cluster: self, homes, own, events };
        started.settle_in(work.world, &shares);
        for (process, places) in shares {
            started.begin(process, &Request::Work { work: Box::new(work.clone()), places }, sender)?;
        }
        Ok(started)
    }

    /// Lets all go.
    pub fn dismiss(&self) {
        self.end(false);
    }

    fn end(&self, failed: bool) {
        let processes: Vec<usize> = self.lines().keys().copied().collect();
        for process in processes {
            let _ = self.send(process, &Request::End { failed });
        }
        mpi::end(failed);
    }

    /// Asks another process for something, if that can be put in words. One that is gone is noticed by the end of its reports.
    fn send(&self, process: usize, request: &Request) -> Result<()> {
        let request = serde_json::to_vec(request).context("this task cannot be passed on")?;
        if let Some(line) = self.lines().get_mut(&process) {
            let _ = line.send(&request);
        }
        Ok(())
    }

    fn lines(&self) -> MutexGuard<'_, BTreeMap<usize, Line>> {
        lock(&self.lines)
    }
}

fn lock(lines: &Lines) -> MutexGuard<'_, BTreeMap<usize, Line>> {
    lines.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Whoever was dismissed does not hear this any more.
        self.end(true);
    }
}

/// Which process each rank is at home in.
#[derive(Debug, Default)]
struct Homes {
    of_ranks: Vec<usize>,
    /// Those that are gone.
    gone: BTreeSet<usize>,
    /// Those that have come and not been told anything.
    new: BTreeSet<usize>,
}

/// Passes on what the ranks of a process say, until it is finished with a task, or gone.
fn listen(process: usize, mut reports: Line, homes: &Mutex<Homes>, events: &Sender<Event>) {
    let homes = || homes.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        match reports.recv().ok().flatten().and_then(|answer| serde_json::from_slice(&answer).ok()) {
            // A process speaks for its own ranks alone.
            Some(Answer::Said(said)) if homes().of_ranks.get(said.rank) != Some(&process) => {}
            Some(Answer::Said(said)) => {
                if events.send(Event::Said(said.rank, said.message)).is_err() {
                    break;
                }
            }
            Some(Answer::Finished) => break,
            None => {
                homes().gone.insert(process);
                break;
            }
        }
    }
    let _ = events.send(Event::Closed(Source::Process(process)));
}

/// The workers of a task.
pub(super) struct Started<'a> {
    cluster: &'a Cluster,
    homes: Arc<Mutex<Homes>>,
    /// The ranks of this process.
    own: Box<dyn Crew>,
    /// For processes that come later, if ranks stay.
    events: Option<Sender<Event>>,
}

impl Started<'_> {
    /// Tells a process what to do, and listens to what it says of it.
    fn begin(&self, process: usize, request: &Request, events: &Sender<Event>) -> Result<()> {
        let reports = self.cluster.lines().get(&process).map(Line::try_clone).transpose();
        let reports = reports.context("listen to another process")?;
        self.cluster.send(process, request)?;
        if let Some(reports) = reports {
            let (homes, events) = (Arc::clone(&self.homes), events.clone());
            spawn("reports", move || listen(process, reports, &homes, &events))?;
        }
        Ok(())
    }

    /// So many ranks are at home where these shares of the places are; the others, in this process.
    fn settle_in(&mut self, world: usize, shares: &BTreeMap<usize, Vec<Vec<usize>>>) {
        let mut homes = self.homes();
        homes.of_ranks = vec![FIRST; world];
        for (&process, places) in shares {
            places.iter().flatten().for_each(|&rank| homes.of_ranks[rank] = process);
        }
    }

    fn homes(&self) -> MutexGuard<'_, Homes> {
        self.homes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The process of a rank, unless it is this one.
    fn elsewhere(&self, rank: usize) -> Option<usize> {
        Some(self.homes().of_ranks[rank]).filter(|&process| process != FIRST)
    }
}

impl Crew for Started<'_> {
    fn obituary(&mut self, rank: usize) -> String {
        match self.elsewhere(rank) {
            Some(_) => "died: its process is gone, or cut off".to_owned(),
            None => self.own.obituary(rank),
        }
    }

    fn host(&self, rank: usize) -> Option<String> {
        let process = self.elsewhere(rank)?;
        Some(self.cluster.lines().get(&process)?.peer().ok()?.ip().to_canonical().to_string())
    }

    fn ranks_of(&self, source: Source) -> Vec<usize> {
        let Source::Process(process) = source else { return self.own.ranks_of(source) };
        let homes = self.homes();
        (0..homes.of_ranks.len()).filter(|&rank| homes.of_ranks[rank] == process).collect()
    }

    fn stays(&self) -> bool {
        self.events.is_some()
    }

    fn is_there(&mut self, rank: usize) -> bool {
        if self.elsewhere(rank).is_some() { self.home(rank) == Home::There } else { self.own.is_there(rank) }
    }

    fn points(&mut self, rank: usize) -> Vec<usize> {
        // What other processes have of ranks that are gone they say with that.
        if self.elsewhere(rank).is_some() { Vec::new() } else { self.own.points(rank) }
    }

    fn end(&mut self, rank: usize) -> bool {
        match self.elsewhere(rank) {
            Some(process) => self.cluster.send(process, &Request::Kill(rank)).is_ok(),
            None => self.own.end(rank),
        }
    }

    fn give_up(&mut self, rank: usize) {
        if let Some(process) = self.elsewhere(rank)
            && let Some(line) = self.cluster.lines().get(&process)
        {
            line.hang_up();
        }
    }

    fn home(&self, rank: usize) -> Home {
        let Some(process) = self.elsewhere(rank) else { return Home::There };
        let homes = self.homes();
        match (homes.gone.contains(&process), homes.new.contains(&process)) {
            (true, _) => Home::Gone,
            (false, true) => Home::Another,
            (false, false) => Home::There,
        }
    }

    fn welcome(&mut self, process: usize, line: Line) -> bool {
        let (mut homes, mut lines) = (self.homes(), self.cluster.lines());
        // Nobody listens to one that has had nothing to do.
        let is_lost = homes.new.contains(&process) && lines.get(&process).is_some_and(Line::is_gone);
        let is_new = process != FIRST && (!lines.contains_key(&process) || homes.gone.remove(&process) || is_lost);
        if is_new {
            homes.new.insert(process);
            lines.insert(process, line);
        }
        is_new
    }

    fn idle(&self) -> Vec<(usize, usize)> {
        let (homes, lines) = (self.homes(), self.cluster.lines());
        let is_idle = |process: &&usize| {
            homes.new.contains(process) || !homes.of_ranks.contains(process) && !homes.gone.contains(process)
        };
        let there =
            lines.iter().filter(|(process, line)| is_idle(process) && !(homes.new.contains(process) && line.is_gone()));
        there.map(|(&process, _)| (process, self.cluster.each)).collect()
    }

    fn wait_for_others(
        &mut self,
        seats: &[Seat],
        timeout: Duration,
        interrupts: &Interrupts,
        tell: &mut dyn FnMut(String) -> Result<()>,
    ) -> Result<()> {
        let homes = self.homes();
        let missing: BTreeSet<usize> = seats.iter().filter_map(|seat| Some(homes.of_ranks[seat.was()?])).collect();
        let missing: Vec<usize> = missing.intersection(&homes.gone).copied().collect();
        drop(homes);
        if missing.is_empty() {
            return Ok(());
        }
        let launcher = &self.cluster.launcher;
        let (who, them) = if missing.len() == 1 { ("process", "it") } else { ("processes", "them") };
        let numbers = missing.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
        tell(format!("for {who} {numbers} to come again, {timeout:?} at most: {launcher} has to start {them} anew"))?;
        let mut meeting = self.cluster.meeting.lock().unwrap_or_else(PoisonError::into_inner);
        let lines = meeting.assemble_unless(interrupts.any(), &missing, self.cluster.processes, timeout)?;
        for (process, line) in missing.into_iter().zip(lines) {
            self.welcome(process, line);
        }
        Ok(())
    }

    /// Ranks stay where they were, or come where those were that they replace.
    fn again(&mut self, work: &Work, places: &[Vec<usize>], seats: &[Seat]) -> Result<()> {
        let of_ranks = self.homes().of_ranks.clone();
        let mut shares: BTreeMap<usize, Vec<Vec<usize>>> = BTreeMap::new();
        for ranks in places {
            let home = match seats[ranks[0]] {
                Seat::Left(was) | Seat::InPlaceOf(was) => of_ranks[was],
                Seat::Added(process) => process,
            };
            shares.entry(home).or_default().push(ranks.clone());
        }
        self.settle_in(work.world, &shares);
        let events = self.events.clone().context("these workers cannot be started anew")?;
        for (process, places) in shares {
            let work = Box::new(work.clone());
            let is_new = self.homes().new.remove(&process);
            match (process, is_new) {
                (FIRST, _) => self.own.again(&work, &places, seats)?,
                (_, true) => self.begin(process, &Request::Work { work, places }, &events)?,
                (_, false) => {
                    self.cluster.send(process, &Request::Again { work, places, seats: seats.to_vec() })?;
                }
            }
        }
        Ok(())
    }

    fn order(&mut self, rank: usize, order: Order) -> Option<Held> {
        let Some(process) = self.elsewhere(rank) else { return self.own.order(rank, order) };
        let _ = self.cluster.send(process, &Request::Tell(Ordered { rank, order }));
        None
    }
}
