//! PowerSGD: two all-reduces of [narrow matrices](crate::compress::power_sgd). Biases, and matrices that would not shrink, go
//! along with the first as they are.

use std::ops::Range;

use ringstep_cpu::Level;
use ringstep_nn::Parameter;
use ringstep_nn::state::State;

use super::{Compressor, Loss, Trouble, Wire};
use crate::compress::Key;
use crate::compress::error_feedback::leave;
use crate::compress::factors::{Matrix, Parts, Tensor};
use crate::compress::memory::Memory;

/// All-reduces factors of matrices.
pub struct PowerSgd {
    level: Level,
    slices: Vec<Parts>,
    /// The Q of all matrices of each slice: those of the last step are where the next begins.
    q: Memory,
    /// What the first all-reduce has: the P of all matrices of a slice, then the numbers that go as they are.
    first: Vec<f32>,
}

impl PowerSgd {
    /// For slices that hold whole parameters.
    pub fn new(
        level: Level,
        rank: usize,
        parameters: &[Parameter],
        slices: impl Iterator<Item = Range<usize>>,
    ) -> Self {
        let tensors = Tensor::trained(parameters);
        let slices = slices.map(|slice| Parts::of(&slice, &tensors, rank)).collect();
        Self { level, slices, q: Memory::default(), first: Vec::new() }
    }
}

impl Compressor for PowerSgd {
    fn sum(&mut self, wire: &mut Wire<'_>, key: Key, values: &mut [f32], left: &mut [f32]) -> Result<Loss, Trouble> {
        let Self { level, slices, q, first } = self;
        let (level, Parts { matrices, dense, p_len, q_len }) = (*level, &slices[key.bucket as usize]);
        let q = q.of(key.bucket, *q_len);
        first.clear();
        first.resize(*p_len, 0.0);
        for matrix in matrices {
            let q = &mut q[matrix.q.clone()];
            matrix.size.draw(key, q);
            matrix.size.project(level, &values[matrix.at.clone()], q, &mut first[matrix.p.clone()]);
        }
        for range in dense {
            first.extend_from_slice(&values[range.clone()]);
        }
        wire.all_reduce(first)?;
        let (p, mut numbers) = first.split_at_mut(*p_len);
        for matrix in matrices {
            let p = &mut p[matrix.p.clone()];
            matrix.size.orthogonalise(p);
            matrix.size.project_back(level, &values[matrix.at.clone()], p, &mut q[matrix.q.clone()]);
        }
        let multiply = |q: &[f32], products: &mut [f32]| {
            for Matrix { size, at, p: of_p, q: of_q } in matrices {
                size.multiply(level, &p[of_p.clone()], &q[of_q.clone()], &mut products[at.clone()]);
            }
        };
        leave(level, values, left, |sent| {
            multiply(q, sent);
            for range in dense {
                sent[range.clone()].copy_from_slice(&values[range.clone()]);
            }
        });
        let loss = Loss::of(level, values, left);
        if !q.is_empty() {
            wire.all_reduce(q)?;
        }
        multiply(q, values);
        for range in dense {
            let (sums, rest) = numbers.split_at_mut(range.len());
            values[range.clone()].copy_from_slice(sums);
            numbers = rest;
        }
        Ok(loss)
    }

    fn state(&mut self, state: &mut State<'_>) {
        state.within("q", |state| self.q.state(state));
    }
}
