//! What a worker does, as a process or as a thread.

use std::collections::BTreeMap;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::thread;

use anyhow::{Context, Result, bail};
use ringstep_comm::Group;
use ringstep_comm::transport::Transport;
use ringstep_comm::transport::shm::Shm;
use ringstep_comm::tune::Timings;
use ringstep_data::{Dataset, file};
use ringstep_nn::state::Saved;
use ringstep_train::Job;
use ringstep_train::halt::{Halts, Held, Order};
use ringstep_train::saving::memory::Memory;
use ringstep_train::saving::{self, Checkpoints, Session, rank_file};
use ringstep_train::worker::{self, Ended};
use rustix::process::{Signal, set_parent_process_death_signal};
use rustix::thread::{CpuSet, sched_setaffinity, set_name};

use super::processes::spawn;
use super::protocol::{Message, Ordered, Origin, Resume, Said, Start, Task, Told, Work};
use super::pulse::{Part, Pulses};
use super::{Crew, SIGNALS, group};
use crate::bench::collectives as bench;
use crate::datasets::{self, DataPlan};
use crate::mpi;
use crate::settings::ProcessTransport;

/// `ringstep worker RANK`: takes its orders from standard input and reports on standard output.
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
    let reins = Reins::of(&start.ranks);
    let (sender, starts) = channel();
    if let Err(error) = follow_the_launcher(reins.clone(), sender) {
        start.ranks.iter().for_each(|&rank| say(rank, Message::failure(rank, &error)));
        return ExitCode::FAILURE;
    }
    let (mut next, mut kept) = ((start, reins), Kept::default());
    loop {
        let (start, reins) = &next;
        let failed = AtomicBool::new(false);
        work(start, reins, &mut kept, &|rank, message| {
            failed.fetch_or(matches!(message, Message::Failed { .. }), Ordering::Relaxed);
            say(rank, message);
        });
        if !start.stays {
            return ExitCode::from(u8::from(failed.into_inner()));
        }
        // The thread that hears orders ends this process when there are no more.
        let Ok(another) = starts.recv() else { return ExitCode::FAILURE };
        next = another;
    }
}

