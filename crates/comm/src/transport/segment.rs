//! Memory that several ranks see, threads or processes, and what it holds: a gate where they wait for each other; for
//! each rank a bell to wake it and a counter that says how far it is; for each pair a pipe; and room to lay slices out for
//! the others to read.
//!
//! Pages of it that nobody has touched take no memory, so there may be many more pipes than are ever used.
//!
//! All `unsafe` of the shared-memory transports is here. What the methods hand out are atomics, or slices of one
//! rank's room; the protocol on top ([`super::shared`]) keeps writers and readers of a room apart.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64};

use ringstep_cpu::gate::Gate;
use ringstep_cpu::wait::Bell;
use rustix::fs::{MemfdFlags, Mode, SealFlags};
use rustix::mm::{MapFlags, ProtFlags};

use crate::copy::copy;

/// Bytes on the way from one rank to another.
pub(super) const PIPE: usize = 256 << 10;
/// Bytes of a rank's slot, of which it has two to use in turn: a page for the header, and data.
pub(super) const SLOT: usize = (256 << 10) + 4096;
/// Bytes of a rank's stage, and of the result that all have in common.
pub(super) const STAGE: usize = 1 << 20;
/// What nobody may do any more with memory that is shared.
const SEALS: SealFlags = SealFlags::SHRINK.union(SealFlags::GROW).union(SealFlags::SEAL);
/// No two ranks' words share a pair of cache lines.
const LINE: usize = 128;

/// Where everything is.
#[derive(Debug, Clone, Copy)]
struct Layout {
    ranks: usize,
}

impl Layout {
    /// The most ranks for which all places can be told apart by 47 bits, which is what a process has for addresses.
    const MOST: usize = 1 << 14;

    fn new(ranks: usize) -> std::io::Result<Self> {
        if ranks > Self::MOST {
            let problem = format!("{ranks} ranks are more than the {} that can share memory on one host", Self::MOST);
            return Err(std::io::Error::other(problem));
        }
        Ok(Self { ranks })
    }

    /// The gate comes first.
    const fn desk(rank: usize) -> usize {
        LINE + rank * 3 * LINE
    }

    const fn pipe_words(self, from: usize, to: usize) -> usize {
        Self::desk(self.ranks) + (from * self.ranks + to) * 2 * LINE
    }

    const fn rooms(self) -> usize {
        self.pipe_words(self.ranks, 0).next_multiple_of(4096)
    }

    const fn pipe(self, from: usize, to: usize) -> usize {
        self.rooms() + (from * self.ranks + to) * PIPE
    }

    const fn slot(self, rank: usize, turn: u32) -> usize {
        self.pipe(self.ranks, 0) + (rank * 2 + (turn & 1) as usize) * SLOT
    }

    const fn stage(self, rank: usize) -> usize {
        self.slot(self.ranks, 0) + rank * STAGE
    }

    const fn result(self) -> usize {
        self.stage(self.ranks)
    }

    const fn total(self) -> usize {
        self.result() + STAGE
    }
}

/// A mapping with room for some ranks.
#[derive(Debug)]
pub(super) struct Segment {
    base: *mut u8,
    layout: Layout,
    /// Keeps the memory reachable for ranks that have not opened it yet.
    _file: Option<File>,
}

// SAFETY: the mapping lives as long as the Segment, and everything in it is reached through atomics or through slices
// whose users take turns (see the module's documentation).
unsafe impl Send for Segment {}
// SAFETY: as above.
unsafe impl Sync for Segment {}

