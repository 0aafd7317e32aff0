//! Follows an algorithm's schedule without any numbers, and says what is wrong with it.
//!
//! Each element is the set of contributions that it is made of. Ranks are taken in turn; a message is handed over when its
//! receiver has come to it, never earlier: a schedule that needs a buffer on the way is a deadlock. Since each receiver
//! names its sender, whom a message meets does not depend on who is faster, so one order of turns stands for all.

use std::cell::RefCell;
use std::fmt;
use std::future::poll_fn;
use std::ops::Range;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

use crate::collective::lane::{Combine, Lane, Received, Reducing, Sent};
use crate::topology::Topology;
use crate::transport::TransportError;

/// The most ranks whose contributions can be told apart.
pub const MOST_RANKS: usize = 64;

/// What an element is made of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Made {
    /// Whose contributions, a bit for each rank.
    pub of: u64,
    /// Which of their elements.
    pub index: usize,
    /// Whether it has been [finished](Reducing::finish).
    pub finished: bool,
}

/// What a rank has, and knows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holding {
    /// How many elements the collective counts.
    pub elements: usize,
    /// What it sends from, if that is not where it receives.
    pub outgoing: Option<Vec<Made>>,
    /// What it has; `None` is memory that nobody has written to.
    pub data: Vec<Option<Made>>,
    /// The ranks of which it knows that they have come, a bit for each.
    pub heard: u64,
}

impl Holding {
    /// So many elements of a rank's own.
    pub fn own(rank: usize, elements: usize) -> Vec<Made> {
        (0..elements).map(|index| Made { of: 1 << rank, index, finished: false }).collect()
    }

    /// A slice of a rank's own, for a collective in place.
    pub fn in_place(rank: usize, elements: usize) -> Self {
        let data = Self::own(rank, elements).into_iter().map(Some).collect();
        Self { elements, outgoing: None, data, heard: 1 << rank }
    }
}

/// What is wrong with a schedule.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Flaw {
    /// Some wait for each other, or for somebody who is through.
    #[error("rank {rank} waits for ever{waits}")]
    Deadlock {
        /// The first of them.
        rank: usize,
        /// What it waits for.
        waits: Waits,
    },
    /// A message is not as long as its receiver thinks.
    #[error("rank {from} sends {sent} elements to rank {to}, which expects {expected}")]
    Length {
        /// The sender.
        from: usize,
        /// The receiver.
        to: usize,
        /// The message's length.
        sent: usize,
        /// What the receiver makes of it.
        expected: usize,
    },
    /// Elements were reduced that do not belong together, or were reduced already.
    #[error("rank {rank} reduces {one:?} with {other:?}")]
    Reduction {
        /// Where that was.
        rank: usize,
        /// What was there.
        one: Option<Made>,
        /// What came.
        other: Option<Made>,
    },
    /// An element was finished that is not reduced over all ranks, or is finished already.
    #[error("rank {rank} finishes {made:?}")]
    Finish {
        /// Where that was.
        rank: usize,
        /// What it was.
        made: Option<Made>,
    },
    /// Memory was sent that nobody has written to.
    #[error("rank {rank} sends element {index}, which is not there")]
    Nothing {
        /// The sender.
        rank: usize,
        /// Which element.
        index: usize,
    },
}

/// What a rank waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waits {
    /// Who does not receive.
    pub to: Option<usize>,
    /// Who does not send.
    pub from: Option<usize>,
    /// Whether it waits for others of its host to reduce in shared memory.
    pub host: bool,
}

impl fmt::Display for Waits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(to) = self.to {
            write!(f, ": rank {to} does not receive")?;
        }
        if let Some(from) = self.from {
            write!(f, ": rank {from} does not send")?;
        }
        if self.host {
            f.write_str(": others of its host do not reduce in shared memory")?;
        }
        Ok(())
    }
}

