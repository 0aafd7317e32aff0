//! Two-dimensional convolution, by the algorithm that suits its shape.

mod columns;
mod direct;
pub(crate) mod frozen;
mod im2col;
mod pairs;
mod passes;
mod planar_columns;
pub(crate) mod tiling;
pub(crate) mod transforms;
mod whole;
mod winograd;

use super::{Backward, Forward, Inference, Layer, Rereads, Shape, Start, Tensor};
use crate::kernels::rows::sum_rows;
use crate::team::{Shares, Team};

/// The sizes of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Of an image that comes in.
    pub input: Shape,
    /// Of an image that goes out; its channels are the filters.
    pub output: Shape,
    /// Height and width of a filter.
    pub kernel: [usize; 2],
    /// How far apart windows begin, down and across.
    pub stride: [usize; 2],
    /// Zeros on each side, above and below, left and right.
    pub padding: [usize; 2],
}

impl Geometry {
    /// `None` if no window fits in the padded input, or if that is longer than can be counted.
    pub fn new(
        input: Shape,
        filters: usize,
        kernel: [usize; 2],
        stride: [usize; 2],
        padding: [usize; 2],
    ) -> Option<Self> {
        let reach = |length: usize, axis: usize| {
            let padded = padding[axis].checked_mul(2)?.checked_add(length)?;
            Some(padded.checked_sub(kernel[axis])? / stride[axis] + 1)
        };
        let output = Shape::new(reach(input.height, 0)?, reach(input.width, 1)?, filters);
        Some(Self { input, output, kernel, stride, padding })
    }

    /// Numbers in a window, and in a filter.
    pub fn window(&self) -> usize {
        self.kernel[0] * self.kernel[1] * self.input.channels
    }

    /// Windows in an image.
    pub fn positions(&self) -> usize {
        self.output.height * self.output.width
    }
}

/// How a convolution is computed. Parameters are the filters without the biases. // O,KH,KW,C
trait Algorithm: Send {
    fn name(&self) -> &'static str;
    /// Whether it is the right one for so many images.
    fn suits(&self, images: usize) -> bool;
    /// Whether backward can add to the gradient of the input.
    fn adds(&self) -> bool;
    fn workspace(&self, batch: usize, threads: usize) -> usize;
    fn forward(&mut self, pass: Forward<'_>, bias: Option<&[f32]>);
    fn backward(&mut self, pass: Backward<'_>);
}

/// A convolution; filters lie in memory channels last, as activations do.
pub struct Conv2d {
    geometry: Geometry,
    bias: bool,
    /// Those that can do it; the first that suits the number of images does. The last suits any.
    algorithms: Vec<Box<dyn Algorithm>>,
}

impl Conv2d {
    /// With a bias a filter or without.
    pub fn new(geometry: Geometry, bias: bool) -> Self {
        fn boxed(algorithm: impl Algorithm + 'static) -> Box<dyn Algorithm> {
            Box::new(algorithm)
        }
        let mut algorithms = Vec::new();
        algorithms.extend(whole::Whole::new(geometry).map(boxed));
        algorithms.extend(pairs::Pairs::new(geometry).map(boxed));
        algorithms.extend(winograd::Winograd::new(geometry).map(boxed));
        algorithms.extend(columns::Columns::new(geometry).map(boxed));
        algorithms.extend(planar_columns::PlanarColumns::new(geometry).map(boxed));
        algorithms.extend(direct::Direct::new(geometry).map(boxed));
        algorithms.push(boxed(im2col::Im2col::new(geometry)));
        Self { geometry, bias, algorithms }
    }

    /// The place of the algorithm for so many images.
    fn choice(&self, images: usize) -> usize {
        self.algorithms.iter().position(|algorithm| algorithm.suits(images)).expect("the last suits any number")
    }

    fn filters(&self) -> usize {
        self.geometry.output.channels
    }
}

impl Layer for Conv2d {
    fn kind(&self) -> &'static str {
        "conv2d"
    }

    fn algorithm(&self, images: usize) -> &'static str {
        self.algorithms[self.choice(images)].name()
    }

    fn output(&self) -> Shape {
        self.geometry.output
    }

    fn tensors(&self) -> Vec<Tensor> {
        let Geometry { kernel: [height, width], input, .. } = self.geometry;
        let start = Start::Uniform { fan_in: self.geometry.window() };
        let window = [input.channels, height * width];
        let shape = vec![self.filters(), input.channels, height, width];
        let weight = Tensor { name: "weight", shape, window, start };
        let bias = Tensor { name: "bias", shape: vec![self.filters()], window: [1, 1], start };
        if self.bias { vec![weight, bias] } else { vec![weight] }
    }

