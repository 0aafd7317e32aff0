//! One bit a number: its sign, times the mean magnitude.
//!
//! Karimireddy et al., *Error feedback fixes SignSGD and other gradient compression schemes*, 2019: without error feedback
//! signs need not converge at all; with it, what matters is that (|x|_1 / n) sign(x) is nearer to x than zero is. That holds
//! for each block of numbers with a mean of its own (Zheng, Huang and Kwok, *Communication-efficient distributed blockwise
//! momentum SGD with error-feedback*, 2019), and layers have gradients of very different size, so here a block is 4,096
//! numbers: 516 bytes instead of 16,384.

use ringstep_cpu::{Level, kernels};

use super::{Codec, Key, Malformed, scale};

/// Numbers that share a mean magnitude.
pub const BLOCK: usize = 4096;

/// Bits of a word. The signs of a block stand in as many words as needed; the first numbers' are the lowest bits of all words,
/// in order, the next ones' the second lowest and so on, so that vectors of neighbours are packed without a shuffle.
const WORD: usize = 32;

/// Bytes of a mean magnitude, and of a word.
const HEAD: usize = 4;

/// Bytes of the code of a block of so many numbers.
const fn block_bytes(numbers: usize) -> usize {
    HEAD + 4 * numbers.div_ceil(WORD)
}

/// Keeps signs alone.
#[derive(Debug, Clone, Copy)]
pub struct Sign {
    level: Level,
}

impl Sign {
    /// By these instructions.
    pub fn new(level: Level) -> Self {
        Self { level }
    }

    /// Checks the code of as many numbers.
    fn check(&self, code: &[u8], numbers: usize) -> Result<(), Malformed> {
        let expected = self.limit(numbers);
        if code.len() != expected {
            return Err(Malformed::Length { found: code.len(), expected });
        }
        for (block, code) in code.chunks(block_bytes(BLOCK)).enumerate() {
            let Some(head) = code.first_chunk() else { unreachable!("a block has a scale") };
            scale(block, *head)?;
        }
        // Only a block that is not whole has bits without a number.
        let rest = numbers % BLOCK;
        let (words, _) = code[code.len() - 4 * rest.div_ceil(WORD)..].as_chunks();
        for (at, &word) in words.iter().enumerate() {
            let bits = (rest - at).div_ceil(words.len()) as u32;
            if u32::from_le_bytes(word).checked_shr(bits).is_some_and(|beyond| beyond != 0) {
                return Err(Malformed::Padding);
            }
        }
        Ok(())
    }
}

impl Codec for Sign {
    fn encode(&mut self, _: Key, values: &[f32], out: &mut Vec<u8>) {
        out.resize(self.limit(values.len()), 0);
        encode_signs(self.level, values, out);
    }

    fn add(&self, _: Key, code: &[u8], into: &mut [f32]) -> Result<(), Malformed> {
        self.check(code, into.len())?;
        add_signs(self.level, code, into);
        Ok(())
    }

    fn limit(&self, length: usize) -> usize {
        let rest = length % BLOCK;
        length / BLOCK * block_bytes(BLOCK) + if rest == 0 { 0 } else { block_bytes(rest) }
    }
}

/// In sixteen partial sums that are added in one order on every level.
#[inline(always)]
fn mean_magnitude(block: &[f32]) -> f32 {
    const PARTS: usize = 16;
    let mut parts = [0.0f32; PARTS];
    let (chunks, rest) = block.as_chunks::<PARTS>();
    for chunk in chunks {
        for (part, number) in parts.iter_mut().zip(chunk) {
            *part += number.abs();
        }
    }
    for (part, number) in parts.iter_mut().zip(rest) {
        *part += number.abs();
    }
    let sum: f64 = parts.iter().copied().map(f64::from).sum();
    (sum / block.len() as f64) as f32
}