/// Follows a schedule from what each rank has to what each ends with.
pub fn follow(
    topology: &Topology,
    holdings: Vec<Holding>,
    algorithm: impl AsyncFn(&mut Followed<'_>) -> Result<(), TransportError>,
) -> Result<Vec<Holding>, Flaw> {
    let world = topology.world();
    assert!(world <= MOST_RANKS && holdings.len() == world, "one holding for each of at most {MOST_RANKS} ranks");
    let hosts = topology.hosts().iter().max().map_or(0, |last| last + 1);
    let state = RefCell::new(State {
        holdings,
        on_the_way: (0..world * world).map(|_| None).collect(),
        aside: vec![Vec::new(); world],
        waiting: vec![Waits::default(); world],
        meetings: vec![Meeting::default(); hosts],
        changes: 0,
        flaw: None,
    });
    let run = |rank| {
        let mut lane = Followed { rank, topology, state: &state };
        let algorithm = &algorithm;
        async move { algorithm(&mut lane).await }
    };
    type Running<'a> = Pin<Box<dyn Future<Output = Result<(), TransportError>> + 'a>>;
    let mut running: Vec<Option<Running<'_>>> = (0..world).map(|rank| Some(Box::pin(run(rank)) as _)).collect();
    loop {
        let before = state.borrow().changes;
        for rank in &mut running {
            let Some(schedule) = rank else { continue };
            if schedule.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_ready() {
                *rank = None;
                state.borrow_mut().changes += 1;
            }
            if let Some(flaw) = state.borrow_mut().flaw.take() {
                return Err(flaw);
            }
        }
        let Some(rank) = running.iter().position(Option::is_some) else { break };
        if state.borrow().changes == before {
            let waits = state.borrow().waiting[rank];
            return Err(Flaw::Deadlock { rank, waits });
        }
    }
    drop(running);
    Ok(state.into_inner().holdings)
}

/// What all ranks have, and what is between them.
struct State {
    holdings: Vec<Holding>,
    /// The message from each rank to each other that was not taken yet.
    on_the_way: Vec<Option<Message>>,
    /// What each rank has received aside, and from whom.
    aside: Vec<Vec<(usize, Vec<Option<Made>>)>>,
    /// What each rank waits for.
    waiting: Vec<Waits>,
    /// The ranks of each host that have come to reduce in shared memory.
    meetings: Vec<Meeting>,
    /// Counts all that happens: a turn of all ranks in which nothing does is the last.
    changes: usize,
    flaw: Option<Flaw>,
}

#[derive(Debug, Clone)]
struct Message {
    elements: Vec<Option<Made>>,
    heard: u64,
}

#[derive(Debug, Clone, Default)]
struct Meeting {
    came: usize,
    over: usize,
}

/// What becomes of a message.
enum Sink {
    Data(Range<usize>, Combine),
    Aside(usize),
}

impl State {
    fn find(&mut self, flaw: Flaw) {
        self.flaw.get_or_insert(flaw);
    }

    fn post(&mut self, from: usize, to: usize, part: Range<usize>) {
        let Holding { outgoing, data, heard, .. } = &self.holdings[from];
        let elements: Vec<_> = match outgoing {
            Some(outgoing) => outgoing[part.clone()].iter().copied().map(Some).collect(),
            None => data[part.clone()].to_vec(),
        };
        let message = Message { heard: *heard, elements };
        if let Some(missing) = message.elements.iter().position(Option::is_none) {
            self.find(Flaw::Nothing { rank: from, index: part.start + missing });
        }
        let world = self.holdings.len();
        self.on_the_way[from * world + to] = Some(message);
        self.changes += 1;
    }

    fn is_on_the_way(&self, from: usize, to: usize) -> bool {
        self.on_the_way[from * self.holdings.len() + to].is_some()
    }

    /// Takes the message from a rank to another, if it is there.
    fn take(&mut self, from: usize, to: usize, sink: &Sink) -> bool {
        let place = from * self.holdings.len() + to;
        let Some(Message { elements, heard }) = self.on_the_way[place].take() else { return false };
        self.changes += 1;
        self.holdings[to].heard |= heard;
        let (sent, expected) = match sink {
            Sink::Data(part, _) => (elements.len(), part.len()),
            Sink::Aside(length) => (elements.len(), *length),
        };
        if sent != expected {
            self.find(Flaw::Length { from, to, sent, expected });
            return true;
        }
        match sink {
            Sink::Aside(_) => self.aside[to].push((from, elements)),
            Sink::Data(part, Combine::Copy) => self.holdings[to].data[part.clone()].copy_from_slice(&elements),
            Sink::Data(part, Combine::Reduce) => self.reduce(to, part.start, &elements),
        }
        true
    }

    fn reduce(&mut self, rank: usize, start: usize, elements: &[Option<Made>]) {
        for (at, &other) in elements.iter().enumerate() {
            let one = self.holdings[rank].data[start + at];
            match combined(one, other) {
                Some(both) => self.holdings[rank].data[start + at] = Some(both),
                None => self.find(Flaw::Reduction { rank, one, other }),
            }
        }
    }
}

/// Two elements that have nothing in common, reduced.
fn combined(one: Option<Made>, other: Option<Made>) -> Option<Made> {
    let (one, other) = one.zip(other)?;
    let fit = one.index == other.index && one.of & other.of == 0 && !one.finished && !other.finished;
    fit.then_some(Made { of: one.of | other.of, ..one })
}

/// A rank's lane through a proof.
pub struct Followed<'a> {
    rank: usize,
    topology: &'a Topology,
    state: &'a RefCell<State>,
}

