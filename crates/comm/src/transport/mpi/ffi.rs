//! MPI, as safe functions: the only file that calls it.
//!
//! Nothing can be called before [`init`] or after [`finalize`]: every call is one of a [`Comm`] or a [`Pending`], and while there
//! is one, MPI is not ended. What MPI reads or writes while the caller does something else is memory that belongs to a
//! [`Pending`], which gives it back when MPI is through and never frees it before: a request that nobody completes any more,
//! since a peer is gone, keeps its memory for good. Collectives on the caller's memory return when MPI has let go of it.

#![allow(unsafe_code)]

use std::ffi::{CStr, c_char, c_int, c_void};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use half::{bf16, f16};

use crate::element::{Element, ElementType, Op};

unsafe extern "C" {
    fn ringstep_mpi_init(enough: *mut c_int, rank: *mut c_int, size: *mut c_int) -> c_int;
    fn ringstep_mpi_finalize() -> c_int;
    fn ringstep_mpi_abort() -> c_int;
    fn ringstep_mpi_library(into: *mut c_char, room: c_int);
    fn ringstep_mpi_error(code: c_int, into: *mut c_char, room: c_int);
    fn ringstep_mpi_create(members: *const c_int, count: c_int, tag: c_int, created: *mut u64) -> c_int;
    fn ringstep_mpi_free(comm: u64) -> c_int;
    fn ringstep_mpi_isend(
        comm: u64,
        data: *const c_void,
        bytes: c_int,
        to: c_int,
        tag: c_int,
        request: *mut u64,
    ) -> c_int;
    fn ringstep_mpi_irecv(
        comm: u64,
        data: *mut c_void,
        room: c_int,
        from: c_int,
        tag: c_int,
        request: *mut u64,
    ) -> c_int;
    fn ringstep_mpi_imax(comm: u64, values: *mut i64, count: c_int, request: *mut u64) -> c_int;
    fn ringstep_mpi_iall_gather(comm: u64, values: *mut i64, count: c_int, request: *mut u64) -> c_int;
    fn ringstep_mpi_test(request: *mut u64, done: *mut c_int, bytes: *mut c_int) -> c_int;
    fn ringstep_mpi_cancel(request: u64) -> c_int;
    fn ringstep_mpi_iprobe(comm: u64, from: c_int, tag: c_int, found: *mut c_int, source: *mut c_int) -> c_int;
    fn ringstep_mpi_all_reduce(comm: u64, data: *mut c_void, count: c_int, element: c_int, op: c_int) -> c_int;
    fn ringstep_mpi_iall_reduce(
        comm: u64,
        data: *mut c_void,
        count: c_int,
        element: c_int,
        op: c_int,
        request: *mut u64,
    ) -> c_int;
    fn ringstep_mpi_reduce_to(
        comm: u64,
        own: *const c_void,
        sum: *mut c_void,
        count: c_int,
        element: c_int,
        op: c_int,
        root: c_int,
    ) -> c_int;
    fn ringstep_mpi_reduce_scatter(
        comm: u64,
        data: *mut c_void,
        counts: *const c_int,
        element: c_int,
        op: c_int,
    ) -> c_int;
    fn ringstep_mpi_broadcast(comm: u64, data: *mut c_void, bytes: c_int, root: c_int) -> c_int;
    fn ringstep_mpi_gather(comm: u64, part: *const c_void, bytes: c_int, all: *mut c_void, root: c_int) -> c_int;
    fn ringstep_mpi_scatter(comm: u64, all: *const c_void, part: *mut c_void, bytes: c_int, root: c_int) -> c_int;
    fn ringstep_mpi_all_gather(comm: u64, data: *mut c_void, counts: *const c_int, starts: *const c_int) -> c_int;
    fn ringstep_mpi_all_to_all(comm: u64, out: *const c_void, into: *mut c_void, bytes: c_int) -> c_int;
}

/// What MPI says to a call that fails.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MpiError {
    /// MPI's name of the call.
    pub call: &'static str,
    /// What it says, on one line.
    pub text: String,
}

