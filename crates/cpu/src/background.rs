//! A thread that works beside its owner.
//!
//! It lives as long as it has one: to start a thread takes as long as a small step of training. Between tasks it
//! sleeps.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

#[cfg(all(loom, test))]
use loom::{
    sync::atomic::{AtomicU32, Ordering},
    sync::{Arc, Mutex},
    thread::{Builder, JoinHandle},
};
#[cfg(not(all(loom, test)))]
use std::{
    sync::atomic::{AtomicU32, Ordering},
    sync::{Arc, Mutex},
    thread::{Builder, JoinHandle},
};

use crate::wait::{Bell, Patience};

/// A thread that does what its owner hands it while the owner does something else, and ends with it.
#[derive(Debug)]
pub struct Background {
    shared: Arc<Shared>,
    patience: Patience,
    thread: Option<JoinHandle<()>>,
}

type Task = Box<dyn FnOnce() + Send>;

/// What the owner and the thread have in common.
struct Shared {
    task: Mutex<Option<Task>>,
    state: AtomicU32,
    /// Wakes the thread.
    begun: Bell,
    /// Wakes the owner.
    done: Bell,
}

/// The thread has nothing to do. It alone comes back to this.
const FREE: u32 = 0;
/// The owner has handed a task over.
const BUSY: u32 = 1;
/// There will be no more tasks.
const CLOSED: u32 = 2;

impl Background {
    /// Starts the thread. It and its owner belong to a crowd of so many threads that wait for each other.
    pub fn start(name: &str, crowd: usize) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            task: Mutex::new(None),
            state: AtomicU32::new(FREE),
            begun: Bell::default(),
            done: Bell::default(),
        });
        let thread = {
            let (shared, patience) = (Arc::clone(&shared), Patience::among(crowd));
            Builder::new().name(name.to_owned()).spawn(move || shared.follow(&patience))?
        };
        Ok(Self { shared, patience: Patience::among(crowd), thread: Some(thread) })
    }

    /// Does `here` while the thread does `there`, and returns what both have returned once both are done: so `there` may
    /// borrow. It must come to an end once `here` has, also if `here` unwinds. A panic of either goes on here.
    #[allow(unsafe_code)]
    pub fn beside<R, S: Send>(&mut self, there: impl FnOnce() -> S + Send, here: impl FnOnce() -> R) -> (R, S) {
        let mut result = None;
        let task: Box<dyn FnOnce() + Send + '_> = Box::new(|| result = Some(catch_unwind(AssertUnwindSafe(there))));
        // SAFETY: the lifetime is only forgotten, not exceeded: this function neither returns nor unwinds before the guard
        // below has seen that the thread is through with the task, which it has then consumed.
        let task = unsafe { std::mem::transmute::<Box<dyn FnOnce() + Send + '_>, Task>(task) };
        let until_done = UntilDone::begin(self, task);
        let here = here();
        drop(until_done);
        match result.expect("the task was done") {
            Ok(there) => (here, there),
            Err(panic) => resume_unwind(panic),
        }
    }
}

/// A task that is under way: whoever drops this waits for its end.
struct UntilDone<'a>(&'a Background);

impl<'a> UntilDone<'a> {
    fn begin(owner: &'a Background, task: Task) -> Self {
        let shared = &owner.shared;
        *shared.task.lock().expect("nobody panics with it") = Some(task);
        shared.state.store(BUSY, Ordering::Release);
        shared.begun.ring();
        Self(owner)
    }
}

impl Drop for UntilDone<'_> {
    fn drop(&mut self) {
        let Background { shared, patience, .. } = self.0;
        shared.done.wait(patience, None, || shared.state.load(Ordering::Acquire) == FREE);
    }
}

impl Shared {
    /// The thread's side.
    fn follow(&self, patience: &Patience) {
        loop {
            self.begun.wait(patience, None, || self.state.load(Ordering::Acquire) != FREE);
            if self.state.load(Ordering::Acquire) == CLOSED {
                return;
            }
            let task = self.task.lock().expect("nobody panics with it").take();
            // It does not unwind: `beside` has seen to that.
            task.expect("whoever is busy has a task")();
            self.state.store(FREE, Ordering::Release);
            self.done.ring();
        }
    }
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("state", &self.state).finish_non_exhaustive()
    }
}

