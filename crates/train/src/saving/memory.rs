//! What a rank remembers between two steps, in memory that outlives its process.
//!
//! The last two states are in files without names (memfd), which whoever has started the rank holds, too: if the rank is killed,
//! even while it writes, one of them is whole, and the process that takes its place goes on from there. Files are gone with the
//! last process that holds them.

use std::fs::File;
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use ringstep_nn::state::Saved;
use rustix::fs::{MemfdFlags, memfd_create};

use super::file;

/// The last two states of a rank.
#[derive(Debug)]
pub struct Memory {
    slots: [File; 2],
}

/// What a slot begins with: one more than the steps that were done, or 0 while it is written; and the bytes that follow.
const HEADER: usize = 16;

impl Memory {
    /// Empty.
    pub fn new() -> io::Result<Self> {
        let slot = || Ok::<_, io::Error>(File::from(memfd_create(c"ringstep-state", MemfdFlags::CLOEXEC)?));
        Ok(Self { slots: [slot()?, slot()?] })
    }

    /// That of another process of this host, by what that calls its [paths](Self::paths).
    pub fn open(paths: &[PathBuf; 2]) -> io::Result<Self> {
        let open = |path: &Path| File::options().read(true).write(true).open(path);
        Ok(Self { slots: [open(&paths[0])?, open(&paths[1])?] })
    }

    /// Where another process of this user finds it, as long as this one lives.
    pub fn paths(&self) -> [PathBuf; 2] {
        let process = std::process::id();
        self.slots.each_ref().map(|slot| format!("/proc/{process}/fd/{}", slot.as_raw_fd()).into())
    }

    /// The steps that were done at what is kept, the last one first.
    pub fn steps(&self) -> Vec<usize> {
        let mut steps: Vec<usize> = self.slots.iter().filter_map(|slot| Some(header(slot)?.0)).collect();
        steps.sort_unstable_by(|one, other| other.cmp(one));
        steps
    }

    /// Keeps a state after so many steps, in place of the older one.
    pub(crate) fn keep(&self, step: usize, state: &Saved) -> io::Result<()> {
        let steps = self.slots.each_ref().map(|slot| header(slot).map(|(step, _)| step));
        let slot = &self.slots[usize::from(steps[0] > steps[1])];
        let bytes = file::to_bytes(state);
        slot.write_all_at(&[0; HEADER], 0)?;
        slot.write_all_at(&bytes, HEADER as u64)?;
        // Whoever is killed before this has written nothing.
        let header = [step as u64 + 1, bytes.len() as u64].map(u64::to_le_bytes);
        slot.write_all_at(header.as_flattened(), 0)
    }

    /// What was kept after so many steps; nothing else is kept any more.
    pub fn recall(&self, step: usize) -> Option<Saved> {
        let mut found = None;
        for slot in &self.slots {
            match header(slot) {
                Some((there, length)) if there == step && found.is_none() => {
                    let mut bytes = vec![0; length];
                    slot.read_exact_at(&mut bytes, HEADER as u64).ok()?;
                    found = Some(file::from_bytes(&bytes, Path::new("memory")).ok()?);
                }
                _ => slot.write_all_at(&[0; HEADER], 0).ok()?,
            }
        }
        found
    }

    /// Nothing is kept any more.
    pub fn forget(&self) -> io::Result<()> {
        self.slots.iter().try_for_each(|slot| slot.write_all_at(&[0; HEADER], 0))
    }
}

/// The steps and the bytes of what a slot holds, if it is whole.
fn header(slot: &File) -> Option<(usize, usize)> {
    let mut bytes = [0; HEADER];
    slot.read_exact_at(&mut bytes, 0).ok()?;
    let [step, length] = std::array::from_fn(|at| u64::from_le_bytes(bytes.as_chunks::<8>().0[at]));
    Some((step.checked_sub(1)? as usize, length as usize))
}

#[cfg(test)]
mod tests {
    use ringstep_nn::state::Numbers;

    use super::*;

    fn state(number: u64, count: usize) -> Saved {
        Saved { numbers: [("it".to_owned(), Numbers::U64(vec![number; count]))].into() }
    }

    /// Also by whoever opens it later, however long states are.
    #[test]
    fn the_last_two_states_are_there() {
        let memory = Memory::new().unwrap();
        assert_eq!((memory.steps(), memory.recall(0)), (vec![], None));
        for step in 0..5 {
            memory.keep(step, &state(step as u64, 10 - step)).unwrap();
        }
        let other = Memory::open(&memory.paths()).unwrap();
        assert_eq!(other.steps(), [4, 3]);
        assert_eq!(other.recall(3), Some(state(3, 7)));
        assert_eq!(memory.steps(), [3], "steps that are done again are not remembered");
        memory.keep(4, &state(9, 1)).unwrap();
        assert_eq!((memory.steps(), memory.recall(4)), (vec![4, 3], Some(state(9, 1))));
    }

    /// Killed in the middle of it, a rank has the state before.
    #[test]
    fn what_is_not_written_to_its_end_is_not_there() {
        let memory = Memory::new().unwrap();
        for step in [7, 8] {
            memory.keep(step, &state(1, 3)).unwrap();
        }
        memory.slots[0].write_all_at(&[0; HEADER], 0).unwrap();
        assert_eq!(memory.steps(), [8]);
        memory.keep(9, &state(1, 3)).unwrap();
        assert_eq!(memory.steps(), [9, 8]);
    }
}
