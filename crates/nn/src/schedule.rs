//! How the learning rate changes from step to step.

use serde::{Deserialize, Serialize};

/// The course of the learning rate after the warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Curve {
    /// Always the same.
    Constant,
    /// Multiplied by `factor` after every so many epochs.
    Step {
        /// Epochs from one change to the next.
        every: f32,
        /// What it is multiplied by.
        factor: f32,
    },
    /// Down to zero along half a cosine (Loshchilov and Hutter, ICLR 2017).
    Cosine,
    /// Down to zero as a power of what is left of the training.
    Polynomial {
        /// 1 for a straight line.
        power: f32,
    },
}

/// The beginning, where a large learning rate would do harm (Goyal et al., 2017).
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum WarmUp {
    /// Grows evenly up to the full rate.
    Linear {
        /// How many epochs.
        epochs: f32,
    },
    /// Stays at a share of the full rate.
    Constant {
        /// How many epochs.
        epochs: f32,
        /// The share.
        factor: f32,
    },
}

impl WarmUp {
    /// Epochs before the full rate.
    pub fn epochs(self) -> f32 {
        match self {
            Self::Linear { epochs } | Self::Constant { epochs, .. } => epochs,
        }
    }
}

/// The learning rate of each step.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Schedule {
    /// The full rate.
    pub lr: f32,
    /// At the beginning.
    pub warm_up: WarmUp,
    /// After that.
    pub curve: Curve,
    /// Steps of an epoch.
    pub epoch: usize,
    /// Steps of the whole training.
    pub steps: usize,
}

impl Schedule {
    /// Of a step, counted from 0.
    pub fn lr(&self, step: usize) -> f32 {
        let in_steps = |epochs: f32| (f64::from(epochs) * self.epoch as f64).round() as usize;
        let warm = in_steps(self.warm_up.epochs());
        if step < warm {
            return match self.warm_up {
                WarmUp::Linear { .. } => self.lr * ((step + 1) as f64 / warm as f64) as f32,
                WarmUp::Constant { factor, .. } => self.lr * factor,
            };
        }
        let done = (step - warm) as f64 / (self.steps.saturating_sub(warm)).max(1) as f64;
        let share = match self.curve {
            Curve::Constant => 1.0,
            Curve::Step { every, factor } => f64::from(factor).powi(((step - warm) / in_steps(every).max(1)) as i32),
            Curve::Cosine => 0.5 * (1.0 + (std::f64::consts::PI * done).cos()),
            Curve::Polynomial { power } => (1.0 - done).max(0.0).powf(power.into()),
        };
        (f64::from(self.lr) * share) as f32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rates(curve: Curve, warm_up: WarmUp, steps: usize) -> Vec<f32> {
        let schedule = Schedule { lr: 2.0, warm_up, curve, epoch: 2, steps };
        (0..steps).map(|step| schedule.lr(step)).collect()
    }

    const AT_ONCE: WarmUp = WarmUp::Linear { epochs: 0.0 };

    #[test]
    fn curves_go_where_their_formulas_say() {
        assert_eq!(rates(Curve::Constant, AT_ONCE, 3), [2.0; 3]);
        assert_eq!(rates(Curve::Step { every: 1.0, factor: 0.5 }, AT_ONCE, 5), [2.0, 2.0, 1.0, 1.0, 0.5]);
        assert_eq!(rates(Curve::Polynomial { power: 1.0 }, AT_ONCE, 4), [2.0, 1.5, 1.0, 0.5]);
        assert_eq!(rates(Curve::Polynomial { power: 2.0 }, AT_ONCE, 4), [2.0, 1.125, 0.5, 0.125]);
        let cosine = rates(Curve::Cosine, AT_ONCE, 4);
        let expected = [2.0, 1.0 + 0.5f32.sqrt(), 1.0, 1.0 - 0.5f32.sqrt()];
        assert!(cosine.iter().zip(expected).all(|(found, expected)| (found - expected).abs() < 1e-6));
    }

    #[test]
    fn warm_up_comes_before_the_curve() {
        let line = Curve::Polynomial { power: 1.0 };
        assert_eq!(rates(line, WarmUp::Linear { epochs: 2.0 }, 8), [0.5, 1.0, 1.5, 2.0, 2.0, 1.5, 1.0, 0.5]);
        assert_eq!(rates(line, WarmUp::Constant { epochs: 1.0, factor: 0.25 }, 4), [0.5, 0.5, 2.0, 1.0]);
        // A warm-up as long as the training, or longer, is no division by zero.
        assert_eq!(rates(Curve::Cosine, WarmUp::Linear { epochs: 2.0 }, 2), [0.5, 1.0]);
    }
}
