//! QSGD (Alistarh et al., *QSGD: communication-efficient SGD via gradient quantization and encoding*, 2017): 8 or 4 bits a
//! number, rounded at random so that the mean over many roundings is the number itself.
//!
//! A block of 256 numbers has one scale s, its largest magnitude, and each number x becomes a whole number of steps s/L,
//! rounded down or up: up with a probability of what was cut off. L is 127 or 7. The code of a block is s and the numbers of
//! steps: 260 bytes, or 132, instead of 1,024.
//!
//! Sums of such codes are no codes. To gather all of p ranks' would send (p-1) n/4 bytes; if each rank adds up 1/p of the
//! numbers and encodes the sums again it is 2(p-1)/p n/4, and since both times are unbiased, so is the result.

use ringstep_cpu::random::mix;
use ringstep_cpu::{Level, kernels};

use super::{Codec, Key, Malformed, scale};

/// Numbers that share a scale.
pub const BLOCK: usize = 256;

/// Bytes of a scale.
const HEAD: usize = 4;

/// Bits of a number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// 8 bits: from -127 to 127 steps, written as 128 more.
    Int8,
    /// 4 bits: from -7 to 7 steps, written as 8 more. The lower half of a byte is a number of the first half of its block, the
    /// upper half the one half a block later, so that vectors of neighbours are packed without a shuffle.
    Int4,
}

impl Width {
    /// Steps from zero to the scale.
    fn steps(self) -> i32 {
        match self {
            Self::Int8 => 127,
            Self::Int4 => 7,
        }
    }

    /// Bytes of so many numbers of a block, without the scale.
    fn bytes(self, numbers: usize) -> usize {
        match self {
            Self::Int8 => numbers,
            Self::Int4 => numbers.div_ceil(2),
        }
    }
}

/// Rounds numbers to few levels, at random.
#[derive(Debug, Clone, Copy)]
pub struct Qsgd {
    level: Level,
    width: Width,
}

impl Qsgd {
    /// By these instructions.
    pub fn new(level: Level, width: Width) -> Self {
        Self { level, width }
    }

    /// Checks the code of as many numbers.
    fn check(&self, code: &[u8], numbers: usize) -> Result<(), Malformed> {
        let expected = self.limit(numbers);
        if code.len() != expected {
            return Err(Malformed::Length { found: code.len(), expected });
        }
        let blocks = code.chunks(HEAD + self.width.bytes(BLOCK));
        for (block, code) in blocks.enumerate() {
            let Some((head, levels)) = code.split_first_chunk::<HEAD>() else { unreachable!("a block has a scale") };
            scale(block, *head)?;
            // Without an early end, so that the loops vectorise.
            let beyond = match self.width {
                Width::Int8 => levels.iter().fold(false, |beyond, &level| beyond | (level == 0)),
                Width::Int4 => levels.iter().fold(false, |beyond, &two| beyond | (two & 0xf == 0) | (two >> 4 == 0)),
            };
            if beyond {
                return Err(Malformed::Level { block });
            }
        }
        let padded = self.width == Width::Int4 && (numbers % BLOCK) % 2 == 1;
        if padded && code.last().is_some_and(|last| last >> 4 != 8) { Err(Malformed::Padding) } else { Ok(()) }
    }
}

impl Codec for Qsgd {
    fn encode(&mut self, key: Key, values: &[f32], out: &mut Vec<u8>) {
        out.resize(self.limit(values.len()), 0);
        match self.width {
            Width::Int8 => encode_bytes(self.level, values, key.stream(), out),
            Width::Int4 => encode_nibbles(self.level, values, key.stream(), out),
        }
    }

    fn add(&self, _: Key, code: &[u8], into: &mut [f32]) -> Result<(), Malformed> {
        self.check(code, into.len())?;
        match self.width {
            Width::Int8 => add_bytes(self.level, code, into),
            Width::Int4 => add_nibbles(self.level, code, into),
        }
        Ok(())
    }

    fn limit(&self, length: usize) -> usize {
        let (whole, rest) = (length / BLOCK, length % BLOCK);
        let of_rest = if rest == 0 { 0 } else { HEAD + self.width.bytes(rest) };
        whole * (HEAD + self.width.bytes(BLOCK)) + of_rest
    }
}

/// Bits of a number of steps after the point, before it is rounded.
const FRACTION: u32 = 15;

/// How numbers of steps are rounded and written.
#[derive(Clone, Copy)]
struct Rounding {
    /// Steps of the scale, with [`FRACTION`] bits after the point.
    top: f32,
    /// What no steps are written as, likewise, and 2^23. A sum with that has whole numbers in the last bits of its fraction: the
    /// nearest to the number of steps.
    zero: f32,
    /// The seed.
    random: u64,
}

