//! Processes that somebody else has started, as the first of them sees them: it hosts the meeting, tells the others what to
//! do, hears what their ranks say, and does its own part.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::sync::mpsc::Sender;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use ringstep_comm::rendezvous::{Invitation, Line, Meeting};
use ringstep_train::halt::{Held, Order};

use super::processes::{self, Starter, spawn};
use super::protocol::{Answer, Ordered, Request, Start, Work};
use super::worker::{self, Kept, Reins};
use super::{Crew, Event};
use crate::cluster::{Note, Part, Share};
use crate::mpi;

/// All processes of a job.
pub struct Cluster {
    /// Who has started them.
    launcher: String,
    meeting: Arc<Mutex<Meeting>>,
    /// To all but this one, in order.
    lines: Vec<Mutex<Line>>,
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
        let lines = meeting.assemble(part.processes, timeout)?.into_iter().map(Mutex::new).collect();
        let (launcher, share, each) = (part.launcher.clone(), part.share, part.each);
        let meeting = Arc::new(Mutex::new(meeting));
        Ok(Self { launcher, meeting, lines, share, each, invitation, _note: note })
    }

    /// Where ranks meet.
    pub(super) fn meeting(&self) -> Arc<Mutex<Meeting>> {
        Arc::clone(&self.meeting)
    }

    /// Lets each process do its part of a task, and begins to listen to them.
    pub(super) fn start(&self, work: &Work, sender: &Sender<Event>) -> Result<Started<'_>> {
        let places = work.task.places(work.world);
        let room = (self.lines.len() + 1) * self.each;
        ensure!(
            places.len() <= room,
            "this takes {} processes, and {} has started {room}",
            places.len(),
            self.launcher
        );
        let mut shares = places.chunks(self.each);
        let own = shares.next().unwrap_or_default();
        let mut lines = vec![None; work.world];
        for (line, share) in self.lines.iter().zip(shares) {
            let ranks: Vec<usize> = share.iter().flatten().copied().collect();
            ranks.iter().for_each(|&rank| lines[rank] = Some(line));
            let reports = line.lock().unwrap_or_else(PoisonError::into_inner).try_clone();
            let reports = reports.context("listen to another process")?;
            send(line, &Request::Work { work: Box::new(work.clone()), places: share.to_vec() })?;
            let sender = sender.clone();
            spawn("reports", move || listen(&ranks, reports, &sender))?;
        }
        let own: Box<dyn Crew> = match self.share {
            Share::Worker => Box::new(self.take_part(work, own.concat(), sender.clone())?),
            Share::Node(_) => Box::new(processes::start(work, own, Starter::default(), &self.invitation, sender)?),
        };
        Ok(Started { lines, own })
    }

    /// Does this process's part, on a thread.
    fn take_part(&self, work: &Work, ranks: Vec<usize>, sender: Sender<Event>) -> Result<Reins> {
        let reins = Reins::of(&ranks);
        let invitation = self.invitation.clone();
        let start = Start { work: work.clone(), ranks, core: None, invitation, memories: Vec::new(), stays: false };
        let theirs = reins.clone();
        spawn("worker", move || {
            let _guard = worker::EndWithAPanic;
            // When nobody listens any more this process is about to end.
            worker::work(&start, &theirs, &mut Kept::default(), &|rank, message| {
                drop(sender.send(Event::Said(rank, message)))
            });
            for rank in start.ranks {
                let _ = sender.send(Event::Gone(rank));
            }
        })?;
        Ok(reins)
    }

    /// Lets all go.
    pub fn dismiss(&self) {
        self.end(false);
    }

    fn end(&self, failed: bool) {
        for line in &self.lines {
            let _ = send(line, &Request::End { failed });
        }
        mpi::end(failed);
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        // Whoever was dismissed does not hear this any more.
        self.end(true);
    }
}

/// Asks another process for something, if that can be put in words. One that is gone is noticed by the end of its reports.
fn send(line: &Mutex<Line>, request: &Request) -> Result<()> {
    let request = serde_json::to_vec(request).context("this task cannot be passed on")?;
    let _ = line.lock().unwrap_or_else(PoisonError::into_inner).send(&request);
    Ok(())
}

/// Passes on what the ranks of a process say, until it is finished with a task, or gone.
fn listen(ranks: &[usize], mut reports: Line, events: &Sender<Event>) {
    while let Ok(Some(answer)) = reports.recv() {
        let Ok(Answer::Said(said)) = serde_json::from_slice(&answer) else { break };
        // A process speaks for its own ranks alone.
        if !ranks.contains(&said.rank) || events.send(Event::Said(said.rank, said.message)).is_err() {
            break;
        }
    }
    for &rank in ranks {
        let _ = events.send(Event::Gone(rank));
    }
}

/// The workers of a task.
pub(super) struct Started<'a> {
    /// To the process of each rank, unless it is one of this process.
    lines: Vec<Option<&'a Mutex<Line>>>,
    /// The ranks of this process.
    own: Box<dyn Crew>,
}

impl Crew for Started<'_> {
    fn obituary(&mut self, rank: usize) -> String {
        match self.lines[rank] {
            Some(_) => "died: its process is gone, or cut off".to_owned(),
            None => self.own.obituary(rank),
        }
    }

    fn host(&self, rank: usize) -> Option<String> {
        let line = self.lines[rank]?.lock().unwrap_or_else(PoisonError::into_inner);
        Some(line.peer().ok()?.ip().to_canonical().to_string())
    }

    fn ranks_of(&self, process: u32) -> Vec<usize> {
        self.own.ranks_of(process)
    }

    fn order(&mut self, rank: usize, order: Order) -> Option<Held> {
        let Some(line) = self.lines[rank] else { return self.own.order(rank, order) };
        let _ = send(line, &Request::Tell(Ordered { rank, order }));
        None
    }
}
