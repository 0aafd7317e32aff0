//! Signs of life: every process says about once a second of each of its ranks what that waits in, if it does. They come from a
//! thread of their own, so that a rank that hangs has them and a process that is stopped has none. The first process of a job
//! that somebody else has started has some for all others, too.

use std::collections::BTreeMap;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use ringstep_comm::watch::{Wait, Watch};
use serde::{Deserialize, Serialize};

use super::protocol::Message;

/// How often there is one, unless little patience asks for more.
const PERIOD: Duration = Duration::from_secs(1);

/// How often there is one where silence is a fault after that time: whoever is given up then is to be heard several times before.
pub(super) fn period(timeout: Duration) -> Duration {
    PERIOD.min(timeout / 4)
}

/// What a rank waits in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Waiting {
    /// Bucket, collective and sequence number.
    pub what: String,
    /// For whom.
    pub peers: Vec<usize>,
    /// For how long.
    pub time: Duration,
}

impl From<Wait> for Waiting {
    fn from(Wait { call, about, peers, since }: Wait) -> Self {
        let about = about.map(|about| format!("{about}, ")).unwrap_or_default();
        Self { what: format!("{about}{call}"), peers, time: since.elapsed() }
    }
}

/// The ranks of this process that have not ended, each with what it can be seen to wait in.
pub(super) struct Pulses {
    ranks: Mutex<BTreeMap<usize, Watch>>,
    fewer: Condvar,
}

impl Pulses {
    /// Of these ranks, who have not met the others yet.
    pub fn of(ranks: &[usize]) -> Self {
        let ranks = ranks.iter().map(|&rank| (rank, Watch::default())).collect();
        Self { ranks: Mutex::new(ranks), fewer: Condvar::new() }
    }

    /// A rank begins its part; it has ended when what this returns is dropped.
    pub fn begin(&self, rank: usize) -> Part<'_> {
        Part { pulses: self, rank }
    }

    /// Speaks for all ranks until the last has ended.
    pub fn beat(&self, timeout: Duration, say: &dyn Fn(usize, Message)) {
        let period = period(timeout);
        let mut ranks = self.ranks();
        while !ranks.is_empty() {
            let signs: Vec<_> = ranks.iter().map(|(&rank, watch)| (rank, watch.clone())).collect();
            drop(ranks);
            for (rank, watch) in signs {
                say(rank, Message::Pulse(watch.waits().into_iter().map(Waiting::from).collect()));
            }
            let last_has_ended = |ranks: &mut BTreeMap<usize, Watch>| !ranks.is_empty();
            let waited = self.fewer.wait_timeout_while(self.ranks(), period, last_has_ended);
            ranks = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    fn ranks(&self) -> MutexGuard<'_, BTreeMap<usize, Watch>> {
        self.ranks.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a rank does from the beginning to the end, however it ends.
pub(super) struct Part<'a> {
    pulses: &'a Pulses,
    rank: usize,
}

impl Part<'_> {
    /// The rank has met the others: what it waits in can be seen.
    pub fn watch(&self, watch: &Watch) {
        self.pulses.ranks().insert(self.rank, watch.clone());
    }
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        self.pulses.ranks().remove(&self.rank);
        self.pulses.fewer.notify_all();
    }
}
