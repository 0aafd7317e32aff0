//! Messages on their way between simulated workers, and whose turn it is.
//!
//! Links are as in [`Shaped`](ringstep_comm::transport::Shaped): a message of n bytes takes its sender's link out from s on,
//! the moment at which that is free, for n/B seconds, and its receiver's link in from s + L on, or from when that is free,
//! for as long. The sender goes on at the end of the first, the receiver at the end of the second. A link that may pass
//! bursts lets so many bytes through at once after a pause: it is a token bucket. Where workers share their host's links, and at
//! servers, whom many send to at once, messages [share links](crate::flows) instead (`shared.rs`).
//!
//! Each process has its own clock. As long as it shares nothing, moments depend on messages alone, not on who is simulated
//! first: a process goes on as far as messages let it, and nothing is sorted. At a link or at cores that it shares with
//! others it depends on who else has come: for these it waits until everybody else has gone on as far as it can, and whoever
//! is there waits for a later turn, or for a message that will come later.

mod shared;

use std::cell::RefCell;
use std::cmp::Ordering;
use std::collections::{BinaryHeap, VecDeque};
use std::future::poll_fn;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use ringstep_comm::transport::Net;
use ringstep_cpu::random::mix;

use self::shared::Shared;
use crate::cluster::Cluster;
use crate::cores::{Cores, SLICE};
use crate::workload::Invalid;

/// A mailbox that is empty gives back room for more messages than that.
const ROOM: usize = 64;
/// Waits for nobody.
const NOBODY: usize = usize::MAX;
/// Waits for whoever comes.
const ANYBODY: usize = usize::MAX - 1;
/// Waits until what it has sent is on its way.
const DRAIN: usize = usize::MAX - 2;

/// What a process does, as a future that waits for messages.
pub type Running<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;

/// The links and cores of a cluster, the clocks of its processes, and what is on its way. Each worker is two processes: its
/// communication has the worker's number, its computation one that is greater by the number of workers.
pub struct Network<'a> {
    pub(crate) cluster: &'a Cluster,
    uplink: Link,
    inside: Link,
    /// Whether several messages are on links between hosts at once.
    pub(crate) shares_uplinks: bool,
    /// The same of links within hosts.
    shares_inside: bool,
    /// Whether hosts may have too few cores for all their threads.
    pub(crate) crowded: bool,
    /// Whether they have too few for all workers.
    outnumbered: bool,
    /// Of what is left to chance.
    seed: u64,
    state: RefCell<State>,
}

#[derive(Debug, Clone, Copy)]
struct Link {
    seconds_per_byte: f64,
    latency: f64,
    /// Seconds for which it may pass more after a pause.
    credit: f64,
}

impl Link {
    fn new(net: Net, burst: f64) -> Self {
        let seconds_per_byte = 1.0 / net.bytes_per_second;
        Self { seconds_per_byte, latency: net.latency.as_secs_f64(), credit: burst * seconds_per_byte }
    }

    /// Whether everything passes at once.
    fn is_instant(&self) -> bool {
        self.seconds_per_byte == 0.0
    }

    /// Takes the link for so many bytes from a moment on, or from when it is free; says from when and until when.
    fn take(&self, free: &mut f64, from: f64, bytes: usize) -> (f64, f64) {
        if self.is_instant() {
            return (from, from);
        }
        let start = free.max(from - self.credit);
        *free = start + bytes as f64 * self.seconds_per_byte;
        (start.max(from), free.max(from))
    }
}

struct State {
    /// When each link is free: those of the hosts, then those of the workers within their hosts.
    out: Vec<f64>,
    into: Vec<f64>,
    /// The same links, where messages share them.
    shared: Shared,
    /// What was left to chance so far.
    drawn: u32,
    processes: Vec<Process>,
    hosts: Vec<Host>,
    /// Those that can go on, in any order.
    queue: VecDeque<usize>,
    /// Those that wait for their turn, in the order of time.
    calendar: BinaryHeap<Turn>,
    /// The moment of the last turn.
    now: f64,
}

struct Process {
    clock: f64,
    /// The core of its host on which it waits.
    home: usize,
    /// From whom it wants a message.
    waits_for: usize,
    /// From whom it had the last message that could have been anybody's.
    heard: usize,
    mailbox: VecDeque<Message>,
    /// When the other process of its worker has told it something.
    told: VecDeque<f64>,
    /// Bytes of data that it has sent.
    sent: u64,
}

/// Something on its way.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Message {
    pub from: usize,
    /// When it began to leave, and when all of it had; if it has arrived, when it did.
    pub start: f64,
    pub end: f64,
    pub bytes: usize,
    pub arrived: bool,
}

