//! Messages on links that they [share](crate::flows). A connection's messages go one after the other; each is through when it has
//! passed its sender's link and its receiver's, and is there for the receiver then.

use std::collections::{HashMap, VecDeque};
use std::future::poll_fn;
use std::task::Poll;

use super::{DRAIN, Link, Message, NOBODY, Network, State, Turn};
use crate::flows::{self, SharedLink};

/// Links that messages share, and what is on its way there.
pub(super) struct Shared {
    /// Out and into each.
    links: Vec<SharedLink>,
    /// When the next message of each is through.
    pub next: Vec<f64>,
    /// What is on its way, and waits to be, from one worker to another.
    connections: HashMap<usize, Connection>,
}

impl Shared {
    /// So many links like these, one kind after the other.
    pub fn new(kinds: [(usize, Link); 2]) -> Self {
        let both_ways = |(count, link): (usize, Link)| std::iter::repeat_n(SharedLink::new(link.credit), 2 * count);
        let links: Vec<SharedLink> = kinds.into_iter().flat_map(both_ways).collect();
        Self { next: vec![f64::INFINITY; links.len()], links, connections: HashMap::new() }
    }
}

/// What goes from one worker to another over shared links, in this order. The first is on its way.
#[derive(Debug, Default)]
struct Connection {
    messages: VecDeque<usize>,
    /// Bytes of all of them.
    bytes: usize,
    /// Of the first: when it began to leave, and how many links it has not passed.
    start: f64,
    left: usize,
    /// On these links, as long as there is something to send.
    weight: f64,
}

impl Network<'_> {
    /// Sends over links that are shared, from this turn on.
    pub(crate) fn send_shared(&self, from: usize, to: usize, data: usize) {
        let state = &mut *self.state.borrow_mut();
        let bytes = data + self.cluster.header;
        state.processes[from].sent += data as u64;
        let who = from * self.world() + to;
        let connection = state.shared.connections.entry(who).or_default();
        connection.messages.push_back(bytes);
        connection.bytes += bytes;
        if connection.messages.len() == 1 {
            connection.weight = flows::weight(self.seed, who, state.drawn);
            state.drawn += 1;
            self.set_off(state, from, to);
        }
    }

    /// The first message of a connection begins to leave.
    fn set_off(&self, state: &mut State, from: usize, to: usize) {
        let (who, link, now) = (from * self.world() + to, self.link(from, to), state.now);
        let connection = state.shared.connections.get_mut(&who).expect("it has a message");
        (connection.start, connection.left) = (now, 2);
        let (weight, seconds) = (connection.weight, connection.messages[0] as f64 * link.seconds_per_byte);
        let hosts = state.hosts.len();
        let (out, into) = (2 * self.place(from, to, hosts), 2 * self.place(to, from, hosts) + 1);
        // What passes the first link at once is at the second at once.
        let burst = state.shared.links[out].begin(now, who, weight, seconds, 0.0);
        state.shared.links[into].begin(now, who, weight, seconds, burst);
        state.look_at_link(out);
        state.look_at_link(into);
    }

    /// A message is through with a shared link.
    pub(super) fn passed(&self, state: &mut State, link: usize) {
        let connections = &state.shared.connections;
        let Some(who) = state.shared.links[link].end(state.now, |who| connections[&who].weight) else { return };
        state.look_at_link(link);
        let (from, to) = (who / self.world(), who % self.world());
        let connection = state.shared.connections.get_mut(&who).expect("its message was on the link");
        connection.left -= 1;
        if connection.left > 0 {
            return;
        }
        let bytes = connection.messages.pop_front().expect("its message was on the link");
        connection.bytes -= bytes;
        let goes_on = !connection.messages.is_empty();
        let latency = self.link(from, to).latency;
        let (start, end) = (connection.start + latency, state.now + latency);
        state.processes[to].mailbox.push_back(Message { from, start, end, bytes, arrived: true });
        state.wake(to, from);
        if state.processes[from].waits_for == DRAIN {
            state.processes[from].waits_for = NOBODY;
            state.queue.push_back(from);
        }
        if goes_on {
            self.set_off(state, from, to);
        }
    }

    /// Waits until no more is left to be sent from one worker to another than what the system takes of it.
    /// Says when that is.
    pub(crate) async fn drained(&self, from: usize, to: usize) -> f64 {
        let (who, mut waited) = (from * self.world() + to, false);
        poll_fn(|_| {
            let state = &mut *self.state.borrow_mut();
            let left = state.shared.connections.get(&who).map_or(0, |connection| connection.bytes);
            let process = &mut state.processes[from];
            if left as f64 <= self.cluster.buffer {
                return Poll::Ready(if waited { state.now } else { process.clock });
            }
            (process.waits_for, waited) = (DRAIN, true);
            Poll::Pending
        })
        .await
    }
}

impl State {
    /// Looks at a shared link when its next message is through.
    fn look_at_link(&mut self, link: usize) {
        let next = self.shared.links[link].next();
        self.shared.next[link] = next.unwrap_or(f64::INFINITY);
        if let Some(at) = next {
            // Rounding must not lead back in time.
            self.shared.next[link] = at.max(self.now);
            let who = self.processes.len() + self.hosts.len() + link;
            self.calendar.push(Turn { at: self.shared.next[link], who });
        }
    }
}
