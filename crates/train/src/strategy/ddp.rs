//! DistributedDataParallel (Li et al., VLDB 2020): a bucket's all-reduce starts on the communication thread the moment its
//! last gradient is written, while backward goes on.

use std::io;
use std::time::Instant;

use ringstep_comm::Algorithm;
use ringstep_nn::Model;
use ringstep_nn::optim::Rule;
use ringstep_nn::state::State;

use super::reducer::Reducer;
use super::{Buckets, CostInputs, Next, Progress, Strategy};
use crate::Job;
use crate::content::Content;
use crate::error::WorkerError;
use crate::records::Compressed;
use crate::replica::Replica;
use crate::world::World;

/// Buckets, and how each is reduced.
pub struct Ddp {
    buckets: Buckets,
    algorithm: Option<Algorithm>,
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
        Self { buckets, algorithm, reducer }
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

    /// Follows the buckets one after the other: each starts once it is complete and the one before it is through.
    fn predict(&self, inputs: &CostInputs, _: &Model) -> Option<f64> {
        if self.reducer.compresses() {
            return None;
        }
        let mut layers = inputs.backward.iter();
        let (mut backward, mut free) = (0.0, 0f64);
        let mut reached = 0;
        for range in self.buckets.ranges() {
            while reached < range.end {
                let (layer_end, seconds) = layers.next().expect("layers hold all gradients");
                backward += seconds;
                reached = *layer_end;
            }
            free = free.max(backward) + inputs.all_reduce(self.algorithm, range.len());
        }
        backward += layers.map(|(_, seconds)| seconds).sum::<f64>();
        Some((free - backward).max(0.0))
    }
}
