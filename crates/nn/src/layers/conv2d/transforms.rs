//! The matrices of Winograd's minimal filtering `F(2 x 2, 3 x 3)` and `F(4 x 4, 3 x 3)`, as sums of a few numbers.
//!
//! Each function is a matrix times a vector whose elements are [`Lane`]s: the same element of several channels. Below a
//! matrix stands its transpose.

use std::ops::{Add, Mul, Sub};

/// Channels that are transformed at once.
pub(super) const LANES: usize = 8;

/// The same number of several channels.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(super) struct Lane(pub [f32; LANES]);

impl Lane {
    #[inline(always)]
    pub fn load(from: &[f32]) -> Self {
        Self(*from.first_chunk().expect("a lane"))
    }

    #[inline(always)]
    pub fn store(self, to: &mut [f32]) {
        *to.first_chunk_mut().expect("a lane") = self.0;
    }
}

impl Add for Lane {
    type Output = Self;

    #[inline(always)]
    fn add(mut self, other: Self) -> Self {
        for (value, other) in self.0.iter_mut().zip(other.0) {
            *value += other;
        }
        self
    }
}

impl Sub for Lane {
    type Output = Self;

    #[inline(always)]
    fn sub(mut self, other: Self) -> Self {
        for (value, other) in self.0.iter_mut().zip(other.0) {
            *value -= other;
        }
        self
    }
}

impl Mul<Lane> for f32 {
    type Output = Lane;

    #[inline(always)]
    fn mul(self, mut lane: Lane) -> Lane {
        for value in &mut lane.0 {
            *value *= self;
        }
        lane
    }
}

/// The size of the output tiles.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Tile {
    Two,
    Four,
}

impl Tile {
    /// Pixels of a tile, across and down.
    pub fn out(self) -> usize {
        match self {
            Self::Two => 2,
            Self::Four => 4,
        }
    }

    /// Pixels of the window that it depends on.
    pub fn window(self) -> usize {
        self.out() + 2
    }
}

/// Minimal filtering of `N` inputs to `M` outputs by 3 weights.
pub(super) trait Filtering<const N: usize, const M: usize> {
    /// `B^T d`
    fn b_t(d: [Lane; N]) -> [Lane; N];
    /// `B v`
    fn b(v: [Lane; N]) -> [Lane; N];
    /// `G g`
    fn g(g: [Lane; 3]) -> [Lane; N];
    /// `G^T u`
    fn g_t(u: [Lane; N]) -> [Lane; 3];
    /// `A^T m`
    fn a_t(m: [Lane; N]) -> [Lane; M];
    /// `A y`
    fn a(y: [Lane; M]) -> [Lane; N];
}

/// `F(2, 3)`: the points 0, 1, -1 and infinity.
pub(super) struct F2;

impl Filtering<4, 2> for F2 {
    #[inline(always)]
    fn b_t([d0, d1, d2, d3]: [Lane; 4]) -> [Lane; 4] {
        [d0 - d2, d1 + d2, d2 - d1, d1 - d3]
    }

    #[inline(always)]
    fn b([v0, v1, v2, v3]: [Lane; 4]) -> [Lane; 4] {
        [v0, v1 - v2 + v3, v1 + v2 - v0, Lane::default() - v3]
    }

    #[inline(always)]
    fn g([g0, g1, g2]: [Lane; 3]) -> [Lane; 4] {
        let (even, odd) = (0.5 * (g0 + g2), 0.5 * g1);
        [g0, even + odd, even - odd, g2]
    }

    #[inline(always)]
    fn g_t([u0, u1, u2, u3]: [Lane; 4]) -> [Lane; 3] {
        let even = 0.5 * (u1 + u2);
        [u0 + even, 0.5 * (u1 - u2), even + u3]
    }

    #[inline(always)]
    fn a_t([m0, m1, m2, m3]: [Lane; 4]) -> [Lane; 2] {
        [m0 + m1 + m2, m1 - m2 - m3]
    }

    #[inline(always)]
    fn a([y0, y1]: [Lane; 2]) -> [Lane; 4] {
        [y0, y0 + y1, y0 - y1, Lane::default() - y1]
    }
}

/// `F(4, 3)`: the points 0, 1, -1, 2, -2 and infinity.
pub(super) struct F4;

impl Filtering<6, 4> for F4 {
    #[inline(always)]
    fn b_t([d0, d1, d2, d3, d4, d5]: [Lane; 6]) -> [Lane; 6] {
        let (even, odd) = (d4 - 4.0 * d2, d3 - 4.0 * d1);
        let (even2, odd2) = (d4 - d2, 2.0 * (d3 - d1));
        [4.0 * d0 - 5.0 * d2 + d4, even + odd, even - odd, even2 + odd2, even2 - odd2, 4.0 * d1 - 5.0 * d3 + d5]
    }

