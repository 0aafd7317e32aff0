//! Deep gradient compression (Lin et al., *Deep gradient compression: reducing the communication bandwidth for distributed
//! training*, 2018): a thousandth of the numbers, with an error feedback that knows of momentum.
//!
//! With g a rank's gradient, m the momentum, u its velocity and v what has not been sent:
//!
//! ```text
//! g <- g, scaled to a norm of at most c/sqrt(p)     clipping, since what is left adds up over the steps
//! u <- m u + g                                      momentum correction: what is sent late has its momentum, too
//! v <- v + u
//! send the largest of v
//! u, v <- 0 where it was sent                       factor masking: what is sent late has no stale momentum
//! ```
//!
//! All ranks add up what they get and take a step of plain SGD, since the momentum is in what was sent. Over the first epochs
//! the share that is sent falls from a quarter to a thousandth ([`WarmUp`]).

use ringstep_cpu::{Level, along, kernels};
use ringstep_nn::kernels::rows::sum_of_squares;
use ringstep_nn::state::State;

use super::memory::Memory;
use super::select::Cut;
use super::{Codec, Key, Malformed, kept, sparse};

/// Sends the largest of what has accumulated, as a [sparse code](super::sparse).
#[derive(Debug, Clone)]
pub struct Dgc {
    level: Level,
    momentum: f32,
    share: f64,
    /// u.
    velocities: Memory,
    /// v.
    accumulated: Memory,
    indices: Vec<u32>,
}

impl Dgc {
    /// Of n numbers it sends `share` n, rounded up.
    pub fn new(level: Level, momentum: f32, share: f64) -> Self {
        let (velocities, accumulated) = (Memory::default(), Memory::default());
        Self { level, momentum, share, velocities, accumulated, indices: Vec::new() }
    }

    /// u and v, to go on later.
    pub fn state(&mut self, state: &mut State<'_>) {
        state.within("velocities", |state| self.velocities.state(state));
        state.within("accumulated", |state| self.accumulated.state(state));
    }

    /// What is sent from now on.
    pub fn set_share(&mut self, share: f64) {
        self.share = share;
    }

    /// v: what has not been sent of a bucket of so many numbers.
    pub fn unsent(&mut self, bucket: u32, length: usize) -> &[f32] {
        self.accumulated.of(bucket, length)
    }
}

impl Codec for Dgc {
    fn encode(&mut self, key: Key, values: &[f32], out: &mut Vec<u8>) {
        let velocity = self.velocities.of(key.bucket, values.len());
        let accumulated = self.accumulated.of(key.bucket, values.len());
        accumulate(self.level, values, self.momentum, velocity, accumulated);
        Cut::to_largest(accumulated, kept(self.share, values.len())).apply(accumulated, &mut self.indices);
        sparse::write(accumulated, &self.indices, out);
        for &index in &self.indices {
            velocity[index as usize] = 0.0;
            accumulated[index as usize] = 0.0;
        }
    }

    fn add(&self, _: Key, code: &[u8], into: &mut [f32]) -> Result<(), Malformed> {
        // The share is the sender's at its step, which may be another one.
        sparse::add(code, into.len(), into)
    }

    fn limit(&self, length: usize) -> usize {
        sparse::bytes(kept(self.share, length))
    }
}

kernels! {
    /// u <- m u + g, v <- v + u.
    fn accumulate<S>(simd: S, gradient: &[f32], momentum: f32, velocity: &mut [f32], accumulated: &mut [f32]) {
        assert!(velocity.len() == gradient.len() && accumulated.len() == gradient.len());
        let momentum = simd.splat(momentum);
        along!(simd, gradient.len(), |at| {
            let faster = at.load(velocity) * momentum + at.load(gradient);
            let more = at.load(accumulated) + faster;
            at.store(velocity, faster);
            at.store(accumulated, more);
        });
    }

    fn multiply<S>(simd: S, values: &mut [f32], factor: f32) {
        let factor = simd.splat(factor);
        along!(simd, values.len(), |at| {
            let product = at.load(values) * factor;
            at.store(values, product);
        });
    }
}

/// Scales a rank's gradient down to a norm of `norm` / sqrt(`workers`), if it has a larger one: if all ranks' gradients have
/// the same norm and are independent, their sum then has a norm of `norm` at most.
pub fn clip(level: Level, gradient: &mut [f32], norm: f64, workers: usize) {
    let (limit, found) = (norm / (workers as f64).sqrt(), sum_of_squares(level, gradient).sqrt());
    if found > limit {
        multiply(level, gradient, (limit / found) as f32);
    }
}