impl Segment {
    /// For the threads of this process.
    pub fn private(ranks: usize) -> std::io::Result<Self> {
        let layout = Layout::new(ranks)?;
        // SAFETY: a fresh anonymous mapping at an address of the system's choice.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                layout.total(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
            )?
        };
        Ok(Self { base: base.cast(), layout, _file: None })
    }

    /// A file in memory that has no name, and so is gone with the last process that has it open. It is this user's alone, and
    /// its length is sealed: nobody can take the memory away from under a rank that uses it.
    pub fn create_file(ranks: usize) -> std::io::Result<File> {
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = File::from(rustix::fs::memfd_create("ringstep", flags)?);
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR)?;
        file.set_len(Layout::new(ranks)?.total() as u64)?;
        rustix::fs::fcntl_add_seals(&file, SEALS)?;
        Ok(file)
    }

    /// For processes that have opened the same file.
    pub fn map(file: File, ranks: usize) -> std::io::Result<Self> {
        let layout = Layout::new(ranks)?;
        // What is no file in memory has no seals.
        if !rustix::fs::fcntl_get_seals(&file).is_ok_and(|seals| seals.contains(SEALS)) {
            return Err(std::io::Error::other("what should be the shared memory is not sealed"));
        }
        if file.metadata()?.len() != layout.total() as u64 {
            return Err(std::io::Error::other("the shared memory is of another size than expected"));
        }
        // SAFETY: a fresh mapping of the whole file at an address of the system's choice.
        let base = unsafe {
            rustix::mm::mmap(
                ptr::null_mut(),
                layout.total(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                file.as_fd(),
                0,
            )?
        };
        Ok(Self { base: base.cast(), layout, _file: Some(file) })
    }

    pub fn ranks(&self) -> usize {
        self.layout.ranks
    }

    /// What lies at an offset.
    ///
    /// # Safety
    /// It is made of atomics alone, for which zero is a value, and nothing else is ever at that place.
    unsafe fn atomics<T>(&self, offset: usize) -> &T {
        debug_assert!(offset + size_of::<T>() <= self.layout.total() && offset.is_multiple_of(align_of::<T>()));
        // SAFETY: aligned and inside the mapping, which is zero at first; the caller vouches for the rest.
        unsafe { &*self.base.add(offset).cast() }
    }

    /// Where all ranks wait for each other.
    pub fn gate(&self) -> &Gate {
        // SAFETY: two atomic words, in a line of their own.
        unsafe { self.atomics(0) }
    }

    /// How far a rank is.
    pub fn progress(&self, rank: usize) -> &AtomicU32 {
        // SAFETY: an atomic word, in a line of its own.
        unsafe { self.atomics(Layout::desk(rank)) }
    }

    /// Whether a rank has left.
    pub fn gone(&self, rank: usize) -> &AtomicU32 {
        // SAFETY: an atomic word, in a line of its own.
        unsafe { self.atomics(Layout::desk(rank) + LINE) }
    }

    /// What wakes a rank that waits for a pipe.
    pub fn bell(&self, rank: usize) -> &Bell {
        // SAFETY: an atomic word, in a line of its own.
        unsafe { self.atomics(Layout::desk(rank) + 2 * LINE) }
    }

    /// Bytes ever written to and read from a pipe.
    pub fn pipe_counts(&self, from: usize, to: usize) -> (&AtomicU64, &AtomicU64) {
        let words = self.layout.pipe_words(from, to);
        // SAFETY: an atomic word each, in lines of their own.
        unsafe { (self.atomics::<AtomicU64>(words), self.atomics::<AtomicU64>(words + LINE)) }
    }

    /// # Safety
    /// No other thread or process may write to these bytes while the slice is in use.
    unsafe fn bytes(&self, offset: usize, length: usize) -> &[u8] {
        assert!(offset + length <= self.layout.total());
        // SAFETY: inside the mapping by the assertion; the caller vouches for the rest.
        unsafe { std::slice::from_raw_parts(self.base.add(offset), length) }
    }

    fn copy_in(&self, offset: usize, data: &[u8]) {
        assert!(offset + data.len() <= self.layout.total());
        // SAFETY: inside the mapping by the assertion; `data` is not part of it, and by protocol nobody else touches these
        // bytes before they are announced.
        let room = unsafe { std::slice::from_raw_parts_mut(self.base.add(offset), data.len()) };
        copy(room, data);
    }

    /// Writes at a place of a pipe that its reader has left behind.
    pub fn write_pipe(&self, from: usize, to: usize, at: usize, data: &[u8]) {
        assert!(at + data.len() <= PIPE);
        self.copy_in(self.layout.pipe(from, to) + at, data);
    }

    /// Bytes of a pipe that its writer has announced.
    pub fn read_pipe(&self, from: usize, to: usize, at: usize, length: usize) -> &[u8] {
        assert!(at + length <= PIPE);
        // SAFETY: the writer does not touch what it has announced until the reader says that it is done.
        unsafe { self.bytes(self.layout.pipe(from, to) + at, length) }
    }

    /// Lays data out in a rank's slot for this turn.
    pub fn write_slot(&self, rank: usize, turn: u32, at: usize, data: &[u8]) {
        assert!(at + data.len() <= SLOT);
        self.copy_in(self.layout.slot(rank, turn) + at, data);
    }

    /// A rank's slot for this turn, once it has come as far.
    pub fn slot(&self, rank: usize, turn: u32, at: usize, length: usize) -> &[u8] {
        assert!(at + length <= SLOT);
        // SAFETY: its owner writes to it again two turns later, which it reaches only after everyone has passed this one.
        unsafe { self.bytes(self.layout.slot(rank, turn) + at, length) }
    }

    /// Lays data out on a rank's stage.
    pub fn write_stage(&self, rank: usize, at: usize, data: &[u8]) {
        assert!(at + data.len() <= STAGE);
        self.copy_in(self.layout.stage(rank) + at, data);
    }

    /// A part of a rank's stage.
    pub fn stage(&self, rank: usize, at: usize, length: usize) -> &[u8] {
        assert!(at + length <= STAGE);
        // SAFETY: stages are written and read in turns that a synchronisation of all ranks separates.
        unsafe { self.bytes(self.layout.stage(rank) + at, length) }
    }

    /// Writes a part of the common result that is this rank's to write.
    pub fn write_result(&self, at: usize, data: &[u8]) {
        assert!(at + data.len() <= STAGE);
        self.copy_in(self.layout.result() + at, data);
    }

    /// A part of the common result.
    pub fn result(&self, at: usize, length: usize) -> &[u8] {
        assert!(at + length <= STAGE);
        // SAFETY: the result is written and read in turns that a synchronisation of all ranks separates.
        unsafe { self.bytes(self.layout.result() + at, length) }
    }
}

impl Drop for Segment {
    fn drop(&mut self) {
        // SAFETY: the mapping was made by this Segment, and all borrows of it have ended.
        let _ = unsafe { rustix::mm::munmap(self.base.cast(), self.layout.total()) };
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn shared_memory_keeps_its_length_and_is_one_users() {
        let file = Segment::create_file(2).unwrap();
        assert_eq!(file.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert!(file.set_len(0).is_err() && file.set_len(1 << 40).is_err());
        Segment::map(file, 2).unwrap();
    }

    #[test]
    fn what_is_not_sealed_is_not_mapped() {
        let file = tempfile_in_memory();
        let error = Segment::map(file, 2).unwrap_err().to_string();
        assert_eq!(error, "what should be the shared memory is not sealed");
        let error = Segment::map(Segment::create_file(3).unwrap(), 2).unwrap_err().to_string();
        assert_eq!(error, "the shared memory is of another size than expected");
    }

    /// As long as it should be, but anybody may shorten it.
    fn tempfile_in_memory() -> File {
        let file = File::from(rustix::fs::memfd_create("unsealed", MemfdFlags::ALLOW_SEALING).unwrap());
        file.set_len(Layout::new(2).unwrap().total() as u64).unwrap();
        file
    }
}
