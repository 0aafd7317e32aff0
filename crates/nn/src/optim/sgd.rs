//! Stochastic gradient descent, with PyTorch's meaning of its numbers.

/// Stochastic gradient descent with momentum and weight decay.
///
/// `v = momentum * v + gradient + weight_decay * x`, then `x = x - lr * v`; v begins as the first gradient.
#[derive(Debug)]
pub struct Sgd {
    lr: f32,
    momentum: f32,
    weight_decay: f32,
    velocity: Vec<f32>,
}

impl Sgd {
    /// For this many parameters.
    pub fn new(parameters: usize, lr: f32, momentum: f32, weight_decay: f32) -> Self {
        let velocity = vec![0.0; if momentum == 0.0 { 0 } else { parameters }];
        Self { lr, momentum, weight_decay, velocity }
    }

    /// Takes one step.
    pub fn step(&mut self, parameters: &mut [f32], gradients: &[f32]) {
        let (lr, momentum, weight_decay) = (self.lr, self.momentum, self.weight_decay);
        if momentum == 0.0 {
            for (x, gradient) in parameters.iter_mut().zip(gradients) {
                *x -= lr * (gradient + weight_decay * *x);
            }
            return;
        }
        for ((x, gradient), v) in parameters.iter_mut().zip(gradients).zip(&mut self.velocity) {
            *v = momentum * *v + (gradient + weight_decay * *x);
            *x -= lr * *v;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// With constant gradient g the velocity after n steps is g (1 - m^n) / (1 - m).
    #[test]
    fn momentum_follows_the_geometric_series() {
        let (lr, momentum, gradient) = (0.5, 0.5, 2.0);
        let mut sgd = Sgd::new(1, lr, momentum, 0.0);
        let mut x = [0.0];
        let mut expected = 0.0;
        for n in 1..=10 {
            sgd.step(&mut x, &[gradient]);
            expected -= lr * gradient * (1.0 - momentum.powi(n)) / (1.0 - momentum);
            assert_eq!(x[0], expected);
        }
    }

    #[test]
    fn weight_decay_alone_shrinks_geometrically() {
        let mut sgd = Sgd::new(1, 0.5, 0.0, 0.5);
        let mut x = [1.0];
        for n in 1..=10 {
            sgd.step(&mut x, &[0.0]);
            assert_eq!(x[0], 0.75f32.powi(n));
        }
    }
}