impl fmt::Display for MpiError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.call, self.text)
    }
}

impl std::error::Error for MpiError {}

type Result<T> = std::result::Result<T, MpiError>;

/// Whether MPI runs.
static RUNS: AtomicBool = AtomicBool::new(false);
/// Communicators and requests that there are.
static USES: AtomicUsize = AtomicUsize::new(0);

/// What every communicator and request holds: while there is one, MPI is not ended, so that to make a call needs no look.
#[derive(Debug)]
struct Use;

impl Use {
    fn begin(call: &'static str) -> Result<Self> {
        // Pairs with `close`: either that sees this use, or this one sees that MPI has ended.
        USES.fetch_add(1, Ordering::SeqCst);
        let begun = Self;
        if RUNS.load(Ordering::SeqCst) {
            return Ok(begun);
        }
        Err(MpiError { call, text: "MPI does not run in this process".to_owned() })
    }
}

impl Drop for Use {
    fn drop(&mut self) {
        USES.fetch_sub(1, Ordering::SeqCst);
    }
}

/// Lets no further use begin, and says whether none is left.
pub fn close() -> bool {
    RUNS.store(false, Ordering::SeqCst);
    USES.load(Ordering::SeqCst) == 0
}

fn text(read: impl FnOnce(*mut c_char, c_int)) -> String {
    let mut room = [0 as c_char; 8192];
    read(room.as_mut_ptr(), room.len() as c_int);
    // SAFETY: The shim ends what it writes by a zero, and the room was all zeros before.
    let text = unsafe { CStr::from_ptr(room.as_ptr()) }.to_string_lossy().into_owned();
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

fn check(call: &'static str, code: c_int) -> Result<()> {
    if code == 0 {
        return Ok(());
    }
    // SAFETY: The shim writes no more than the room it is given.
    Err(MpiError { call, text: text(|into, room| unsafe { ringstep_mpi_error(code, into, room) }) })
}

/// A number as MPI takes it. Callers have made sure that it fits.
fn int(number: usize) -> c_int {
    c_int::try_from(number).expect("numbers fit")
}

/// All processes of the job, as MPI sees them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct World {
    /// Which one this is.
    pub rank: usize,
    /// How many there are.
    pub size: usize,
    /// Which MPI this is.
    pub library: String,
}

/// Starts MPI; once in a process, on the thread that is to end it.
pub(super) fn init() -> Result<World> {
    let (mut enough, mut rank, mut size) = (0, 0, 0);
    // SAFETY: The pointers are those of local variables.
    check("MPI_Init_thread", unsafe { ringstep_mpi_init(&mut enough, &mut rank, &mut size) })?;
    // SAFETY: The shim writes no more than the room it is given.
    let library = text(|into, room| unsafe { ringstep_mpi_library(into, room) });
    let library = library.split(',').next().unwrap_or_default().chars().take(60).collect();
    if enough == 0 {
        // SAFETY: MPI has been started, and nobody uses it.
        unsafe { ringstep_mpi_finalize() };
        let text = format!("{library} does not give MPI_THREAD_MULTIPLE, which overlap and sub-groups need");
        return Err(MpiError { call: "MPI_Init_thread", text });
    }
    RUNS.store(true, Ordering::SeqCst);
    Ok(World { rank: rank as usize, size: size as usize, library })
}

/// Ends MPI, after [`close`] has said that nobody uses it any more, on the thread that has started it.
pub(super) fn finalize() -> Result<()> {
    assert!(close(), "nobody uses MPI any more");
    // SAFETY: No call is being made, and none will be.
    check("MPI_Finalize", unsafe { ringstep_mpi_finalize() })
}

/// Ends all processes of the job: the last way out of a call that does not return.
pub(super) fn abort() -> ! {
    if RUNS.load(Ordering::SeqCst) {
        // SAFETY: MPI runs; it may be called by any thread.
        unsafe { ringstep_mpi_abort() };
    }
    std::process::exit(1);
}

