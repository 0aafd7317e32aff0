//! Stochastic gradient descent with momentum, Nesterov's too, and weight decay.
//!
//! `g = gradient + weight_decay * x`, `v = momentum * v + g`, then `x = x - lr * v`; Nesterov: `x = x - lr * (g +
//! momentum * v)`. v begins as the first g.

use crate::kernels::simd::vectorised;
use crate::team::{Team, Units};

#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub lr: f32,
    pub momentum: f32,
    pub nesterov: bool,
    pub weight_decay: f32,
}

pub(super) fn step(team: &mut Team, values: &mut [f32], gradients: &[f32], velocity: &mut [f32], numbers: Numbers) {
    if numbers.momentum == 0.0 {
        team.deal(values.len(), Units::new(values, 1), |range, values| {
            without_momentum(values, &gradients[range], numbers);
        });
    } else {
        team.deal(values.len(), (Units::new(values, 1), Units::new(velocity, 1)), |range, (values, velocity)| {
            with_momentum(values, &gradients[range], velocity, numbers);
        });
    }
}

vectorised! {
    fn without_momentum(values: &mut [f32], gradients: &[f32], numbers: Numbers) {
        for (x, gradient) in values.iter_mut().zip(gradients) {
            *x -= numbers.lr * (gradient + numbers.weight_decay * *x);
        }
    }

    fn with_momentum(values: &mut [f32], gradients: &[f32], velocity: &mut [f32], numbers: Numbers) {
        let Numbers { lr, momentum, nesterov, weight_decay } = numbers;
        for ((x, gradient), v) in values.iter_mut().zip(gradients).zip(velocity) {
            let gradient = gradient + weight_decay * *x;
            *v = momentum * *v + gradient;
            *x -= lr * if nesterov { gradient + momentum * *v } else { *v };
        }
    }
}
