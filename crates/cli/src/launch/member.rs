//! A process that somebody else has started, and that is not the first of them: it does what the first one says.

use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use ringstep_comm::rendezvous::{Invitation, Line, attend};

use super::diagnosis::Blame;
use super::processes::{self, Starter, spawn};
use super::protocol::{Answer, Message, Ordered, Request, Said, Start, Work};
use super::worker::{self, Kept, Reins};
use super::{Crew, Event, SIGNALS};
use crate::cluster::{Part, Share};
use crate::mpi;

/// Comes to the meeting, and does task after task until it is sent away; this process then ends.
pub fn serve(part: &Part, timeout: Duration) -> Result<()> {
    let (line, secret) = attend(&|| part.place.find(), part.process, part.processes, timeout)?;
    let meeting = line.peer().context("the rendezvous")?;
    let invitation = Invitation { meeting, secret, listen: part.listen(meeting.ip().to_canonical()) };
    // Signals that reach all processes of a job reach the first one too, which decides what becomes of it.
    for signal in SIGNALS {
        signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)))?;
    }
    let requests = line.try_clone().context("the rendezvous")?;
    let member = Arc::new(Member { share: part.share, invitation, line: Mutex::new(line), crew: Mutex::new(None) });
    for task in hear(requests, Arc::clone(&member))? {
        match task? {
            Begun::Worker(start, reins) => {
                worker::work(&start, &reins, &mut Kept::default(), &|rank, message| member.say(rank, message));
            }
            Begun::Node(world, events) => member.relay(world, events),
        }
        member.finish();
    }
    Ok(())
}

/// A task that was begun: its ranks can be told something already.
enum Begun {
    /// This process is to be its worker.
    Worker(Box<Start>, Reins),
    /// It has started some, of so many ranks, and is to listen to them.
    Node(usize, Receiver<Event>),
}

/// Hears requests on a thread, which ends this process when it is sent away, or when nobody is there any more to do so.
fn hear(mut line: Line, member: Arc<Member>) -> Result<Receiver<Result<Begun>>> {
    let (sender, tasks) = channel();
    spawn("requests", move || {
        loop {
            let heard = line.recv();
            let cut_off = heard.is_err();
            let request = heard.ok().flatten().and_then(|request| serde_json::from_slice(&request).ok());
            match request {
                Some(Request::Work { work, places }) => drop(sender.send(member.begin(*work, &places))),
                Some(Request::Tell(ordered)) => member.tell(ordered),
                // The first process says what went wrong.
                Some(Request::End { failed }) => {
                    mpi::end(failed);
                    std::process::exit(i32::from(failed));
                }
                None => {
                    let what = if cut_off { "cut off" } else { "gone" };
                    eprintln!("error: the first process of the job is {what}");
                    mpi::end(true);
                    std::process::exit(1);
                }
            }
        }
    })?;
    Ok(tasks)
}

/// What the thread that hears requests and the one that does them share.
struct Member {
    share: Share,
    invitation: Invitation,
    /// For answers.
    line: Mutex<Line>,
    /// The ranks of the task in hand.
    crew: Mutex<Option<Box<dyn Crew + Send>>>,
}

impl Member {
    /// Begins a task. Whatever its ranks are told comes afterwards, on the same thread.
    fn begin(&self, work: Work, places: &[Vec<usize>]) -> Result<Begun> {
        let (crew, begun): (Box<dyn Crew + Send>, _) = match self.share {
            Share::Worker => {
                let (ranks, invitation) = (places.concat(), self.invitation.clone());
                let reins = Reins::of(&ranks);
                let start = Start { work, ranks, core: None, invitation, memories: Vec::new(), stays: false };
                (Box::new(reins.clone()), Begun::Worker(Box::new(start), reins))
            }
            Share::Node(_) => {
                let (sender, events) = channel();
                let crew = processes::start(&work, places, Starter::default(), &self.invitation, &sender)?;
                (Box::new(crew), Begun::Node(work.world, events))
            }
        };
        *self.crew() = Some(crew);
        Ok(begun)
    }

    /// Passes on an order; between two tasks there is nobody to hear it.
    fn tell(&self, Ordered { rank, order }: Ordered) {
        let mut crew = self.crew();
        if let Some(held) = crew.as_mut().and_then(|crew| crew.order(rank, order)) {
            self.say(rank, Message::Held(held));
        }
    }

    /// Passes on what workers say, until all are gone.
    fn relay(&self, world: usize, events: Receiver<Event>) {
        let mut spoke = vec![false; world];
        for event in events {
            match event {
                Event::Said(rank, message) => {
                    spoke[rank] |= message.is_last() || matches!(message, Message::Failed { .. });
                    self.say(rank, message);
                }
                Event::Gone(rank) => self.bury(&[rank], &spoke),
                Event::Closed(process) => {
                    let ranks = self.crew().as_ref().map(|crew| crew.ranks_of(process)).unwrap_or_default();
                    self.bury(&ranks, &spoke);
                }
                Event::NoMeeting(_) => {}
            }
        }
    }

    /// Says that these ranks are gone, unless they have said their last word.
    fn bury(&self, ranks: &[usize], spoke: &[bool]) {
        for &rank in ranks.iter().filter(|&&rank| !spoke[rank]) {
            let obituary = self.crew().as_mut().map(|crew| crew.obituary(rank)).unwrap_or_default();
            self.say(rank, Message::Failed { error: format!("rank {rank} {obituary}"), blame: Blame::Died });
        }
    }

    /// The task in hand is done. No rank says anything after this answer, whatever it is still told.
    fn finish(&self) {
        let mut crew = self.crew();
        *crew = None;
        self.answer(&Answer::Finished);
    }

    fn say(&self, rank: usize, message: Message) {
        self.answer(&Answer::Said(Said { rank, message }));
    }

    fn answer(&self, answer: &Answer) {
        let answer = serde_json::to_vec(answer).expect("answers are plain data");
        // Whoever does not hear it any more is missed by the thread that listens.
        let _ = self.line.lock().unwrap_or_else(PoisonError::into_inner).send(&answer);
    }

    fn crew(&self) -> MutexGuard<'_, Option<Box<dyn Crew + Send>>> {
        self.crew.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
