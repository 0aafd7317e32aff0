//! All-reduces that go on while the caller computes: what hides communication behind backward.

use std::sync::mpsc::{Sender, channel};
use std::thread;
use std::time::Instant;

use crate::element::{Element, Op};
use crate::group::{CollectiveError, Group, How};

/// When an all-reduce went on.
#[derive(Debug, Clone, Copy)]
pub struct Reduced {
    /// It began.
    pub began: Instant,
    /// The result was there.
    pub ended: Instant,
}

/// Takes slices that are to be reduced, in the order in which that happens.
#[derive(Debug)]
pub struct Queue<'data, T> {
    slices: Sender<&'data mut [T]>,
}

impl<'data, T> Queue<'data, T> {
    /// Hands a slice over and returns at once. All ranks must hand over slices of the same lengths in the same order.
    pub fn push(&self, slice: &'data mut [T]) {
        // After an error nobody takes slices any more, and the error is what the caller gets in the end.
        let _ = self.slices.send(slice);
    }
}

impl Group {
    /// Does `work` here while a communication thread replaces each slice that `work` queues by its reduction over all
    /// ranks. Returns once both are done: what `work` returned, and when each all-reduce went on.
    ///
    /// ```
    /// use ringstep_comm::{Algorithm, Group, Op, transport::mem};
    ///
    /// let ranks = mem::mesh(2).into_iter().map(|transport| {
    ///     std::thread::spawn(move || {
    ///         let mut gradients = [1.0f32, 2.0, 3.0];
    ///         let (late, early) = gradients.split_at_mut(1);
    ///         Group::new(transport).while_reducing(Op::Sum, Algorithm::Ring, |queue| {
    ///             queue.push(early); // On its way, while the rest is still being computed.
    ///             late[0] *= 10.0;
    ///             queue.push(late);
    ///         }).unwrap();
    ///         gradients
    ///     })
    /// });
    /// for rank in ranks.collect::<Vec<_>>() {
    ///     assert_eq!(rank.join().unwrap(), [20.0, 4.0, 6.0]);
    /// }
    /// ```
    pub fn while_reducing<'data, T: Element, R>(
        &mut self,
        op: Op,
        how: impl Into<How>,
        work: impl FnOnce(&Queue<'data, T>) -> R,
    ) -> Result<(R, Vec<Reduced>), CollectiveError> {
        let how = how.into();
        let engine = self.engine();
        thread::scope(|scope| {
            let (slices, queued) = channel::<&'data mut [T]>();
            let thread = scope.spawn(move || {
                let mut times = Vec::new();
                for slice in queued {
                    let began = Instant::now();
                    engine.all_reduce(slice, op, how)?;
                    times.push(Reduced { began, ended: Instant::now() });
                }
                Ok(times)
            });
            let result = {
                let queue = Queue { slices };
                work(&queue)
            }; // The queue is closed, and the thread ends after its last slice.
            let times = thread.join().expect("collectives do not panic")?;
            Ok((result, times))
        })
    }
}
