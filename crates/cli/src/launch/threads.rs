//! Workers as threads of this process, which talk in memory.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::{Context, Result};
use ringstep_comm::transport::mem;
use ringstep_train::halt::{Halts, Held, Order};

use super::processes::spawn;
use super::protocol::{Message, Task};
use super::pulse::Pulses;
use super::worker::{Kept, Means, Prepared};
use super::{Crew, Event, group};
use crate::settings::Workers;

/// Threads, which end with their work or with this process.
pub(super) struct Threads {
    /// By which each can be halted.
    halts: Vec<Arc<Halts>>,
}

/// Starts all workers. What they read, they read once for all.
pub(super) fn start(task: &Task, world: usize, workers: &Workers) -> Result<(Threads, Receiver<Event>)> {
    let prepared = Arc::new(Prepared::new(task.clone(), &mut Kept::default())?);
    let (sender, events) = channel();
    let halts: Vec<Arc<Halts>> = (0..world).map(|_| Arc::default()).collect();
    let ends = mem::try_mesh(world).with_context(|| format!("no memory for {world} workers to share"))?;
    let ranks: Vec<usize> = (0..world).collect();
    let pulses = Arc::new(Pulses::of(&ranks));
    let (signs, listener, timeout) = (Arc::clone(&pulses), sender.clone(), workers.timeout);
    spawn("pulse", move || signs.beat(timeout, &|rank, message| drop(listener.send(Event::Said(rank, message)))))?;
    for (rank, transport) in ends.into_iter().enumerate() {
        let (prepared, halts, sender) = (Arc::clone(&prepared), Arc::clone(&halts[rank]), sender.clone());
        let group = group(transport.with_timeout(workers.timeout), workers.link.as_ref());
        let pulses = Arc::clone(&pulses);
        spawn("worker", move || {
            let _farewell = Farewell { rank, sender: sender.clone() };
            let part = pulses.begin(rank);
            part.watch(group.watch());
            // When nobody listens any more this process is about to end.
            let say = |message| drop(sender.send(Event::Said(rank, message)));
            say(prepared
                .perform(group, Means { halts: &halts, memory: None }, &say)
                .unwrap_or_else(|error| Message::failure(rank, &error)));
        })?;
    }
    Ok((Threads { halts }, events))
}

/// Says that a thread has ended, also when it panicked.
struct Farewell {
    rank: usize,
    sender: Sender<Event>,
}

impl Drop for Farewell {
    fn drop(&mut self) {
        let _ = self.sender.send(Event::Gone(self.rank));
    }
}

impl Crew for Threads {
    fn obituary(&mut self, _: usize) -> String {
        "panicked".to_owned()
    }

    fn order(&mut self, rank: usize, order: Order) -> Option<Held> {
        self.halts[rank].take(order)
    }
}
