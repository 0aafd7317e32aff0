//! What a compression remembers from step to step.

/// Numbers for each bucket, zeros at first.
#[derive(Debug, Clone, Default)]
pub struct Memory {
    buckets: Vec<Vec<f32>>,
}

impl Memory {
    /// Those of a bucket of so many numbers; it always has as many.
    pub fn of(&mut self, bucket: u32, length: usize) -> &mut [f32] {
        let bucket = bucket as usize;
        if self.buckets.len() <= bucket {
            self.buckets.resize_with(bucket + 1, Vec::new);
        }
        let numbers = &mut self.buckets[bucket];
        if numbers.is_empty() {
            numbers.resize(length, 0.0);
        }
        numbers
    }
}
