//! What a compression remembers from step to step.

use ringstep_nn::state::State;

/// Numbers for each bucket, zeros at first.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    buckets: Vec<Vec<f32>>,
}

impl Memory {
    /// What it holds, to go on later.
    pub fn state(&mut self, state: &mut State<'_>) {
        state.each("buckets", &mut self.buckets, Vec::new, |state, bucket| state.list("numbers", bucket));
    }

    /// Those of a bucket of so many numbers; it always has as many.
    pub fn of(&mut self, bucket: u32, length: usize) -> &mut [f32] {
        let bucket = bucket as usize;
        if self.buckets.len() <= bucket {
            self.buckets.resize_with(bucket + 1, Vec::new);
        }
        let numbers = &mut self.buckets[bucket];
        // One that a file has with another length is of no use.
        if numbers.len() != length {
            numbers.clear();
            numbers.resize(length, 0.0);
        }
        numbers
    }
}