    fn geometry(&self) -> Option<Geometry> {
        Some(self.geometry)
    }

    fn operations(&self) -> usize {
        2 * self.geometry.window() * self.geometry.output.len()
    }

    fn workspace(&self, batch: usize, threads: usize) -> usize {
        // For fewer images another algorithm may be chosen.
        let candidates = self.algorithms.iter().take(self.choice(0) + 1);
        let most = candidates.map(|algorithm| algorithm.workspace(batch, threads)).max();
        most.unwrap_or(0).max(threads * self.filters())
    }

    fn adds(&self) -> bool {
        self.algorithms.iter().take(self.choice(0) + 1).all(|algorithm| algorithm.adds())
    }

    fn inference(&self, parameters: &[f32], _: &[f32]) -> Inference {
        let (weights, bias) = parameters.split_at(self.filters() * self.geometry.window());
        let bias = if self.bias { bias.to_vec() } else { vec![0.0; self.filters()] };
        Inference::Conv { geometry: self.geometry, weights: weights.to_vec(), bias }
    }

    fn rereads(&self) -> Rereads {
        Rereads { input: true, output: false }
    }

    fn forward(&mut self, pass: Forward<'_>) {
        let (weight, bias) = pass.parameters.split_at(self.filters() * self.geometry.window());
        let choice = self.choice(pass.output.len() / self.geometry.output.len());
        self.algorithms[choice].forward(Forward { parameters: weight, ..pass }, self.bias.then_some(bias));
    }

    fn backward(&mut self, pass: Backward<'_>) {
        let filters = self.filters() * self.geometry.window();
        let (weight_gradient, bias_gradient) = pass.gradients.split_at_mut(filters);
        if self.bias {
            sum_positions(pass.team, pass.output_gradient, bias_gradient, pass.workspace);
        }
        if pass.output_gradient.is_empty() {
            return weight_gradient.fill(0.0);
        }
        let parameters = &pass.parameters[..filters];
        let choice = self.choice(pass.output_gradient.len() / self.geometry.output.len());
        self.algorithms[choice].backward(Backward { parameters, gradients: weight_gradient, ..pass });
    }
}

