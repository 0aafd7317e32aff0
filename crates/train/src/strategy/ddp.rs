//! DistributedDataParallel (Li et al., VLDB 2020): a bucket's all-reduce starts on the communication thread the moment its
//! last gradient is written, while backward goes on.

use std::io;
use std::time::Instant;

use ringstep_comm::Algorithm;
use ringstep_nn::Model;
use ringstep_nn::optim::Rule;
use ringstep_nn::state::State;

use super::reducer::Reducer;
use super::{Buckets, Next, Progress, Strategy};
use crate::Job;
use crate::content::Content;
use crate::error::WorkerError;
use crate::records::Compressed;
use crate::replica::Replica;
use crate::world::World;

/// Buckets, and how each is reduced.
pub struct Ddp {
    buckets: Buckets,
    reducer: Reducer,
}

impl Ddp {
    /// For a job on so many images.
    pub fn new(
        (job, images): (&Job, usize),
        model: &Model,
        buckets: Buckets,
        algorithm: Option<Algorithm>,
        world: &mut World<'_>,
    ) -> Self {
        let slices = buckets.ranges().enumerate().map(|(bucket, range)| (format!("bucket {bucket}"), range)).collect();
        let reducer = Reducer::new((job, images), algorithm, model, slices, Content::Gradients, world);
        Self { buckets, reducer }
    }
}

impl Strategy for Ddp {
    fn prepare(&self, world: &mut World<'_>) -> io::Result<()> {
        world.workers().start_thread()
    }

    fn before(&mut self, _: &mut World<'_>, _: &mut [Replica<'_>], progress: &Progress) -> Result<Next, WorkerError> {
        self.reducer.begin_step(progress.done);
        Ok(progress.next())
    }

    fn backward(&mut self, world: &mut World<'_>, replica: &mut Replica<'_>, scale: f32) -> Result<(), WorkerError> {
        let Self { buckets, reducer, .. } = self;
        world.workers().while_doing(
            |group, (bucket, gradients): (usize, &mut [f32])| reducer.sum(group, bucket, gradients),
            |queue| {
                replica.backward_in_buckets(scale, &buckets.ends, |bucket, gradients| queue.push((bucket, gradients)));
            },
        )
    }

    fn rule(&self, rule: Rule, _: usize) -> Option<Rule> {
        Some(self.reducer.rule(rule))
    }

    fn state(&mut self, state: &mut State<'_>) {
        self.reducer.state(state);
    }

    fn compressed(&self) -> Option<Compressed> {
        self.reducer.compressed()
    }

    fn take_encoding(&mut self) -> Vec<(u16, [Instant; 2])> {
        self.reducer.take_encoding()
    }
}
