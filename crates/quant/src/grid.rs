//! Which real numbers integers stand for.

use serde::{Deserialize, Serialize};

/// How many integers there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bits(u32);

impl Bits {
    /// A byte's.
    pub const EIGHT: Self = Self(8);

    /// From 2 to 8.
    pub fn new(bits: u32) -> Option<Self> {
        (2..=8).contains(&bits).then_some(Self(bits))
    }

    /// The number itself.
    pub fn count(self) -> u32 {
        self.0
    }

    /// The smallest and the largest integer of an activation.
    pub fn activations(self) -> [i32; 2] {
        let half = 1 << (self.0 - 1);
        [-half, half - 1]
    }

    /// The largest integer of a weight; the smallest is its negative, so that zero is in the middle.
    pub fn weights(self) -> i32 {
        (1 << (self.0 - 1)) - 1
    }
}

/// `real = scale * (integer - zero_point)`.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Grid {
    /// From one integer to the next; above zero.
    pub scale: f32,
    /// The integer that stands for zero.
    pub zero_point: i32,
}

impl Grid {
    /// The finest whose integers reach from `low` to `high`, and have zero among them.
    ///
    /// Where all numbers are zero any scale will do; one is taken.
    pub fn spanning(low: f32, high: f32, bits: Bits) -> Self {
        let [least, most] = bits.activations();
        let (low, high) = (f64::from(low.min(0.0)), f64::from(high.max(0.0)));
        let scale = ((high - low) / f64::from(most - least)) as f32;
        // A scale must be a number whose reciprocal is one.
        if !(f32::MIN_POSITIVE..f32::MAX).contains(&scale) {
            return Self { scale: 1.0, zero_point: least };
        }
        let zero_point = (f64::from(least) - low / f64::from(scale)).round() as i32;
        Self { scale, zero_point: zero_point.clamp(least, most) }
    }

    /// The nearest integer, ties away from zero, that these bits have.
    pub fn quantize(self, number: f32, bits: Bits) -> i8 {
        let [least, most] = bits.activations();
        let steps = number / self.scale;
        // As a float it saturates; what is not a number becomes zero. Unlike `round` this is vectorised on every machine.
        let steps = (steps + 0.5f32.copysign(steps)) as i32;
        steps.saturating_add(self.zero_point).clamp(least, most) as i8
    }

    /// What an integer stands for.
    pub fn real(self, integer: i8) -> f32 {
        self.scale * (i32::from(integer) - self.zero_point) as f32
    }

    /// The least and the largest number that these bits can stand for.
    pub fn range(self, bits: Bits) -> [f32; 2] {
        bits.activations().map(|integer| self.real(integer as i8))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn zero_is_exact_and_both_ends_are_reached() {
        for (low, high) in [(-1.0, 3.0), (0.0, 5.0), (-2.0, 0.0), (0.5, 0.7), (-1e-3, 1e4)] {
            for bits in (2..=8).filter_map(Bits::new) {
                let grid = Grid::spanning(low, high, bits);
                assert_eq!(grid.real(grid.quantize(0.0, bits)), 0.0);
                let step = grid.scale;
                for number in [low, high] {
                    let error = (grid.real(grid.quantize(number, bits)) - number).abs();
                    assert!(error <= step * 0.51, "{number} in {grid:?}: off by {error}");
                }
            }
        }
    }

    #[test]
    fn what_has_no_range_gets_a_sound_grid() {
        for (low, high) in [(0.0, 0.0), (f32::NAN, f32::NAN), (0.0, f32::MIN_POSITIVE), (f32::MIN, f32::MAX)] {
            let grid = Grid::spanning(low, high, Bits::EIGHT);
            assert!(grid.scale > 0.0 && grid.scale.is_finite());
            assert_eq!(grid.real(grid.quantize(0.0, Bits::EIGHT)), 0.0);
        }
        assert_eq!(Bits::new(1), None);
        assert_eq!(Bits::new(9), None);
    }
}
