//! Workers as threads of this process, which talk in memory.

use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use anyhow::Result;
use ringstep_comm::Group;
use ringstep_comm::transport::mem;
use ringstep_train::Job;

use super::processes::spawn;
use super::protocol::Message;
use super::worker::Worker;
use super::{Crew, Event, Run};

/// Threads that end with their work, or with this process.
pub(super) struct Threads;

/// Starts all workers.
pub(super) fn start(run: &Run<'_>, job: &Job) -> Result<(Threads, Receiver<Event>)> {
    let (sender, events) = channel();
    for (rank, transport) in mem::mesh(job.workers).into_iter().enumerate() {
        let (job, settings, model_file) = (job.clone(), run.settings.clone(), run.model_file.clone());
        let data = Arc::clone(run.data);
        let sender = sender.clone();
        spawn("worker", move || {
            let _farewell = Farewell { rank, sender: sender.clone() };
            // When nobody listens any more this process is about to end.
            let say = |message| drop(sender.send(Event::Said(rank, message)));
            let worker = Worker { job: &job, settings: &settings, data: &data, model_file: &model_file };
            say(match worker.train(Group::new(transport), &mut |report| say(Message::Report(report))) {
                Ok(outcome) => Message::Done(outcome),
                Err(error) => Message::failure(rank, &error),
            });
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