// Integers, which the compiler vectorises for each level: vectors are of floats.
kernels! {
    fn encode_signs<S>(_simd: S, values: &[f32], out: &mut [u8]) {
        for (block, code) in values.chunks(BLOCK).zip(out.chunks_mut(block_bytes(BLOCK))) {
            let (head, bits) = code.split_at_mut(HEAD);
            head.copy_from_slice(&mean_magnitude(block).to_le_bytes());
            bits.fill(0);
            let (words, _) = bits.as_chunks_mut();
            for (bit, numbers) in block.chunks(words.len()).enumerate() {
                for (word, number) in words.iter_mut().zip(numbers) {
                    *word = (u32::from_le_bytes(*word) | number.to_bits() >> 31 << bit).to_le_bytes();
                }
            }
        }
    }

    fn add_signs<S>(_simd: S, code: &[u8], into: &mut [f32]) {
        for (block, code) in into.chunks_mut(BLOCK).zip(code.chunks(block_bytes(BLOCK))) {
            let (words, _) = code.as_chunks::<HEAD>();
            let (scale, words) = (u32::from_le_bytes(words[0]), &words[1..]);
            for (bit, numbers) in block.chunks_mut(words.len()).enumerate() {
                for (number, &word) in numbers.iter_mut().zip(words) {
                    *number += f32::from_bits(scale | u32::from_le_bytes(word) >> bit << 31);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    #[test]
    fn every_number_is_its_sign_times_the_mean_magnitude() {
        for length in check::LENGTHS {
            let values = check::noise(length, 1);
            let decoded = check::decoded(&mut Sign::new(Level::best()), Key::default(), &values);
            for (values, decoded) in values.chunks(BLOCK).zip(decoded.chunks(BLOCK)) {
                let mean = values.iter().map(|&value| f64::from(value.abs())).sum::<f64>() / values.len() as f64;
                for (value, &decoded) in values.iter().zip(decoded) {
                    let expected = mean * f64::from(1.0f32.copysign(*value));
                    assert!((f64::from(decoded) - expected).abs() <= 1e-6 * mean, "{length}: {decoded} for {value}");
                }
            }
        }
    }

    /// |x - C(x)|^2 = (1 - |x|_1^2 / (n |x|^2)) |x|^2, block by block.
    #[test]
    fn it_is_nearer_to_the_numbers_than_zero_is() {
        let values = check::noise(20_000, 1);
        let decoded = check::decoded(&mut Sign::new(Level::best()), Key::default(), &values);
        for (values, decoded) in values.chunks(BLOCK).zip(decoded.chunks(BLOCK)) {
            let square = |number: f32| f64::from(number) * f64::from(number);
            let all: f64 = values.iter().map(|&value| square(value)).sum();
            let left: f64 = values.iter().zip(decoded).map(|(value, decoded)| square(value - decoded)).sum();
            let magnitudes: f64 = values.iter().map(|&value| f64::from(value.abs())).sum();
            let expected = all - magnitudes * magnitudes / values.len() as f64;
            assert!((left - expected).abs() <= 1e-5 * all, "{left}, not {expected}");
        }
    }

    #[test]
    fn bits_without_a_number_are_refused() {
        for length in [1, 31, 32, 33, 63, 64, 65, 4096, 4097, 5000] {
            let (mut codec, mut code) = (Sign::new(Level::best()), Vec::new());
            codec.encode(Key::default(), &vec![1.0; length], &mut code);
            // Every bit that is set alone is some number's sign, or refused.
            let mut signs = 0;
            let last = code.len() - block_bytes((length - 1) % BLOCK + 1) + HEAD;
            for bit in 0..8 * (code.len() - last) {
                let mut changed = code.clone();
                changed[last + bit / 8] |= 1 << (bit % 8);
                let mut into = vec![0.0; length];
                match codec.add(Key::default(), &changed, &mut into) {
                    Ok(()) => {
                        signs += 1;
                        assert_eq!(into.iter().sum::<f32>(), length as f32 - 2.0);
                    }
                    Err(problem) => assert_eq!(problem, Malformed::Padding),
                }
            }
            assert_eq!(signs, (length - 1) % BLOCK + 1, "{length} numbers");
        }
    }

    #[test]
    fn what_is_not_finite_makes_a_code_that_is_refused() {
        for number in [f32::NAN, f32::INFINITY] {
            let mut values = check::noise(5000, 1);
            values[4999] = number;
            let (mut codec, mut code) = (Sign::new(Level::best()), Vec::new());
            codec.encode(Key::default(), &values, &mut code);
            let refused = codec.add(Key::default(), &code, &mut [0.0; 5000]);
            assert!(matches!(refused, Err(Malformed::Scale { block: 1, .. })), "{refused:?}");
        }
    }

    #[test]
    fn it_is_the_same_on_every_level_and_refuses_what_is_no_code() {
        check::every_level_makes_the_same_code(Sign::new);
        check::what_is_no_code_is_refused(Sign::new);
    }
}
