//! Layer-wise adaptive rate scaling: each tensor has a learning rate of its own.
//!
//! With `|x|` the norm of a tensor and `|g|` that of its gradient: `v = momentum * v + lr * trust * |x| / (|g| + decay *
//! |x|) * (g + decay * x)`, then `x = x - v`. Biases and batch norm, whose norm says little, follow plain SGD without
//! decay, as is the custom.

use std::ops::Range;

use ringstep_cpu::{along, kernels};

use crate::kernels::rows::sum_of_squares;
use crate::team::{Team, Units};

#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub lr: f32,
    pub momentum: f32,
    pub weight_decay: f32,
    pub trust: f32,
}

/// Numbers whose squares are added up by one thread, whichever it is: so a norm does not depend on how many there are.
const BLOCK: usize = 1 << 14;

/// Sums that [`norm`] takes for the largest of these tensors.
pub(super) fn sums(tensors: &[(Range<usize>, bool)]) -> usize {
    tensors.iter().map(|(range, _)| range.len().div_ceil(BLOCK)).max().unwrap_or(0)
}

fn norm(team: &mut Team, numbers: &[f32], sums: &mut [f64]) -> f32 {
    let (level, blocks) = (team.level(), numbers.len().div_ceil(BLOCK));
    team.deal(blocks, Units::new(&mut sums[..blocks], 1), |range, sums| {
        let blocks = numbers[range.start * BLOCK..].chunks(BLOCK);
        for (sum, block) in sums.iter_mut().zip(blocks) {
            *sum = sum_of_squares(level, block);
        }
    });
    sums[..blocks].iter().sum::<f64>().sqrt() as f32
}

pub(super) fn step(
    team: &mut Team,
    [values, velocity]: [&mut [f32]; 2],
    gradients: &[f32],
    tensors: &[(Range<usize>, bool)],
    sums: &mut [f64],
    numbers: Numbers,
) {
    let Numbers { lr, momentum, weight_decay, trust } = numbers;
    let level = team.level();
    for (range, adapts) in tensors {
        let (values, gradients) = (&mut values[range.clone()], &gradients[range.clone()]);
        let velocity = &mut velocity[range.clone()];
        let (size, slope) = (norm(team, values, sums), norm(team, gradients, sums));
        let (scale, weight_decay) = match (*adapts, size > 0.0 && slope > 0.0) {
            (false, _) => (1.0, 0.0),
            (true, false) => (1.0, weight_decay),
            (true, true) => (trust * size / (slope + weight_decay * size), weight_decay),
        };
        // The velocity holds the learning rate, so that a change of it does not rescale the past.
        let rate = lr * scale;
        team.deal(values.len(), (Units::new(values, 1), Units::new(velocity, 1)), |range, (values, velocity)| {
            walk(level, values, &gradients[range], velocity, [rate, momentum, weight_decay]);
        });
    }
}

// Products are rounded before they are added, so that all machines walk alike.
kernels! {
    fn walk<S>(simd: S, values: &mut [f32], gradients: &[f32], velocity: &mut [f32], numbers: [f32; 3]) {
        let [rate, momentum, weight_decay] = numbers;
        let (rate, momentum, weight_decay) = (simd.splat(rate), simd.splat(momentum), simd.splat(weight_decay));
        along!(simd, values.len(), |at| {
            let x = at.load(values);
            let v = momentum * at.load(velocity) + rate * (at.load(gradients) + weight_decay * x);
            at.store(velocity, v);
            at.store(values, x - v);
        });
    }
}