/// Ctrl-C in a terminal reaches workers too, and what a scheduler sends to all processes, but the launcher decides; and when it is
/// gone, so are they, even those that are stopped. What comes after the first start goes to `starts`.
fn follow_the_launcher(mut reins: Reins, starts: Sender<(Start, Reins)>) -> Result<()> {
    let _ = set_parent_process_death_signal(Some(Signal::KILL));
    // As far as a short name goes; the rank is an argument.
    let _ = set_name(c"ringstep worker");
    for signal in SIGNALS {
        let _ = signal_hook::flag::register(signal, Arc::new(AtomicBool::new(false)));
    }
    spawn("orders", move || {
        for line in io::stdin().lock().lines() {
            match line.map(|line| serde_json::from_str(&line)) {
                Ok(Ok(Told::Order(Ordered { rank, order }))) => {
                    if let Some(held) = reins.order(rank, order) {
                        say(rank, Message::Held(held));
                    }
                }
                Ok(Ok(Told::Start(start))) => {
                    reins = Reins::of(&start.ranks);
                    let _ = starts.send((*start, reins.clone()));
                }
                _ => break,
            }
        }
        std::process::exit(1);
    })
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

/// What the ranks of this process can be halted by.
#[derive(Clone)]
pub(super) struct Reins(Arc<BTreeMap<usize, Halts>>);

impl Reins {
    /// Of these ranks.
    pub fn of(ranks: &[usize]) -> Self {
        Self(Arc::new(ranks.iter().map(|&rank| (rank, Halts::default())).collect()))
    }
}

impl Crew for Reins {
    fn obituary(&mut self, _: usize) -> String {
        "has ended without a word".to_owned()
    }

    fn order(&mut self, rank: usize, order: Order) -> Option<Held> {
        self.0.get(&rank)?.take(order)
    }
}

/// What a process that stays need not read again.
#[derive(Default)]
pub(super) struct Kept {
    data: Option<(DataPlan, Arc<Dataset>)>,
}

/// Does the parts of all ranks of this process, and gives signs of life for them meanwhile. Those that stay then wait: nothing is
/// said by their numbers any more, which may be others afterwards.
pub(super) fn work(start: &Start, reins: &Reins, kept: &mut Kept, say: &(dyn Fn(usize, Message) + Sync)) {
    do_all(start, reins, kept, say);
    for (at, &rank) in start.ranks.iter().enumerate().filter(|_| start.stays) {
        let memory = start.memories.get(at).and_then(|paths| Memory::open(paths.as_ref()?).ok());
        let points = memory.as_ref().map(Memory::steps).unwrap_or_default();
        say(rank, Message::Waits { done: reins.0[&rank].held().done, points });
    }
}

fn do_all(start: &Start, reins: &Reins, kept: &mut Kept, say: &(dyn Fn(usize, Message) + Sync)) {
    let pulses = Pulses::of(&start.ranks);
    thread::scope(|scope| {
        let parts: BTreeMap<usize, Part<'_>> = start.ranks.iter().map(|&rank| (rank, pulses.begin(rank))).collect();
        let beating = thread::Builder::new().name("pulse".to_owned());
        let beating = beating.spawn_scoped(scope, || pulses.beat(start.work.timeout, say));
        match beating.context("cannot start another thread") {
            Ok(_) => do_parts(start, reins, &parts, kept, say),
            Err(error) => start.ranks.iter().for_each(|&rank| say(rank, Message::failure(rank, &error))),
        }
    });
}

/// Each on a thread of its own and the first on this one. What they read, they read once for all.
fn do_parts(
    start: &Start,
    Reins(halts): &Reins,
    parts: &BTreeMap<usize, Part<'_>>,
    kept: &mut Kept,
    say: &(dyn Fn(usize, Message) + Sync),
) {
    let fail = |rank: usize, error: &anyhow::Error| say(rank, Message::failure(rank, error));
    let prepared = match Prepared::new(start.work.task.clone(), kept) {
        Ok(prepared) => prepared,
        Err(error) => return start.ranks.iter().for_each(|&rank| fail(rank, &error)),
    };
    // Without memory it goes on from the last checkpoint.
    let memories = start.memories.iter().map(|paths| Memory::open(paths.as_ref()?).ok());
    let memories: BTreeMap<usize, Option<Memory>> = start.ranks.iter().copied().zip(memories).collect();
    let memory = |rank: usize| memories.get(&rank).and_then(Option::as_ref);
    let perform = |rank: usize| {
        let means = Means { halts: &halts[&rank], memory: memory(rank) };
        let group = join(start, rank, &halts[&rank])?;
        parts[&rank].watch(group.watch());
        prepared.perform(group, means, &|it| say(rank, it))
    };
    let part = |rank: usize| match perform(rank) {
        Ok(last) => say(rank, last),
        Err(error) => fail(rank, &error),
    };
    let work = || {
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
        })
    };
    mpi::watched(&fail, work);
}

/// A rank that panics takes its process along, as it would if it were alone there: the launcher then knows.
pub(super) struct EndWithAPanic;

impl Drop for EndWithAPanic {
    fn drop(&mut self) {
        if thread::panicking() {
            std::process::exit(101);
        }
    }
}

/// Meets the other ranks.
fn join(start: &Start, rank: usize, halts: &Halts) -> Result<Group> {
    let Work { world, transport, timeout, link, .. } = &start.work;
    let tcp = start.invitation.join_unless(halts.abandoned(), rank, *world, *timeout)?.with_timeout(*timeout);
    let link = link.as_ref();
    let group = match transport.0 {
        ProcessTransport::Tcp => group(tcp, link),
        ProcessTransport::Auto => group(Shm::over(tcp)?, link),
        ProcessTransport::Shm => {
            on_one_host(tcp.hosts())?;
            group(Shm::over(tcp)?, link)
        }
        ProcessTransport::Mpi => mpi::group(tcp, link)?,
    };
    halts.abort_by(group.aborter());
    Ok(group)
}

/// What a rank has in its process.
pub(super) struct Means<'a> {
    /// By this it can be halted.
    pub halts: &'a Halts,
    /// Where it keeps its last states, if it does.
    pub memory: Option<&'a Memory>,
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
    Train {
        job: Box<Job>,
        data: Arc<Dataset>,
        model_file: PathBuf,
        checkpoints: Option<Checkpoints>,
        resume: Option<Resume>,
    },
    Bench(bench::Plan),
    Timings,
}

impl Prepared {
    pub fn new(task: Task, kept: &mut Kept) -> Result<Self> {
        Ok(match task {
            Task::Bench(plan) => Self::Bench(plan),
            Task::Timings => Self::Timings,
            Task::Train { run, model_file, checkpoints, resume } => {
                let data = match kept.data.take_if(|(plan, _)| *plan == run.data) {
                    Some((_, data)) => data,
                    None => Arc::new(datasets::load(&run.data)?),
                };
                kept.data = Some((run.data.clone(), Arc::clone(&data)));
                Self::Train { job: Box::new(run.job), data, model_file, checkpoints, resume }
            }
        })
    }