impl Followed<'_> {
    async fn pass(&mut self, sent: Option<Sent>, mut received: Option<(usize, Sink)>) -> Result<(), TransportError> {
        let (rank, state) = (self.rank, self.state);
        let to = sent.as_ref().map(|(to, _)| *to);
        if let Some((to, part)) = sent {
            state.borrow_mut().post(rank, to, part);
        }
        poll_fn(|_| {
            let mut state = state.borrow_mut();
            received.take_if(|(from, sink)| state.take(*from, rank, sink));
            let to = to.filter(|&to| state.is_on_the_way(rank, to));
            if to.is_none() && received.is_none() {
                return Poll::Ready(Ok(()));
            }
            let from = received.as_ref().map(|(from, _)| *from);
            state.waiting[rank] = Waits { to, from, host: false };
            Poll::Pending
        })
        .await
    }
}

impl Lane for Followed<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn topology(&self) -> &Topology {
        self.topology
    }

    fn len(&self) -> usize {
        self.state.borrow().holdings[self.rank].elements
    }

    fn element_size(&self) -> usize {
        size_of::<f32>()
    }

    async fn transfer(&mut self, sent: Option<Sent>, received: Option<Received>) -> Result<(), TransportError> {
        self.pass(sent, received.map(|(from, part, combine)| (from, Sink::Data(part, combine)))).await
    }
}

