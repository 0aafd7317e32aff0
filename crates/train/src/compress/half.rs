//! 16-bit floats: half the bytes.
//!
//! Ranks that all-reduce them need no code: [`ringstep_cpu::half`] rounds a slice, and `comm` adds such numbers.

use ringstep_cpu::Level;
use ringstep_cpu::half::{add_bf16s, add_f16s, round_to_bf16s, round_to_f16s};

use super::{Codec, Key, Malformed};

/// Which 16 bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// IEEE's binary16: 11 significant bits, magnitudes from 6e-8 to 65504.
    Fp16,
    /// The upper half of a float of 32 bits: 8 significant bits and the same range.
    Bf16,
}

/// Rounds every number to 16 bits.
#[derive(Debug, Clone, Copy)]
pub struct Half {
    level: Level,
    format: Format,
}

impl Half {
    /// By these instructions.
    pub fn new(level: Level, format: Format) -> Self {
        Self { level, format }
    }
}

impl Codec for Half {
    fn encode(&mut self, _: Key, values: &[f32], out: &mut Vec<u8>) {
        out.resize(self.limit(values.len()), 0);
        let (halves, _) = out.as_chunks_mut();
        match self.format {
            Format::Fp16 => round_to_f16s(self.level, values, halves),
            Format::Bf16 => round_to_bf16s(self.level, values, halves),
        }
    }

    fn add(&self, _: Key, code: &[u8], into: &mut [f32]) -> Result<(), Malformed> {
        let expected = self.limit(into.len());
        if code.len() != expected {
            return Err(Malformed::Length { found: code.len(), expected });
        }
        let (halves, _) = code.as_chunks();
        match self.format {
            Format::Fp16 => add_f16s(self.level, into, halves),
            Format::Bf16 => add_bf16s(self.level, into, halves),
        }
        Ok(())
    }

    fn limit(&self, length: usize) -> usize {
        2 * length
    }
}

#[cfg(test)]
mod tests {
    use super::super::check;
    use super::*;

    const FORMATS: [Format; 2] = [Format::Fp16, Format::Bf16];

    #[test]
    fn a_number_is_off_by_half_a_unit_in_the_last_place_at_most() {
        for (format, unit) in FORMATS.into_iter().zip([1.0 / 2048.0, 1.0 / 256.0]) {
            for length in check::LENGTHS {
                let values = check::noise(length, 1);
                let decoded = check::decoded(&mut Half::new(Level::best(), format), Key::default(), &values);
                for (value, decoded) in values.iter().zip(decoded) {
                    assert!((value - decoded).abs() <= unit * value.abs() + 3e-8, "{format:?}: {value} {decoded}");
                }
            }
        }
    }

    #[test]
    fn it_is_the_same_on_every_level_and_refuses_what_is_no_code() {
        for format in FORMATS {
            check::every_level_makes_the_same_code(|level| Half::new(level, format));
            check::what_is_no_code_is_refused(|level| Half::new(level, format));
        }
    }
}
