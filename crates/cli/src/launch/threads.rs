//! Workers as threads of this process, which talk in memory.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use anyhow::{Context, Result};
use ringstep_comm::Group;
use ringstep_comm::transport::mem;

use super::processes::spawn;
use super::protocol::{Message, Task};
use super::worker::Prepared;
use super::{Crew, Event};

/// Threads, which end with their work or with this process.
pub(super) struct Threads;

/// Starts all workers. What they read, they read once for all.
pub(super) fn start(task: &Task, world: usize, timeout: Duration) -> Result<(Threads, Receiver<Event>)> {
    let prepared = Arc::new(Prepared::new(task.clone())?);
    let (sender, events) = channel();
    let ends = mem::try_mesh(world).with_context(|| format!("no memory for {world} workers to share"))?;
    for (rank, transport) in ends.into_iter().enumerate() {
        let (prepared, sender) = (Arc::clone(&prepared), sender.clone());
        spawn("worker", move || {
            let _farewell = Farewell { rank, sender: sender.clone() };
            // When nobody listens any more this process is about to end.
            let say = |message| drop(sender.send(Event::Said(rank, message)));
            say(prepared
                .perform(Group::new(transport.with_timeout(timeout)), &say)
                .unwrap_or_else(|error| Message::failure(rank, &error)));
        })?;
    }
    Ok((Threads, events))
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
}
