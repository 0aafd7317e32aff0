//! Batch normalisation (Ioffe and Szegedy, ICML 2015), with the ReLU that usually follows it.
//!
//! With `n` numbers a channel, mean `m` and variance `v` of the batch: `output = (input - m) / sqrt(v + e) * weight +
//! bias`. Forward reads the input twice, backward twice; a ReLU costs nothing more, since whether it let a number pass
//! can be computed again.

use ringstep_cpu::{Level, along, kernels};

use super::{Backward, Forward, Inference, Layer, Peers, Rereads, Shape, Start, Tensor};
use crate::team::{Shares, Units};

/// PyTorch's default, added to the variance.
const EPSILON: f32 = 1e-5;
/// PyTorch's default: how much of a step's statistics goes into the running ones.
const MOMENTUM: f32 = 0.1;
/// Rows that are summed up on their own, before their sum is added to the others: long sums of small numbers lose
/// digits.
const BLOCK: usize = 64;

/// Normalises each channel over the batch.
#[derive(Debug)]
pub struct BatchNorm {
    shape: Shape,
    rectified: bool,
    /// `output = scale * input + offset`. // C
    scale: Vec<f32>,
    offset: Vec<f32>,
    /// Of the last batch, that of all ranks if they normalise together. // C
    mean: Vec<f32>,
    variance: Vec<f32>,
    inverse_deviation: Vec<f32>,
    /// Numbers a channel that these are of.
    count: f32,
    /// What ranks that normalise together add up. // 2C+1
    joint: Vec<f64>,
}

impl BatchNorm {
    /// For activations of this shape, with a ReLU after it or not.
    pub fn new(shape: Shape, rectified: bool) -> Self {
        let [scale, offset, mean, variance, inverse_deviation] = [(); 5].map(|()| vec![0.0; shape.channels]);
        let joint = vec![0.0; 2 * shape.channels + 1];
        Self { shape, rectified, scale, offset, mean, variance, inverse_deviation, count: 0.0, joint }
    }

    /// Finds mean and variance from each thread's sums of differences from `mean`, and of their squares.
    fn moments(&mut self, sums: &[f32], rows: usize, peers: Option<&mut Peers>) {
        let channels = self.shape.channels;
        let totals = |channel| [0, 1].map(|which| total(sums, channels, which, channel));
        let Some(add_up) = peers else {
            self.count = rows as f32;
            for channel in 0..channels {
                let [difference, square] = totals(channel).map(|sum| sum / self.count);
                self.mean[channel] += difference;
                self.variance[channel] = (square - difference * difference).max(0.0);
            }
            return;
        };
        // Each rank has another origin: plain sums can be added, and in f64 a large mean drowns nothing.
        let (plain, squares) = self.joint.split_at_mut(channels + 1);
        plain[channels] = rows as f64;
        for channel in 0..channels {
            let ([difference, square], origin) = (totals(channel).map(f64::from), f64::from(self.mean[channel]));
            plain[channel] = difference + rows as f64 * origin;
            squares[channel] = square + origin * (2.0 * difference + rows as f64 * origin);
        }
        add_up(&mut self.joint);
        let (plain, squares) = self.joint.split_at(channels + 1);
        let count = plain[channels];
        self.count = count as f32;
        for channel in 0..channels {
            let mean = plain[channel] / count;
            self.mean[channel] = mean as f32;
            self.variance[channel] = (squares[channel] / count - mean * mean).max(0.0) as f32;
        }
    }

    fn affine(&self) -> Affine<'_> {
        let floor = if self.rectified { 0.0 } else { f32::NEG_INFINITY };
        Affine { scale: &self.scale, offset: &self.offset, floor }
    }
}

/// The sum over all threads of one of their sums.
fn total(sums: &[f32], channels: usize, which: usize, channel: usize) -> f32 {
    sums.chunks_exact(2 * channels).map(|sums| sums[which * channels + channel]).sum()
}

