//! Multiplying an integer by a real number in integers, as TFLite and gemmlowp do.
//!
//! Rounding is gemmlowp's, in two steps: the doubled high half of the product is rounded to the nearest, ties upwards; the shift
//! rounds ties away from zero. TFLite can be built to round once (`TFLITE_SINGLE_ROUNDING`), but neither LiteRT as it is
//! published nor the specification's reference kernels are, and the second step is what ARM's `SQRDMULH` and `SRSHL` leave to
//! do; a result differs by one at most, where the first step makes a tie. So this is what other runtimes can be held against.

use ringstep_cpu::dots::Rescale;

/// A real number that is not negative: `multiplier / 2^31 * 2^shift`, the multiplier having its highest bit set unless it is zero.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FixedPoint {
    /// From 2^30 to 2^31 - 1, or zero.
    pub multiplier: i32,
    /// Positive to the left.
    pub shift: i32,
}

impl FixedPoint {
    /// The nearest to a number; what is too small for a shift of 31 is zero, what is too large is as large as can be.
    pub fn new(number: f64) -> Self {
        if number <= 0.0 || !number.is_finite() {
            return Self { multiplier: 0, shift: 0 };
        }
        let mut shift = number.log2().floor() as i32 + 1;
        let mut fraction = number * 2f64.powi(-shift);
        // The logarithm is rounded.
        if fraction >= 1.0 {
            (fraction, shift) = (fraction / 2.0, shift + 1);
        } else if fraction < 0.5 {
            (fraction, shift) = (fraction * 2.0, shift - 1);
        }
        let mut multiplier = (fraction * 2f64.powi(31)).round() as i64;
        if multiplier == 1 << 31 {
            (multiplier, shift) = (multiplier / 2, shift + 1);
        }
        match shift {
            ..-31 => Self { multiplier: 0, shift: 0 },
            31.. => Self { multiplier: i32::MAX, shift: 30 },
            _ => Self { multiplier: multiplier as i32, shift },
        }
    }

    /// The product with an integer, rounded twice. Shifts to the left wrap.
    pub fn times(self, number: i32) -> i32 {
        let [left, right] = [self.shift.max(0), (-self.shift).max(0)];
        shift_right(double_high_half(number.wrapping_shl(left as u32), self.multiplier), right)
    }
}

/// How sums become bytes from `least` to `most`: the product with a number, moved by `zero`.
pub(super) fn rescale(factor: FixedPoint, zero: i32, [least, most]: [i32; 2]) -> Rescale<i32> {
    let right = (-factor.shift).max(0);
    Rescale {
        left: factor.shift.max(0),
        multiplier: factor.multiplier,
        right,
        half: (1 << right) >> 1,
        ties: if right > 0 { -1 } else { 0 },
        zero,
        least,
        most,
    }
}

/// The high half of twice the product, rounded to the nearest, ties upwards.
fn double_high_half(a: i32, b: i32) -> i32 {
    if a == i32::MIN && b == i32::MIN {
        return i32::MAX;
    }
    ((i64::from(a) * i64::from(b) + (1 << 30)) >> 31) as i32
}

/// Divided by a power of two and rounded to the nearest, ties away from zero.
fn shift_right(number: i32, exponent: i32) -> i32 {
    let mask = ((1i64 << exponent) - 1) as i32;
    let (remainder, threshold) = (number & mask, (mask >> 1) + i32::from(number < 0));
    (number >> exponent.min(31)) + i32::from(remainder > threshold)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_a_fraction_and_a_power_of_two() {
        let point = |multiplier, shift| FixedPoint { multiplier, shift };
        assert_eq!(FixedPoint::new(0.5), point(1 << 30, 0));
        assert_eq!(FixedPoint::new(1.0), point(1 << 30, 1));
        assert_eq!(FixedPoint::new(0.75), point(3 << 29, 0));
        assert_eq!(FixedPoint::new(0.001), point(1_099_511_628, -9));
        // The nearest fraction of 31 bits is one.
        assert_eq!(FixedPoint::new(1.0 - 1e-12), point(1 << 30, 1));
        assert_eq!(FixedPoint::new(0.0), point(0, 0));
        assert_eq!(FixedPoint::new(1e-30), point(0, 0));
        assert_eq!(FixedPoint::new(1e30), point(i32::MAX, 30));
    }

    /// Computed by hand after gemmlowp's `SaturatingRoundingDoublingHighMul` and `RoundingDivideByPOT`.
    #[test]
    fn ties_go_up_in_the_product_and_away_from_zero_in_the_shift() {
        let half = FixedPoint::new(0.5);
        assert_eq!([3, -3, 1, -1].map(|number| half.times(number)), [2, -1, 1, 0]);
        let quarter = FixedPoint::new(0.25);
        // 6 / 2 = 3, then 3 / 2 = 1.5; 5 / 2 = 2.5 becomes 3 first, and so 2: rounded once it would be 1.
        assert_eq!([6, -6, 5, -5].map(|number| quarter.times(number)), [2, -2, 2, -1]);
        assert_eq!(FixedPoint::new(1.5).times(-7), -11 + 1);
        assert_eq!(double_high_half(i32::MIN, i32::MIN), i32::MAX);
        assert_eq!(shift_right(i32::MAX, 31), 1);
        assert_eq!(shift_right(i32::MIN, 31), -1);
    }
}
