//! Where a shortcut comes back: the sum of two activations, rectified where a ReLU follows.

use ringstep_cpu::{along, kernels};

use super::relu::pass_on_where_positive;
use super::{Backward, Forward, Inference, Layer, Rereads, Shape};
use crate::team::Units;

/// `output = input + shortcut`, or `max(input + shortcut, 0)`.
#[derive(Debug)]
pub struct Add {
    shape: Shape,
    rectified: bool,
}

impl Add {
    /// For activations of this shape.
    pub fn new(shape: Shape, rectified: bool) -> Self {
        Self { shape, rectified }
    }
}

impl Layer for Add {
    fn kind(&self) -> &'static str {
        if self.rectified { "add+relu" } else { "add" }
    }

    fn output(&self) -> Shape {
        self.shape
    }

    fn inference(&self, _: &[f32], _: &[f32]) -> Inference {
        Inference::Add { rectified: self.rectified }
    }

    fn rereads(&self) -> Rereads {
        Rereads { input: false, output: self.rectified }
    }

    fn forward(&mut self, pass: Forward<'_>) {
        let floor = if self.rectified { 0.0 } else { f32::NEG_INFINITY };
        let level = pass.team.level();
        pass.team.deal(pass.output.len(), Units::new(pass.output, 1), |range, output| {
            add(level, output, &pass.input[range.clone()], &pass.shortcut[range], floor);
        });
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let level = pass.team.level();
        for gradient in [pass.input_gradient, pass.shortcut_gradient].into_iter().flatten() {
            pass.team.deal(gradient.len(), Units::new(gradient, 1), |range, gradient| {
                let output_gradient = &pass.output_gradient[range.clone()];
                if self.rectified {
                    pass_on_where_positive(level, gradient, output_gradient, &pass.output[range]);
                } else {
                    gradient.copy_from_slice(output_gradient);
                }
            });
        }
    }
}

kernels! {
    fn add<S>(simd: S, output: &mut [f32], input: &[f32], shortcut: &[f32], floor: f32) {
        along!(simd, output.len(), |at| {
            at.store(output, simd.splat(floor).max(at.load(input) + at.load(shortcut)));
        });
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn gradients_agree_with_differences() {
        let shape = Shape::new(2, 3, 4);
        check::gradients(&mut Add::new(shape, false), shape, 2, 0.5, 1e-5);
        check::gradients(&mut Add::new(shape, true), shape, 2, 1e-4, 1e-2);
    }
}
