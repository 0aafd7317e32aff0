//! Adam, with weight decay in the gradient or, as AdamW, beside it.
//!
//! `m` and `v` are running means of the gradient and of its square; both begin at zero, which dividing by `1 - beta^n`
//! makes up for. `x = x - lr * m / (sqrt(v) + epsilon)`.

use crate::kernels::simd::vectorised;
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
    let [first, second] = means;
    let parts = (Units::new(values, 1), Units::new(first, 1), Units::new(second, 1));
    team.deal(gradients.len(), parts, |range, (values, first, second)| {
        walk(values, &gradients[range], first, second, numbers);
    });
}

vectorised! {
    fn walk(values: &mut [f32], gradients: &[f32], first: &mut [f32], second: &mut [f32], numbers: Numbers) {
        let Numbers { betas: [beta1, beta2], rate, correction, weight_decay, shrink } = numbers;
        for (((x, gradient), m), v) in values.iter_mut().zip(gradients).zip(first).zip(second) {
            let gradient = gradient + weight_decay * *x;
            *m += (1.0 - beta1) * (gradient - *m);
            *v = beta2 * *v + (1.0 - beta2) * gradient * gradient;
            *x = *x * shrink - rate * *m / (v.sqrt() * correction + EPSILON);
        }
    }
}
