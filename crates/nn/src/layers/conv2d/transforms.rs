//! The matrices of Winograd's minimal filtering `F(4 x 4, 3 x 3)`, with the points 0, 1, -1, 2, -2 and infinity, as sums of a
//! few numbers; and those of `F(2, 5)`, which has the same points, and so the same B.
//!
//! Each is a matrix times a column whose elements are vectors: the same element of several channels. Below a matrix stands
//! its transpose.

use ringstep_cpu::{Simd, Vector as _};

/// Pixels of an output tile, across and down.
pub(crate) const OUT: usize = 4;
/// Pixels of the window that a tile depends on, across and down.
pub(crate) const WINDOW: usize = OUT + 2;
/// Weights of a filter, across and down.
pub(crate) const TAPS: usize = 3;
/// Elements of a transformed window, and of a transformed filter.
pub(crate) const FREQUENCIES: usize = WINDOW * WINDOW;

/// A matrix of `O` rows and `I` columns.
pub(super) trait Times<const I: usize, const O: usize> {
    /// The matrix times a column.
    fn times<S: Simd>(simd: S, column: [S::Vector; I]) -> [S::Vector; O];
}

/// `B^T d`
pub(super) struct BTransposed;

impl Times<WINDOW, WINDOW> for BTransposed {
    #[inline(always)]
    fn times<S: Simd>(simd: S, [d0, d1, d2, d3, d4, d5]: [S::Vector; 6]) -> [S::Vector; 6] {
        let (two, four, minus_two, minus_four, minus_five) =
            (simd.splat(2.0), simd.splat(4.0), simd.splat(-2.0), simd.splat(-4.0), simd.splat(-5.0));
        let (even, odd) = (minus_four.multiply_add(d2, d4), minus_four.multiply_add(d1, d3));
        let (even2, odd2) = (d4 - d2, d3 - d1);
        [
            four.multiply_add(d0, minus_five.multiply_add(d2, d4)),
            even + odd,
            even - odd,
            two.multiply_add(odd2, even2),
            minus_two.multiply_add(odd2, even2),
            four.multiply_add(d1, minus_five.multiply_add(d3, d5)),
        ]
    }
}

/// `B v`
pub(super) struct B;

impl Times<WINDOW, WINDOW> for B {
    #[inline(always)]
    fn times<S: Simd>(simd: S, [v0, v1, v2, v3, v4, v5]: [S::Vector; 6]) -> [S::Vector; 6] {
        let (two, four, minus_two, minus_four, minus_five) =
            (simd.splat(2.0), simd.splat(4.0), simd.splat(-2.0), simd.splat(-4.0), simd.splat(-5.0));
        let (sum, difference) = (v1 + v2, v1 - v2);
        let (sum2, difference2) = (v3 + v4, v3 - v4);
        [
            four * v0,
            minus_two.multiply_add(difference2, four * (v5 - difference)),
            minus_five.multiply_add(v0, minus_four.multiply_add(sum, simd.zero() - sum2)),
            two.multiply_add(difference2, minus_five.multiply_add(v5, difference)),
            v0 + sum + sum2,
            v5,
        ]
    }
}

/// `G g`
pub(super) struct G;

impl Times<TAPS, WINDOW> for G {
    #[inline(always)]
    fn times<S: Simd>(simd: S, [g0, g1, g2]: [S::Vector; 3]) -> [S::Vector; 6] {
        let (quarter, minus_sixth, sixth, twelfth, twenty_fourth) = (
            simd.splat(0.25),
            simd.splat(-1.0 / 6.0),
            simd.splat(1.0 / 6.0),
            simd.splat(1.0 / 12.0),
            simd.splat(1.0 / 24.0),
        );
        let (even, odd) = (minus_sixth * (g0 + g2), minus_sixth * g1);
        let (even2, odd2) = (twenty_fourth.multiply_add(g0, sixth * g2), twelfth * g1);
        [quarter * g0, even + odd, even - odd, even2 + odd2, even2 - odd2, g2]
    }
}

/// `G^T u`
pub(super) struct GTransposed;

