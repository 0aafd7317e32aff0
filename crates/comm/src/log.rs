//! What a group has done, and when: what the accounts of a step rest on.

use std::time::Instant;

use crate::call::Call;
use crate::group::Group;
use crate::transport::Traffic;

/// One call of this rank: what it was, when it went on, and whether beside the caller's own work.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exchange {
    /// What the ranks did. Those that take part in one exchange give it the same sequence number.
    pub call: Call,
    /// Who took part.
    pub with: With,
    /// What the caller said that it is about: [`Group::label`].
    pub label: u16,
    /// This rank came to it.
    pub began: Instant,
    /// This rank was through with it.
    pub ended: Instant,
    /// Whether it was on the communication thread, while the caller did something else.
    pub beside: bool,
    /// Bytes of data that this rank sent in it, and what these took on the way.
    pub sent: [u64; 2],
}

/// Who takes part in a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum With {
    /// All ranks.
    All,
    /// This rank, which sends, and one that receives. Their messages are counted by themselves.
    To(usize),
    /// This rank, which receives, and one that sends.
    From(usize),
}

/// The exchanges of a group since somebody took them.
#[derive(Debug, Default)]
pub(crate) struct Log {
    on: bool,
    label: u16,
    /// Whether the communication thread has the group.
    pub beside: bool,
    exchanges: Vec<Exchange>,
}

impl Log {
    /// The moment at which a call begins, if anybody wants to know.
    #[inline]
    pub fn begin(&self) -> Option<Instant> {
        self.on.then(Instant::now)
    }

    /// A call that began then is through, with this traffic.
    pub fn end(&mut self, call: Call, with: With, began: Instant, traffic: Traffic) {
        let (label, beside) = (self.label, self.beside);
        let sent = [traffic.payload[0], traffic.wire[0]];
        self.exchanges.push(Exchange { call, with, label, began, ended: Instant::now(), beside, sent });
    }
}

impl Group {
    /// Whether this group remembers its exchanges from now on, until they are taken; at first it does not.
    pub fn record(&mut self, on: bool) {
        self.log.on = on;
    }

    /// What the calls that follow are about, as a number that the caller has a name for.
    pub fn label(&mut self, label: u16) {
        self.log.label = label;
        self.watch.label(Some(label));
    }

    /// Moves the exchanges since the last time to the end of `into`.
    pub fn take_exchanges(&mut self, into: &mut Vec<Exchange>) {
        into.append(&mut self.log.exchanges);
    }

    /// What this rank has sent and received so far.
    pub fn traffic(&self) -> Traffic {
        self.transport.traffic()
    }
}
