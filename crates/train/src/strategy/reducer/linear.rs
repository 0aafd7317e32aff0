//! Codes whose sum is a code: an all-reduce of fewer or of shorter numbers.

use bytemuck::{Pod, cast_slice, cast_slice_mut};
use ringstep_comm::Element;
use ringstep_cpu::Level;

use super::{Compressor, Loss, Trouble, Wire};
use crate::compress::Key;
use crate::compress::error_feedback::leave;
use crate::compress::random_k::RandomK;

/// All-reduces floats of 16 bits.
pub struct Halves<H> {
    level: Level,
    halves: Vec<H>,
    round: fn(Level, &[f32], &mut [[u8; 2]]),
    add: fn(Level, &mut [f32], &[[u8; 2]]),
}

impl<H> Halves<H> {
    /// `round` and `add` are those of this kind of floats.
    pub fn new(level: Level, round: fn(Level, &[f32], &mut [[u8; 2]]), add: fn(Level, &mut [f32], &[[u8; 2]])) -> Self {
        Self { level, halves: Vec::new(), round, add }
    }
}

impl<H: Element + Pod> Compressor for Halves<H> {
    fn sum(&mut self, wire: &mut Wire<'_>, _: Key, values: &mut [f32], left: &mut [f32]) -> Result<Loss, Trouble> {
        let Self { level, halves, round, add } = self;
        halves.resize(values.len(), H::zeroed());
        round(*level, values, cast_slice_mut(halves));
        leave(*level, values, left, |sent| add(*level, sent, cast_slice(halves)));
        let loss = Loss::of(*level, values, left);
        wire.all_reduce(halves)?;
        values.fill(0.0);
        add(*level, values, cast_slice(halves));
        Ok(loss)
    }
}

/// All-reduces the numbers at places that all ranks draw alike.
pub struct Chosen {
    level: Level,
    codec: RandomK,
    numbers: Vec<f32>,
}

impl Chosen {
    pub fn new(level: Level, codec: RandomK) -> Self {
        Self { level, codec, numbers: Vec::new() }
    }
}

impl Compressor for Chosen {
    fn sum(&mut self, wire: &mut Wire<'_>, key: Key, values: &mut [f32], left: &mut [f32]) -> Result<Loss, Trouble> {
        let Self { level, codec, numbers } = self;
        numbers.clear();
        numbers.extend(codec.gather(key, values));
        leave(*level, values, left, |sent| codec.scatter(key, numbers.iter().copied(), sent));
        let loss = Loss::of(*level, values, left);
        wire.all_reduce(numbers)?;
        values.fill(0.0);
        codec.scatter(key, numbers.iter().copied(), values);
        Ok(loss)
    }
}