#[derive(Debug, Clone)]
struct Host {
    cores: Cores,
    /// When one of those that want them is through.
    next: f64,
    /// The workers that have come to reduce in shared memory, and when the last did.
    came: Vec<usize>,
    last: f64,
    /// How often they have.
    over: usize,
}

/// Processes have their numbers; hosts, whose cores are to be looked at, those after them; and shared links those after that.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Turn {
    pub at: f64,
    pub who: usize,
}

impl Eq for Turn {}

/// The earliest is the greatest, and of several that with the lowest number.
impl Ord for Turn {
    fn cmp(&self, other: &Self) -> Ordering {
        other.at.total_cmp(&self.at).then(other.who.cmp(&self.who))
    }
}

impl PartialOrd for Turn {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<'a> Network<'a> {
    /// All clocks at 0, all links free.
    pub fn new(cluster: &'a Cluster) -> Self {
        let world = cluster.topology.world();
        let hosts = cluster.topology.hosts().iter().max().map_or(0, |last| last + 1);
        let (crowded, outnumbered) = (cluster.is_crowded(), cluster.has_more_workers_than_cores());
        let count = cluster.cores.filter(|_| crowded).unwrap_or(1);
        let process = |process: usize| Process {
            clock: 0.0,
            home: process % world % count,
            waits_for: NOBODY,
            heard: 0,
            mailbox: VecDeque::new(),
            told: VecDeque::new(),
            sent: 0,
        };
        let cores = Cores::new(count, cluster.contention, SLICE);
        let cores = if outnumbered { cores.with_looking() } else { cores };
        let host = Host { cores, next: f64::INFINITY, came: Vec::new(), last: 0.0, over: 0 };
        let [uplink, inside] = [cluster.uplink, cluster.inside].map(|net| Link::new(net, cluster.burst));
        let state = RefCell::new(State {
            out: vec![0.0; hosts + world],
            into: vec![0.0; hosts + world],
            shared: Shared::new([(hosts, uplink), (world, inside)]),
            drawn: 0,
            processes: (0..2 * world).map(process).collect(),
            hosts: vec![host; hosts],
            queue: VecDeque::new(),
            calendar: BinaryHeap::new(),
            now: 0.0,
        });
        let shares_uplinks = !uplink.is_instant() && cluster.topology.largest_host() > 1;
        Self { cluster, uplink, inside, shares_uplinks, shares_inside: false, crowded, outnumbered, seed: 0, state }
    }

    /// The same where some ranks are servers, with whom many exchange something at once; this seed says who is lucky.
    pub(crate) fn with_servers(self, seed: u64) -> Self {
        let (shares_uplinks, shares_inside) = (!self.uplink.is_instant(), !self.inside.is_instant());
        Self { shares_uplinks, shares_inside, seed, ..self }
    }

    fn world(&self) -> usize {
        self.cluster.topology.world()
    }

    /// Lets all processes go on until they are through.
    pub fn run(&self, processes: Vec<Running<'_>>) -> Result<(), Invalid> {
        self.state.borrow_mut().queue.extend(0..processes.len());
        let mut processes: Vec<Option<Running<'_>>> = processes.into_iter().map(Some).collect();
        let mut context = Context::from_waker(Waker::noop());
        while let Some(process) = self.next() {
            let running = processes[process].as_mut().expect("whoever is through has no turn");
            if running.as_mut().poll(&mut context).is_ready() {
                processes[process] = None;
            }
        }
        if processes.iter().any(Option::is_some) { Err(Invalid::Deadlock) } else { Ok(()) }
    }

    /// Whose turn it is.
    fn next(&self) -> Option<usize> {
        let state = &mut *self.state.borrow_mut();
        loop {
            if let Some(process) = state.queue.pop_front() {
                return Some(process);
            }
            let Turn { at, who } = state.calendar.pop()?;
            debug_assert!(at >= state.now, "turns are in the order of time");
            state.now = at;
            let Some(host) = who.checked_sub(state.processes.len()) else { return Some(who) };
            if let Some(link) = host.checked_sub(state.hosts.len()) {
                if at == state.shared.next[link] {
                    self.passed(state, link);
                }
                continue;
            }
            // A look at a host's cores that something has begun on since is for nothing.
            if at == state.hosts[host].next {
                if let Some(process) = state.hosts[host].cores.end(at) {
                    state.processes[process].clock = at;
                    state.queue.push_back(process);
                }
                state.look_again(host);
            }
        }
    }

