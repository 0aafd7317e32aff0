//! Workers as processes of this program, which meet over TCP on the loopback interface.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringstep_comm::rendezvous::{Meeting, Token};
use rustix::thread::{CpuSet, sched_getaffinity};

use super::protocol::{Said, Start};
use super::{Crew, Event, Task};
use crate::settings;

/// Child processes. Dropping them ends those that are left.
pub(super) struct Processes(Vec<Process>);

struct Process {
    ranks: Vec<usize>,
    child: Child,
    /// Its end tells the process that the launcher is gone.
    _orders: ChildStdin,
}

/// Starts a process for each of these sets of ranks, and begins to listen to them.
pub(super) fn start(
    task: &Task,
    places: Vec<Vec<usize>>,
    how: &settings::Processes,
    timeout: Duration,
) -> Result<(Processes, Receiver<Event>)> {
    let mut token = Token::default();
    getrandom::fill(&mut token).context("no randomness for the job's token")?;
    let world = places.iter().map(Vec::len).sum();
    let cores = if how.pin { cores_to_deal_out(places.len()) } else { Vec::new() };
    let meeting = Meeting::open(how.meet, token)?;
    let address = meeting.address();
    let (sender, events) = channel();
    let host = sender.clone();
    spawn("rendezvous", move || {
        if let Err(error) = meeting.host(world, timeout) {
            let _ = host.send(Event::NoMeeting(error));
        }
    })?;

    let mut crew = Processes(Vec::new());
    for (place, ranks) in places.into_iter().enumerate() {
        let (rank, transport) = (ranks[0], how.transport);
        let core = cores.get(place % cores.len().max(1)).copied();
        let start = Start {
            task: task.clone(),
            ranks: ranks.clone(),
            world,
            core,
            transport,
            timeout,
            meeting: address,
            token,
        };
        let start = serde_json::to_string(&start).context("this task cannot be passed on to workers")?;
        let mut child = command(how.start_with.as_deref(), rank)?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the process of rank {rank}"))?;
        let mut orders = child.stdin.take().expect("it is piped");
        let reports = child.stdout.take().expect("it is piped");
        // A worker that is gone already is noticed by the end of its reports.
        let _ = orders.write_all(format!("{start}\n").as_bytes());
        crew.0.push(Process { ranks: ranks.clone(), child, _orders: orders });
        let sender = sender.clone();
        spawn("reports", move || listen(&ranks, reports, &sender))?;
    }
    Ok((crew, events))
}

/// The cores to which workers are bound in turn, if each then has as many. Left to itself, the system now and then lets
/// three workers share one core while another has little to do, and all wait for the last.
fn cores_to_deal_out(world: usize) -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
    if cores.len() < world && world.is_multiple_of(cores.len()) { cores } else { Vec::new() }
}

/// What starts a worker.
fn command(start_with: Option<&str>, rank: usize) -> Result<Command> {
    let words = start_with.map(|text| text.replace("{rank}", &rank.to_string())).unwrap_or_default();
    let mut words = words.split_whitespace();
    let mut command = match words.next() {
        // This very program, even if its file has been replaced since it was started.
        None => Command::new("/proc/self/exe"),
        // There, another command is itself: the program's name must do.
        Some(first) => {
            let mut command = Command::new(first);
            command.args(words).arg(std::env::current_exe().context("this program's own file")?);
            command
        }
    };
    command.arg("worker");
    Ok(command)
}

/// Starts a thread, or says that the system has none left.
pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(work);
    thread.map(drop).context("cannot start another thread")
}

/// Passes on what the ranks of a process say, until there is no more.
fn listen(ranks: &[usize], reports: ChildStdout, events: &Sender<Event>) {
    let lines =
        BufReader::new(reports).lines().map_while(Result::ok).map_while(|line| serde_json::from_str(&line).ok());
    for Said { rank, message } in lines {
        if events.send(Event::Said(rank, message)).is_err() {
            return;
        }
    }
    for &rank in ranks {
        let _ = events.send(Event::Gone(rank));
    }
}

impl Crew for Processes {
    fn obituary(&mut self, rank: usize) -> String {
        let child = self.0.iter_mut().find(|process| process.ranks.contains(&rank)).map(|process| &mut process.child);
        let child = child.expect("every rank has a process");
        // It has closed its output, so its end is near; whoever takes longer is not waited for.
        let deadline = Instant::now() + Duration::from_secs(1);
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break Ok(status),
                Ok(None) if Instant::now() < deadline => thread::sleep(Duration::from_millis(1)),
                Ok(None) => return "has stopped reporting".to_owned(),
                Err(error) => break Err(error),
            }
        };
        match status {
            Ok(status) => match (status.signal(), status.code()) {
                (Some(signal), _) => format!("died: killed by signal {signal}"),
                (None, code) => format!("died: exited with code {}", code.unwrap_or(0)),
            },
            Err(error) => format!("died: {error}"),
        }
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.0 {
            let _ = process.child.kill();
        }
        for process in &mut self.0 {
            let _ = process.child.wait();
        }
    }
}
