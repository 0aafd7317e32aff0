//! What turns gradients into new parameters: each rule walks the flat buffers once.

mod adam;
mod lars;
mod sgd;

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::Model;
use crate::state::State;
use crate::team::Team;

/// How a parameter follows its gradient. The numbers mean what they mean in PyTorch.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Stochastic gradient descent.
    Sgd {
        /// How much of the last step goes into the next; 0 for none.
        momentum: f32,
        /// Nesterov's form of momentum: a step looks ahead.
        nesterov: bool,
        /// Pulls parameters towards zero, as part of the gradient.
        weight_decay: f32,
    },
    /// Adam (Kingma and Ba, ICLR 2015).
    Adam {
        /// How slowly the means of gradients and of their squares follow.
        betas: [f32; 2],
        /// Pulls parameters towards zero, as part of the gradient.
        weight_decay: f32,
    },
    /// Adam with decoupled weight decay (Loshchilov and Hutter, ICLR 2019).
    AdamW {
        /// As in Adam.
        betas: [f32; 2],
        /// Pulls parameters towards zero, beside the gradient.
        weight_decay: f32,
    },
    /// Layer-wise adaptive rate scaling, for large batches (You, Gitman and Ginsburg, 2017).
    Lars {
        /// As in SGD.
        momentum: f32,
        /// As in SGD; biases and batch norm have none.
        weight_decay: f32,
        /// How far a tensor may move in a step, as a share of its norm.
        trust: f32,
    },
}

impl Rule {
    /// How many numbers it remembers for each parameter.
    pub fn remembers(self) -> usize {
        match self {
            Self::Sgd { momentum: 0.0, .. } => 0,
            Self::Sgd { .. } | Self::Lars { .. } => 1,
            Self::Adam { .. } | Self::AdamW { .. } => 2,
        }
    }
}

/// A rule with what it remembers.
#[derive(Debug, Clone)]
pub struct Optimizer {
    rule: Rule,
    /// Velocity, or mean gradient.
    first: Vec<f32>,
    /// Mean square of gradients.
    second: Vec<f32>,
    /// The tensors, and whether they are matrices or filters; a rule may treat others differently.
    tensors: Vec<(Range<usize>, bool)>,
    /// Room for sums of squares, where a rule needs norms.
    sums: Vec<f64>,
    steps: usize,
}

impl Optimizer {
    /// For the parameters of this model.
    pub fn new(rule: Rule, model: &mut Model) -> Self {
        let tensors = model.parameters().iter().filter(|tensor| tensor.trained);
        let tensors = tensors.map(|tensor| (tensor.range(), tensor.shape.len() > 1)).collect();
        Self::for_tensors(rule, model.values_mut().len(), tensors)
    }

    /// For so many parameters, which are these tensors; with each, whether it is a matrix or a filter.
    pub fn for_tensors(rule: Rule, parameters: usize, tensors: Vec<(Range<usize>, bool)>) -> Self {
        let remembered = |number: usize| vec![0.0; if rule.remembers() > number { parameters } else { 0 }];
        let sums = if matches!(rule, Rule::Lars { .. }) { lars::sums(&tensors) } else { 0 };
        Self { rule, first: remembered(0), second: remembered(1), tensors, sums: vec![0.0; sums], steps: 0 }
    }

    /// What it remembers from step to step.
    pub fn state(&mut self, state: &mut State<'_>) {
        state.numbers("first", &mut self.first);
        state.numbers("second", &mut self.second);
        state.count("steps", &mut self.steps);
    }