/// Memory for messages. Counted in u64 for its alignment.
pub type Buffer = Box<[u64]>;

/// Processes that talk among themselves.
#[derive(Debug)]
pub struct Comm {
    handle: u64,
    rank: usize,
    size: usize,
    _use: Use,
}

impl Comm {
    /// Of these processes of all, in this order, of which this is number `rank`. All of them must call it, with the same name,
    /// which tells it from others that are made at the same time; it returns when all have.
    pub fn create(members: &[usize], rank: usize, name: u64) -> Result<Self> {
        assert!(rank < members.len(), "this process is a member");
        let numbers: Vec<c_int> = members.iter().map(|&member| int(member)).collect();
        // Every MPI has tags up to here.
        let tag = (name % (1 << 15)) as c_int;
        const CALL: &str = "MPI_Comm_create_group";
        let (mut handle, _use) = (0, Use::begin(CALL)?);
        // SAFETY: The pointers are those of a vector of this length and of a local variable.
        check(CALL, unsafe { ringstep_mpi_create(numbers.as_ptr(), int(numbers.len()), tag, &mut handle) })?;
        Ok(Self { handle, rank, size: members.len(), _use })
    }

    /// This process, from 0.
    pub fn rank(&self) -> usize {
        self.rank
    }

    /// How many there are.
    pub fn size(&self) -> usize {
        self.size
    }

    /// Sends the first bytes of a buffer.
    pub fn send(&self, buffer: Buffer, bytes: usize, to: usize, tag: usize) -> Result<Pending> {
        assert!(bytes <= size_of_val(&*buffer) && to < self.size);
        Pending::start("MPI_Isend", buffer, false, |memory, _, request| {
            // SAFETY: The memory is the pending request's, and has as many bytes.
            unsafe { ringstep_mpi_isend(self.handle, memory.cast(), int(bytes), int(to), int(tag), request) }
        })
    }

    /// Receives as much as fits a buffer.
    pub fn recv(&self, buffer: Buffer, from: usize, tag: usize) -> Result<Pending> {
        assert!(from < self.size);
        Pending::start("MPI_Irecv", buffer, true, |memory, room, request| {
            // SAFETY: The memory is the pending request's, and has so much room.
            unsafe { ringstep_mpi_irecv(self.handle, memory.cast(), int(room), int(from), int(tag), request) }
        })
    }

    /// The largest that anybody has, as i64, in each place of a buffer.
    pub fn max(&self, buffer: Buffer) -> Result<Pending> {
        Pending::start("MPI_Iallreduce", buffer, false, |memory, room, request| {
            // SAFETY: The memory is the pending request's, and so many numbers are in it.
            unsafe { ringstep_mpi_imax(self.handle, memory.cast(), int(room / 8), request) }
        })
    }

    /// What everyone has: a buffer of as many numbers of each, in which this process has filled in its own.
    pub fn all_gather_words(&self, buffer: Buffer) -> Result<Pending> {
        assert!(buffer.len().is_multiple_of(self.size));
        Pending::start("MPI_Iallgather", buffer, false, |memory, room, request| {
            let each = room / 8 / self.size;
            // SAFETY: The memory is the pending request's, and has room for the numbers of all.
            unsafe { ringstep_mpi_iall_gather(self.handle, memory.cast(), int(each), request) }
        })
    }

    /// Who has sent a message with a tag that nobody has received yet; `from` one process, or any.
    pub fn probe(&self, from: Option<usize>, tag: usize) -> Result<Option<usize>> {
        let (mut found, mut source) = (0, 0);
        let from = from.map_or(-1, int);
        check("MPI_Iprobe", {
            // SAFETY: The pointers are those of local variables.
            unsafe { ringstep_mpi_iprobe(self.handle, from, int(tag), &mut found, &mut source) }
        })?;
        Ok((found != 0).then_some(source as usize))
    }

