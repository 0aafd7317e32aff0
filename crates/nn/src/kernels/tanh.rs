//! A hyperbolic tangent that the compiler can vectorise.

use super::simd::multiply_add;

/// The quotient of two polynomials that Eigen uses for its packet `tanh`: a minimax fit with an error of a few units
/// in the last place, where `f32::tanh` would be a call for each element.
#[inline(always)]
pub fn tanh<const FUSED: bool>(x: f32) -> f32 {
    // Beyond this the result rounds to 1.
    let x = x.clamp(-7.905_311, 7.905_311);
    let x2 = x * x;
    let numerator =
        [-2.760_768_5e-16, 2.000_188e-13, -8.604_672e-11, 5.122_297e-8, 1.485_722_4e-5, 6.372_619e-4, 4.893_524_6e-3];
    let denominator = [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3];
    let horner = |coefficients: &[f32]| {
        coefficients[1..].iter().fold(coefficients[0], |sum, &next| multiply_add::<FUSED>(sum, x2, next))
    };
    x * horner(&numerator) / horner(&denominator)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_within_a_few_units_in_the_last_place() {
        let mut worst: f64 = 0.0;
        for step in -200_000..=200_000 {
            let x = step as f32 * 5e-5;
            let exact = f64::from(x).tanh();
            worst = worst.max((f64::from(tanh::<true>(x)) - exact).abs() / exact.abs().max(1e-3));
        }
        assert!(worst < 4e-7, "{worst}");
    }

    #[test]
    fn it_is_odd_and_bounded() {
        for x in [0.0, 1e-30, 0.1, 1.0, 7.9, 8.0, 100.0, f32::INFINITY] {
            assert_eq!(tanh::<true>(-x), -tanh::<true>(x));
            assert!(tanh::<true>(x) <= 1.0, "{x}");
        }
        assert!(tanh::<true>(f32::NAN).is_nan());
    }
}
