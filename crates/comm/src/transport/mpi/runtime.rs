//! The beginning and the end of MPI in this process.
//!
//! MPI wants to be ended by the thread that has started it, and an end can take for ever if another process is not there for
//! it. So both are done by a thread of their own, and whoever wants the end waits for as long as it cares to.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::ffi::{self, MpiError, World};

/// What the thread that started MPI waits for, and what it then says.
struct Keeper {
    end: Sender<()>,
    ended: Receiver<()>,
}

static WORLD: OnceLock<Result<World, MpiError>> = OnceLock::new();
static KEEPER: Mutex<Option<Keeper>> = Mutex::new(None);

/// How often it is looked whether there is still a use of it.
const NAP: Duration = Duration::from_millis(1);

/// Starts MPI, unless it has been; returns when all processes have come so far. It can be started once.
pub fn start() -> Result<World, MpiError> {
    WORLD.get_or_init(begin).clone()
}

fn begin() -> Result<World, MpiError> {
    let no_thread = |text: &str| MpiError { call: "MPI_Init_thread", text: text.to_owned() };
    let ((say, said), (end, asked), (told, ended)) = (channel(), channel(), channel());
    let keeper = move || {
        let world = ffi::init();
        let runs = world.is_ok();
        let _ = say.send(world);
        if runs && asked.recv().is_ok() {
            let _ = ffi::finalize();
            let _ = told.send(());
        }
    };
    thread::Builder::new().name("mpi".to_owned()).spawn(keeper).map_err(|_| no_thread("no thread is left"))?;
    let world = said.recv().map_err(|_| no_thread("its thread is gone"))??;
    *KEEPER.lock().unwrap_or_else(PoisonError::into_inner) = Some(Keeper { end, ended });
    Ok(world)
}

/// Ends MPI, if it runs, and waits no longer than so for its last use here, and for the other processes to end it too. Where a
/// thread is still in a call, as one is whose peer is gone, MPI cannot be ended and is left to the end of this process.
pub fn end(patience: Duration) {
    let Some(Keeper { end, ended }) = KEEPER.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
    let deadline = Instant::now() + patience;
    while !ffi::close() {
        if Instant::now() >= deadline {
            return std::mem::forget(end);
        }
        thread::sleep(NAP);
    }
    if end.send(()).is_ok() {
        let _ = ended.recv_timeout(deadline.saturating_duration_since(Instant::now()));
    }
}