    /// Replaces numbers by their reduction over all; a mean is still a sum.
    pub fn all_reduce(&self, data: &mut [u8], element: ElementType, op: Op) -> Result<()> {
        let mut rest = numbers(data, element);
        // MPI counts in `int`. Without a number it is a call all the same.
        loop {
            let (part, later) = rest.split_at_mut(rest.len().min(MOST / 8 * element.size()));
            check("MPI_Allreduce", {
                // SAFETY: So many numbers of this type are there, aligned, and nobody else's until this returns.
                unsafe {
                    ringstep_mpi_all_reduce(
                        self.handle,
                        address_mut(part),
                        int(part.len() / element.size()),
                        element as c_int,
                        op as c_int,
                    )
                }
            })?;
            if later.is_empty() {
                return Ok(());
            }
            rest = later;
        }
    }

    /// The same by a call that does not block, for a thread beside others that need its core: `progress` asks what it is given
    /// until that says that MPI is through, and may sleep in between.
    pub fn all_reduce_patiently(
        &self,
        data: &mut [u8],
        element: ElementType,
        op: Op,
        progress: impl Fn(&mut dyn FnMut() -> bool),
    ) -> Result<()> {
        for part in numbers(data, element).chunks_mut(MOST / 8 * element.size()) {
            let (mut request, count) = (0, int(part.len() / element.size()));
            check("MPI_Iallreduce", {
                // SAFETY: So many numbers of this type are there, aligned, and nobody else's until MPI is through, before
                // which this does not return.
                unsafe {
                    ringstep_mpi_iall_reduce(
                        self.handle,
                        address_mut(part),
                        count,
                        element as c_int,
                        op as c_int,
                        &mut request,
                    )
                }
            })?;
            // The caller's memory is MPI's: from here on there is no way out but the end of the request.
            let no_way_out = AbortOnDrop;
            let mut result = None;
            while result.is_none() {
                progress(&mut || {
                    let (mut done, mut bytes) = (0, 0);
                    if result.is_none() {
                        // SAFETY: The request is one that was started and is not through.
                        let tested =
                            check("MPI_Test", unsafe { ringstep_mpi_test(&mut request, &mut done, &mut bytes) });
                        result = (done != 0 || tested.is_err()).then_some(tested);
                    }
                    result.is_some()
                });
            }
            std::mem::forget(no_way_out);
            result.unwrap_or(Ok(()))?;
        }
        Ok(())
    }

    /// The same at one process only. There are at most [`MOST`] bytes here and below.
    pub fn reduce(&self, data: &mut [u8], element: ElementType, op: Op, root: usize) -> Result<()> {
        assert!(root < self.size);
        let data = numbers(data, element);
        let count = int(data.len() / element.size());
        // Counted in u64 for its alignment.
        let mut own = vec![0u64; data.len().div_ceil(8)];
        let own = &mut bytemuck::cast_slice_mut::<u64, u8>(&mut own)[..data.len()];
        own.copy_from_slice(data);
        check("MPI_Reduce", {
            // SAFETY: So many numbers of this type are in both, aligned, and nobody else's until this returns.
            unsafe {
                ringstep_mpi_reduce_to(
                    self.handle,
                    address(own),
                    address_mut(data),
                    count,
                    element as c_int,
                    op as c_int,
                    int(root),
                )
            }
        })
    }

    /// Reduces numbers, of which so many are each process's, and leaves its own at the beginning.
    pub fn reduce_scatter(&self, data: &mut [u8], counts: &[usize], element: ElementType, op: Op) -> Result<()> {
        let data = numbers(data, element);
        assert!(counts.len() == self.size && counts.iter().sum::<usize>() == data.len() / element.size());
        let counts: Vec<c_int> = counts.iter().map(|&count| int(count)).collect();
        check("MPI_Reduce_scatter", {
            // SAFETY: As many numbers as all counts together are there, aligned, and nobody else's until this returns.
            unsafe {
                ringstep_mpi_reduce_scatter(
                    self.handle,
                    address_mut(data),
                    counts.as_ptr(),
                    element as c_int,
                    op as c_int,
                )
            }
        })
    }

