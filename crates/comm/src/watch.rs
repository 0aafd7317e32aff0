//! What a rank waits in, for those who look on from another thread: whoever asks a rank that hangs would wait with it.
//!
//! A wait shows here once it has lasted for some ten milliseconds, so that those of every step cost nothing.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::call::Call;
use crate::group::Group;

/// What the threads of a rank wait in that use one group, or one of those that were split off it.
#[derive(Debug, Clone, Default)]
pub struct Watch(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// What calls are about at the moment: a number that may have a name.
    label: AtomicU32,
    board: Mutex<Board>,
}

#[derive(Debug, Default)]
struct Board {
    names: BTreeMap<u16, String>,
    waits: BTreeMap<u64, Wait>,
    signs: u64,
    /// Groups that were split off, each with its members' ranks in this one.
    parts: Vec<(Watch, Vec<usize>)>,
}

/// No label.
const NOTHING: u32 = u32::MAX;

impl Default for Inner {
    fn default() -> Self {
        Self { label: AtomicU32::new(NOTHING), board: Mutex::default() }
    }
}

/// One wait of a rank.
#[derive(Debug, Clone)]
pub struct Wait {
    /// What it waits in.
    pub call: Call,
    /// What that is about, if the caller has given it a name.
    pub about: Option<String>,
    /// For whom: for all of these, or for any.
    pub peers: Vec<usize>,
    /// Since when.
    pub since: Instant,
}

impl Watch {
    /// What the rank waits in now. Peers are ranks of the group that this is the watch of, also where it waits in a part of it.
    pub fn waits(&self) -> Vec<Wait> {
        let board = self.board();
        let mut waits: Vec<Wait> = board.waits.values().cloned().collect();
        for (part, members) in &board.parts {
            waits.extend(part.waits().into_iter().map(|mut wait| {
                wait.peers.iter_mut().for_each(|peer| *peer = members[*peer]);
                wait
            }));
        }
        waits
    }

    /// Gives a label of [`Group::label`] a name, also in the groups that were split off.
    pub fn name(&self, label: u16, name: &str) {
        let mut board = self.board();
        board.names.insert(label, name.to_owned());
        board.parts.iter().for_each(|(part, _)| part.name(label, name));
    }

    /// The name of what calls are about at the moment.
    pub fn about(&self) -> Option<String> {
        let label = u16::try_from(self.0.label.load(Ordering::Relaxed)).ok()?;
        self.board().names.get(&label).cloned()
    }

    /// Says what the calls that follow are about.
    pub(crate) fn label(&self, label: Option<u16>) {
        self.0.label.store(label.map_or(NOTHING, u32::from), Ordering::Relaxed);
    }

    /// Shows a wait, which has gone on for a time already, until the sign is dropped.
    pub(crate) fn show(&self, call: Call, peers: Vec<usize>, waited: Duration) -> Sign<'_> {
        let since = Instant::now().checked_sub(waited).unwrap_or_else(Instant::now);
        let about = self.about();
        let mut board = self.board();
        board.signs += 1;
        let number = board.signs;
        board.waits.insert(number, Wait { call, about, peers, since });
        Sign { watch: self, number }
    }

    /// Waits of a group that was split off are waits of this one.
    pub(crate) fn adopt(&self, part: Watch, members: Vec<usize>) {
        let mut board = self.board();
        part.board().names.clone_from(&board.names);
        board.parts.push((part, members));
    }

    fn board(&self) -> MutexGuard<'_, Board> {
        self.0.board.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A wait that shows.
pub(crate) struct Sign<'a> {
    watch: &'a Watch,
    number: u64,
}

impl Drop for Sign<'_> {
    fn drop(&mut self) {
        self.watch.board().waits.remove(&self.number);
    }
}

impl Group {
    /// What lets another thread see what this rank waits in.
    pub fn watch(&self) -> &Watch {
        &self.watch
    }

    /// The calls that follow are about nothing that has a name.
    pub fn unlabel(&mut self) {
        self.watch.label(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::call::Collective;
    use crate::element::ElementType;
    use crate::transport::mem;
    use crate::{Algorithm, Op};

    fn wait_until(mut condition: impl FnMut() -> bool) {
        while !condition() {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_sign_is_there_as_long_as_it_is_held() {
        let watch = Watch::default();
        watch.name(7, "bucket 3");
        watch.label(Some(7));
        let call = Call::plain(17, Collective::Barrier, ElementType::U8, 0);
        let sign = watch.show(call, vec![2], Duration::from_millis(5));
        let waits = watch.waits();
        assert_eq!((waits.len(), &waits[0].peers[..], waits[0].about.as_deref()), (1, &[2][..], Some("bucket 3")));
        drop(sign);
        assert!(watch.waits().is_empty());
        watch.label(None);
        assert_eq!(watch.about(), None);
    }

    /// Rank 0 of three does not come, first to a call of all, then to one of a part in which ranks have other numbers.
    #[test]
    fn whom_a_rank_waits_for_is_seen_from_another_thread() {
        let mut groups: Vec<Group> = mem::mesh(3).into_iter().map(Group::new).collect();
        let watches: Vec<Watch> = groups.iter().map(|group| group.watch().clone()).collect();
        let mut others = groups.split_off(1);
        std::thread::scope(|scope| {
            for group in &mut others {
                scope.spawn(move || {
                    group.watch().name(4, "bucket 4");
                    group.label(4);
                    group.all_reduce(&mut [1.0f32; 1000], Op::Sum, Algorithm::Direct).unwrap();
                    let mut pair = group.split(i64::from(group.rank() != 1), -(group.rank() as i64)).unwrap();
                    pair.barrier().unwrap();
                });
            }
            let absent = &mut groups[0];
            let waits_for = |rank: usize, whom: &[usize]| watches[rank].waits().iter().any(|wait| wait.peers == whom);
            wait_until(|| waits_for(1, &[0]) && waits_for(2, &[0]));
            assert_eq!(watches[2].waits()[0].about.as_deref(), Some("bucket 4"));
            assert_eq!(watches[2].waits()[0].call.to_string(), "all_reduce #1 (direct, sum of 1000 f32)");
            absent.all_reduce(&mut [1.0f32; 1000], Op::Sum, Algorithm::Direct).unwrap();
            let mut pair = absent.split(1, 0).unwrap();
            // Rank 2 is the first of the pair.
            assert_eq!(pair.rank(), 1);
            wait_until(|| waits_for(2, &[0]));
            pair.barrier().unwrap();
        });
        assert!(watches.iter().all(|watch| watch.waits().is_empty()));
    }
}