impl Times<WINDOW, TAPS> for GTransposed {
    #[inline(always)]
    fn times<S: Simd>(simd: S, [u0, u1, u2, u3, u4, u5]: [S::Vector; 6]) -> [S::Vector; 3] {
        let (quarter, minus_sixth, sixth, twelfth, twenty_fourth) = (
            simd.splat(0.25),
            simd.splat(-1.0 / 6.0),
            simd.splat(1.0 / 6.0),
            simd.splat(1.0 / 12.0),
            simd.splat(1.0 / 24.0),
        );
        let (sum, difference) = (minus_sixth * (u1 + u2), minus_sixth * (u1 - u2));
        let (sum2, difference2) = (u3 + u4, u3 - u4);
        [
            quarter.multiply_add(u0, twenty_fourth.multiply_add(sum2, sum)),
            twelfth.multiply_add(difference2, difference),
            sixth.multiply_add(sum2, sum) + u5,
        ]
    }
}

/// `A^T m`
pub(super) struct ATransposed;

impl Times<WINDOW, OUT> for ATransposed {
    #[inline(always)]
    fn times<S: Simd>(simd: S, [m0, m1, m2, m3, m4, m5]: [S::Vector; 6]) -> [S::Vector; 4] {
        let (two, four, eight) = (simd.splat(2.0), simd.splat(4.0), simd.splat(8.0));
        let (sum, difference) = (m1 + m2, m1 - m2);
        let (sum2, difference2) = (m3 + m4, m3 - m4);
        [
            m0 + sum + sum2,
            two.multiply_add(difference2, difference),
            four.multiply_add(sum2, sum),
            eight.multiply_add(difference2, difference) + m5,
        ]
    }
}

/// `A y`
pub(super) struct A;

impl Times<OUT, WINDOW> for A {
    #[inline(always)]
    fn times<S: Simd>(simd: S, [y0, y1, y2, y3]: [S::Vector; 4]) -> [S::Vector; 6] {
        let (two, four, eight) = (simd.splat(2.0), simd.splat(4.0), simd.splat(8.0));
        let (even, odd) = (y0 + y2, y1 + y3);
        let (even2, odd2) = (four.multiply_add(y2, y0), eight.multiply_add(y3, two * y1));
        [y0, even + odd, even - odd, even2 + odd2, even2 - odd2, y3]
    }
}

/// `G g`, for five weights.
pub(super) struct G5;

impl Times<5, WINDOW> for G5 {
    #[inline(always)]
    fn times<S: Simd>(simd: S, [g0, g1, g2, g3, g4]: [S::Vector; 5]) -> [S::Vector; 6] {
        let (four, quarter) = (simd.splat(4.0), simd.splat(0.25));
        let (minus_sixth, twelfth, twenty_fourth) =
            (simd.splat(-1.0 / 6.0), simd.splat(1.0 / 12.0), simd.splat(1.0 / 24.0));
        let (even, odd) = (minus_sixth * (g0 + g2 + g4), minus_sixth * (g1 + g3));
        let even2 = twenty_fourth * four.multiply_add(four.multiply_add(g4, g2), g0);
        let odd2 = twelfth * four.multiply_add(g3, g1);
        [quarter * g0, even + odd, even - odd, even2 + odd2, even2 - odd2, g4]
    }
}

/// `G^T u`, for five weights.
pub(super) struct G5Transposed;

impl Times<WINDOW, 5> for G5Transposed {
    #[inline(always)]
    fn times<S: Simd>(simd: S, [u0, u1, u2, u3, u4, u5]: [S::Vector; 6]) -> [S::Vector; 5] {
        let (four, quarter) = (simd.splat(4.0), simd.splat(0.25));
        let (minus_sixth, twelfth, twenty_fourth) =
            (simd.splat(-1.0 / 6.0), simd.splat(1.0 / 12.0), simd.splat(1.0 / 24.0));
        let (sum, difference) = (minus_sixth * (u1 + u2), minus_sixth * (u1 - u2));
        let (sum2, difference2) = (twenty_fourth * (u3 + u4), twelfth * (u3 - u4));
        [
            quarter.multiply_add(u0, sum + sum2),
            difference + difference2,
            four.multiply_add(sum2, sum),
            four.multiply_add(difference2, difference),
            (four * four).multiply_add(sum2, sum) + u5,
        ]
    }
}

