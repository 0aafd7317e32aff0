//! A process that somebody else has started, and that is not the first of them: it does what the first one says.

use std::io;
use std::net::SocketAddr;
use std::sync::atomic::AtomicBool;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use anyhow::{Context, Result};
use ringstep_comm::rendezvous::{Invitation, Line, attend};
use ringstep_comm::transport::DEFAULT_TIMEOUT;

use super::own::OwnRanks;
use super::processes::{self, Starter, spawn};
use super::protocol::{Answer, Message, Ordered, Request, Said, Start, Work};
use super::worker::{self, Kept, Reins};
use super::{Crew, Event, SIGNALS, Seat};
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
    let mut kept = Kept::default();
    for task in hear(requests, meeting, timeout, Arc::clone(&member))? {
        match task? {
            Begun::Worker(start, reins) => {
                worker::work(&start, &reins, &mut kept, &|rank, message| member.say(rank, message));
                // Those that stay are not through before the job is.
                if start.stays {
                    continue;
                }
            }
            Begun::Node(events) => member.relay(events),
        }
        member.finish();
    }
    Ok(())
}

/// A task that was begun: its ranks can be told something already.
enum Begun {
    /// This process is to be its worker.
    Worker(Box<Start>, Reins),
    /// It has started some, and is to listen to them.
    Node(Receiver<Event>),
}

/// Hears requests on a thread, which ends this process when it is sent away, or when nobody is there any more to do so.
fn hear(mut line: Line, first: SocketAddr, timeout: Duration, member: Arc<Member>) -> Result<Receiver<Result<Begun>>> {
    let (sender, tasks) = channel();
    spawn("requests", move || {
        // Until all are there the first process says nothing, and then how long it may be silent.
        let mut silence = 2 * timeout.max(DEFAULT_TIMEOUT);
        loop {
            let heard = line.recv_within(silence);
            let request = heard.as_ref().ok().and_then(Option::as_ref);
            let request = request.and_then(|request| serde_json::from_slice(request).ok());
            match request {
                Some(Request::Work { work, places }) => drop(sender.send(member.begin(&work, &places))),
                Some(Request::Again { work, places, seats }) => match member.again(&work, &places, &seats) {
                    Ok(begun) => begun.into_iter().for_each(|begun| drop(sender.send(Ok(begun)))),
                    // The first process misses this one.
                    Err(error) => {
                        eprintln!("error: {error:#}");
                        std::process::exit(1);
                    }
                },
                Some(Request::Tell(ordered)) => member.tell(ordered),
                Some(Request::Kill(rank)) => member.kill(rank),
                Some(Request::Pulse { timeout }) => silence = timeout,
                // The first process says what went wrong.
                Some(Request::End { failed }) => {
                    mpi::end(failed);
                    std::process::exit(i32::from(failed));
                }
                None => {
                    let fate = match heard {
                        Ok(None) => "is gone".to_owned(),
                        Ok(Some(_)) => "says what this version of ringstep does not understand".to_owned(),
                        // One of the system's would be of the connection.
                        Err(error) if error.kind() == io::ErrorKind::TimedOut && error.raw_os_error().is_none() => {
                            format!("does not answer any more (nothing heard for {silence:?})")
                        }
                        Err(error) => format!("is cut off ({error})"),
                    };
                    eprintln!("error: the first process of the job, on {}, {fate}", first.ip().to_canonical());
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
    crew: Mutex<Option<Ranks>>,
}

/// The ranks of this process.
enum Ranks {
    /// It is their worker.
    Own(OwnRanks, Reins),
    /// It has started their workers.
    Started(Box<dyn Crew + Send>),
}

impl Member {
    /// Begins a task. Whatever its ranks are told comes afterwards, on the same thread.
    fn begin(&self, work: &Work, places: &[Vec<usize>]) -> Result<Begun> {
        let (ranks, begun) = match self.share {
            Share::Worker => {
                let own = OwnRanks::new(work, places.concat().len(), &self.invitation);
                let (start, reins) = own.start(work, places.concat());
                (Ranks::Own(own, reins.clone()), Begun::Worker(Box::new(start), reins))
            }
            Share::Node(_) => {
                let (sender, events) = channel();
                let crew = processes::start(work, places, Starter::default(), &self.invitation, &sender)?;
                (Ranks::Started(Box::new(crew)), Begun::Node(events))
            }
        };
        *self.crew() = Some(ranks);
        Ok(begun)
    }

    /// The same with those of its ranks that are left. Those who listen to workers that it has started go on to do so.
    fn again(&self, work: &Work, places: &[Vec<usize>], seats: &[Seat]) -> Result<Option<Begun>> {
        match &mut *self.crew() {
            Some(Ranks::Own(own, reins)) => {
                let (start, new) = own.start(work, places.concat());
                *reins = new.clone();
                Ok(Some(Begun::Worker(Box::new(start), new)))
            }
            Some(Ranks::Started(crew)) => crew.again(work, places, seats).map(|()| None),
            None => Ok(None),
        }
    }

    /// Passes on an order; between two tasks there is nobody to hear it.
    fn tell(&self, Ordered { rank, order }: Ordered) {
        let held = match &mut *self.crew() {
            Some(Ranks::Own(_, reins)) => reins.order(rank, order),
            Some(Ranks::Started(crew)) => crew.order(rank, order),
            None => None,
        };
        if let Some(held) = held {
            self.say(rank, Message::Held(held));
        }
    }

    /// Ends the process of a rank, if need be this one.
    fn kill(&self, rank: usize) {
        match &mut *self.crew() {
            Some(Ranks::Started(crew)) => {
                crew.end(rank);
            }
            _ => std::process::exit(1),
        }
    }

    /// Passes on what workers say, until all are gone.
    fn relay(&self, events: Receiver<Event>) {
        for event in events {
            match event {
                Event::Said(rank, message) => self.say(rank, message),
                Event::Gone(rank) => self.bury(&[rank]),
                Event::Closed(source) => {
                    let ranks = match &*self.crew() {
                        Some(Ranks::Started(crew)) => crew.ranks_of(source),
                        _ => Vec::new(),
                    };
                    self.bury(&ranks);
                }
                Event::NoMeeting(_) | Event::Came(..) => {}
            }
        }
    }

    /// Says that these ranks are gone.
    fn bury(&self, ranks: &[usize]) {
        for &rank in ranks {
            let gone = match &mut *self.crew() {
                Some(Ranks::Started(crew)) => (crew.obituary(rank), crew.points(rank)),
                _ => continue,
            };
            let (obituary, points) = gone;
            self.say(rank, Message::Gone { obituary, points });
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

    fn crew(&self) -> MutexGuard<'_, Option<Ranks>> {
        self.crew.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