    /// Replaces bytes by the root's.
    pub fn broadcast(&self, data: &mut [u8], root: usize) -> Result<()> {
        assert!(root < self.size);
        check("MPI_Bcast", {
            // SAFETY: So many bytes are there, and nobody else's until this returns.
            unsafe { ringstep_mpi_broadcast(self.handle, address_mut(data), int(data.len()), int(root)) }
        })
    }

    /// Collects everyone's part at the root, which has room for all.
    pub fn gather(&self, part: &[u8], all: &mut [u8], root: usize) -> Result<()> {
        assert!(root < self.size && (root != self.rank || all.len() == part.len() * self.size));
        let into = address_mut(all);
        check("MPI_Gather", {
            // SAFETY: The root has room for all parts, and elsewhere MPI does not look at it; it is nobody else's.
            unsafe { ringstep_mpi_gather(self.handle, address(part), int(part.len()), into, int(root)) }
        })
    }

    /// Hands everyone its part of what the root has.
    pub fn scatter(&self, all: &[u8], part: &mut [u8], root: usize) -> Result<()> {
        assert!(root < self.size && (root != self.rank || all.len() == part.len() * self.size));
        let (from, bytes) = (address(all), int(part.len()));
        check("MPI_Scatter", {
            // SAFETY: The root has all parts, and elsewhere MPI does not look for them; the part is nobody else's.
            unsafe { ringstep_mpi_scatter(self.handle, from, address_mut(part), bytes, int(root)) }
        })
    }

    /// Collects parts of so many bytes, one after the other, of which this process has filled in its own.
    pub fn all_gather(&self, data: &mut [u8], counts: &[usize]) -> Result<()> {
        assert!(counts.len() == self.size && counts.iter().sum::<usize>() == data.len());
        let counts: Vec<c_int> = counts.iter().map(|&count| int(count)).collect();
        let starts: Vec<c_int> =
            counts.iter().scan(0, |end, count| Some(std::mem::replace(end, *end + count))).collect();
        check("MPI_Allgatherv", {
            // SAFETY: There is room for all counts together, and it is nobody else's until this returns.
            unsafe { ringstep_mpi_all_gather(self.handle, address_mut(data), counts.as_ptr(), starts.as_ptr()) }
        })
    }

    /// Sends each its part, and receives one from each.
    pub fn all_to_all(&self, out: &[u8], into: &mut [u8]) -> Result<()> {
        assert!(out.len() == into.len() && out.len().is_multiple_of(self.size));
        let bytes = int(out.len() / self.size);
        check("MPI_Alltoall", {
            // SAFETY: Both have a part for each process; what is written is nobody else's until this returns.
            unsafe { ringstep_mpi_all_to_all(self.handle, address(out), address_mut(into), bytes) }
        })
    }
}

/// The most bytes of a collective, which MPI counts in `int`; all-reduces may have more.
pub const MOST: usize = 1 << 30;

/// Where nothing is: an empty slice may be at an address that means something else to MPI.
static NOTHING: u64 = 0;

fn address(data: &[u8]) -> *const c_void {
    if data.is_empty() { (&raw const NOTHING).cast() } else { data.as_ptr().cast() }
}

fn address_mut(data: &mut [u8]) -> *mut c_void {
    if data.is_empty() { address(data).cast_mut() } else { data.as_mut_ptr().cast() }
}

/// What is as long and aligned as whole numbers of a type are.
fn numbers(data: &mut [u8], element: ElementType) -> &mut [u8] {
    let size = element.size();
    assert!(data.len().is_multiple_of(size) && data.as_ptr().addr().is_multiple_of(size));
    data
}

impl Drop for Comm {
    fn drop(&mut self) {
        // SAFETY: The handle is not used again.
        let _ = check("MPI_Comm_free", unsafe { ringstep_mpi_free(self.handle) });
    }
}

/// Ends the process rather than unwind through memory that MPI still writes to.
struct AbortOnDrop;

