//! Workers as processes of this program, here or on other hosts.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ringstep_comm::rendezvous::Invitation;
use ringstep_train::halt::{Held, Order};
use ringstep_train::saving::memory::Memory;
use rustix::thread::{CpuSet, sched_getaffinity};
use serde::Serialize;

use super::protocol::{Ordered, Said, Start, Told, Work};
use super::{Crew, Event, Seat, Source};

/// What starts worker processes.
#[derive(Debug, Clone, Default)]
pub(super) struct Starter {
    /// The command that starts each, if it is not the launcher itself.
    pub start_with: Option<String>,
    /// The hosts on which as many are started by ssh, if they are not all here.
    pub hosts: Vec<String>,
    /// Whether each is bound to a core if all cores then have several.
    pub pin: bool,
}

impl Starter {
    /// The host of one of so many processes, unless it is this one.
    fn host(&self, place: usize, of: usize) -> Option<&str> {
        let host = self.hosts.get(place * self.hosts.len() / of)?;
        Some(host.as_str()).filter(|host| *host != "localhost")
    }
}

/// Child processes. Dropping them ends those that are left.
pub(super) struct Processes {
    all: Vec<Process>,
    starter: Starter,
    invitation: Invitation,
    /// For those that are started later, if processes stay; otherwise nobody is heard when all have ended.
    events: Option<Sender<Event>>,
    stays: bool,
}

struct Process {
    ranks: Vec<usize>,
    child: Child,
    host: Option<String>,
    /// Its end tells the process that the launcher is gone.
    orders: ChildStdin,
    /// What each of its ranks remembers, if it keeps that where it outlives the process.
    memories: Vec<Option<Memory>>,
}

/// Starts a process for each of these sets of ranks, and begins to listen to them.
pub(super) fn start(
    work: &Work,
    places: &[Vec<usize>],
    starter: Starter,
    invitation: &Invitation,
    events: &Sender<Event>,
) -> Result<Processes> {
    let (invitation, events, stays) = (invitation.clone(), Some(events.clone()), work.task.stays());
    let mut crew = Processes { all: Vec::new(), starter, invitation, events, stays };
    for place in 0..places.len() {
        let memories = crew.memories(place, places);
        let process = crew.start(work, place, places, memories)?;
        crew.all.push(process);
    }
    crew.events.take_if(|_| !stays);
    Ok(crew)
}

impl Processes {
    /// Starts the process of one of these sets of ranks, which remember this.
    fn start(
        &self,
        work: &Work,
        place: usize,
        places: &[Vec<usize>],
        memories: Vec<Option<Memory>>,
    ) -> Result<Process> {
        let Starter { start_with, .. } = &self.starter;
        let (ranks, host) = (&places[place], self.starter.host(place, places.len()));
        let start = self.line(work, place, places, &memories)?;
        let mut child = command(start_with.as_deref(), host, ranks[0])?
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start the process of rank {}", ranks[0]))?;
        let mut orders = child.stdin.take().expect("it is piped");
        let reports = child.stdout.take().expect("it is piped");
        // A worker that is gone already is noticed by the end of its reports.
        let _ = orders.write_all(format!("{}\n", encode(&start)?).as_bytes());
        let sender = self.events.clone().context("nobody is started any more")?;
        let host = host.map(str::to_owned);
        let process = Process { ranks: ranks.clone(), child, host, orders, memories };
        let id = process.child.id();
        spawn("reports", move || listen(id, reports, &sender))?;
        Ok(process)
    }

    /// What the process of one of these sets of ranks is told.
    fn line(&self, work: &Work, place: usize, places: &[Vec<usize>], memories: &[Option<Memory>]) -> Result<Start> {
        let cores = if self.starter.pin { cores_to_deal_out(places.len()) } else { Vec::new() };
        let core = cores.get(place % cores.len().max(1)).copied();
        let memories = memories.iter().map(|memory| memory.as_ref().map(Memory::paths)).collect();
        let (ranks, invitation, stays) = (places[place].clone(), self.invitation.clone(), self.stays);
        Ok(Start { work: work.clone(), ranks, core, invitation, memories, stays })
    }

    /// Room for the last states of the ranks of a new process, if it is on this host.
    fn memories(&self, place: usize, places: &[Vec<usize>]) -> Vec<Option<Memory>> {
        let kept = self.stays && self.starter.host(place, places.len()).is_none();
        places[place].iter().map(|_| kept.then(|| Memory::new().ok()).flatten()).collect()
    }

    fn of_rank(&mut self, rank: usize) -> Option<&mut Process> {
        self.all.iter_mut().find(|process| process.ranks.contains(&rank))
    }
}

fn encode<T: Serialize>(message: &T) -> Result<String> {
    serde_json::to_string(message).context("this task cannot be passed on to workers")
}

/// The cores to which workers are bound in turn, if each then has as many. Left to itself, the system now and then lets
/// three workers share one core while another has little to do, and all wait for the last.
fn cores_to_deal_out(world: usize) -> Vec<usize> {
    let Ok(allowed) = sched_getaffinity(None) else { return Vec::new() };
    let cores: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|&core| allowed.is_set(core)).collect();
    if cores.len() < world && world.is_multiple_of(cores.len()) { cores } else { Vec::new() }
}