impl Layer for BatchNorm {
    fn kind(&self) -> &'static str {
        if self.rectified { "batch norm+relu" } else { "batch norm" }
    }

    fn output(&self) -> Shape {
        self.shape
    }

    fn tensors(&self) -> Vec<Tensor> {
        let tensor = |name, start| Tensor { name, shape: vec![self.shape.channels], window: [1, 1], start };
        vec![tensor("weight", Start::Ones), tensor("bias", Start::Zeros)]
    }

    fn statistics(&self) -> Vec<Tensor> {
        let tensor = |name, start| Tensor { name, shape: vec![self.shape.channels], window: [1, 1], start };
        vec![tensor("running_mean", Start::Zeros), tensor("running_var", Start::Ones)]
    }

    fn workspace(&self, _: usize, threads: usize) -> usize {
        threads * 2 * self.shape.channels
    }

    fn inference(&self, parameters: &[f32], statistics: &[f32]) -> Inference {
        let channels = self.shape.channels;
        let (weight, bias) = parameters.split_at(channels);
        let (mean, variance) = statistics.split_at(channels);
        let scale: Vec<f32> =
            weight.iter().zip(variance).map(|(weight, variance)| weight / (variance + EPSILON).sqrt()).collect();
        let offset =
            bias.iter().zip(mean.iter().zip(&scale)).map(|(bias, (mean, scale))| bias - mean * scale).collect();
        Inference::Affine { scale, offset, rectified: self.rectified }
    }

    fn rereads(&self) -> Rereads {
        Rereads { input: true, output: false }
    }

    fn forward(&mut self, pass: Forward<'_>) {
        let channels = self.shape.channels;
        let (weight, bias) = pass.parameters.split_at(channels);
        let (running_mean, running_variance) = pass.statistics.split_at_mut(channels);
        let rows = pass.input.len() / channels; // N,H,W
        let rows_of = |range: &std::ops::Range<usize>| &pass.input[range.start * channels..range.end * channels];

        let level = pass.team.level();
        if rows > 0 || pass.peers.is_some() {
            // Differences from some number of the channel, so that a large mean does not drown the variance.
            self.mean.copy_from_slice(if rows > 0 { &pass.input[..channels] } else { running_mean });
            let (share, level) = (2 * channels, pass.team.level());
            let workspace = &mut pass.workspace[..pass.team.threads() * share];
            workspace.fill(0.0);
            pass.team.deal(rows, Shares::new(workspace, share), |range, share| {
                sum_powers(level, rows_of(&range), &self.mean, share);
            });
            self.moments(workspace, rows, pass.peers);
            for channel in 0..channels {
                let (mean, variance) = (self.mean[channel], self.variance[channel]);
                self.inverse_deviation[channel] = 1.0 / (variance + EPSILON).sqrt();
                running_mean[channel] += MOMENTUM * (mean - running_mean[channel]);
                // The running one is that of the population; one row alone says nothing about it.
                let unbiased = variance * self.count / (self.count - 1.0).max(1.0);
                running_variance[channel] += MOMENTUM * (unbiased - running_variance[channel]);
            }
        }
        for channel in 0..channels {
            self.scale[channel] = weight[channel] * self.inverse_deviation[channel];
            self.offset[channel] = bias[channel] - self.mean[channel] * self.scale[channel];
        }
        pass.team.deal(rows, Units::new(pass.output, channels), |range, output| {
            normalise(level, output, rows_of(&range), self.affine());
        });
    }

    // With g the gradient where the ReLU let a number pass, and x the normalised input:
    // bias' = sum(g), weight' = sum(g x), input' = scale (g - bias'/n - x weight'/n).
    fn backward(&mut self, pass: Backward<'_>) {
        let channels = self.shape.channels;
        let (weight_gradient, bias_gradient) = pass.gradients.split_at_mut(channels);
        let rows = pass.input.len() / channels;
        let (share, level) = (2 * channels, pass.team.level());
        let workspace = &mut pass.workspace[..pass.team.threads() * share];
        workspace.fill(0.0);
        pass.team.deal(rows, Shares::new(workspace, share), |range, share| {
            let range = range.start * channels..range.end * channels;
            sum_gradients(
                level,
                &pass.output_gradient[range.clone()],
                &pass.input[range],
                &self.mean,
                self.affine(),
                share,
            );
        });
        let (bias_sums, weight_sums) = self.joint.split_at_mut(channels);
        for channel in 0..channels {
            let [plain, weighted] = [0, 1].map(|which| total(workspace, channels, which, channel));
            let weighted = weighted * self.inverse_deviation[channel];
            (bias_gradient[channel], weight_gradient[channel]) = (plain, weighted);
            (bias_sums[channel], weight_sums[channel]) = (plain.into(), weighted.into());
        }
        // The input's gradient depends on the sums over all that was normalised together.
        if let Some(add_up) = pass.peers {
            add_up(&mut self.joint[..2 * channels]);
        }
        let Some(input_gradient) = pass.input_gradient else { return };
        // input' = scale g + slope input + constant
        let (slope, constant) = workspace.split_at_mut(channels);
        for channel in 0..channels {
            let [bias_sum, weight_sum] = [0, channels].map(|start| self.joint[start + channel] as f32 / self.count);
            let pull = self.scale[channel] * weight_sum * self.inverse_deviation[channel];
            slope[channel] = -pull;
            constant[channel] = pull * self.mean[channel] - self.scale[channel] * bias_sum;
        }
        let (slope, constant) = (&slope[..], &constant[..channels]);
        pass.team.deal(rows, Units::new(input_gradient, channels), |range, gradient| {
            let range = range.start * channels..range.end * channels;
            input_gradients(
                level,
                gradient,
                &pass.output_gradient[range.clone()],
                &pass.input[range],
                self.affine(),
                slope,
                constant,
            );
        });
    }
}