impl Drop for AbortOnDrop {
    fn drop(&mut self) {
        std::process::abort();
    }
}

/// What MPI does while the caller does something else, and the memory that it does it with.
#[derive(Debug)]
pub struct Pending {
    call: &'static str,
    request: u64,
    /// MPI's until it is through.
    memory: *mut [u64],
    is_receive: bool,
    is_done: bool,
    _use: Use,
}

// SAFETY: Any thread may ask MPI for a request, and whoever has this has the memory.
unsafe impl Send for Pending {}

impl Pending {
    fn start(
        call: &'static str,
        buffer: Buffer,
        is_receive: bool,
        work: impl FnOnce(*mut u64, usize, *mut u64) -> c_int,
    ) -> Result<Self> {
        let room = size_of_val(&*buffer);
        let (_use, memory) = (Use::begin(call)?, Box::into_raw(buffer));
        let mut pending = Self { call, request: 0, memory, is_receive, is_done: true, _use };
        let Self { memory, request, .. } = &mut pending;
        check(call, work(memory.cast(), room, request))?;
        pending.is_done = false;
        Ok(pending)
    }

    /// Whether MPI is through.
    pub fn test(&mut self) -> Result<Option<usize>> {
        if self.is_done {
            return Ok(Some(0));
        }
        let (mut done, mut bytes) = (0, 0);
        check(self.call, {
            // SAFETY: The request is one that was started and is not through; the pointers are those of local variables.
            unsafe { ringstep_mpi_test(&mut self.request, &mut done, &mut bytes) }
        })?;
        self.is_done = done != 0;
        Ok(self.is_done.then_some(bytes.max(0) as usize))
    }

    /// The memory, now that MPI is through.
    pub fn take(mut self) -> Buffer {
        assert!(self.is_done, "MPI is through with it");
        let memory = std::mem::replace(&mut self.memory, Box::into_raw(Buffer::default()));
        // SAFETY: It was a box's, MPI has let go of it, and this was the only one that knew it.
        unsafe { Box::from_raw(memory) }
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.is_done {
            // SAFETY: It was a box's, MPI has let go of it, and this was the only one that knew it.
            drop(unsafe { Box::from_raw(self.memory) });
        } else if self.is_receive {
            // SAFETY: The request is one that was started, and is not used again. Its memory stays, as that of all others.
            let _ = check("MPI_Cancel", unsafe { ringstep_mpi_cancel(self.request) });
        }
    }
}

/// Called by MPI's collectives, for what MPI has no operation for: `into[i] = other[i] op into[i]`.
#[unsafe(no_mangle)]
extern "C" fn ringstep_mpi_reduce(element: c_int, op: c_int, other: *const c_void, into: *mut c_void, length: c_int) {
    let Some(op) = usize::try_from(op).ok().and_then(|op| Op::ALL.get(op)) else { return };
    let length = usize::try_from(length).unwrap_or(0);
    fn reduce<T: Element>(op: Op, other: *const c_void, into: *mut c_void, length: usize) {
        // SAFETY: MPI gives two arrays of so many numbers of the type that the operation is for, one of which it lets be
        // written; they do not overlap. It lays them out as arrays of C, so they are aligned.
        let (into, other) = unsafe {
            (std::slice::from_raw_parts_mut(into.cast::<T>(), length), std::slice::from_raw_parts(other.cast(), length))
        };
        T::reduce(op, into, other);
    }
    const F32: c_int = ElementType::F32 as c_int;
    const F64: c_int = ElementType::F64 as c_int;
    const F16: c_int = ElementType::F16 as c_int;
    const BF16: c_int = ElementType::Bf16 as c_int;
    match element {
        F32 => reduce::<f32>(*op, other, into, length),
        F64 => reduce::<f64>(*op, other, into, length),
        F16 => reduce::<f16>(*op, other, into, length),
        BF16 => reduce::<bf16>(*op, other, into, length),
        _ => {}
    }
}
