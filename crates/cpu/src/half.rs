//! Floats of 16 bits: IEEE's binary16 (`f16`), and the upper half of a float of 32 bits (`bf16`).
//!
//! They stand as pairs of bytes, lower byte first, at any address. All levels round to the nearest, and to even in between,
//! and find the same bits; what is not a number stays that.

use crate::kernels;

/// The nearest `f16`. Without branches, so that a loop of it vectorises (after F. Giesen's `float_to_half_fast3_rtne`).
#[inline(always)]
pub fn round_to_f16(number: f32) -> u16 {
    /// The first number that is rounded to infinity or is infinite, and the first that is no subnormal `f16`.
    const TOO_LARGE: u32 = (127 + 16) << 23;
    const NORMAL: u32 = (127 - 14) << 23;
    const INFINITY: u32 = 255 << 23;
    /// What is added to it has its last bit where a subnormal `f16` has.
    const SUBNORMAL: f32 = 0.5;

    let sign = number.to_bits() >> 31;
    let bits = number.to_bits() & 0x7fff_ffff;
    let not_a_number = 0x7e00 | (bits >> 13 & 0x3ff);
    let large = if bits > INFINITY { not_a_number } else { 0x7c00 };
    let small = (f32::from_bits(bits) + SUBNORMAL).to_bits().wrapping_sub(SUBNORMAL.to_bits());
    let odd = bits >> 13 & 1;
    let normal = bits.wrapping_sub((127 - 15) << 23).wrapping_add(0xfff + odd) >> 13;
    let magnitude = if bits >= TOO_LARGE {
        large
    } else if bits < NORMAL {
        small
    } else {
        normal
    };
    (sign << 15 | magnitude) as u16
}

/// The number that an `f16` stands for.
#[inline(always)]
pub fn from_f16(half: u16) -> f32 {
    let (sign, bits) = (u32::from(half) >> 15 << 31, u32::from(half) & 0x7fff);
    // Exponent and fraction where a float of 32 bits has them: too small by a factor of 2^112, which is exact.
    let finite = (f32::from_bits(bits << 13) * f32::from_bits((127 + 112) << 23)).to_bits();
    let quiet = if bits > 0x7c00 { 1 << 22 } else { 0 };
    let special = 255 << 23 | (bits << 13 & 0x007f_ffff) | quiet;
    f32::from_bits(sign | if bits >= 0x7c00 { special } else { finite })
}

/// The nearest `bf16`.
#[inline(always)]
pub fn round_to_bf16(number: f32) -> u16 {
    let bits = number.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) >> 16;
    let quiet = bits >> 16 | 1 << 6;
    (if bits & 0x7fff_ffff > 255 << 23 { quiet } else { rounded }) as u16
}

/// The number that a `bf16` stands for.
#[inline(always)]
pub fn from_bf16(half: u16) -> f32 {
    f32::from_bits(u32::from(half) << 16)
}

kernels! {
    /// Rounds numbers to `f16`.
    pub fn round_to_f16s<S>(simd: S, from: &[f32], to: &mut [[u8; 2]]) {
        assert_eq!(from.len(), to.len());
        let whole = from.len() / S::LANES * S::LANES;
        for start in (0..whole).step_by(S::LANES) {
            // SAFETY: whole vectors of both are there, from the start on.
            unsafe { simd.store_half(to.as_mut_ptr().add(start), simd.load(from.as_ptr().add(start))) };
        }
        for (to, &from) in to[whole..].iter_mut().zip(&from[whole..]) {
            *to = round_to_f16(from).to_le_bytes();
        }
    }

    /// Adds numbers that stand as `f16`.
    pub fn add_f16s<S>(simd: S, into: &mut [f32], from: &[[u8; 2]]) {
        assert_eq!(from.len(), into.len());
        let whole = from.len() / S::LANES * S::LANES;
        for start in (0..whole).step_by(S::LANES) {
            // SAFETY: as above.
            unsafe {
                let (into, from) = (into.as_mut_ptr().add(start), from.as_ptr().add(start));
                simd.store(into, simd.load(into) + simd.load_half(from));
            }
        }
        for (into, &from) in into[whole..].iter_mut().zip(&from[whole..]) {
            *into += from_f16(u16::from_le_bytes(from));
        }
    }

    /// Sums of `f16`s, computed with 32 bits and rounded.
    pub fn sum_f16s<S>(simd: S, into: &mut [[u8; 2]], other: &[[u8; 2]]) {
        assert_eq!(into.len(), other.len());
        let whole = into.len() / S::LANES * S::LANES;
        for start in (0..whole).step_by(S::LANES) {
            // SAFETY: as above.
            unsafe {
                let (into, other) = (into.as_mut_ptr().add(start), other.as_ptr().add(start));
                simd.store_half(into, simd.load_half(into) + simd.load_half(other));
            }
        }
        for (into, &other) in into[whole..].iter_mut().zip(&other[whole..]) {
            let sum = from_f16(u16::from_le_bytes(*into)) + from_f16(u16::from_le_bytes(other));
            *into = round_to_f16(sum).to_le_bytes();
        }
    }

    // Integers, which the compiler vectorises for each level: vectors are of floats.
    /// Rounds numbers to `bf16`.
    pub fn round_to_bf16s<S>(_simd: S, from: &[f32], to: &mut [[u8; 2]]) {
        assert_eq!(from.len(), to.len());
        for (to, &from) in to.iter_mut().zip(from) {
            *to = round_to_bf16(from).to_le_bytes();
        }
    }

    /// Adds numbers that stand as `bf16`.
    pub fn add_bf16s<S>(_simd: S, into: &mut [f32], from: &[[u8; 2]]) {
        assert_eq!(from.len(), into.len());
        for (into, &from) in into.iter_mut().zip(from) {
            *into += from_bf16(u16::from_le_bytes(from));
        }
    }

    /// Sums of `bf16`s, computed with 32 bits and rounded.
    pub fn sum_bf16s<S>(_simd: S, into: &mut [[u8; 2]], other: &[[u8; 2]]) {
        assert_eq!(into.len(), other.len());
        for (into, &other) in into.iter_mut().zip(other) {
            let sum = from_bf16(u16::from_le_bytes(*into)) + from_bf16(u16::from_le_bytes(other));
            *into = round_to_bf16(sum).to_le_bytes();
        }
    }
}

