//! What becomes of ranks when one of them has failed: who is left, who is lost, and how the others go on.
//!
//! ```text
//! launcher                            those that are left                     those that are lost
//! notices that somebody failed        notice it too, or are told to give up   are gone, or killed if they do not answer
//!              <-------------------   Failed, Waits: the group is dropped,
//!                                     process, data and memory stay
//! decides what to go on from:
//! the last step that all remember, or the last checkpoint
//! Start        ------------------->   meet as a new generation   <---------   new processes, with the memory of the lost ones
//! ```

use std::sync::mpsc::{Receiver, RecvTimeoutError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use ringstep_train::halt::Order;
use serde::{Deserialize, Serialize};

use super::diagnosis::{AUTOPSY, Blame};
use super::protocol::{Message, Task};
use super::{ATTENTION, Crew, Event, Interrupted, Interrupts, Listener};

/// What is known of a rank.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum State {
    /// It does its part, as far as is known.
    Works,
    /// It has done its part; its process may be there, with its states after these steps.
    Done { points: Vec<usize> },
    /// It has failed.
    Failed(Blame),
    /// It has failed after so many steps, and is there for another start, with its states after these.
    Waits { done: usize, points: Vec<usize> },
    /// It is gone without a result; its states after these steps are there all the same.
    Gone { points: Vec<usize> },
}

impl State {
    /// It has said its last word about a task.
    pub fn done() -> Self {
        Self::Done { points: Vec::new() }
    }

    /// Whether it has done its part.
    pub fn is_done(&self) -> bool {
        matches!(self, Self::Done { .. })
    }

    /// It is there for another start, whether or not it has done its part.
    pub fn wait(&mut self, done: usize, points: Vec<usize>) {
        *self = match self {
            Self::Done { .. } => Self::Done { points },
            // Whoever failed by itself is not to be relied on.
            Self::Failed(Blame::OwnError | Blame::Hopeless) => return,
            _ => Self::Waits { done, points },
        };
    }

    /// Whether nothing is known of how it has ended.
    fn is_open(&self) -> bool {
        matches!(self, Self::Works | Self::Failed(_))
    }

    fn points(&self) -> &[usize] {
        match self {
            Self::Done { points } | Self::Waits { points, .. } | Self::Gone { points } => points,
            Self::Works | Self::Failed(_) => &[],
        }
    }
}

/// Ranks have failed.
pub(super) struct Failed {
    /// What to tell the user.
    pub error: anyhow::Error,
    /// Whether it may be gone on with: nobody failed by something that would happen again, or was asked to end.
    pub may_go_on: bool,
    /// How much the worst of it says.
    pub worst: Blame,
    pub states: Vec<State>,
    pub noticed: Instant,
    /// Whether nobody has: others have come, and all are to go on with them.
    pub grows: bool,
}

/// Who is left, and who is not.
pub struct Loss {
    /// Why.
    pub error: anyhow::Error,
    /// The ranks whose processes are gone, those first that can be started anew soonest.
    pub lost: Vec<usize>,
    /// Processes that are there and have no rank, and how many each can have.
    pub idle: Vec<(usize, usize)>,
    /// Of each rank, lost or not, the steps after which its state is in memory.
    pub points: Vec<Vec<usize>>,
    /// Steps that were done by the rank that has done most.
    pub done: usize,
    /// When somebody noticed.
    pub noticed: Instant,
}

/// How to go on.
pub struct Next {
    /// What to do.
    pub task: Task,
    /// By whom, a seat a rank.
    pub seats: Vec<Seat>,
}

/// Who takes a rank's place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Seat {
    /// One that is left, and had this rank.
    Left(usize),
    /// A new one in the place of whoever had this rank.
    InPlaceOf(usize),
    /// One more, of the process of this number.
    Added(usize),
}

impl Seat {
    /// The rank that it, or whoever was in its place, had before.
    pub fn was(self) -> Option<usize> {
        match self {
            Self::Left(was) | Self::InPlaceOf(was) => Some(was),
            Self::Added(_) => None,
        }
    }
}

/// How long a process may take to be gone that was killed.
const FUNERAL: Duration = Duration::from_secs(5);

/// Waits until every rank has failed, or is gone. Those that say nothing for a time are killed.
pub(super) fn settle(
    failed: Failed,
    joining: &[usize],
    crew: &mut dyn Crew,
    events: &Receiver<Event>,
    (timeout, interrupts): (Duration, &Interrupts),
    listener: &mut dyn Listener,
) -> Result<Loss> {
    let Failed { error, worst, mut states, noticed, .. } = failed;
    for (rank, state) in states.iter().enumerate() {
        match state {
            State::Works => drop(crew.order(rank, Order::Abandon)),
            // One that could not join the others is not asked again.
            State::Failed(Blame::OwnError | Blame::Hopeless) if joining.contains(&rank) => crew.give_up(rank),
            State::Failed(Blame::OwnError | Blame::Hopeless) if !crew.end(rank) => return Err(error),
            _ => {}
        }
    }
    // Who was waited for in vain has had its time.
    let patience = if worst == Blame::SilentPeer { AUTOPSY } else { timeout };
    let mut deadline = Instant::now() + patience;
    // Those that do not end are killed; and if that cannot be seen to help, those who were told to are given up.
    let end: fn(&mut dyn Crew, usize) = |crew, rank| {
        crew.end(rank);
    };
    let mut means = [end, |crew, rank| crew.give_up(rank)].into_iter();
    while states.iter().any(State::is_open) {
        if let Some(signal) = interrupts.take() {
            return Err(Interrupted { signal, saved: None }.into());
        }
        if Instant::now() >= deadline {
            let Some(end) = means.next() else {
                bail!("{error:#}; and a process that was killed is not gone after {FUNERAL:?}");
            };
            deadline = Instant::now() + FUNERAL;
            (0..states.len()).filter(|&rank| states[rank].is_open()).for_each(|rank| end(crew, rank));
        }
        match events.recv_timeout(ATTENTION) {
            Ok(Event::Said(rank, Message::Waits { done, points })) => states[rank].wait(done, points),
            Ok(Event::Said(rank, Message::Gone { points, .. })) => states[rank] = State::Gone { points },
            // Those that were told to give up say so.
            Ok(Event::Said(rank, Message::Failed { blame, .. })) => states[rank] = State::Failed(blame),
            Ok(Event::Said(_, Message::Pulse(_))) => {}
            Ok(Event::Said(rank, message)) => {
                if message.is_last() {
                    states[rank] = State::done();
                }
                listener.hear(rank, message)?;
            }
            Ok(Event::Closed(source)) => {
                for rank in crew.ranks_of(source) {
                    states[rank] = State::Gone { points: crew.points(rank) };
                }
            }
            Ok(Event::Gone(rank)) => states[rank] = State::Gone { points: crew.points(rank) },
            Ok(Event::Came(process, line)) => drop(crew.welcome(process, line)),
            Ok(Event::NoMeeting(_)) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(error),
        }
    }
    let is_lost = |rank: &usize| matches!(states[*rank], State::Gone { .. }) || !crew.is_there(*rank);
    let mut lost: Vec<usize> = (0..states.len()).filter(is_lost).collect();
    lost.sort_by_key(|&rank| crew.home(rank));
    let points = states.iter().map(|state| state.points().to_vec()).collect();
    let done =
        states.iter().map(|state| if let State::Waits { done, .. } = state { *done } else { 0 }).max().unwrap_or(0);
    Ok(Loss { error, lost, idle: crew.idle(), points, done, noticed })
}