    /// A process's clock.
    pub fn clock(&self, process: usize) -> f64 {
        self.state.borrow().processes[process].clock
    }

    /// Bytes of data that a worker has sent.
    pub fn sent(&self, rank: usize) -> u64 {
        self.state.borrow().processes[rank].sent
    }

    /// A process does nothing before this moment. Says when it goes on.
    pub fn wait_until(&self, process: usize, moment: f64) -> f64 {
        let clock = &mut self.state.borrow_mut().processes[process].clock;
        *clock = clock.max(moment);
        *clock
    }

    /// Waits for a process's turn at what it shares with others, from this moment on.
    pub(crate) async fn turn(&self, process: usize, moment: f64) {
        // Of what came over shared links one hears when all of it is there, and not before.
        let now = self.state.borrow().now;
        let at = self.wait_until(process, moment.max(now));
        self.state.borrow_mut().calendar.push(Turn { at, who: process });
        a_turn().await;
    }

    /// A process computes for so many seconds on so many threads, or for longer if others want the same cores. Says when it
    /// goes on.
    pub async fn compute(&self, process: usize, threads: usize, seconds: f64) -> f64 {
        let now = self.clock(process);
        if !self.crowded || seconds == 0.0 {
            return self.wait_until(process, now + seconds);
        }
        self.turn(process, now).await;
        self.begin(process, threads, seconds);
        a_turn().await;
        self.clock(process)
    }

    /// A thread that others wake goes on where the system likes, if its host has too few cores for all workers.
    pub fn settle(&self, process: usize) {
        if let Some(cores) = self.cluster.cores.filter(|_| self.outnumbered) {
            let state = &mut *self.state.borrow_mut();
            state.processes[process].home = mix(state.drawn, self.seed) as usize % cores;
            state.drawn += 1;
        }
    }

    /// A process wants its host's cores from now on.
    fn begin(&self, process: usize, threads: usize, seconds: f64) {
        let state = &mut *self.state.borrow_mut();
        let host = self.cluster.topology.hosts()[process % self.world()];
        let Process { clock, home, .. } = state.processes[process];
        state.hosts[host].cores.begin(clock, process, (home, threads), seconds);
        state.look_again(host);
    }

    /// The other process of the same worker.
    fn other(&self, process: usize) -> usize {
        (process + self.world()) % (2 * self.world())
    }

    /// Tells the other process of the same worker that this one has come so far.
    pub fn tell(&self, process: usize) {
        let state = &mut *self.state.borrow_mut();
        let (now, other) = (state.processes[process].clock, self.other(process));
        state.processes[other].told.push_back(now);
        state.wake(other, process);
    }

