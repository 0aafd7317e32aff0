//! Collectives that go on while the caller computes: what hides communication behind backward.

use std::io;
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};

use ringstep_cpu::background::Background;
use ringstep_cpu::wait::Patience;

use crate::group::Group;

/// How often the communication thread looks for something to do between two looks at the clock.
const LOOKS: u32 = 64;

/// Takes what the communication thread is to do something with, in the order in which that happens.
#[derive(Debug)]
pub struct Queue<B> {
    items: Sender<B>,
}

impl<B> Queue<B> {
    /// Hands an item over and returns at once. All ranks must hand over the same in the same order.
    pub fn push(&self, item: B) {
        // After an error nobody takes items any more, and the error is what the caller gets in the end.
        let _ = self.items.send(item);
    }
}

impl Group {
    /// Starts the communication thread before it is needed: only here can it be said that the system has none left.
    pub fn start_thread(&mut self) -> io::Result<()> {
        if self.thread.is_none() {
            self.thread = Some(CommunicationThread::start(self)?);
        }
        Ok(())
    }

    /// Does `work` here while the communication thread does `each` with whatever `work` queues, in that order. Returns
    /// once both are done: what `work` returned, or the first error of `each`, after which it is not called again.
    ///
    /// The thread has the group meanwhile, so `each` may use any of its collectives, and what is queued may be borrowed.
    /// It is started the first time and lives as long as the group.
    ///
    /// ```
    /// use ringstep_comm::{Algorithm, Group, Op, transport::mem};
    ///
    /// let ranks = mem::mesh(2).into_iter().map(|transport| {
    ///     std::thread::spawn(move || {
    ///         let mut gradients = [1.0f32, 2.0, 3.0];
    ///         let (late, early) = gradients.split_at_mut(1);
    ///         Group::new(transport).while_doing(
    ///             |group, slice| group.all_reduce(slice, Op::Sum, Algorithm::Ring),
    ///             |queue| {
    ///                 queue.push(early); // On its way, while the rest is still being computed.
    ///                 late[0] *= 10.0;
    ///                 queue.push(late);
    ///             },
    ///         ).unwrap();
    ///         gradients
    ///     })
    /// });
    /// for rank in ranks.collect::<Vec<_>>() {
    ///     assert_eq!(rank.join().unwrap(), [20.0, 4.0, 6.0]);
    /// }
    /// ```
    pub fn while_doing<B: Send, R, E: Send>(
        &mut self,
        mut each: impl FnMut(&mut Group, B) -> Result<(), E> + Send,
        work: impl FnOnce(&Queue<B>) -> R,
    ) -> Result<R, E> {
        self.start_thread().expect("a thread can be started");
        let mut thread = self.thread.take().expect("it is started");
        let CommunicationThread { background, patience } = &mut thread;
        let (items, queued) = channel();
        let group = &mut *self;
        let beside = std::mem::replace(&mut group.log.beside, true);
        let there = move || {
            while let Some(item) = next(&queued, patience) {
                each(group, item)?;
            }
            Ok(())
        };
        // The queue is closed when `work` is through, even if it unwinds; the thread is done after the last item.
        let (result, done) = background.beside(there, move || work(&Queue { items }));
        self.thread = Some(thread);
        self.log.beside = beside;
        done.map(|()| result)
    }
}

/// What works beside the owner of a group.
pub(crate) struct CommunicationThread {
    background: Background,
    /// How it waits for something to do.
    patience: Patience,
}

impl CommunicationThread {
    fn start(group: &Group) -> io::Result<Self> {
        // Each rank of this host and its communication thread wait for each other.
        let crowd = 2 * group.topology().neighbours(group.rank()).count();
        let background = Background::start("communication", crowd)?;
        Ok(Self { background, patience: Patience::among(crowd) })
    }
}

/// Waits for the next item; `None` once the queue is closed.
fn next<B>(queued: &Receiver<B>, patience: &Patience) -> Option<B> {
    let look = || match queued.try_recv() {
        Ok(item) => Some(Some(item)),
        Err(TryRecvError::Disconnected) => Some(None),
        Err(TryRecvError::Empty) => None,
    };
    patience.wait(LOOKS, look, || queued.recv().ok())
}