    /// Does one rank's part of the task; returns its last message.
    pub fn perform(&self, mut group: Group, means: Means<'_>, say: &dyn Fn(Message)) -> Result<Message> {
        match self {
            Self::Bench(plan) => bench::time_all(plan, &mut group, &|timing| say(Message::Timed(timing))),
            Self::Timings => Ok(Message::Timings(Timings::take(&mut group)?)),
            Self::Train { job, data, model_file, checkpoints, resume } => {
                let Means { halts, memory } = means;
                if let (None, Some(memory)) = (resume, memory) {
                    memory.forget().context("its memory")?;
                }
                let saved = resume.as_ref().map(|resume| recall(resume, &mut group, memory)).transpose()?;
                let joins = resume.as_ref().is_some_and(|resume| resume.joining.contains(&group.rank()));
                let mut report = |report| say(Message::Report(report));
                let (checkpoints, from) = (checkpoints.as_ref(), saved.as_ref());
                let session = Session { report: &mut report, halts, checkpoints, from, joins, memory };
                match worker::run_in(job, data, &mut group, session)? {
                    Ended::Left => Ok(Message::Left),
                    Ended::Done(outcome, weights) => {
                        if group.rank() == 0 {
                            let written = file::write_whole(model_file, &weights);
                            written.with_context(|| model_file.display().to_string())?;
                        }
                        Ok(Message::Done(outcome))
                    }
                }
            }
        }
    }
}

/// What a rank goes on from. Whatever else it has in its memory is of steps that are done again.
fn recall(resume: &Resume, group: &mut Group, memory: Option<&Memory>) -> Result<Saved> {
    let (rank, Resume { step, from, joining }) = (group.rank(), resume);
    match from {
        Origin::Folder { path, files } => {
            memory.map(Memory::forget).transpose().context("its memory")?;
            Ok(saving::file::read(&rank_file(path, files[rank]))?)
        }
        Origin::Memory if joining.contains(&rank) => {
            let mut bytes = Vec::new();
            group.recv_varied(CHIEF, LARGEST_STATE, &mut bytes)?;
            Ok(saving::file::from_bytes(&bytes, Path::new("the chief's state"))?)
        }
        Origin::Memory => {
            let found = memory.and_then(|memory| memory.recall(*step));
            let found = found.with_context(|| format!("rank {rank}: its state after step {step} is gone"))?;
            if rank == CHIEF && !joining.is_empty() {
                let bytes = saving::file::to_bytes(&found);
                joining.iter().try_for_each(|&other| group.send_varied(&bytes, LARGEST_STATE, other))?;
            }
            Ok(found)
        }
    }
}

/// Whose state those get that join the others.
const CHIEF: usize = 0;
/// No state has more bytes.
const LARGEST_STATE: usize = 1 << 40;

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;
    use std::sync::Mutex;

    use ringstep_comm::rendezvous::{Invitation, Meeting, Secret};
    use ringstep_comm::transport::DEFAULT_TIMEOUT;

    use super::*;
    use crate::names::{ByName, Named};

    /// Two processes of two ranks each, here as threads.
    #[test]
    fn a_process_can_have_several_ranks() {
        // MPI needs processes that it has started.
        for transport in ProcessTransport::all().into_iter().filter(|&it| it != ProcessTransport::Mpi) {
            let mut meeting = Meeting::open((Ipv4Addr::LOCALHOST, 0).into(), Secret::of(b"test")).unwrap();
            let invitation = Invitation::new(meeting.address(), Secret::of(b"test"));
            let work_of_all = Work {
                task: Task::Bench(bench::Plan::small()),
                world: 4,
                transport: ByName(transport),
                timeout: DEFAULT_TIMEOUT,
                link: None,
            };
            let start = |ranks: [usize; 2]| Start {
                work: work_of_all.clone(),
                ranks: ranks.to_vec(),
                core: None,
                invitation: invitation.clone(),
                memories: Vec::new(),
                stays: false,
            };
            let (starts, said) = ([start([0, 3]), start([2, 1])], Mutex::new(Vec::new()));
            thread::scope(|scope| {
                for start in &starts {
                    let say = |rank, message| said.lock().unwrap().push((rank, message));
                    scope.spawn(move || work(start, &Reins::of(&start.ranks), &mut Kept::default(), &say));
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
