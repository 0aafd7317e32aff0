//! A hyperbolic tangent of vectors.

use ringstep_cpu::{Simd, Vector};

/// The quotient of two polynomials that Eigen uses for its packet `tanh`: a minimax fit with an error of a few units
/// in the last place, where `f32::tanh` would be a call for each element.
#[inline(always)]
pub fn tanh<S: Simd>(simd: S, x: S::Vector) -> S::Vector {
    // Beyond this the result rounds to 1. What is not a number stays: it is the second operand of both.
    let x = simd.splat(-7.905_311).max(simd.splat(7.905_311).min(x));
    let x2 = x * x;
    let numerator =
        [-2.760_768_5e-16, 2.000_188e-13, -8.604_672e-11, 5.122_297e-8, 1.485_722_4e-5, 6.372_619e-4, 4.893_524_6e-3];
    let denominator = [1.198_258_4e-6, 1.185_347_1e-4, 2.268_434_6e-3, 4.893_525e-3];
    x * horner(simd, x2, &numerator) / horner(simd, x2, &denominator)
}

#[inline(always)]
fn horner<S: Simd, const TERMS: usize>(simd: S, x: S::Vector, coefficients: &[f32; TERMS]) -> S::Vector {
    let mut sum = simd.splat(coefficients[0]);
    for &next in &coefficients[1..] {
        sum = sum.multiply_add(x, simd.splat(next));
    }
    sum
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::{Level, along, kernels};

    use super::tanh;

    kernels! {
        fn tangents<S>(simd: S, numbers: &mut [f32]) {
            along!(simd, numbers.len(), |at| {
                let tangent = tanh(simd, at.load(numbers));
                at.store(numbers, tangent);
            });
        }
    }

    #[test]
    fn it_is_within_a_few_units_in_the_last_place() {
        for level in Level::available() {
            let numbers: Vec<f32> = (-200_000..=200_000).map(|step| step as f32 * 5e-5).collect();
            let mut found = numbers.clone();
            tangents(level, &mut found);
            let error = |(&x, &tangent): (&f32, &f32)| {
                let exact = f64::from(x).tanh();
                (f64::from(tangent) - exact).abs() / exact.abs().max(1e-3)
            };
            let worst = numbers.iter().zip(&found).map(error).fold(0.0, f64::max);
            assert!(worst < 4e-7, "{level}: {worst}");
        }
    }

    #[test]
    fn it_is_odd_and_bounded_and_what_is_not_a_number_stays() {
        for level in Level::available() {
            let mut numbers = [0.0, 1e-30, 0.1, 1.0, 7.9, 8.0, 100.0, f32::INFINITY];
            let mut mirrored = numbers.map(|number| -number);
            tangents(level, &mut numbers);
            tangents(level, &mut mirrored);
            assert_eq!(mirrored, numbers.map(|number| -number));
            assert!(numbers.iter().all(|&number| number <= 1.0));
            let mut nothing = [f32::NAN; 3];
            tangents(level, &mut nothing);
            assert!(nothing.iter().all(|number| number.is_nan()));
        }
    }
}
