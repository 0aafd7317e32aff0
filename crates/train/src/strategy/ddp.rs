//! DistributedDataParallel (Li et al., VLDB 2020): a bucket's all-reduce starts on the communication thread the moment its
//! last gradient is written, while backward goes on.

use ringstep_comm::{Algorithm, Group, Op};
use ringstep_nn::Model;

use super::{Buckets, CostInputs, Strategy, how};
use crate::error::WorkerError;
use crate::replica::Replica;
use crate::world::World;

/// Buckets, and how each is reduced.
pub struct Ddp {
    buckets: Buckets,
    /// Of each bucket.
    labels: Vec<u16>,
    algorithm: Option<Algorithm>,
}

impl Ddp {
    pub fn new(buckets: Buckets, algorithm: Option<Algorithm>, world: &mut World<'_>) -> Self {
        let labels = (0..buckets.ends.len()).map(|bucket| world.label(format!("bucket {bucket}"))).collect();
        Self { buckets, labels, algorithm }
    }
}

impl Strategy for Ddp {
    fn backward(&mut self, world: &mut World<'_>, replica: &mut Replica<'_>, scale: f32) -> Result<(), WorkerError> {
        let Self { buckets, labels, algorithm } = self;
        let reduce = |group: &mut Group, (bucket, gradients): (usize, &mut [f32])| {
            group.label(labels[bucket]);
            group.all_reduce(gradients, Op::Sum, how(*algorithm))
        };
        world.workers().while_doing(reduce, |queue| {
            replica.backward_in_buckets(scale, &buckets.ends, |bucket, gradients| queue.push((bucket, gradients)));
        })?;
        Ok(())
    }

    /// Follows the buckets one after the other: each starts once it is complete and the one before it is through.
    fn predict(&self, inputs: &CostInputs, _: &Model) -> Option<f64> {
        let mut layers = inputs.backward.iter();
        let (mut backward, mut free) = (0.0, 0f64);
        let mut reached = 0;
        for (&end, length) in self.buckets.ends.iter().zip(self.buckets.lengths()) {
            while reached < end {
                let (layer_end, seconds) = layers.next().expect("layers hold all gradients");
                backward += seconds;
                reached = *layer_end;
            }
            free = free.max(backward) + inputs.all_reduce(self.algorithm, length);
        }
        backward += layers.map(|(_, seconds)| seconds).sum::<f64>();
        Some((free - backward).max(0.0))
    }
}