/// What a channel's numbers are multiplied by, what is then added, and below what they are cut off.
#[derive(Clone, Copy)]
struct Affine<'a> {
    scale: &'a [f32],
    offset: &'a [f32],
    floor: f32,
}

/// `output = scale * input + offset`, not below a floor.
pub(crate) fn affine(level: Level, output: &mut [f32], input: &[f32], (scale, offset, floor): (&[f32], &[f32], f32)) {
    normalise(level, output, input, Affine { scale, offset, floor });
}

kernels! {
    /// Adds the sums of `input - origin` and of its squares to two rows of sums.
    fn sum_powers<S>(simd: S, input: &[f32], origin: &[f32], sums: &mut [f32]) {
        let channels = origin.len();
        let (first, second) = sums.split_at_mut(channels);
        for rows in input.chunks(BLOCK * channels) {
            along!(simd, channels, |at| {
                let origin = at.load(origin);
                let (mut plain, mut squares) = (simd.zero(), simd.zero());
                for row in rows.chunks_exact(channels) {
                    let difference = at.load(row) - origin;
                    plain = plain + difference;
                    squares = difference.multiply_add(difference, squares);
                }
                at.store(first, at.load(first) + plain);
                at.store(second, at.load(second) + squares);
            });
        }
    }

    fn normalise<S>(simd: S, output: &mut [f32], input: &[f32], affine: Affine<'_>) {
        let Affine { scale, offset, floor } = affine;
        let channels = scale.len();
        for (output, input) in output.chunks_exact_mut(channels).zip(input.chunks_exact(channels)) {
            along!(simd, channels, |at| {
                let value = at.load(input).multiply_add(at.load(scale), at.load(offset));
                at.store(output, simd.splat(floor).max(value));
            });
        }
    }

    /// Adds the sums of g and of `g (input - mean)` to two rows of sums.
    fn sum_gradients<S>(simd: S, gradient: &[f32], input: &[f32], mean: &[f32], affine: Affine<'_>, sums: &mut [f32]) {
        let Affine { scale, offset, floor } = affine;
        let channels = mean.len();
        let (first, second) = sums.split_at_mut(channels);
        for (gradients, inputs) in gradient.chunks(BLOCK * channels).zip(input.chunks(BLOCK * channels)) {
            along!(simd, channels, |at| {
                let (mean, scale, offset) = (at.load(mean), at.load(scale), at.load(offset));
                let (mut plain, mut weighted) = (simd.zero(), simd.zero());
                for (gradients, inputs) in gradients.chunks_exact(channels).zip(inputs.chunks_exact(channels)) {
                    let input = at.load(inputs);
                    let value = input.multiply_add(scale, offset);
                    let gradient = value.where_greater(simd.splat(floor), at.load(gradients), simd.zero());
                    plain = plain + gradient;
                    weighted = gradient.multiply_add(input - mean, weighted);
                }
                at.store(first, at.load(first) + plain);
                at.store(second, at.load(second) + weighted);
            });
        }
    }

    /// `input' = scale g + slope input + constant`
    fn input_gradients<S>(
        simd: S,
        to: &mut [f32],
        gradient: &[f32],
        input: &[f32],
        affine: Affine<'_>,
        slope: &[f32],
        constant: &[f32],
    ) {
        let Affine { scale, offset, floor } = affine;
        let channels = scale.len();
        let rows = to.chunks_exact_mut(channels).zip(gradient.chunks_exact(channels)).zip(input.chunks_exact(channels));
        for ((to, gradients), input) in rows {
            along!(simd, channels, |at| {
                let (input, scale) = (at.load(input), at.load(scale));
                let value = input.multiply_add(scale, at.load(offset));
                let gradient = value.where_greater(simd.splat(floor), at.load(gradients), simd.zero());
                at.store(to, scale.multiply_add(gradient, at.load(slope).multiply_add(input, at.load(constant))));
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn gradients_agree_with_differences() {
        let shape = Shape::new(2, 3, 4);
        check::gradients(&mut BatchNorm::new(shape, false), shape, 4, 1e-2, 2e-3);
        check::gradients(&mut BatchNorm::new(shape, true), shape, 4, 1e-3, 2e-2);
    }

    #[test]
    fn outputs_have_the_mean_and_deviation_that_the_parameters_say() {
        let shape = Shape::new(5, 7, 3);
        for threads in 1..=3 {
            let mut layer = BatchNorm::new(shape, false);
            let mut bench = check::Bench::new(&mut layer, shape, 9, threads);
            // A mean a thousand times the deviation.
            bench.input.iter_mut().for_each(|value| *value += 1000.0);
            bench.parameters = vec![2.0, 1.0, 0.5, -1.0, 0.0, 3.0];
            let output = bench.forward(9);
            for channel in 0..3 {
                let values: Vec<f64> = output.iter().skip(channel).step_by(3).map(|&value| value.into()).collect();
                let mean = values.iter().sum::<f64>() / values.len() as f64;
                let variance = values.iter().map(|value| (value - mean).powi(2)).sum::<f64>() / values.len() as f64;
                assert!((mean - f64::from(bench.parameters[3 + channel])).abs() < 1e-3, "{mean}");
                assert!((variance.sqrt() / f64::from(bench.parameters[channel]) - 1.0).abs() < 1e-3, "{variance}");
            }
        }
    }

    /// Ranks with 3, 0 and 2 images, as threads, against one with all five.
    #[test]
    fn ranks_that_normalise_together_find_what_one_with_all_images_finds() {
        use std::sync::{Arc, Barrier, Mutex};

        let shape = Shape::new(3, 5, 4);
        for rectified in [false, true] {
            let mut layer = BatchNorm::new(shape, rectified);
            let mut whole = check::Bench::new(&mut layer, shape, 5, 1);
            whole.input.iter_mut().for_each(|value| *value += 100.0);
            let (input, direction) = (whole.input.clone(), check::noise(5 * shape.len(), 3));
            let output = whole.forward(5);
            let gradients = whole.backward(&output, &direction);
            let statistics = whole.statistics.clone();

            let parts = [0..3, 3..3, 3..5];
            let (sums, meeting) = (Arc::new(Mutex::new(Vec::new())), Arc::new(Barrier::new(parts.len())));
            let together = std::thread::scope(|scope| {
                let ranks = parts.clone().map(|part| {
                    let (sums, meeting, images) = (Arc::clone(&sums), Arc::clone(&meeting), part.len());
                    let range = part.start * shape.len()..part.end * shape.len();
                    let (input, direction) = (input[range.clone()].to_vec(), direction[range].to_vec());
                    scope.spawn(move || {
                        let mut layer = BatchNorm::new(shape, rectified);
                        let mut bench = check::Bench::new(&mut layer, shape, images, 2);
                        bench.input = input;
                        bench.peers = Some(Box::new(move |numbers| {
                            meeting.wait();
                            sums.lock().unwrap().resize(numbers.len(), 0.0);
                            meeting.wait();
                            sums.lock().unwrap().iter_mut().zip(&*numbers).for_each(|(sum, number)| *sum += number);
                            meeting.wait();
                            numbers.copy_from_slice(&sums.lock().unwrap());
                            meeting.wait();
                            sums.lock().unwrap().clear();
                        }));
                        let output = bench.forward(images);
                        let gradients = bench.backward(&output, &direction);
                        (output, gradients, bench.statistics)
                    })
                });
                ranks.map(|rank| rank.join().unwrap())
            });
            let close = |what: &str, found: &[f32], expected: &[f32]| {
                assert_eq!(found.len(), expected.len());
                for (found, expected) in found.iter().zip(expected) {
                    let error = (found - expected).abs();
                    assert!(error < 2e-4 * expected.abs().max(1.0), "{what}: {found} is not {expected}");
                }
            };
            close("output", &together.each_ref().map(|rank| &rank.0[..]).concat(), &output);
            close("input", &together.each_ref().map(|rank| &rank.1.input[..]).concat(), &gradients.input);
            let sums: Vec<f32> =
                (0..2 * shape.channels).map(|at| together.iter().map(|rank| rank.1.parameters[at]).sum()).collect();
            close("parameters", &sums, &gradients.parameters);
            together.iter().for_each(|rank| close("statistics", &rank.2, &statistics));
        }
    }
}
