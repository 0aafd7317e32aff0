//! What a worker does, as a process or as a thread.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;

use anyhow::{Context, Result, bail};
use ringstep_comm::transport::shm::Shm;
use ringstep_comm::transport::{DEFAULT_TIMEOUT, Transport};
use ringstep_comm::{Group, rendezvous};
use ringstep_data::{Dataset, file};
use ringstep_train::Job;
use ringstep_train::worker;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::protocol::{Message, Start, Task};
use crate::bench::collectives as bench;
use crate::datasets;
use crate::workers::ProcessTransport;

/// `ringstep worker`: takes its orders from standard input and reports on standard output.
pub fn main() -> ExitCode {
    let mut line = String::new();
    let start: Start = match io::stdin().lock().read_line(&mut line).map(|_| serde_json::from_str(&line)) {
        Ok(Ok(start)) => start,
        // The launcher was gone before it could say anything.
        Ok(Err(_)) if line.is_empty() && !io::stdin().is_terminal() => return ExitCode::FAILURE,
        _ => {
            eprintln!("error: worker is started by compare and train, not by hand");
            return ExitCode::from(2);
        }
    };
    if let Some(core) = start.core {
        stay_on(core);
    }
    follow_the_launcher();
    let rank = start.rank;
    let message = work(start).unwrap_or_else(|error| Message::failure(rank, &error));
    let failed = !message.is_last();
    say(message);
    ExitCode::from(u8::from(failed))
}

/// Ctrl-C in a terminal reaches workers too, but the launcher decides; and when it is gone, so are they.
fn follow_the_launcher() {
    let _ = signal_hook::flag::register(signal_hook::consts::SIGINT, Arc::new(AtomicBool::new(false)));
    thread::spawn(|| {
        let _ = io::stdin().lock().read(&mut [0]);
        std::process::exit(1);
    });
}

/// Binds this process to a core, with all threads that it will start. Where that is not allowed it goes on anyway.
fn stay_on(core: usize) {
    let mut only = CpuSet::new();
    only.set(core);
    let _ = sched_setaffinity(None, &only);
}

fn say(message: Message) {
    let mut line = serde_json::to_string(&message).expect("messages are plain data");
    line.push('\n');
    if io::stdout().lock().write_all(line.as_bytes()).is_err() {
        std::process::exit(1); // Nobody is listening any more.
    }
}

fn work(start: Start) -> Result<Message> {
    let transport = start.task.transport()?;
    let prepared = Prepared::new(start.task)?;
    let tcp = rendezvous::join(start.meeting, start.token, start.rank, start.world, DEFAULT_TIMEOUT)?;
    let group = match transport {
        ProcessTransport::Tcp => Group::new(tcp),
        ProcessTransport::Auto => Group::new(Shm::over(tcp)?),
        ProcessTransport::Shm => {
            on_one_host(tcp.hosts())?;
            Group::new(Shm::over(tcp)?)
        }
    };
    prepared.perform(group, &say)
}

/// An error if ranks, of which `hosts` says where each is, cannot all share memory.
fn on_one_host(hosts: &[usize]) -> Result<()> {
    match hosts.iter().position(|&host| host != hosts[0]) {
        Some(rank) => {
            bail!("ranks 0 and {rank} are on different hosts and share no memory: --transport auto, or tcp")
        }
        None => Ok(()),
    }
}

/// A task with all that it needs.
pub(super) enum Prepared {
    Train { job: Box<Job>, data: Dataset, model_file: PathBuf },
    Bench(bench::Plan),
}

impl Prepared {
    pub fn new(task: Task) -> Result<Self> {
        Ok(match task {
            Task::Bench(plan) => Self::Bench(plan),
            Task::Train { settings, model_file } => {
                let (job, data) = (Box::new(settings.job()?), datasets::load(&settings)?);
                Self::Train { job, data, model_file }
            }
        })
    }

    /// Does one rank's part of the task; returns its last message.
    pub fn perform(&self, mut group: Group, say: &dyn Fn(Message)) -> Result<Message> {
        match self {
            Self::Bench(plan) => bench::time_all(plan, &mut group, &|timing| say(Message::Timed(timing))),
            Self::Train { job, data, model_file } => {
                let mut report = |report| say(Message::Report(report));
                let (outcome, weights) = worker::run(job, data, &mut group, &mut report)?;
                if group.rank() == 0 {
                    file::write_whole(model_file, &weights).with_context(|| model_file.display().to_string())?;
                }
                Ok(Message::Done(outcome))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_memory_for_all_takes_one_host() {
        assert!(on_one_host(&[3, 3, 3]).is_ok());
        assert_eq!(
            on_one_host(&[0, 0, 1]).unwrap_err().to_string(),
            "ranks 0 and 2 are on different hosts and share no memory: --transport auto, or tcp"
        );
    }
}
