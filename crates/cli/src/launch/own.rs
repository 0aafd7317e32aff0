//! A process that somebody else has started as a worker, and its ranks: they are threads of it, and go on from task to task.

use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, Result};
use ringstep_comm::rendezvous::Invitation;
use ringstep_train::halt::{Held, Order};
use ringstep_train::saving::memory::Memory;

use super::processes::spawn;
use super::protocol::{Message, Start, Work};
use super::worker::{self, Kept, Reins};
use super::{Crew, Event, Seat};

/// What the ranks of this process are started with, one task after the other, and what they keep meanwhile.
pub(super) struct OwnRanks {
    invitation: Invitation,
    /// Their last states, if they may have to go back to them: not for longer than this process lives.
    memories: Vec<Option<Memory>>,
}

impl OwnRanks {
    /// As many as are to do this; states are kept if they stay.
    pub fn new(work: &Work, count: usize, invitation: &Invitation) -> Self {
        let stays = work.task.stays();
        let memories = (0..count).map(|_| stays.then(|| Memory::new().ok()).flatten()).collect();
        Self { invitation: invitation.clone(), memories }
    }

    /// What they are told, and by which they can be halted.
    pub fn start(&self, work: &Work, ranks: Vec<usize>) -> (Start, Reins) {
        let memories = self.memories.iter().map(|memory| memory.as_ref().map(Memory::paths)).collect();
        let (invitation, stays) = (self.invitation.clone(), work.task.stays());
        let reins = Reins::of(&ranks);
        (Start { work: work.clone(), ranks, core: None, invitation, memories, stays }, reins)
    }
}

/// The ranks of the first process, which has others to listen to meanwhile: they are on threads of their own.
pub(super) struct OwnWorker {
    own: OwnRanks,
    reins: Reins,
    /// For the next task, if they stay.
    starts: Option<Sender<(Start, Reins)>>,
}

impl OwnWorker {
    /// Starts these ranks. What they say comes as events.
    pub fn start(work: &Work, ranks: Vec<usize>, invitation: &Invitation, events: &Sender<Event>) -> Result<Self> {
        let own = OwnRanks::new(work, ranks.len(), invitation);
        let (start, reins) = own.start(work, ranks);
        let (starts, queue) = channel();
        let stays = start.stays;
        let _ = starts.send((start, reins.clone()));
        let events = events.clone();
        spawn("worker", move || work_off(queue, &events))?;
        Ok(Self { own, reins, starts: Some(starts).filter(|_| stays) })
    }
}

fn work_off(queue: Receiver<(Start, Reins)>, events: &Sender<Event>) {
    let _guard = worker::EndWithAPanic;
    let mut kept = Kept::default();
    for (start, reins) in queue {
        // When nobody listens any more this process is about to end.
        let say = |rank, message: Message| drop(events.send(Event::Said(rank, message)));
        worker::work(&start, &reins, &mut kept, &say);
        if !start.stays {
            start.ranks.iter().for_each(|&rank| drop(events.send(Event::Gone(rank))));
        }
    }
}

impl Crew for OwnWorker {
    fn obituary(&mut self, rank: usize) -> String {
        self.reins.obituary(rank)
    }

    fn order(&mut self, rank: usize, order: Order) -> Option<Held> {
        self.reins.order(rank, order)
    }

    fn again(&mut self, work: &Work, places: &[Vec<usize>], _: &[Seat]) -> Result<()> {
        let (start, reins) = self.own.start(work, places.concat());
        self.reins = reins.clone();
        let starts = self.starts.as_ref().context("these workers cannot be started anew")?;
        let _ = starts.send((start, reins));
        Ok(())
    }
}
