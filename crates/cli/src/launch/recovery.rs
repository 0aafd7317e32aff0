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

use super::diagnosis::{AUTOPSY, Blame};
use super::protocol::{Message, Task};
use super::{ATTENTION, Crew, Event, Interrupted, Interrupts, Listener};

/// What is known of a rank.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum State {
    /// It does its part, as far as is known.
    Works,
    /// It has done its part; its process may be there.
    Done,
    /// It has failed.
    Failed(Blame),
    /// It has failed and is there for another start; it had done so many steps.
    Waits { done: usize },
    /// It is gone without a result.
    Gone,
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
}

/// Who is left, and who is not.
pub struct Loss {
    /// Why.
    pub error: anyhow::Error,
    /// The ranks whose processes are gone.
    pub lost: Vec<usize>,
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
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Seat {
    /// The rank that it was before.
    pub was: usize,
    /// Whether its process is there.
    pub alive: bool,
}

/// How long a process may take to be gone that was killed.
const FUNERAL: Duration = Duration::from_secs(10);

/// Waits until every rank has failed, or is gone. Those that say nothing for a time are killed.
pub(super) fn settle(
    failed: Failed,
    crew: &mut dyn Crew,
    events: &Receiver<Event>,
    (timeout, interrupts): (Duration, &Interrupts),
    listener: &mut dyn Listener,
) -> Result<Loss> {
    let Failed { error, worst, mut states, noticed, .. } = failed;
    for (rank, &state) in states.iter().enumerate() {
        match state {
            State::Works => drop(crew.order(rank, Order::Abandon)),
            // Whoever failed by itself is not to be relied on.
            State::Failed(Blame::OwnError) => crew.end(rank),
            _ => {}
        }
    }
    // Who was waited for in vain has had its time.
    let patience = if worst == Blame::SilentPeer { AUTOPSY } else { timeout };
    let (mut deadline, mut killed) = (Instant::now() + patience, false);
    while states.iter().any(|state| matches!(state, State::Works | State::Failed(_))) {
        if let Some(signal) = interrupts.take() {
            return Err(Interrupted { signal, saved: None }.into());
        }
        if Instant::now() >= deadline {
            if killed {
                bail!("{error:#}; and a process that was killed is not gone after {FUNERAL:?}");
            }
            (deadline, killed) = (Instant::now() + FUNERAL, true);
            let open = |&rank: &usize| matches!(states[rank], State::Works | State::Failed(_));
            (0..states.len()).filter(open).for_each(|rank| crew.end(rank));
        }
        match events.recv_timeout(ATTENTION) {
            Ok(Event::Said(rank, Message::Waits { done, .. })) => states[rank] = State::Waits { done },
            // Those that were told to give up say so.
            Ok(Event::Said(rank, Message::Failed { blame, .. })) => states[rank] = State::Failed(blame),
            Ok(Event::Said(_, Message::Pulse(_))) => {}
            Ok(Event::Said(rank, message)) => {
                if message.is_last() {
                    states[rank] = State::Done;
                }
                listener.hear(rank, message)?;
            }
            Ok(Event::Closed(process)) => {
                crew.ranks_of(process).into_iter().for_each(|rank| states[rank] = State::Gone)
            }
            Ok(Event::Gone(rank)) => states[rank] = State::Gone,
            Ok(Event::NoMeeting(_)) | Err(RecvTimeoutError::Timeout) => {}
            Err(RecvTimeoutError::Disconnected) => return Err(error),
        }
    }
    let ranks = 0..states.len();
    let lost = ranks.clone().filter(|&rank| states[rank] == State::Gone || !crew.is_there(rank)).collect();
    let points = ranks.map(|rank| crew.points(rank)).collect();
    let done = states.iter().map(|state| if let State::Waits { done } = state { *done } else { 0 }).max().unwrap_or(0);
    Ok(Loss { error, lost, points, done, noticed })
}
