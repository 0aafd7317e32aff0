//! What a worker does, as a process or as a thread.

use std::io::{self, BufRead, IsTerminal, Read, Write};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use anyhow::{Context, Result, bail};
use ringstep_comm::transport::Transport;
use ringstep_comm::transport::shm::Shm;
use ringstep_comm::{Group, rendezvous};
use ringstep_data::{Dataset, file};
use ringstep_train::Job;
use ringstep_train::worker;
use rustix::thread::{CpuSet, sched_setaffinity};

use super::protocol::{Message, Said, Start, Task};
use crate::bench::collectives as bench;
use crate::datasets;
use crate::settings::ProcessTransport;

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
    let failed = AtomicBool::new(false);
    work(&start, &|rank, message| {
        failed.fetch_or(matches!(message, Message::Failed { .. }), Ordering::Relaxed);
        say(rank, message);
    });
    ExitCode::from(u8::from(failed.into_inner()))
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

fn say(rank: usize, message: Message) {
    let mut line = serde_json::to_string(&Said { rank, message }).expect("messages are plain data");
    line.push('\n');
    if io::stdout().lock().write_all(line.as_bytes()).is_err() {
        std::process::exit(1); // Nobody is listening any more.
    }
}

/// Does the parts of all ranks of this process, each on a thread of its own and the first on this one. What they read, they
/// read once for all.
fn work(start: &Start, say: &(dyn Fn(usize, Message) + Sync)) {
    let fail = |rank: usize, error: &anyhow::Error| say(rank, Message::failure(rank, error));
    let prepared = match Prepared::new(start.task.clone()) {
        Ok(prepared) => prepared,
        Err(error) => return start.ranks.iter().for_each(|&rank| fail(rank, &error)),
    };
    let part = |rank: usize| match join(start, rank).and_then(|group| prepared.perform(group, &|it| say(rank, it))) {
        Ok(last) => say(rank, last),
        Err(error) => fail(rank, &error),
    };
    thread::scope(|scope| {
        let (&first, others) = start.ranks.split_first().expect("a process has a rank");
        for &rank in others {
            let part = &part;
            let thread = thread::Builder::new().name(format!("rank {rank}"));
            let spawned = thread.spawn_scoped(scope, move || {
                let _guard = EndWithAPanic;
                part(rank);
            });
            if let Err(error) = spawned {
                fail(rank, &anyhow::Error::new(error).context("cannot start another thread"));
            }
        }
        part(first);
    });
}

/// A rank that panics takes its process along, as it would if it were alone there: the launcher then knows.
struct EndWithAPanic;

impl Drop for EndWithAPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::exit(101);
        }
    }
}

/// Meets the other ranks.
fn join(start: &Start, rank: usize) -> Result<Group> {
    let tcp = rendezvous::join(start.meeting, start.token, rank, start.world, start.timeout)?;
    let tcp = tcp.with_timeout(start.timeout);
    Ok(match start.transport.0 {
        ProcessTransport::Tcp => Group::new(tcp),
        ProcessTransport::Auto => Group::new(Shm::over(tcp)?),
        ProcessTransport::Shm => {
            on_one_host(tcp.hosts())?;
            Group::new(Shm::over(tcp)?)
        }
    })
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
            Task::Train { run, model_file } => {
                let data = datasets::load(&run.data)?;
                Self::Train { job: Box::new(run.job), data, model_file }
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
                Ok(Message::Done(Box::new(outcome)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Mutex;

    use ringstep_comm::rendezvous::{Meeting, Token};
    use ringstep_comm::transport::DEFAULT_TIMEOUT;

    use super::*;
    use crate::names::{ByName, Named};

    /// Two processes of two ranks each, here as threads.
    #[test]
    fn a_process_can_have_several_ranks() {
        for transport in ProcessTransport::all() {
            let meeting = Meeting::open(Ipv4Addr::LOCALHOST.into(), Token::default()).unwrap();
            let start = |ranks: [usize; 2]| Start {
                task: Task::Bench(bench::Plan::small()),
                ranks: ranks.to_vec(),
                world: 4,
                core: None,
                transport: ByName(transport),
                timeout: DEFAULT_TIMEOUT,
                meeting: meeting.address(),
                token: Token::default(),
            };
            let (starts, said) = ([start([0, 3]), start([2, 1])], Mutex::new(Vec::new()));
            thread::scope(|scope| {
                for start in &starts {
                    scope.spawn(|| work(start, &|rank, message| said.lock().unwrap().push((rank, message))));
                }
                meeting.host(4, DEFAULT_TIMEOUT).unwrap();
            });
            let said = said.into_inner().unwrap();
            let mut done: Vec<usize> =
                said.iter().filter(|(_, message)| message.is_last()).map(|(rank, _)| *rank).collect();
            done.sort_unstable();
            assert_eq!(done, [0, 1, 2, 3], "{said:?}");
        }
    }

    #[test]
    fn shared_memory_for_all_takes_one_host() {
        assert!(on_one_host(&[3, 3, 3]).is_ok());
        assert_eq!(
            on_one_host(&[0, 0, 1]).unwrap_err().to_string(),
            "ranks 0 and 2 are on different hosts and share no memory: --transport auto, or tcp"
        );
    }
}