/// Adds up the gradients of all positions; each thread those of some, in its part of the workspace.
fn sum_positions(team: &mut Team, gradients: &[f32], sums: &mut [f32], workspace: &mut [f32]) {
    let (filters, threads, level) = (sums.len(), team.threads(), team.level());
    let parts = &mut workspace[..threads * filters];
    parts.fill(0.0);
    team.deal(gradients.len() / filters, Shares::new(parts, filters), |range, sums| {
        sum_rows(level, &gradients[range.start * filters..range.end * filters], sums);
    });
    sum_rows(level, parts, sums);
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    /// The definition, loop by loop.
    fn reference(parameters: &[f32], input: &[f32], geometry: Geometry) -> Vec<f32> {
        let Geometry { input: from, output: to, kernel, stride, padding } = geometry;
        let mut output = Vec::new();
        for image in input.chunks_exact(from.len()) {
            for at in 0..to.len() {
                let (y, x, filter) = (at / to.channels / to.width, at / to.channels % to.width, at % to.channels);
                let mut sum = f64::from(parameters[to.channels * geometry.window() + filter]);
                for index in 0..geometry.window() {
                    let (ky, kx) = (index / from.channels / kernel[1], index / from.channels % kernel[1]);
                    let (y, x) = (y * stride[0] + ky, x * stride[1] + kx);
                    let inside = |at: usize, padding: usize, length: usize| (padding..padding + length).contains(&at);
                    if inside(y, padding[0], from.height) && inside(x, padding[1], from.width) {
                        let pixel = (y - padding[0]) * from.width + x - padding[1];
                        let value = image[pixel * from.channels + index % from.channels];
                        sum += f64::from(parameters[filter * geometry.window() + index]) * f64::from(value);
                    }
                }
                output.push(sum as f32);
            }
        }
        output
    }

    /// Height, width, channels, filters, kernel, stride, padding, batch.
    type Case = (usize, usize, usize, usize, [usize; 2], [usize; 2], [usize; 2], usize);

    fn geometry(case: Case) -> Geometry {
        let (height, width, channels, filters, kernel, stride, padding, _) = case;
        Geometry::new(Shape::new(height, width, channels), filters, kernel, stride, padding).unwrap()
    }

    #[test]
    fn forward_agrees_with_the_definition() {
        let cases: [Case; 25] = [
            (5, 5, 1, 1, [5, 5], [1, 1], [0, 0], 1),
            (5, 4, 3, 10, [5, 4], [1, 1], [0, 0], 7),
            (7, 9, 3, 4, [3, 3], [1, 1], [0, 0], 2),
            (6, 5, 2, 7, [1, 1], [1, 1], [0, 0], 3),
            (12, 12, 6, 16, [5, 5], [1, 1], [0, 0], 2),
            (9, 8, 5, 20, [3, 3], [2, 2], [1, 1], 2),
            (8, 8, 16, 17, [1, 1], [2, 2], [0, 0], 3),
            (6, 7, 3, 5, [3, 2], [1, 3], [2, 1], 2),
            (8, 8, 32, 48, [3, 3], [1, 1], [1, 1], 3),
            (5, 7, 19, 33, [3, 3], [1, 1], [1, 1], 5),
            (2, 2, 40, 24, [3, 3], [1, 1], [1, 1], 64),
            // Few windows.
            (4, 4, 40, 25, [3, 3], [1, 1], [1, 1], 1),
            (3, 5, 37, 10, [3, 2], [2, 1], [2, 1], 3),
            (7, 7, 33, 3, [1, 1], [2, 2], [0, 0], 1),
            (2, 2, 48, 16, [3, 3], [1, 1], [1, 1], 2),
            (5, 3, 17, 4, [4, 5], [1, 1], [1, 1], 3),
            (1, 1, 34, 1, [1, 1], [1, 1], [0, 0], 1),
            (14, 14, 6, 16, [5, 5], [1, 1], [0, 0], 3),
            (7, 9, 3, 32, [3, 3], [1, 1], [1, 1], 4),
            (9, 20, 3, 7, [3, 3], [1, 1], [1, 1], 3),
            (11, 13, 2, 10, [4, 2], [1, 1], [3, 1], 2),
            (10, 9, 3, 32, [5, 3], [1, 1], [2, 1], 4),
            (7, 6, 15, 16, [5, 5], [1, 1], [4, 3], 3),
            (32, 32, 3, 6, [5, 5], [1, 1], [0, 0], 3),
            (9, 20, 2, 17, [5, 4], [1, 1], [1, 2], 4),
        ];
        for case in cases {
            let geometry = geometry(case);
            let batch = case.7;
            for threads in 1..=3 {
                let mut layer = Conv2d::new(geometry, true);
                let mut bench = check::Bench::new(&mut layer, geometry.input, batch, threads);
                let output = bench.forward(batch);
                let expected = reference(&bench.parameters, &bench.input, geometry);
                let scale = expected.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
                for (at, (fast, plain)) in output.iter().zip(expected).enumerate() {
                    assert!(
                        (fast - plain).abs() < 2e-5 * scale,
                        "{case:?}, {threads} threads, {at}: {fast} is not {plain}"
                    );
                }
            }
        }
    }

    #[test]
    fn gradients_agree_with_differences() {
        let cases: [Case; 15] = [
            (4, 5, 2, 3, [3, 3], [1, 1], [0, 0], 2),
            (3, 3, 1, 2, [1, 1], [1, 1], [0, 0], 2),
            (5, 5, 2, 2, [5, 5], [1, 1], [0, 0], 2),
            (5, 4, 2, 3, [3, 3], [2, 2], [1, 1], 2),
            (4, 4, 3, 2, [1, 1], [2, 2], [0, 0], 3),
            (4, 5, 2, 2, [3, 2], [1, 3], [2, 1], 2),
            (5, 6, 16, 16, [3, 3], [1, 1], [1, 1], 1),
            (2, 2, 16, 17, [3, 3], [1, 1], [1, 1], 3),
            (5, 6, 3, 16, [3, 3], [1, 1], [1, 1], 2),
            (3, 4, 9, 16, [2, 3], [1, 1], [0, 1], 3),
            (4, 12, 3, 7, [3, 3], [1, 1], [1, 1], 2),
            (6, 9, 1, 6, [4, 2], [1, 1], [3, 0], 2),
            (6, 6, 2, 16, [5, 5], [1, 1], [0, 0], 3),
            (4, 5, 3, 16, [5, 3], [1, 1], [2, 1], 2),
            (6, 7, 3, 5, [5, 3], [1, 1], [2, 1], 3),
        ];
        for case in cases {
            let geometry = geometry(case);
            // Room for more images than there are: a part of a batch must work too.
            for bias in [true, false] {
                let mut layer = Conv2d::new(geometry, bias);
                check::gradients(&mut layer, geometry.input, case.7, 0.5, 1e-4);
            }
        }
    }

    #[test]
    fn a_filter_larger_than_the_padded_input_is_none() {
        let geometry = |padding| Geometry::new(Shape::new(3, 3, 1), 1, [5, 5], [1, 1], [padding; 2]);
        assert_eq!(geometry(0), None);
        assert_eq!(geometry(1).unwrap().output, Shape::new(1, 1, 1));
    }
}
