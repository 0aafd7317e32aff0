//! Stochastic gradient descent with momentum, Nesterov's too, and weight decay.
//!
//! `g = gradient + weight_decay * x`, `v = momentum * v + g`, then `x = x - lr * v`; Nesterov: `x = x - lr * (g +
//! momentum * v)`. v begins as the first g.

use ringstep_cpu::{along, kernels};

use crate::team::{Team, Units};

#[derive(Clone, Copy)]
pub(super) struct Numbers {
    pub lr: f32,
    pub momentum: f32,
    pub nesterov: bool,
    pub weight_decay: f32,
}

pub(super) fn step(team: &mut Team, values: &mut [f32], gradients: &[f32], velocity: &mut [f32], numbers: Numbers) {
    let level = team.level();
    if numbers.momentum == 0.0 {
        team.deal(values.len(), Units::new(values, 1), |range, values| {
            without_momentum(level, values, &gradients[range], numbers);
        });
    } else {
        team.deal(values.len(), (Units::new(values, 1), Units::new(velocity, 1)), |range, (values, velocity)| {
            with_momentum(level, values, &gradients[range], velocity, numbers);
        });
    }
}

// Products are rounded before they are added, so that all machines walk alike.
kernels! {
    fn without_momentum<S>(simd: S, values: &mut [f32], gradients: &[f32], numbers: Numbers) {
        let (lr, weight_decay) = (simd.splat(numbers.lr), simd.splat(numbers.weight_decay));
        along!(simd, values.len(), |at| {
            let x = at.load(values);
            at.store(values, x - lr * (at.load(gradients) + weight_decay * x));
        });
    }

    fn with_momentum<S>(simd: S, values: &mut [f32], gradients: &[f32], velocity: &mut [f32], numbers: Numbers) {
        let (lr, weight_decay, momentum) =
            (simd.splat(numbers.lr), simd.splat(numbers.weight_decay), simd.splat(numbers.momentum));
        along!(simd, values.len(), |at| {
            let x = at.load(values);
            let gradient = at.load(gradients) + weight_decay * x;
            let v = momentum * at.load(velocity) + gradient;
            at.store(velocity, v);
            at.store(values, x - lr * if numbers.nesterov { gradient + momentum * v } else { v });
        });
    }
}
