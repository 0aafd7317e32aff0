//! Memory that several ranks see, threads or processes, and what it holds: for each rank a bell to wake it and a
//! counter that says how far it is; for each pair a pipe; and room to lay slices out for the others to read.
//!
//! All `unsafe` of the shared-memory transports is here. What the methods hand out are atomics, or slices of one
//! rank's room; the protocol on top ([`super::shared`]) keeps writers and readers of a room apart.

#![allow(unsafe_code)]

use std::fs::File;
use std::os::fd::AsFd;
use std::ptr;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering, fence};
use std::time::{Duration, Instant};

use rustix::mm::{MapFlags, ProtFlags};
use rustix::thread::{futex, sched_yield};

use crate::copy::copy;

/// Bytes on the way from one rank to another.
pub(super) const PIPE: usize = 256 << 10;
/// Bytes of a rank's slot, of which it has two to use in turn: a page for the header, and data.
pub(super) const SLOT: usize = (256 << 10) + 4096;
/// Bytes of a rank's stage, and of the result that all have in common.
pub(super) const STAGE: usize = 1 << 20;
/// No two ranks' words share a pair of cache lines.
const LINE: usize = 128;

/// Where everything is.
#[derive(Debug, Clone, Copy)]
struct Layout {
    ranks: usize,
}

impl Layout {
    const fn desk(rank: usize) -> usize {
        rank * 4 * LINE
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
    /// Turns of a busy wait before a rank sleeps, and whether it lets others run in each.
    patience: (u32, bool),
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
        let layout = Layout { ranks };
        // SAFETY: a fresh anonymous mapping at an address of the system's choice.
        let base = unsafe {
            rustix::mm::mmap_anonymous(
                ptr::null_mut(),
                layout.total(),
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
            )?
        };
        Ok(Self::new(base.cast(), layout, None))
    }

    /// A file in memory that has no name, and so is gone with the last process that has it open.
    pub fn create_file(ranks: usize) -> std::io::Result<File> {
        let file = File::from(rustix::fs::memfd_create("ringstep", rustix::fs::MemfdFlags::CLOEXEC)?);
        file.set_len(Layout { ranks }.total() as u64)?;
        Ok(file)
    }

    /// For processes that have opened the same file.
    pub fn map(file: File, ranks: usize) -> std::io::Result<Self> {
        let layout = Layout { ranks };
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
        Ok(Self::new(base.cast(), layout, Some(file)))
    }

    fn new(base: *mut u8, layout: Layout, file: Option<File>) -> Self {
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        // Spinning only helps if whoever is waited for can run at the same time.
        let patience = if layout.ranks <= cores { (20_000, false) } else { (200, true) };
        Self { base, layout, patience, _file: file }
    }

    pub fn ranks(&self) -> usize {
        self.layout.ranks
    }

    fn word(&self, offset: usize) -> &AtomicU32 {
        debug_assert!(offset + 4 <= self.layout.total() && offset.is_multiple_of(4));
        // SAFETY: aligned, inside the mapping, zero at first, and only ever used as an atomic.
        unsafe { &*self.base.add(offset).cast() }
    }

    fn long_word(&self, offset: usize) -> &AtomicU64 {
        debug_assert!(offset + 8 <= self.layout.total() && offset.is_multiple_of(8));
        // SAFETY: aligned, inside the mapping, zero at first, and only ever used as an atomic.
        unsafe { &*self.base.add(offset).cast() }
    }

    /// How far a rank is.
    pub fn progress(&self, rank: usize) -> &AtomicU32 {
        self.word(Layout::desk(rank))
    }

    /// Whether a rank has left.
    pub fn gone(&self, rank: usize) -> &AtomicU32 {
        self.word(Layout::desk(rank) + LINE)
    }

    fn asleep(&self, rank: usize) -> &AtomicU32 {
        self.word(Layout::desk(rank) + 2 * LINE)
    }

    fn bell(&self, rank: usize) -> &AtomicU32 {
        self.word(Layout::desk(rank) + 3 * LINE)
    }

    /// Bytes ever written to and read from a pipe.
    pub fn pipe_counts(&self, from: usize, to: usize) -> (&AtomicU64, &AtomicU64) {
        let words = self.layout.pipe_words(from, to);
        (self.long_word(words), self.long_word(words + LINE))
    }

    /// Wakes a rank, should it sleep. Whatever it waits for must have been stored before.
    pub fn ring(&self, rank: usize) {
        // Pairs with the fence in `wait`: either this sees the sleeper, or the sleeper sees what was stored.
        fence(Ordering::SeqCst);
        if self.asleep(rank).load(Ordering::Relaxed) != 0 {
            self.bell(rank).fetch_add(1, Ordering::Relaxed);
            let _ = futex::wake(self.bell(rank), futex::Flags::empty(), u32::MAX);
        }
    }

    /// Waits until `ready`: busily at first, then asleep until somebody rings. Returns `false` after `nap`.
    pub fn wait(&self, rank: usize, nap: Duration, mut ready: impl FnMut() -> bool) -> bool {
        let (turns, give_way) = self.patience;
        for turn in 0..turns {
            if ready() {
                return true;
            }
            if give_way && turn > 4 {
                sched_yield();
            } else {
                std::hint::spin_loop();
            }
        }
        let deadline = Instant::now() + nap;
        loop {
            let bell = self.bell(rank).load(Ordering::Relaxed);
            self.asleep(rank).store(1, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            let left = deadline.saturating_duration_since(Instant::now());
            let done = ready();
            if !done && !left.is_zero() {
                let timeout =
                    futex::Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
                let _ = futex::wait(self.bell(rank), futex::Flags::empty(), bell, Some(&timeout));
            }
            self.asleep(rank).store(0, Ordering::Relaxed);
            if done || left.is_zero() {
                return done;
            }
        }
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