impl Rounding {
    #[inline(always)]
    fn new(width: Width, random: u64) -> Self {
        let [top, zero] = [width.steps(), width.steps() + 1].map(|steps| (steps << FRACTION) as f32);
        Self { top, zero: zero + 8_388_608.0, random }
    }

    /// What a number is written as: its steps, rounded at random. If it is no larger than the scale it has no more steps than
    /// that, whatever is drawn.
    #[inline(always)]
    fn round(self, place: u32, number: f32, scale: f32) -> u8 {
        let steps = (number / scale * self.top + self.zero).to_bits();
        (steps.wrapping_add(mix(place, self.random) >> (32 - FRACTION)) >> FRACTION) as u8
    }
}

/// The largest magnitude of a block. By its bits, of which infinity and what is not a number have the largest: it shows.
#[inline(always)]
fn largest(block: &[f32]) -> f32 {
    f32::from_bits(block.iter().fold(0, |most, number| most.max((number.to_bits() & 0x7fff_ffff) as i32)) as u32)
}

/// Writes the scale of a block and returns it and the place for the numbers. Zeros have a scale that can be divided by.
#[inline(always)]
fn begin<'a>(block: &[f32], code: &'a mut [u8]) -> (f32, &'a mut [u8]) {
    let scale = largest(block);
    let (head, levels) = code.split_at_mut(HEAD);
    head.copy_from_slice(&scale.to_le_bytes());
    (if scale == 0.0 { 1.0 } else { scale }, levels)
}

/// The size of a step, and what is written of the numbers.
#[inline(always)]
fn open(code: &[u8], width: Width) -> (f32, &[u8]) {
    let (head, levels) = code.split_at(HEAD);
    (f32::from_le_bytes([head[0], head[1], head[2], head[3]]) / width.steps() as f32, levels)
}