impl Reducing for Followed<'_> {
    fn finish(&mut self, part: Range<usize>) {
        let (rank, all) = (self.rank, u64::MAX >> (MOST_RANKS - self.world()));
        let mut state = self.state.borrow_mut();
        for index in part {
            let made = state.holdings[rank].data[index];
            match made.filter(|made| made.of == all && !made.finished) {
                Some(made) => state.holdings[rank].data[index] = Some(Made { finished: true, ..made }),
                None => state.find(Flaw::Finish { rank, made }),
            }
        }
    }

    async fn reduce_in_host(&mut self) -> Result<(), TransportError> {
        let (rank, state) = (self.rank, self.state);
        let members: Vec<usize> = self.topology.neighbours(rank).collect();
        let host = self.topology.hosts()[rank];
        let round = {
            let mut state = state.borrow_mut();
            state.changes += 1;
            state.meetings[host].came += 1;
            let round = state.meetings[host].over;
            if state.meetings[host].came == members.len() {
                let first = members[0];
                for &member in &members[1..] {
                    let theirs = state.holdings[member].clone();
                    state.reduce(first, 0, &theirs.data);
                    state.holdings[first].heard |= theirs.heard;
                }
                for &member in &members[1..] {
                    state.holdings[member] = Holding { outgoing: None, ..state.holdings[first].clone() };
                }
                state.meetings[host] = Meeting { came: 0, over: round + 1 };
            }
            round
        };
        poll_fn(|_| {
            let mut state = state.borrow_mut();
            if state.meetings[host].over > round {
                return Poll::Ready(Ok(()));
            }
            state.waiting[rank] = Waits { host: true, ..Waits::default() };
            Poll::Pending
        })
        .await
    }

    async fn exchange_aside(
        &mut self,
        to: usize,
        outgoing: Range<usize>,
        from: usize,
        mine: Range<usize>,
    ) -> Result<(), TransportError> {
        self.pass(Some((to, outgoing)), Some((from, Sink::Aside(mine.len())))).await
    }

    fn reduce_aside(&mut self, mine: Range<usize>) {
        let rank = self.rank;
        let mut state = self.state.borrow_mut();
        for (_, elements) in std::mem::take(&mut state.aside[rank]) {
            state.reduce(rank, mine.start, &elements);
        }
        drop(state);
        self.finish(mine);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pair() -> (Topology, Vec<Holding>) {
        (Topology::new(vec![0, 1], false), vec![Holding::in_place(0, 4), Holding::in_place(1, 4)])
    }

    #[test]
    fn ranks_that_both_send_first_are_a_deadlock() {
        let (topology, holdings) = pair();
        let flaw = follow(&topology, holdings, async |lane: &mut Followed<'_>| {
            let other = 1 - lane.rank();
            lane.send(other, 0..4).await?;
            lane.recv(other, 0..4, Combine::Copy).await
        });
        assert_eq!(flaw, Err(Flaw::Deadlock { rank: 0, waits: Waits { to: Some(1), ..Waits::default() } }));
    }

    #[test]
    fn what_does_not_fit_is_found() {
        let with = |algorithm: &dyn Fn(usize) -> Vec<(Option<Sent>, Option<Received>)>| {
            let (topology, holdings) = pair();
            follow(&topology, holdings, async |lane: &mut Followed<'_>| {
                for (sent, received) in algorithm(lane.rank()) {
                    lane.transfer(sent, received).await?;
                }
                Ok(())
            })
        };
        let one_way = |out: Range<usize>, into: Range<usize>, combine| {
            move |rank| match rank {
                0 => vec![(Some((1, out.clone())), None); 2],
                _ => vec![(None, Some((0, into.clone(), combine))); 2],
            }
        };
        let length = with(&one_way(0..4, 0..3, Combine::Copy));
        assert_eq!(length, Err(Flaw::Length { from: 0, to: 1, sent: 4, expected: 3 }));
        let twice = with(&one_way(0..4, 0..4, Combine::Reduce));
        assert!(matches!(twice, Err(Flaw::Reduction { rank: 1, .. })), "{twice:?}");
        let shifted = with(&one_way(0..3, 1..4, Combine::Reduce));
        assert!(matches!(shifted, Err(Flaw::Reduction { rank: 1, .. })), "{shifted:?}");
        let silent = with(&|rank| if rank == 0 { vec![] } else { vec![(None, Some((0, 0..4, Combine::Copy)))] });
        assert_eq!(silent.unwrap_err().to_string(), "rank 1 waits for ever: rank 0 does not send");
    }

    #[test]
    fn what_is_finished_too_early_is_found() {
        let (topology, holdings) = pair();
        let flaw = follow(&topology, holdings, async |lane: &mut Followed<'_>| {
            lane.finish(0..4);
            Ok(())
        });
        assert!(matches!(flaw, Err(Flaw::Finish { rank: 0, .. })), "{flaw:?}");
    }
}
