//! Adam, with weight decay in the gradient or, as AdamW, beside it.
//!
//! `m` and `v` are running means of the gradient and of its square; both begin at zero, which dividing by `1 - beta^n`
//! makes up for. `x = x - lr * m / (sqrt(v) + epsilon)`.

use ringstep_cpu::{along, kernels};

use crate::team::{Team, Units};

/// PyTorch's default.
const EPSILON: f32 = 1e-8;

#[derive(Clone, Copy)]
pub(super) struct Numbers {
    betas: [f32; 2],
    /// `lr / (1 - beta1^n)`
    rate: f32,
    /// `1 / sqrt(1 - beta2^n)`
    correction: f32,
    /// Added to the gradient.
    weight_decay: f32,
    /// What the parameter is multiplied by before a step.
    shrink: f32,
}

impl Numbers {
    pub fn new(lr: f32, betas: [f32; 2], [coupled, decoupled]: [f32; 2], steps: i32) -> Self {
        let rest = betas.map(|beta| 1.0 - f64::from(beta).powi(steps));
        Self {
            betas,
            rate: (f64::from(lr) / rest[0]) as f32,
            correction: (1.0 / rest[1].sqrt()) as f32,
            weight_decay: coupled,
            shrink: 1.0 - lr * decoupled,
        }
    }
}

pub(super) fn step(
    team: &mut Team,
    values: &mut [f32],
    gradients: &[f32],
    means: [&mut Vec<f32>; 2],
    numbers: Numbers,
) {
    let ([first, second], level) = (means, team.level());
    let parts = (Units::new(values, 1), Units::new(first, 1), Units::new(second, 1));
    team.deal(gradients.len(), parts, |range, (values, first, second)| {
        walk(level, values, &gradients[range], first, second, numbers);
    });
}

// Products are rounded before they are added, so that all machines walk alike.
kernels! {
    fn walk<S>(simd: S, values: &mut [f32], gradients: &[f32], first: &mut [f32], second: &mut [f32], numbers: Numbers) {
        let [beta1, beta2] = numbers.betas;
        let (rest1, beta2, rest2) = (simd.splat(1.0 - beta1), simd.splat(beta2), simd.splat(1.0 - beta2));
        let (rate, correction) = (simd.splat(numbers.rate), simd.splat(numbers.correction));
        let (weight_decay, shrink) = (simd.splat(numbers.weight_decay), simd.splat(numbers.shrink));
        along!(simd, values.len(), |at| {
            let x = at.load(values);
            let gradient = at.load(gradients) + weight_decay * x;
            let m = at.load(first);
            let m = m + rest1 * (gradient - m);
            let v = beta2 * at.load(second) + rest2 * gradient * gradient;
            at.store(first, m);
            at.store(second, v);
            at.store(values, x * shrink - rate * m / (v.sqrt() * correction + simd.splat(EPSILON)));
        });
    }
}