/// What starts a worker.
fn command(start_with: Option<&str>, host: Option<&str>, rank: usize) -> Result<Command> {
    let own = || std::env::current_exe().context("this program's own file");
    if let Some(host) = host {
        let mut command = Command::new("ssh");
        // Whoever cannot be reached without a password is told so, and a connection that is cut off ends.
        command.args(["-o", "BatchMode=yes", "-o", "ServerAliveInterval=15", host]);
        // A shell reads it there.
        command.arg(format!("'{}' worker {rank}", own()?.display().to_string().replace('\'', r"'\''")));
        // Ctrl-C in a terminal is for the launcher: it still has something to say over this connection.
        command.process_group(0);
        return Ok(command);
    }
    let words = start_with.map(|text| text.replace("{rank}", &rank.to_string())).unwrap_or_default();
    let mut words = words.split_whitespace();
    let mut command = match words.next() {
        // This very program, even if its file has been replaced since it was started.
        None => {
            let mut command = Command::new("/proc/self/exe");
            command.arg0("ringstep");
            command
        }
        // There, another command is itself: the program's name must do.
        Some(first) => {
            let mut command = Command::new(first);
            command.args(words).arg(own()?);
            command
        }
    };
    // As it is called in lists of processes.
    command.arg("worker").arg(rank.to_string());
    Ok(command)
}

/// Starts a thread, or says that the system has none left.
pub(super) fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
    let thread = thread::Builder::new().name(name.to_owned()).spawn(work);
    thread.map(drop).context("cannot start another thread")
}

/// Passes on what the ranks of a process say, until there is no more.
fn listen(process: u32, reports: ChildStdout, events: &Sender<Event>) {
    let lines =
        BufReader::new(reports).lines().map_while(Result::ok).map_while(|line| serde_json::from_str(&line).ok());
    for Said { rank, message } in lines {
        if events.send(Event::Said(rank, message)).is_err() {
            return;
        }
    }
    let _ = events.send(Event::Closed(Source::Child(process)));
}

impl Crew for Processes {
    fn ranks_of(&self, process: Source) -> Vec<usize> {
        let process = self.all.iter().find(|it| Source::Child(it.child.id()) == process);
        process.map(|process| process.ranks.clone()).unwrap_or_default()
    }

    fn stays(&self) -> bool {
        self.stays
    }

    fn is_there(&mut self, rank: usize) -> bool {
        self.of_rank(rank).is_some_and(|process| matches!(process.child.try_wait(), Ok(None)))
    }

    fn order(&mut self, rank: usize, order: Order) -> Option<Held> {
        let line = encode(&Told::Order(Ordered { rank, order })).expect("orders are plain data");
        if let Some(process) = self.of_rank(rank) {
            let _ = process.orders.write_all(format!("{line}\n").as_bytes());
        }
        None
    }

    fn host(&self, rank: usize) -> Option<String> {
        self.all.iter().find(|process| process.ranks.contains(&rank))?.host.clone()
    }

    fn obituary(&mut self, rank: usize) -> String {
        let Some(Process { child, .. }) = self.of_rank(rank) else { return "died".to_owned() };
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

    fn points(&mut self, rank: usize) -> Vec<usize> {
        let Some(process) = self.of_rank(rank) else { return Vec::new() };
        let memories = process.ranks.iter().zip(&process.memories);
        let memory = memories.filter(|&(&its, _)| its == rank).find_map(|(_, memory)| memory.as_ref());
        memory.map(Memory::steps).unwrap_or_default()
    }

    fn end(&mut self, rank: usize) -> bool {
        if let Some(process) = self.of_rank(rank) {
            process.end();
        }
        true
    }

    /// Processes stay what they are: those that are left get other ranks, and for the others there are new ones.
    fn again(&mut self, work: &Work, places: &[Vec<usize>], seats: &[Seat]) -> Result<()> {
        let (mut before, mut died) = (std::mem::take(&mut self.all), Vec::new());
        for (place, ranks) in places.iter().enumerate() {
            let seat = seats[ranks[0]];
            let at = before.iter().position(|process| seat.was().is_some_and(|was| process.ranks.contains(&was)));
            let old = at.map(|at| before.swap_remove(at));
            self.all.push(match (seat, old) {
                (Seat::Left(_), Some(mut old)) => {
                    let start = Told::Start(Box::new(self.line(work, place, places, &old.memories)?));
                    old.ranks.clone_from(ranks);
                    let _ = old.orders.write_all(format!("{}\n", encode(&start)?).as_bytes());
                    // One that has died meanwhile was missed by another number.
                    if !matches!(old.child.try_wait(), Ok(None)) {
                        died.push(Event::Closed(Source::Child(old.child.id())));
                    }
                    old
                }
                (_, Some(mut old)) => {
                    old.end();
                    self.start(work, place, places, std::mem::take(&mut old.memories))?
                }
                (_, None) => self.start(work, place, places, self.memories(place, places))?,
            });
        }
        if let Some(events) = &self.events {
            died.into_iter().for_each(|event| drop(events.send(event)));
        }
        Ok(())
    }
}

impl Process {
    /// Kills it, if it is not gone.
    fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.end();
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for process in &mut self.all {
            let _ = process.child.kill();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_get_as_many_each_and_in_order() {
        let hosts = ["a".to_owned(), "localhost".to_owned(), "c".to_owned()];
        let starter = Starter { hosts: hosts.to_vec(), ..Starter::default() };
        let all: Vec<_> = (0..6).map(|place| starter.host(place, 6)).collect();
        assert_eq!(all, [Some("a"), Some("a"), None, None, Some("c"), Some("c")]);
        assert_eq!(Starter::default().host(0, 1), None);
    }

    #[test]
    fn a_shell_on_another_host_reads_one_word() {
        let command = command(None, Some("node1"), 0).unwrap();
        let words: Vec<_> = command.get_args().map(|word| word.to_string_lossy()).collect();
        let own = std::env::current_exe().unwrap();
        assert_eq!(words[4..], ["node1".to_owned(), format!("'{}' worker 0", own.display())]);
    }
}
