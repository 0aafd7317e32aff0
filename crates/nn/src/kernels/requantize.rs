//! Sums become bytes.

use ringstep_cpu::dots::{Dots, Rescale};

/// How the sums of filters become bytes: a number of each for every filter, up to whole panels; `zero`, `least` and `most` are
/// the same for all.
pub struct Requantize(pub Rescale<Vec<i32>>);

impl Requantize {
    /// Panics unless it knows so many filters.
    pub fn check(&self, filters: usize) {
        let Rescale { left, multiplier, right, half, ties, zero, least, most } = &self.0;
        let known = |numbers: &Vec<i32>| numbers.len() >= filters;
        assert!([left, multiplier, right, half, ties].into_iter().all(known), "filters that are not known");
        assert!([zero, least, most].into_iter().all(|number| number.len() == 1));
    }

    /// For a register of filters, from `first` on.
    ///
    /// # Safety
    /// [`Requantize::check`] has passed for so many.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub unsafe fn of<S: Dots>(&self, simd: S, first: usize) -> Rescale<S::Sums> {
        // SAFETY: the caller's promise.
        let load = |numbers: &[i32]| unsafe { simd.load(numbers.as_ptr().add(first)) };
        let Rescale { left, multiplier, right, half, ties, zero, least, most } = &self.0;
        Rescale {
            left: load(left),
            multiplier: load(multiplier),
            right: load(right),
            half: load(half),
            ties: load(ties),
            zero: simd.splat(zero[0]),
            least: simd.splat(least[0]),
            most: simd.splat(most[0]),
        }
    }
}