#[cfg(test)]
mod tests {
    use half::{bf16, f16};

    use super::*;
    use crate::Level;

    /// Numbers of every exponent around what the two formats can hold and where they round, of both signs.
    fn numbers() -> Vec<f32> {
        let fractions = (0..1u32 << 10).map(|fraction| fraction << 13);
        let near = fractions.flat_map(|fraction| [0, 1, 0xfff, 0x1000, 0x1001, 0x1fff].map(|low| fraction | low));
        let near: Vec<u32> = near.chain([0x7fff, 0x8000, 0x8001, 0x7f_7fff, 0x7f_8000, 0x7f_ffff]).collect();
        let exponents = [0, 1, 90, 101, 102, 103, 104, 110, 112, 113, 114, 127, 128, 141, 142, 143, 200, 254, 255];
        let bits = exponents.iter().flat_map(|exponent| near.iter().map(move |fraction| exponent << 23 | fraction));
        bits.flat_map(|bits| [bits, bits | 1 << 31]).map(f32::from_bits).collect()
    }

    fn values(bytes: &[[u8; 2]]) -> Vec<u16> {
        bytes.iter().map(|&pair| u16::from_le_bytes(pair)).collect()
    }

    #[test]
    fn every_level_rounds_as_the_definition_says() {
        let numbers = numbers();
        let halves: Vec<u16> = numbers.iter().map(|&number| f16::from_f32_const(number).to_bits()).collect();
        let shorts: Vec<u16> = numbers.iter().map(|&number| bf16::from_f32(number).to_bits()).collect();
        for level in Level::available() {
            // Also lengths that no vector divides.
            for skip in [0, 1, 7] {
                let mut found = vec![[0; 2]; numbers.len() - skip];
                round_to_f16s(level, &numbers[skip..], &mut found);
                assert_eq!(values(&found), halves[skip..], "{level}");
                round_to_bf16s(level, &numbers[skip..], &mut found);
                assert_eq!(values(&found), shorts[skip..], "{level}");
            }
        }
    }

    #[test]
    fn every_level_reads_all_there_are() {
        let all: Vec<[u8; 2]> = (0..=u16::MAX).map(u16::to_le_bytes).collect();
        let same = |found: f32, expected: f32| found == expected || (found.is_nan() && expected.is_nan());
        for level in Level::available() {
            for skip in [0, 3] {
                let mut found = vec![0.0; all.len() - skip];
                add_f16s(level, &mut found, &all[skip..]);
                let expected = |at: usize| f16::from_bits((at + skip) as u16).to_f32_const();
                assert!(found.iter().enumerate().all(|(at, &found)| same(found, expected(at))), "{level}");
                let mut found = vec![0.0; all.len() - skip];
                add_bf16s(level, &mut found, &all[skip..]);
                let expected = |at: usize| bf16::from_bits((at + skip) as u16).to_f32();
                assert!(found.iter().enumerate().all(|(at, &found)| same(found, expected(at))), "{level}");
            }
        }
    }

    #[test]
    fn every_level_adds_alike() {
        let (a, b): (Vec<_>, Vec<_>) =
            (0..20_011u32).map(|at| (at.wrapping_mul(40_503) as u16, (at.wrapping_mul(30_011) >> 3) as u16)).unzip();
        let bytes = |numbers: &[u16]| numbers.iter().map(|number| number.to_le_bytes()).collect::<Vec<_>>();
        for level in Level::available() {
            let mut found = bytes(&a);
            sum_f16s(level, &mut found, &bytes(&b));
            for ((&a, &b), found) in a.iter().zip(&b).zip(values(&found)) {
                let sum = f16::from_bits(a).to_f32_const() + f16::from_bits(b).to_f32_const();
                let found = f16::from_bits(found);
                assert!(
                    found.to_bits() == f16::from_f32_const(sum).to_bits() || (found.is_nan() && sum.is_nan()),
                    "{level}"
                );
            }
            let mut found = bytes(&a);
            sum_bf16s(level, &mut found, &bytes(&b));
            for ((&a, &b), found) in a.iter().zip(&b).zip(values(&found)) {
                let sum = bf16::from_bits(a).to_f32() + bf16::from_bits(b).to_f32();
                let found = bf16::from_bits(found);
                assert!(
                    found.to_bits() == bf16::from_f32(sum).to_bits() || (found.is_nan() && sum.is_nan()),
                    "{level}"
                );
            }
        }
    }
}