    /// Takes one step with this learning rate.
    pub fn step(&mut self, team: &mut Team, values: &mut [f32], gradients: &[f32], lr: f32) {
        self.steps += 1;
        match self.rule {
            Rule::Sgd { momentum, nesterov, weight_decay } => {
                let numbers = sgd::Numbers { lr, momentum, nesterov, weight_decay };
                sgd::step(team, values, gradients, &mut self.first, numbers);
            }
            Rule::Adam { betas, weight_decay } => {
                let numbers = adam::Numbers::new(lr, betas, [weight_decay, 0.0], self.steps as i32);
                adam::step(team, values, gradients, [&mut self.first, &mut self.second], numbers);
            }
            Rule::AdamW { betas, weight_decay } => {
                let numbers = adam::Numbers::new(lr, betas, [0.0, weight_decay], self.steps as i32);
                adam::step(team, values, gradients, [&mut self.first, &mut self.second], numbers);
            }
            Rule::Lars { momentum, weight_decay, trust } => {
                let numbers = lars::Numbers { lr, momentum, weight_decay, trust };
                lars::step(team, [values, &mut self.first], gradients, &self.tensors, &mut self.sums, numbers);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::Level;

    use super::*;

    /// Steps of one parameter that begins at `x` under gradients that `gradient` gives.
    fn walk(rule: Rule, lr: f32, mut x: f32, steps: usize, gradient: impl Fn(f32) -> f32) -> Vec<f32> {
        let mut optimizer = Optimizer::for_tensors(rule, 1, vec![(0..1, true)]);
        let mut team = Team::new(1, Level::best());
        (0..steps)
            .map(|_| {
                let mut value = [x];
                optimizer.step(&mut team, &mut value, &[gradient(x)], lr);
                x = value[0];
                x
            })
            .collect()
    }

    fn sgd(momentum: f32, nesterov: bool, weight_decay: f32) -> Rule {
        Rule::Sgd { momentum, nesterov, weight_decay }
    }

    fn assert_close(found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        for (found, expected) in found.iter().zip(expected) {
            assert!((found - expected).abs() <= 2e-6 * expected.abs().max(1.0), "{found} is not {expected}");
        }
    }

    /// With constant gradient g the velocity after n steps is g (1 - m^n) / (1 - m).
    #[test]
    fn momentum_follows_the_geometric_series() {
        let (lr, m, g) = (0.5f32, 0.5f32, 2.0);
        let mut x = 0.0;
        let expected: Vec<f32> = (1..=10)
            .map(|n| {
                x -= lr * g * (1.0 - m.powi(n)) / (1.0 - m);
                x
            })
            .collect();
        assert_eq!(walk(sgd(m, false, 0.0), lr, 0.0, 10, |_| g), expected);
    }

    #[test]
    fn weight_decay_alone_shrinks_geometrically() {
        let expected: Vec<f32> = (1..=10).map(|n| 0.75f32.powi(n)).collect();
        assert_eq!(walk(sgd(0.0, false, 0.5), 0.5, 1.0, 10, |_| 0.0), expected);
        assert_close(&walk(Rule::AdamW { betas: [0.9, 0.999], weight_decay: 0.5 }, 0.5, 1.0, 10, |_| 0.0), &expected);
    }

    /// torch.optim on x = 1 with the gradient x^2 + 1, lr 0.1, three steps: SGD(momentum=0.9, nesterov=True,
    /// weight_decay=0.01), Adam(weight_decay=0.01), AdamW(weight_decay=0.01).
    #[test]
    fn a_few_steps_agree_with_pytorch() {
        let gradient = |x: f32| x * x + 1.0;
        let adam = |decoupled| match decoupled {
            false => Rule::Adam { betas: [0.9, 0.999], weight_decay: 0.01 },
            true => Rule::AdamW { betas: [0.9, 0.999], weight_decay: 0.01 },
        };
        assert_close(&walk(sgd(0.9, true, 0.01), 0.1, 1.0, 3, gradient), &PYTORCH[0]);
        assert_close(&walk(adam(false), 0.1, 1.0, 3, gradient), &PYTORCH[1]);
        assert_close(&walk(adam(true), 0.1, 1.0, 3, gradient), &PYTORCH[2]);
    }

    const PYTORCH: [[f32; 3]; 3] =
        [[0.6181, 0.191_526_56, -0.264_782_5], [0.9, 0.800_383_9, 0.701_393_5], [0.899, 0.798_489_8, 0.698_712_5]];

    /// The first step moves a tensor by `lr * trust` of its norm, whatever the size of the gradient.
    #[test]
    fn lars_moves_every_tensor_by_the_same_share() {
        for gradient in [1e-3, 1.0, 1e3] {
            let rule = Rule::Lars { momentum: 0.9, weight_decay: 0.0, trust: 0.01 };
            let mut optimizer = Optimizer::for_tensors(rule, 4, vec![(0..3, true), (3..4, false)]);
            let mut values = [1.0, 2.0, 2.0, 5.0];
            optimizer.step(&mut Team::new(2, Level::best()), &mut values, &[gradient, 0.0, 0.0, 0.25], 2.0);
            assert_close(&values, &[1.0 - 2.0 * 0.01 * 3.0, 2.0, 2.0, 5.0 - 2.0 * 0.25]);
        }
    }

    #[test]
    fn threads_change_nothing() {
        let rules = [
            sgd(0.9, true, 0.01),
            Rule::Adam { betas: [0.9, 0.999], weight_decay: 0.01 },
            Rule::Lars { momentum: 0.9, weight_decay: 0.01, trust: 0.01 },
        ];
        for rule in rules {
            let run = |threads| {
                let mut optimizer = Optimizer::for_tensors(rule, 100, vec![(0..60, true), (60..100, false)]);
                let mut values: Vec<f32> = (0..100).map(|i| i as f32 / 50.0 - 1.0).collect();
                let gradients: Vec<f32> = (0..100).map(|i| ((i * 37) % 11) as f32 - 5.0).collect();
                for _ in 0..3 {
                    optimizer.step(&mut Team::new(threads, Level::best()), &mut values, &gradients, 0.1);
                }
                values
            };
            assert_eq!(run(1), run(3));
        }
    }
}
