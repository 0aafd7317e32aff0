//! Layer-wise adaptive rate scaling: each tensor has a learning rate of its own.
//!
//! With `|x|` the norm of a tensor and `|g|` that of its gradient: `v = momentum * v + lr * trust * |x| / (|g| + decay *
//! |x|) * (g + decay * x)`, then `x = x - v`. Biases and batch norm, whose norm says little, follow plain SGD without
//! decay, as is the custom.

use std::ops::Range;

#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub lr: f32,
    pub momentum: f32,
    pub weight_decay: f32,
    pub trust: f32,
}

pub(super) fn step(
    values: &mut [f32],
    gradients: &[f32],
    velocity: &mut [f32],
    tensors: &[(Range<usize>, bool)],
    numbers: Numbers,
) {
    let Numbers { lr, momentum, weight_decay, trust } = numbers;
    let norm = |numbers: &[f32]| numbers.iter().map(|&number| f64::from(number).powi(2)).sum::<f64>().sqrt() as f32;
    for (range, adapts) in tensors {
        let (values, gradients) = (&mut values[range.clone()], &gradients[range.clone()]);
        let velocity = &mut velocity[range.clone()];
        let (size, slope) = (norm(values), norm(gradients));
        let (scale, weight_decay) = match (*adapts, size > 0.0 && slope > 0.0) {
            (false, _) => (1.0, 0.0),
            (true, false) => (1.0, weight_decay),
            (true, true) => (trust * size / (slope + weight_decay * size), weight_decay),
        };
        // The velocity holds the learning rate, so that a change of it does not rescale the past.
        let rate = lr * scale;
        for ((x, gradient), v) in values.iter_mut().zip(gradients).zip(velocity) {
            *v = momentum * *v + rate * (gradient + weight_decay * *x);
            *x -= *v;
        }
    }
}
