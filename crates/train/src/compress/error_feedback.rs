//! Error feedback: what a code leaves out is not lost but added to the numbers of the next step.
//!
//! Seide et al., *1-bit stochastic gradient descent*, 2014; Karimireddy et al., *Error feedback fixes SignSGD and other
//! gradient compression schemes*, 2019. With x the numbers of a step, e what is left of those before and C(x) what a code of
//! x stands for:
//!
//! ```text
//! x <- x + e
//! send the code of x
//! e <- x - C(x)
//! ```

use ringstep_cpu::{Level, along, kernels};
use ringstep_nn::kernels::rows::add_slice;
use ringstep_nn::state::State;

use super::memory::Memory;
use super::{Codec, Key, Malformed};

/// e. Who knows C(x) without decoding a code, as with [PowerSGD](super::power_sgd), uses it as it is; [`ErrorFeedback`] does so
/// for a codec.
#[derive(Debug, Clone)]
pub struct Residuals {
    level: Level,
    memory: Memory,
}

impl Residuals {
    /// Nothing is left at first.
    pub fn new(level: Level) -> Self {
        Self { level, memory: Memory::default() }
    }

    /// e, to go on later.
    pub fn state(&mut self, state: &mut State<'_>) {
        self.memory.state(state);
    }

    /// x <- x + e. Returns e, for [`leave`] to change.
    pub fn add_to(&mut self, bucket: u32, values: &mut [f32]) -> &mut [f32] {
        let residual = self.memory.of(bucket, values.len());
        add_slice(self.level, values, residual);
        residual
    }
}

/// e <- x - C(x), where C(x) is what `add` adds to zeros.
pub fn leave(level: Level, values: &[f32], residual: &mut [f32], add: impl FnOnce(&mut [f32])) {
    residual.fill(0.0);
    add(residual);
    subtract_from(level, values, residual);
}

kernels! {
    fn subtract_from<S>(simd: S, values: &[f32], sent: &mut [f32]) {
        assert_eq!(values.len(), sent.len());
        along!(simd, values.len(), |at| {
            let left = at.load(values) - at.load(sent);
            at.store(sent, left);
        });
    }
}

/// A codec that sends later what it has left out. It makes one code of each bucket in a step.
#[derive(Debug, Clone)]
pub struct ErrorFeedback<C> {
    codec: C,
    residuals: Residuals,
    /// x.
    values: Vec<f32>,
}

impl<C: Codec> ErrorFeedback<C> {
    /// Nothing is left at first.
    pub fn new(level: Level, codec: C) -> Self {
        Self { codec, residuals: Residuals::new(level), values: Vec::new() }
    }

    /// What is left of a bucket of so many numbers.
    pub fn residual(&mut self, bucket: u32, length: usize) -> &[f32] {
        self.residuals.memory.of(bucket, length)
    }
}

impl<C: Codec> Codec for ErrorFeedback<C> {
    fn encode(&mut self, key: Key, values: &[f32], out: &mut Vec<u8>) {
        let Self { codec, residuals, values: corrected } = self;
        corrected.clear();
        corrected.extend_from_slice(values);
        let level = residuals.level;
        let residual = residuals.add_to(key.bucket, corrected);
        codec.encode(key, corrected, out);
        leave(level, corrected, residual, |sent| {
            // Numbers that are not finite may make a code that is refused. Then everyone refuses it, this rank too where it
            // adds up what all have sent, so there is no next step.
            let _ = codec.add(key, out, sent);
        });
    }

    fn add(&self, key: Key, code: &[u8], into: &mut [f32]) -> Result<(), Malformed> {
        self.codec.add(key, code, into)
    }

    fn limit(&self, length: usize) -> usize {
        self.codec.limit(length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::check;
    use super::super::half::{Format, Half};
    use super::super::qsgd::{Qsgd, Width};
    use super::super::random_k::RandomK;
    use super::super::sign::Sign;
    use super::super::sparse::{Threshold, TopK};
    use super::*;

    const STEPS: u64 = 5;

    /// Numbers of some steps go through a codec; after each one, how far what was sent and what is left are from what there
    /// was to send.
    fn errors(codec: impl Codec, length: usize, seed: u64) -> Vec<f32> {
        let mut codec = ErrorFeedback::new(Level::best(), codec);
        let mut errors = Vec::new();
        for step in 0..STEPS {
            let key = Key { seed, step, bucket: 1, ..Key::default() };
            let values = check::noise(length, seed ^ step);
            let before = codec.residual(1, length).to_vec();
            let sent = check::decoded(&mut codec, key, &values);
            let left = codec.residual(1, length);
            for (((value, before), sent), left) in values.iter().zip(before).zip(sent).zip(left) {
                errors.push((sent + left - (value + before)).abs());
            }
        }
        errors
    }

    proptest! {
        #[test]
        fn sparse_codes_lose_not_one_bit(length in 0usize..3000, seed: u64, share in 0.001..=1.0, threshold in 0.0f32..0.5) {
            let none = |errors: Vec<f32>| errors.iter().all(|&error| error == 0.0);
            prop_assert!(none(errors(TopK::new(share), length, seed)));
            prop_assert!(none(errors(Threshold::new(threshold), length, seed)));
            prop_assert!(none(errors(RandomK::new(share, false), length, seed)));
        }

        #[test]
        fn other_codes_lose_what_rounding_does(length in 0usize..3000, seed: u64) {
            // Numbers are below 1, and what is left of them below some.
            let little = |errors: Vec<f32>| errors.iter().all(|&error| error < 1e-5);
            let level = Level::best();
            prop_assert!(little(errors(Sign::new(level), length, seed)));
            for format in [Format::Fp16, Format::Bf16] {
                prop_assert!(little(errors(Half::new(level, format), length, seed)));
            }
            for width in [Width::Int8, Width::Int4] {
                prop_assert!(little(errors(Qsgd::new(level, width), length, seed)));
            }
        }
    }

    /// A number that is never among the largest is sent at last, since what is left of it grows.
    #[test]
    fn nothing_is_left_out_for_ever() {
        let mut codec = ErrorFeedback::new(Level::best(), TopK::new(0.1));
        let values: Vec<f32> = (1..=20).map(|number| number as f32).collect();
        let mut sent = vec![0.0; values.len()];
        for step in 0..400 {
            let decoded = check::decoded(&mut codec, Key { step, ..Key::default() }, &values);
            sent.iter_mut().zip(decoded).for_each(|(sent, decoded)| *sent += decoded);
        }
        for (value, sent) in values.iter().zip(sent) {
            assert!(sent >= 0.8 * 400.0 * value, "{sent} of {value} each step");
        }
    }

    #[test]
    fn every_level_keeps_the_same() {
        check::every_level_makes_the_same_code(|level| ErrorFeedback::new(level, Sign::new(level)));
        check::every_level_makes_the_same_code(|level| ErrorFeedback::new(level, TopK::new(0.1)));
    }
}
