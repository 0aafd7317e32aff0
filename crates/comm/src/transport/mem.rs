//! Ranks that are threads of one process.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::segment::Segment;
use super::{
    Aborter, Cause, DEFAULT_TIMEOUT, Incoming, Outgoing, Shared, Traffic, Transport, TransportError, one_host,
};
use crate::call::Call;
use crate::watch::Watch;

/// Ends of sub-groups that their ranks have not picked up yet, by the splits before and the first member.
type Lobby = HashMap<(u64, usize), Vec<Option<Mem>>>;

/// One rank's end.
#[derive(Debug)]
pub struct Mem {
    shared: Shared,
    call: Option<Call>,
    hosts: Vec<usize>,
    lobby: Arc<Mutex<Lobby>>,
    splits: u64,
}

/// Connects `world` ranks with each other; the element at index `r` belongs to rank `r`. Panics where the system has no
/// memory for them to share.
pub fn mesh(world: usize) -> Vec<Mem> {
    try_mesh(world).expect("the system has memory for the ranks to share")
}

/// The same for many ranks: pipes between all pairs take a large range of addresses, 64 GiB for 512 ranks, of which
/// memory is only what is used, and not every system grants that.
pub fn try_mesh(world: usize) -> std::io::Result<Vec<Mem>> {
    let segment = Arc::new(Segment::private(world)?);
    let lobby = Arc::default();
    Ok((0..world)
        .map(|rank| {
            let lifelines = (0..world).map(|_| None).collect();
            let members = (0..world).collect();
            Mem {
                shared: Shared::new(
                    Arc::clone(&segment),
                    rank,
                    members,
                    lifelines,
                    DEFAULT_TIMEOUT,
                    Aborter::default(),
                ),
                call: None,
                hosts: one_host(world),
                lobby: Arc::clone(&lobby),
                splits: 0,
            }
        })
        .collect())
}

impl Mem {
    /// Gives up on a peer that has been silent for so long.
    pub fn with_timeout(mut self, timeout: Duration) -> Self {
        self.shared.set_timeout(timeout);
        self
    }
}

impl Transport for Mem {
    fn rank(&self) -> usize {
        self.shared.index()
    }

    fn world(&self) -> usize {
        self.shared.segment().ranks()
    }

    fn begin(&mut self, call: Call) {
        self.call = Some(call);
    }

    fn transfer(
        &mut self,
        outgoing: Option<Outgoing<'_>>,
        incoming: Option<Incoming<'_>>,
    ) -> Result<(), TransportError> {
        let call = self.call.expect("a call has begun");
        self.shared.transfer(&call, outgoing, incoming)
    }

    fn wait_any(&mut self, from: &[usize], until: Option<Instant>) -> Result<Option<usize>, TransportError> {
        self.shared.wait_any(from, until)
    }

    fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    fn shared(&mut self) -> Option<&mut Shared> {
        Some(&mut self.shared)
    }

    fn traffic(&self) -> Traffic {
        self.shared.traffic()
    }

    fn timeout(&self) -> Duration {
        self.shared.timeout()
    }

    fn aborter(&self) -> Aborter {
        self.shared.aborter()
    }

    fn watch(&self) -> Watch {
        self.shared.watch.clone()
    }

    fn split(&mut self, members: &[usize]) -> Result<Box<dyn Transport>, TransportError> {
        let key = (self.splits, members[0]);
        self.splits += 1;
        let place = members.iter().position(|&member| member == self.rank()).expect("this rank is a member");
        let mut lobby = self.lobby.lock().unwrap_or_else(PoisonError::into_inner);
        let ends = match lobby.entry(key) {
            std::collections::hash_map::Entry::Occupied(entry) => entry.into_mut(),
            std::collections::hash_map::Entry::Vacant(entry) => {
                let ends =
                    try_mesh(members.len()).map_err(|error| TransportError::receiving(members[0], Cause::Io(error)))?;
                entry.insert(ends.into_iter().map(Some).collect())
            }
        };
        let end = ends[place].take().expect("each end is picked up once");
        if ends.iter().all(Option::is_none) {
            lobby.remove(&key);
        }
        Ok(Box::new(end))
    }
}
