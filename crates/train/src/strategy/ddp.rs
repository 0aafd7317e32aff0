//! DistributedDataParallel (Li et al., VLDB 2020): a bucket's all-reduce starts on the communication thread the moment its
//! last gradient is written, while backward goes on.

use std::time::Instant;

use ringstep_comm::overlap::Reduced;
use ringstep_comm::{Algorithm, CollectiveError, Group, Op};
use ringstep_nn::Model;

use super::{Buckets, Numbers, Pass, Strategy, Synced, add, how};

/// Buckets, and how each is reduced.
pub struct Ddp {
    buckets: Buckets,
    algorithm: Option<Algorithm>,
}

impl Ddp {
    pub fn new(buckets: Buckets, algorithm: Option<Algorithm>) -> Self {
        Self { buckets, algorithm }
    }
}

impl Strategy for Ddp {
    fn backward(&mut self, group: &mut Group, model: &mut Model, pass: Pass<'_>) -> Result<Synced, CollectiveError> {
        let how = how(self.algorithm);
        let mut reductions = Vec::with_capacity(self.buckets.ends.len());
        let reduce = |group: &mut Group, bucket: &mut [f32]| {
            let began = Instant::now();
            group.all_reduce(bucket, Op::Sum, how)?;
            reductions.push(Reduced { began, ended: Instant::now() });
            Ok(())
        };
        let ready = group.while_doing(reduce, |queue| {
            let mut earlier = pass.accumulated;
            model.backward_in_buckets(pass.images, pass.labels, pass.scale, &self.buckets.ends, |bucket| {
                if !earlier.is_empty() {
                    add(bucket, earlier);
                    earlier = &earlier[bucket.len()..];
                }
                queue.push(bucket);
            });
            Instant::now()
        })?;
        Ok(Synced::new(ready, reductions))
    }

    fn labels(&self, _: &Model) -> Vec<String> {
        (0..self.buckets.ends.len()).map(|bucket| format!("bucket {bucket}")).collect()
    }

    /// Follows the buckets one after the other: each starts once it is complete and the one before it is through.
    fn predict(&self, numbers: &Numbers, _: &Model) -> f64 {
        let mut layers = numbers.backward.iter();
        let (mut backward, mut free) = (0.0, 0f64);
        let mut reached = 0;
        for (&end, length) in self.buckets.ends.iter().zip(self.buckets.lengths()) {
            while reached < end {
                let (layer_end, seconds) = layers.next().expect("layers hold all gradients");
                backward += seconds;
                reached = *layer_end;
            }
            free = free.max(backward) + numbers.all_reduce(self.algorithm, length);
        }
        backward += layers.map(|(_, seconds)| seconds).sum::<f64>();
        (free - backward).max(0.0)
    }
}