    #[inline(always)]
    fn b([v0, v1, v2, v3, v4, v5]: [Lane; 6]) -> [Lane; 6] {
        let (sum, difference) = (v1 + v2, v1 - v2);
        let (sum2, difference2) = (v3 + v4, 2.0 * (v3 - v4));
        [
            4.0 * v0,
            4.0 * (v5 - difference) - difference2,
            Lane::default() - 5.0 * v0 - 4.0 * sum - sum2,
            difference + difference2 - 5.0 * v5,
            v0 + sum + sum2,
            v5,
        ]
    }

    #[inline(always)]
    fn g([g0, g1, g2]: [Lane; 3]) -> [Lane; 6] {
        let even = (-1.0 / 6.0) * (g0 + g2);
        let odd = (-1.0 / 6.0) * g1;
        let even2 = (1.0 / 24.0) * g0 + (1.0 / 6.0) * g2;
        let odd2 = (1.0 / 12.0) * g1;
        [0.25 * g0, even + odd, even - odd, even2 + odd2, even2 - odd2, g2]
    }

    #[inline(always)]
    fn g_t([u0, u1, u2, u3, u4, u5]: [Lane; 6]) -> [Lane; 3] {
        let sum = (1.0 / 6.0) * (u1 + u2);
        let sum2 = u3 + u4;
        [
            0.25 * u0 - sum + (1.0 / 24.0) * sum2,
            (1.0 / 6.0) * (u2 - u1) + (1.0 / 12.0) * (u3 - u4),
            (1.0 / 6.0) * sum2 - sum + u5,
        ]
    }

    #[inline(always)]
    fn a_t([m0, m1, m2, m3, m4, m5]: [Lane; 6]) -> [Lane; 4] {
        let (sum, difference) = (m1 + m2, m1 - m2);
        let (sum2, difference2) = (m3 + m4, m3 - m4);
        [m0 + sum + sum2, difference + 2.0 * difference2, sum + 4.0 * sum2, difference + 8.0 * difference2 + m5]
    }

    #[inline(always)]
    fn a([y0, y1, y2, y3]: [Lane; 4]) -> [Lane; 6] {
        let (even, odd) = (y0 + y2, y1 + y3);
        let (even2, odd2) = (y0 + 4.0 * y2, 2.0 * y1 + 8.0 * y3);
        [y0, even + odd, even - odd, even2 + odd2, even2 - odd2, y3]
    }
}

/// `matrix * x * matrix^T`, for the matrix that `times` multiplies by. Elements are read by `load` and written by
/// `store`, both by row and column; `half` is room for what lies between, which would be cleared again and again if it
/// were made here.
#[inline(always)]
pub(super) fn both_sides<const I: usize, const O: usize>(
    half: &mut [[Lane; I]; O],
    load: impl Fn(usize, usize) -> Lane,
    times: impl Fn([Lane; I]) -> [Lane; O],
    mut store: impl FnMut(usize, usize, Lane),
) {
    for column in 0..I {
        let mut vector = [Lane::default(); I];
        for (row, value) in vector.iter_mut().enumerate() {
            *value = load(row, column);
        }
        for (half, &value) in half.iter_mut().zip(&times(vector)) {
            half[column] = value;
        }
    }
    for (row, &half) in half.iter().enumerate() {
        for (column, &value) in times(half).iter().enumerate() {
            store(row, column, value);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lanes<const L: usize>(seed: u32) -> [Lane; L] {
        let noise = super::super::super::check::noise(L * LANES, seed);
        std::array::from_fn(|at| Lane::load(&noise[at * LANES..]))
    }

    fn dot(left: &[Lane], right: &[Lane]) -> f32 {
        left.iter().zip(right).map(|(left, right)| left.0[0] * right.0[0]).sum()
    }

    /// `F(m, 3)` is the convolution, and a matrix and its transpose satisfy `(M x) y = x (M^T y)`.
    fn check<F: Filtering<N, M>, const N: usize, const M: usize>() {
        let (d, g) = (lanes::<N>(1), lanes::<3>(2));
        let (transformed, filter) = (F::b_t(d), F::g(g));
        let product =
            std::array::from_fn(|at| Lane(std::array::from_fn(|lane| transformed[at].0[lane] * filter[at].0[lane])));
        for (at, output) in F::a_t(product).into_iter().enumerate() {
            for lane in 0..LANES {
                let expected: f32 = (0..3).map(|tap| d[at + tap].0[lane] * g[tap].0[lane]).sum();
                assert!((output.0[lane] - expected).abs() < 1e-5, "{} is not {expected}", output.0[lane]);
            }
        }
        let (n, y, three) = (lanes::<N>(3), lanes::<M>(4), lanes::<3>(5));
        let same = |left: f32, right: f32| assert!((left - right).abs() < 1e-4, "{left} is not {right}");
        same(dot(&F::b_t(d), &n), dot(&d, &F::b(n)));
        same(dot(&F::g(three), &n), dot(&three, &F::g_t(n)));
        same(dot(&F::a_t(n), &y), dot(&n, &F::a(y)));
    }

    #[test]
    fn minimal_filtering_is_convolution_and_transposes_are_adjoint() {
        check::<F2, 4, 2>();
        check::<F4, 6, 4>();
    }
}
