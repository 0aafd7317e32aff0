//! Dropout (Srivastava et al., JMLR 2014).

use ringstep_cpu::kernels;
use ringstep_cpu::random::mix;

use super::{Backward, Forward, Inference, Layer, Rereads, Shape};
use crate::team::Units;

/// In training each number is zero with probability `rate`, and the others are multiplied by `1 / (1 - rate)`.
///
/// Which ones is a function of the step and the place, so backward need not be told.
#[derive(Debug)]
pub struct Dropout {
    shape: Shape,
    rate: f32,
}

impl Dropout {
    /// For activations of this shape; `rate` is at least 0 and below 1.
    pub fn new(shape: Shape, rate: f32) -> Self {
        Self { shape, rate }
    }
}

impl Layer for Dropout {
    fn kind(&self) -> &'static str {
        "dropout"
    }

    fn output(&self) -> Shape {
        self.shape
    }

    fn inference(&self, _: &[f32], _: &[f32]) -> Inference {
        Inference::Same
    }

    fn rereads(&self) -> Rereads {
        Rereads { input: false, output: false }
    }

    fn forward(&mut self, pass: Forward<'_>) {
        let level = pass.team.level();
        pass.team.deal(pass.output.len(), Units::new(pass.output, 1), |range, output| {
            drop_some(level, output, &pass.input[range.clone()], self.rate, pass.random, range.start);
        });
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let Some(input_gradient) = pass.input_gradient else { return };
        let level = pass.team.level();
        pass.team.deal(input_gradient.len(), Units::new(input_gradient, 1), |range, gradient| {
            drop_some(level, gradient, &pass.output_gradient[range.clone()], self.rate, pass.random, range.start);
        });
    }
}

// Integers, which the compiler vectorises for each level: vectors are of floats.
kernels! {
    fn drop_some<S>(_simd: S, output: &mut [f32], input: &[f32], rate: f32, random: u64, start: usize) {
        let scale = 1.0 / (1.0 - rate);
        let threshold = (f64::from(rate) * 4_294_967_296.0) as u32;
        for ((output, &input), place) in output.iter_mut().zip(input).zip(start as u32..) {
            *output = if mix(place, random) < threshold { 0.0 } else { input * scale };
        }
    }
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::Level;

    use super::super::check;
    use super::*;

    #[test]
    fn gradients_agree_with_differences() {
        let shape = Shape::new(2, 3, 4);
        check::gradients(&mut Dropout::new(shape, 0.4), shape, 2, 0.5, 1e-5);
    }

    #[test]
    fn the_share_is_right_the_mean_stays_and_every_step_differs() {
        let ones = vec![1.0; 100_000];
        for rate in [0.0, 0.1, 0.5, 0.9] {
            let mut output = vec![f32::NAN; ones.len()];
            drop_some(Level::best(), &mut output, &ones, rate, 1, 0);
            let zeros = output.iter().filter(|&&value| value == 0.0).count() as f64 / 1e5;
            // Five standard deviations of a binomial share.
            let room = 5.0 * (f64::from(rate) * (1.0 - f64::from(rate)) / 1e5).sqrt();
            assert!((zeros - f64::from(rate)).abs() <= room, "{rate}: {zeros}");
            assert!(output.iter().all(|&value| value == 0.0 || value == 1.0 / (1.0 - rate)));
        }
        let pattern = |random| {
            let mut output = vec![0.0; 64];
            drop_some(Level::best(), &mut output, &ones[..64], 0.5, random, 0);
            output
        };
        assert_eq!(pattern(1), pattern(1));
        assert_ne!(pattern(1), pattern(2));
        assert_ne!(pattern(1), pattern(1 << 32));
    }
}