    /// Waits until the other process of the same worker has told so.
    pub async fn hear(&self, process: usize) -> f64 {
        let other = self.other(process);
        let told = poll_fn(|_| {
            let process = &mut self.state.borrow_mut().processes[process];
            let told = process.told.pop_front();
            if told.is_none() {
                process.waits_for = other;
            }
            told.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        self.wait_until(process, told)
    }

    /// The next message from a process to another.
    pub(crate) async fn message(&self, process: usize, from: usize) -> Message {
        poll_fn(|_| {
            let process = &mut self.state.borrow_mut().processes[process];
            // Mostly the first is the one.
            let message = match process.mailbox.front() {
                Some(first) if first.from == from => process.mailbox.pop_front(),
                _ => {
                    let place = process.mailbox.iter().position(|message| message.from == from);
                    place.and_then(|place| process.mailbox.remove(place))
                }
            };
            let Some(message) = message else {
                process.waits_for = from;
                return Poll::Pending;
            };
            if process.mailbox.is_empty() && process.mailbox.capacity() > ROOM {
                process.mailbox = VecDeque::new();
            }
            Poll::Ready(message)
        })
        .await
    }

    /// Waits until there is a message to a process, and says from whom: of several senders the one after the last that it heard,
    /// as [`Group::recv_any`](ringstep_comm::Group::recv_any) does.
    pub(crate) async fn any_sender(&self, process: usize) -> usize {
        let first = poll_fn(|_| {
            let process = &mut self.state.borrow_mut().processes[process];
            let first = process.first();
            if first.is_none() {
                process.waits_for = ANYBODY;
            }
            first.map_or(Poll::Pending, Poll::Ready)
        })
        .await;
        // Whoever is to send something earlier has done so by then.
        self.turn(process, first).await;
        self.state.borrow_mut().processes[process].hear_next(self.world())
    }

    /// Whether messages of these two share links with others.
    pub(crate) fn shares_links(&self, one: usize, other: usize) -> bool {
        if self.cluster.topology.are_near(one, other) { self.shares_inside } else { self.shares_uplinks }
    }

    fn link(&self, one: usize, other: usize) -> Link {
        if self.cluster.topology.are_near(one, other) { self.inside } else { self.uplink }
    }

    /// The place of a worker's link to another among all links.
    fn place(&self, rank: usize, other: usize, hosts: usize) -> usize {
        let topology = &self.cluster.topology;
        if topology.are_near(rank, other) { hosts + rank } else { topology.hosts()[rank] }
    }

    /// Sends from this moment on, and says when all has left but for what is buffered.
    pub(crate) fn send(&self, from: usize, to: usize, data: usize) -> f64 {
        let state = &mut *self.state.borrow_mut();
        let (bytes, hosts) = (data + self.cluster.header, state.hosts.len());
        let free = &mut state.out[self.place(from, to, hosts)];
        let (start, end) = self.link(from, to).take(free, state.processes[from].clock, bytes);
        state.processes[from].sent += data as u64;
        state.processes[to].mailbox.push_back(Message { from, start, end, bytes, arrived: false });
        state.wake(to, from);
        let buffered = self.cluster.buffer * self.link(from, to).seconds_per_byte;
        (end - buffered).max(state.processes[from].clock)
    }

    /// Receives a message that has begun to leave, and says from when to when it arrives.
    pub(crate) fn receive(&self, rank: usize, message: Message) -> (f64, f64) {
        if message.arrived {
            return (message.start, message.end);
        }
        let state = &mut *self.state.borrow_mut();
        let (link, hosts) = (self.link(rank, message.from), state.hosts.len());
        let place = self.place(rank, message.from, hosts);
        let (start, end) = link.take(&mut state.into[place], message.start + link.latency, message.bytes);
        (start, end.max(message.end + link.latency))
    }

    /// Waits until all workers of this one's host have come. Says how many they are.
    pub(crate) async fn meet(&self, rank: usize) -> usize {
        let members = self.cluster.topology.neighbours(rank).count();
        let (host, round) = (self.cluster.topology.hosts()[rank], self.come(rank, members));
        let is_over = || self.state.borrow().hosts[host].over > round;
        poll_fn(|_| if is_over() { Poll::Ready(()) } else { Poll::Pending }).await;
        members
    }

    /// A worker has come; all go on when the last has. Says which meeting of the host it is.
    fn come(&self, rank: usize, members: usize) -> usize {
        let state = &mut *self.state.borrow_mut();
        let host = &mut state.hosts[self.cluster.topology.hosts()[rank]];
        let round = host.over;
        host.came.push(rank);
        host.last = host.last.max(state.processes[rank].clock);
        if host.came.len() == members {
            let (came, last) = (std::mem::take(&mut host.came), std::mem::take(&mut host.last));
            host.over += 1;
            for member in came {
                state.processes[member].clock = last;
                if member != rank {
                    state.queue.push_back(member);
                }
            }
        }
        round
    }
}

impl Process {
    /// When the first of its messages began to leave.
    fn first(&self) -> Option<f64> {
        self.mailbox.iter().map(|message| message.start).min_by(f64::total_cmp)
    }

    /// Of those whose messages have begun to leave, the sender after the last that it heard, by their numbers in a circle.
    fn hear_next(&mut self, world: usize) -> usize {
        let there = self.mailbox.iter().filter(|message| message.start <= self.clock).map(|message| message.from);
        let next = there.min_by_key(|from| (from + world - 1 - self.heard) % world);
        self.heard = next.expect("it is the turn of the first message");
        self.heard
    }
}

impl State {
    /// Lets a process go on if it waits for this one, from whom something has come.
    fn wake(&mut self, process: usize, from: usize) {
        if [from, ANYBODY].contains(&self.processes[process].waits_for) {
            self.processes[process].waits_for = NOBODY;
            self.queue.push_back(process);
        }
    }

    /// Looks at a host's cores when the next task is through.
    fn look_again(&mut self, host: usize) {
        let next = self.hosts[host].cores.next();
        self.hosts[host].next = next.unwrap_or(f64::INFINITY);
        if let Some(at) = next {
            self.calendar.push(Turn { at, who: self.processes.len() + host });
        }
    }
}

/// Waits until it is this process's turn again.
async fn a_turn() {
    let mut came = false;
    poll_fn(|_| if std::mem::replace(&mut came, true) { Poll::Ready(()) } else { Poll::Pending }).await;
}