// Integers, which the compiler vectorises for each level: vectors are of floats.
kernels! {
    fn encode_bytes<S>(_simd: S, values: &[f32], random: u64, out: &mut [u8]) {
        let rounding = Rounding::new(Width::Int8, random);
        let mut first = 0u32;
        for (block, code) in values.chunks(BLOCK).zip(out.chunks_mut(HEAD + BLOCK)) {
            let (scale, levels) = begin(block, code);
            for (place, (level, &number)) in levels.iter_mut().zip(block).enumerate() {
                *level = rounding.round(first.wrapping_add(place as u32), number, scale);
            }
            first = first.wrapping_add(BLOCK as u32);
        }
    }

    fn add_bytes<S>(_simd: S, code: &[u8], into: &mut [f32]) {
        for (block, code) in into.chunks_mut(BLOCK).zip(code.chunks(HEAD + BLOCK)) {
            let (step, levels) = open(code, Width::Int8);
            for (number, &level) in block.iter_mut().zip(levels) {
                *number += (i32::from(level) - 128) as f32 * step;
            }
        }
    }

    fn encode_nibbles<S>(_simd: S, values: &[f32], random: u64, out: &mut [u8]) {
        let rounding = Rounding::new(Width::Int4, random);
        let mut first = 0u32;
        for (block, code) in values.chunks(BLOCK).zip(out.chunks_mut(HEAD + BLOCK / 2)) {
            let (scale, levels) = begin(block, code);
            let (lower, upper) = block.split_at(levels.len());
            for (place, (two, &number)) in levels.iter_mut().zip(lower).enumerate() {
                *two = rounding.round(first.wrapping_add(place as u32), number, scale);
            }
            first = first.wrapping_add(lower.len() as u32);
            for (place, (two, &number)) in levels.iter_mut().zip(upper).enumerate() {
                *two |= rounding.round(first.wrapping_add(place as u32), number, scale) << 4;
            }
            first = first.wrapping_add(upper.len() as u32);
            for two in &mut levels[upper.len()..] {
                *two |= 8 << 4;
            }
        }
    }

    fn add_nibbles<S>(_simd: S, code: &[u8], into: &mut [f32]) {
        for (block, code) in into.chunks_mut(BLOCK).zip(code.chunks(HEAD + BLOCK / 2)) {
            let (step, levels) = open(code, Width::Int4);
            let (lower, upper) = block.split_at_mut(levels.len());
            for (number, &two) in lower.iter_mut().zip(levels) {
                *number += (i32::from(two & 0xf) - 8) as f32 * step;
            }
            for (number, &two) in upper.iter_mut().zip(levels) {
                *number += (i32::from(two >> 4) - 8) as f32 * step;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    const WIDTHS: [Width; 2] = [Width::Int8, Width::Int4];

    #[test]
    fn a_number_is_off_by_less_than_a_step_and_the_largest_by_nothing() {
        for width in WIDTHS {
            for length in check::LENGTHS {
                let values = check::noise(length, 1);
                let decoded = check::decoded(&mut Qsgd::new(Level::best(), width), Key::default(), &values);
                for (values, decoded) in values.chunks(BLOCK).zip(decoded.chunks(BLOCK)) {
                    let scale = largest(values);
                    let step = scale / width.steps() as f32;
                    for (&value, &decoded) in values.iter().zip(decoded) {
                        assert!((value - decoded).abs() <= step * 1.0001, "{width:?}: {value} {decoded}");
                        assert!(value.abs() < scale || (value - decoded).abs() <= scale * 1e-6);
                    }
                }
            }
        }
    }

    #[test]
    fn the_mean_of_many_codes_is_the_number() {
        const KEYS: u32 = 4000;
        for width in WIDTHS {
            let values = check::noise(300, 1);
            let mut sums = vec![0.0f64; values.len()];
            for step in 0..KEYS {
                let key = Key { step: step.into(), ..Key::default() };
                let decoded = check::decoded(&mut Qsgd::new(Level::best(), width), key, &values);
                sums.iter_mut().zip(decoded).for_each(|(sum, decoded)| *sum += f64::from(decoded));
            }
            for (values, sums) in values.chunks(BLOCK).zip(sums.chunks(BLOCK)) {
                let step = f64::from(largest(values)) / f64::from(width.steps());
                for (&value, sum) in values.iter().zip(sums) {
                    // Of what is cut off, a share f is kept with a probability of f: the variance is f (1 - f).
                    let share = (f64::from(value) / step).rem_euclid(1.0);
                    let sigma = step * (share * (1.0 - share) / f64::from(KEYS)).sqrt();
                    // A share is rounded to 2^-15 before anything is drawn.
                    let room = 5.0 * sigma + step / 32768.0;
                    let mean = sum / f64::from(KEYS);
                    assert!((mean - f64::from(value)).abs() <= room, "{width:?}: {mean} for {value}, step {step}");
                }
            }
        }
    }

    #[test]
    fn extreme_magnitudes_keep_their_scale() {
        for width in WIDTHS {
            for magnitude in [1e38, 1e-38, 1e-44, 0.0] {
                let values = [magnitude, -magnitude, 0.0];
                let decoded = check::decoded(&mut Qsgd::new(Level::best(), width), Key::default(), &values);
                for (value, decoded) in values.iter().zip(decoded) {
                    assert!((value - decoded).abs() <= 1e-6 * magnitude + 1e-43, "{width:?}: {value} {decoded}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_makes_a_code_that_is_refused() {
        for width in WIDTHS {
            for number in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values = check::noise(600, 1);
                values[300] = number;
                let (mut codec, mut code) = (Qsgd::new(Level::best(), width), Vec::new());
                codec.encode(Key::default(), &values, &mut code);
                let refused = codec.add(Key::default(), &code, &mut [0.0; 600]);
                assert!(matches!(refused, Err(Malformed::Scale { block: 1, .. })), "{refused:?}");
            }
        }
    }

    #[test]
    fn levels_that_nobody_writes_are_refused() {
        let add = |width, code: &[u8], numbers| {
            Qsgd::new(Level::best(), width).add(Key::default(), code, &mut vec![0.0; numbers])
        };
        let scale = 1.0f32.to_le_bytes();
        assert_eq!(add(Width::Int8, &[&scale[..], &[1]].concat(), 1), Ok(()));
        assert_eq!(add(Width::Int8, &[&scale[..], &[0]].concat(), 1), Err(Malformed::Level { block: 0 }));
        assert_eq!(add(Width::Int4, &[&scale[..], &[0x8f]].concat(), 1), Ok(()));
        assert_eq!(add(Width::Int4, &[&scale[..], &[0x80]].concat(), 1), Err(Malformed::Level { block: 0 }));
        assert_eq!(add(Width::Int4, &[&scale[..], &[0x9f]].concat(), 1), Err(Malformed::Padding));
        assert_eq!(add(Width::Int4, &[&scale[..], &[0x9f]].concat(), 2), Ok(()));
        let negative = (-1.0f32).to_le_bytes();
        let refused = add(Width::Int8, &[&negative[..], &[1]].concat(), 1).unwrap_err();
        assert_eq!(refused.to_string(), "block 0 has the scale -1");
    }

    #[test]
    fn it_is_the_same_on_every_level_and_refuses_what_is_no_code() {
        for width in WIDTHS {
            check::every_level_makes_the_same_code(|level| Qsgd::new(level, width));
            check::what_is_no_code_is_refused(|level| Qsgd::new(level, width));
        }
    }
}
