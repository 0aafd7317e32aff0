//! Batch normalisation (Ioffe and Szegedy, ICML 2015), with the ReLU that usually follows it.
//!
//! With `n` numbers a channel, mean `m` and variance `v` of the batch: `output = (input - m) / sqrt(v + e) * weight +
//! bias`. Forward reads the input twice, backward twice; a ReLU costs nothing more, since whether it let a number pass
//! can be computed again.

use super::{Backward, Forward, Layer, Peers, Rereads, Shape, Start, Tensor};
use crate::kernels::simd::{multiply_add, vectorised};
use crate::team::{Shares, Units};

/// PyTorch's default, added to the variance.
const EPSILON: f32 = 1e-5;
/// PyTorch's default: how much of a step's statistics goes into the running ones.
const MOMENTUM: f32 = 0.1;
/// Rows that are summed up on their own, before their sum is added to the others: long sums of small numbers lose
/// digits.
const BLOCK: usize = 64;

/// Normalises each channel over the batch in training, and by running statistics otherwise.
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

    /// Below this, an output is cut off.
    fn floor(&self) -> f32 {
        if self.rectified { 0.0 } else { f32::NEG_INFINITY }
    }
}

/// The sum over all threads of one of their sums.
fn total(sums: &[f32], channels: usize, which: usize, channel: usize) -> f32 {
    sums.chunks_exact(4 * channels).map(|sums| sums[which * channels + channel]).sum()
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
        threads * 4 * self.shape.channels
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

        if pass.training && (rows > 0 || pass.peers.is_some()) {
            // Differences from some number of the channel, so that a large mean does not drown the variance.
            self.mean.copy_from_slice(if rows > 0 { &pass.input[..channels] } else { running_mean });
            let share = 4 * channels;
            let workspace = &mut pass.workspace[..pass.team.threads() * share];
            workspace.fill(0.0);
            pass.team.deal(rows, Shares::new(workspace, share), |range, share| {
                sum_powers(rows_of(&range), &self.mean, share);
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
        } else {
            self.mean.copy_from_slice(running_mean);
            for (inverse, variance) in self.inverse_deviation.iter_mut().zip(running_variance) {
                *inverse = 1.0 / (*variance + EPSILON).sqrt();
            }
        }
        for channel in 0..channels {
            self.scale[channel] = weight[channel] * self.inverse_deviation[channel];
            self.offset[channel] = bias[channel] - self.mean[channel] * self.scale[channel];
        }
        pass.team.deal(rows, Units::new(pass.output, channels), |range, output| {
            normalise(output, rows_of(&range), &self.scale, &self.offset, self.floor());
        });
    }

    // With g the gradient where the ReLU let a number pass, and x the normalised input:
    // bias' = sum(g), weight' = sum(g x), input' = scale (g - bias'/n - x weight'/n).
    fn backward(&mut self, pass: Backward<'_>) {
        let channels = self.shape.channels;
        let (weight_gradient, bias_gradient) = pass.gradients.split_at_mut(channels);
        let rows = pass.input.len() / channels;
        let share = 4 * channels;
        let workspace = &mut pass.workspace[..pass.team.threads() * share];
        workspace.fill(0.0);
        pass.team.deal(rows, Shares::new(workspace, share), |range, share| {
            let range = range.start * channels..range.end * channels;
            let affine = (&self.scale[..], &self.offset[..], self.floor());
            sum_gradients(&pass.output_gradient[range.clone()], &pass.input[range], &self.mean, affine, share);
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
        // input' = scale g + slope input + level
        let (slope, level) = workspace.split_at_mut(channels);
        for channel in 0..channels {
            let [bias_sum, weight_sum] = [0, channels].map(|start| self.joint[start + channel] as f32 / self.count);
            let pull = self.scale[channel] * weight_sum * self.inverse_deviation[channel];
            slope[channel] = -pull;
            level[channel] = pull * self.mean[channel] - self.scale[channel] * bias_sum;
        }
        let (slope, level) = (&slope[..], &level[..channels]);
        pass.team.deal(rows, Units::new(input_gradient, channels), |range, gradient| {
            let range = range.start * channels..range.end * channels;
            let affine = (&self.scale[..], &self.offset[..], self.floor());
            input_gradients(gradient, &pass.output_gradient[range.clone()], &pass.input[range], affine, slope, level);
        });
    }
}

vectorised! {
    /// Adds the sums of `input - origin` and of its squares to the first two of four rows; the others are for blocks.
    fn sum_powers(input: &[f32], origin: &[f32], sums: &mut [f32]) {
        let channels = origin.len();
        let (totals, block) = sums.split_at_mut(2 * channels);
        let (first, second) = block.split_at_mut(channels);
        for rows in input.chunks(BLOCK * channels) {
            first.fill(0.0);
            second.fill(0.0);
            for row in rows.chunks_exact(channels) {
                for (((&value, &origin), first), second) in
                    row.iter().zip(origin).zip(first.iter_mut()).zip(second.iter_mut())
                {
                    let difference = value - origin;
                    *first += difference;
                    *second = multiply_add::<FUSED>(difference, difference, *second);
                }
            }
            for (total, sum) in totals.iter_mut().zip(first.iter().chain(second.iter())) {
                *total += sum;
            }
        }
    }

    fn normalise(output: &mut [f32], input: &[f32], scale: &[f32], offset: &[f32], floor: f32) {
        let channels = scale.len();
        for (output, input) in output.chunks_exact_mut(channels).zip(input.chunks_exact(channels)) {
            for (((output, &input), &scale), &offset) in output.iter_mut().zip(input).zip(scale).zip(offset) {
                let value = multiply_add::<FUSED>(input, scale, offset);
                *output = if value < floor { floor } else { value };
            }
        }
    }

    /// Adds the sums of g and of `g (input - mean)` to the first two of four rows.
    fn sum_gradients(gradient: &[f32], input: &[f32], mean: &[f32], affine: (&[f32], &[f32], f32), sums: &mut [f32]) {
        let (scale, offset, floor) = affine;
        let channels = mean.len();
        let (totals, block) = sums.split_at_mut(2 * channels);
        let (first, second) = block.split_at_mut(channels);
        for (gradients, inputs) in gradient.chunks(BLOCK * channels).zip(input.chunks(BLOCK * channels)) {
            first.fill(0.0);
            second.fill(0.0);
            for (gradients, inputs) in gradients.chunks_exact(channels).zip(inputs.chunks_exact(channels)) {
                let sums = first.iter_mut().zip(second.iter_mut());
                let constants = mean.iter().zip(scale).zip(offset);
                for (((&gradient, &input), (first, second)), ((&mean, &scale), &offset)) in
                    gradients.iter().zip(inputs).zip(sums).zip(constants)
                {
                    let passed = multiply_add::<FUSED>(input, scale, offset) > floor;
                    let gradient = if passed { gradient } else { 0.0 };
                    *first += gradient;
                    *second = multiply_add::<FUSED>(gradient, input - mean, *second);
                }
            }
            for (total, sum) in totals.iter_mut().zip(first.iter().chain(second.iter())) {
                *total += sum;
            }
        }
    }

    fn input_gradients(
        to: &mut [f32],
        gradient: &[f32],
        input: &[f32],
        affine: (&[f32], &[f32], f32),
        slope: &[f32],
        level: &[f32],
    ) {
        let (scale, offset, floor) = affine;
        let channels = scale.len();
        let rows = to.chunks_exact_mut(channels).zip(gradient.chunks_exact(channels)).zip(input.chunks_exact(channels));
        for ((to, gradient), input) in rows {
            let constants = scale.iter().zip(offset).zip(slope.iter().zip(level));
            for (((to, &gradient), &input), ((&scale, &offset), (&slope, &level))) in
                to.iter_mut().zip(gradient).zip(input).zip(constants)
            {
                let passed = multiply_add::<FUSED>(input, scale, offset) > floor;
                let gradient = if passed { gradient } else { 0.0 };
                *to = multiply_add::<FUSED>(scale, gradient, multiply_add::<FUSED>(slope, input, level));
            }
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
            let output = bench.forward(9, true);
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
            let output = whole.forward(5, true);
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
                        let output = bench.forward(images, true);
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

    #[test]
    fn evaluation_uses_the_running_statistics_which_tend_to_those_of_the_batch() {
        let shape = Shape::new(4, 4, 2);
        let mut layer = BatchNorm::new(shape, true);
        let mut bench = check::Bench::new(&mut layer, shape, 6, 1);
        bench.statistics = vec![0.0, 0.0, 1.0, 1.0];
        let mut trained = Vec::new();
        for _ in 0..200 {
            trained = bench.forward(6, true);
        }
        let statistics = bench.statistics.clone();
        for (evaluated, trained) in bench.forward(6, false).iter().zip(trained) {
            // They differ by n / (n - 1) within the variance.
            assert!((evaluated - trained).abs() < 0.02, "{evaluated} is not {trained}");
        }
        assert_eq!(bench.statistics, statistics);
    }
}