/// How the share that is sent falls over the first epochs, by the same factor from each to the next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WarmUp {
    /// Epochs with a larger share than the last one. The paper has 4.
    pub epochs: usize,
    /// The share from then on. The paper has 0.1%, so that the shares before are about 25, 6.3, 1.6 and 0.4%.
    pub share: f64,
}

impl WarmUp {
    /// The share that is sent in an epoch; the first is 0.
    pub fn share(self, epoch: usize) -> f64 {
        let reached = (epoch + 1).min(self.epochs + 1) as f64 / (self.epochs + 1) as f64;
        self.share.powf(reached)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::check;
    use super::*;

    /// The formulas of the paper, number by number.
    struct Plain {
        u: Vec<f32>,
        v: Vec<f32>,
    }

    impl Plain {
        fn step(&mut self, gradient: &[f32], momentum: f32, count: usize) -> Vec<f32> {
            for ((u, v), g) in self.u.iter_mut().zip(&mut self.v).zip(gradient) {
                *u = *u * momentum + g;
                *v += *u;
            }
            let mut order: Vec<usize> = (0..gradient.len()).collect();
            order.sort_by(|&a, &b| self.v[b].abs().total_cmp(&self.v[a].abs()));
            let mut sent = vec![0.0; gradient.len()];
            for &index in &order[..count] {
                sent[index] = std::mem::take(&mut self.v[index]);
                self.u[index] = 0.0;
            }
            sent
        }
    }

    proptest! {
        #[test]
        fn it_does_what_the_paper_says(length in 1usize..600, seed: u64, share in 0.001..0.5) {
            let mut codec = Dgc::new(Level::best(), 0.9, share);
            let mut plain = Plain { u: vec![0.0; length], v: vec![0.0; length] };
            for step in 0..20 {
                let gradient = check::noise(length, seed ^ step);
                let sent = check::decoded(&mut codec, Key { step, bucket: 2, ..Key::default() }, &gradient);
                prop_assert_eq!(sent, plain.step(&gradient, 0.9, kept(share, length)));
                prop_assert_eq!(&*codec.velocities.of(2, length), &plain.u[..]);
                prop_assert_eq!(&*codec.accumulated.of(2, length), &plain.v[..]);
            }
        }
    }

    #[test]
    fn at_full_rate_it_sends_the_gradient() {
        let mut codec = Dgc::new(Level::best(), 0.9, 1.0);
        for step in 0..3 {
            let gradient = check::noise(1000, step);
            assert_eq!(check::decoded(&mut codec, Key { step, ..Key::default() }, &gradient), gradient);
        }
    }

    /// A number that is sent after some steps has the momentum of these steps: 1 + (1 + m) + (1 + m + m^2) + ... times it.
    #[test]
    fn what_is_sent_late_has_its_momentum() {
        let mut codec = Dgc::new(Level::best(), 0.5, 0.5);
        let mut sent = Vec::new();
        for _ in 0..4 {
            sent.push(check::decoded(&mut codec, Key::default(), &[4.0, 1.0]));
        }
        // 1, 1 + 1.5, 1 + 1.5 + 1.75 exceeds 4 in the third step.
        assert_eq!(sent, [[4.0, 0.0], [4.0, 0.0], [0.0, 4.25], [10.0, 0.0]]);
    }

    #[test]
    fn only_a_gradient_that_is_too_long_is_clipped() {
        for level in Level::available() {
            let mut gradient = [3.0, 4.0];
            clip(level, &mut gradient, 10.0, 4);
            assert_eq!(gradient, [3.0, 4.0]);
            clip(level, &mut gradient, 1.0, 4);
            assert!((f64::from(gradient[0]).hypot(gradient[1].into()) - 0.5).abs() < 1e-6, "{gradient:?}");
        }
    }

    #[test]
    fn the_share_falls_as_in_the_paper() {
        let warm_up = WarmUp { epochs: 4, share: 0.001 };
        for (epoch, expected) in [0.25, 0.0625, 0.015_625, 0.004, 0.001, 0.001].into_iter().enumerate() {
            let share = warm_up.share(epoch);
            assert!((share / expected - 1.0).abs() < 0.02, "{share} in epoch {epoch}");
        }
        assert_eq!(WarmUp { epochs: 0, share: 0.01 }.share(0), 0.01);
    }

    #[test]
    fn it_is_the_same_on_every_level_and_refuses_what_is_no_code() {
        check::every_level_makes_the_same_code(|level| Dgc::new(level, 0.9, 0.1));
        check::what_is_no_code_is_refused(|level| Dgc::new(level, 0.9, 0.1));
    }
}