/// `A^T m`, for two outputs.
pub(super) struct A2Transposed;

impl Times<WINDOW, 2> for A2Transposed {
    #[inline(always)]
    fn times<S: Simd>(simd: S, [m0, m1, m2, m3, m4, m5]: [S::Vector; 6]) -> [S::Vector; 2] {
        [m0 + (m1 + m2) + (m3 + m4), simd.splat(2.0).multiply_add(m3 - m4, m1 - m2) + m5]
    }
}

/// `A y`, for two outputs.
pub(super) struct A2;

impl Times<2, WINDOW> for A2 {
    #[inline(always)]
    fn times<S: Simd>(simd: S, [y0, y1]: [S::Vector; 2]) -> [S::Vector; 6] {
        let (two, minus_two) = (simd.splat(2.0), simd.splat(-2.0));
        [y0, y0 + y1, y0 - y1, two.multiply_add(y1, y0), minus_two.multiply_add(y1, y0), y1]
    }
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::{Level, kernels};

    use super::*;

    kernels! {
        /// A matrix of each kind times a column of single numbers.
        fn apply<S>(simd: S, which: usize, column: &[f32]) -> Vec<f32> {
            #[inline(always)]
            fn of<S: Simd, T: Times<I, O>, const I: usize, const O: usize>(simd: S, column: &[f32]) -> Vec<f32> {
                let mut vectors = [simd.zero(); I];
                for (vector, &number) in vectors.iter_mut().zip(column) {
                    *vector = simd.splat(number);
                }
                let mut lanes = [0.0; 16];
                let mut out = Vec::new();
                for vector in T::times(simd, vectors) {
                    // SAFETY: no set has more lanes.
                    unsafe { simd.store(lanes.as_mut_ptr(), vector) };
                    out.push(lanes[0]);
                }
                out
            }
            match which {
                0 => of::<S, BTransposed, 6, 6>(simd, column),
                1 => of::<S, B, 6, 6>(simd, column),
                2 => of::<S, G, 3, 6>(simd, column),
                3 => of::<S, GTransposed, 6, 3>(simd, column),
                4 => of::<S, ATransposed, 6, 4>(simd, column),
                5 => of::<S, A, 4, 6>(simd, column),
                6 => of::<S, G5, 5, 6>(simd, column),
                7 => of::<S, G5Transposed, 6, 5>(simd, column),
                8 => of::<S, A2Transposed, 6, 2>(simd, column),
                _ => of::<S, A2, 2, 6>(simd, column),
            }
        }
    }

    fn dot(left: &[f32], right: &[f32]) -> f32 {
        assert_eq!(left.len(), right.len());
        left.iter().zip(right).map(|(left, right)| left * right).sum()
    }

    /// `F(4, 3)` and `F(2, 5)` are convolutions, and a matrix and its transpose satisfy `(M x) y = x (M^T y)`.
    #[test]
    fn minimal_filtering_is_convolution_and_transposes_are_adjoint() {
        let noise = super::super::super::check::noise;
        for level in Level::available() {
            for (taps, of_filter, of_output) in [(3, 2, 4), (5, 6, 8)] {
                let (d, g) = (noise(6, 1), noise(taps, 2));
                let (window, filter) = (apply(level, 0, &d), apply(level, of_filter, &g));
                let product: Vec<f32> = window.iter().zip(&filter).map(|(window, filter)| window * filter).collect();
                for (at, &output) in apply(level, of_output, &product).iter().enumerate() {
                    let expected = dot(&d[at..at + taps], &g);
                    assert!((output - expected).abs() < 1e-5, "{level}: {output} is not {expected}");
                }
            }
            for (which, inputs, outputs) in [(0, 6, 6), (2, 3, 6), (4, 6, 4), (6, 5, 6), (8, 6, 2)] {
                let (x, y) = (noise(inputs, 3), noise(outputs, 4));
                let [there, back] = [dot(&apply(level, which, &x), &y), dot(&x, &apply(level, which + 1, &y))];
                assert!((there - back).abs() < 1e-4, "{level}, matrix {which}: {there} is not {back}");
            }
        }
    }
}