impl Drop for Background {
    fn drop(&mut self) {
        self.shared.state.store(CLOSED, Ordering::Release);
        self.shared.begun.ring();
        if let Some(thread) = self.thread.take() {
            // It has not panicked, see `Shared::follow`.
            let _ = thread.join();
        }
    }
}

#[cfg(all(loom, test))]
mod models {
    use loom::cell::UnsafeCell;

    use super::*;
    use crate::wait::check;

    /// Both add to a number of their own; after each task the owner reads what the thread has written, and writes it anew.
    #[test]
    #[allow(unsafe_code)]
    fn what_is_lent_is_given_back() {
        check(3, || {
            let mut background = Background::start("background", 2).unwrap();
            let (theirs, mut own) = (Lent(UnsafeCell::new(0)), 0);
            for turn in 1..=2 {
                // SAFETY: the model checks that the thread is not at it.
                theirs.0.with_mut(|number| unsafe { *number = 10 * turn });
                let ((), there) = background.beside(
                    || {
                        // SAFETY: the model checks that the owner is not at it.
                        theirs.get().with_mut(|number| unsafe { *number += turn });
                        turn
                    },
                    || own += turn,
                );
                assert_eq!((there, own), (turn, (1..=turn).sum()));
                // SAFETY: as above.
                theirs.0.with(|number| assert_eq!(unsafe { *number }, 11 * turn));
            }
        });
    }

    /// What the owner and the thread use in turn, as the model sees to.
    struct Lent(UnsafeCell<i32>);

    // SAFETY: the model checks every access.
    #[allow(unsafe_code)]
    unsafe impl Sync for Lent {}

    impl Lent {
        fn get(&self) -> &UnsafeCell<i32> {
            &self.0
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    #[test]
    fn both_work_on_what_they_have_borrowed() {
        let mut background = Background::start("background", 2).unwrap();
        let mut numbers = [0, 0];
        for turn in 1..=1000 {
            let [here, there] = &mut numbers;
            let add = |number: &mut i32| {
                *number += turn;
                *number
            };
            let (ours, theirs) = background.beside(|| add(there), || add(here));
            assert_eq!(ours, theirs);
        }
        assert_eq!(numbers, [500_500; 2]);
    }

    #[test]
    fn the_thread_works_while_the_owner_does() {
        let mut background = Background::start("background", 2).unwrap();
        let ((to, from), (back, answer)) = (channel::<u32>(), channel::<u32>());
        let (last, ()) = background.beside(
            move || from.into_iter().for_each(|number| back.send(number + 1).unwrap()),
            move || {
                (0..100).fold(0, |number, _| {
                    to.send(number).unwrap();
                    answer.recv().unwrap()
                })
            },
        );
        assert_eq!(last, 100);
    }

    /// Even then nothing borrowed is in use any more when the panic has reached the caller.
    #[test]
    fn a_panic_on_either_side_comes_out_once_both_are_through() {
        let mut background = Background::start("background", 2).unwrap();
        let said = |panic: Box<dyn std::any::Any + Send>| *panic.downcast_ref::<&str>().unwrap();
        for place in ["here", "there", "both"] {
            let mut written = false;
            let lent = &mut written;
            let (closing, closed) = channel::<()>();
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                background.beside(
                    move || {
                        assert!(closed.recv().is_err());
                        *lent = true;
                        assert!(place == "here", "there");
                    },
                    move || {
                        let _until_the_end = closing;
                        assert!(place == "there", "here");
                    },
                )
            }));
            assert_eq!(said(outcome.unwrap_err()), if place == "there" { "there" } else { "here" });
            assert!(written);
        }
        assert_eq!(background.beside(|| 1, || 2), (2, 1));
    }
}
