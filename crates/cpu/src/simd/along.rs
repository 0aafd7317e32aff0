//! Walking along slices vector by vector.

use super::Simd;

/// A place at which all lanes are within the slices.
#[derive(Debug, Clone, Copy)]
pub struct Whole<S>(S, usize);

/// The last place, at which only some are.
#[derive(Debug, Clone, Copy)]
pub struct Rest<S>(S, usize, usize);

#[allow(unsafe_code)]
impl<S: Simd> Whole<S> {
    /// Made by [`along!`](crate::along).
    #[inline(always)]
    pub fn new(simd: S, start: usize) -> Self {
        Self(simd, start)
    }

    /// The numbers of a slice that stand here.
    #[inline(always)]
    pub fn load(self, from: &[f32]) -> S::Vector {
        assert!(S::LANES <= from.len() && self.1 <= from.len() - S::LANES);
        // SAFETY: the assertion.
        unsafe { self.0.load(from.as_ptr().add(self.1)) }
    }

    /// Replaces the numbers of a slice that stand here.
    #[inline(always)]
    pub fn store(self, to: &mut [f32], vector: S::Vector) {
        assert!(S::LANES <= to.len() && self.1 <= to.len() - S::LANES);
        // SAFETY: the assertion.
        unsafe { self.0.store(to.as_mut_ptr().add(self.1), vector) }
    }
}

#[allow(unsafe_code)]
impl<S: Simd> Rest<S> {
    /// Made by [`along!`](crate::along).
    #[inline(always)]
    pub fn new(simd: S, start: usize, count: usize) -> Self {
        Self(simd, start, count)
    }

    /// The numbers of a slice that stand here, and zeros.
    #[inline(always)]
    pub fn load(self, from: &[f32]) -> S::Vector {
        assert!(self.2 <= from.len() && self.1 <= from.len() - self.2);
        // SAFETY: the assertion.
        unsafe { self.0.load_some(from.as_ptr().add(self.1), self.2) }
    }

    /// Replaces the numbers of a slice that stand here.
    #[inline(always)]
    pub fn store(self, to: &mut [f32], vector: S::Vector) {
        assert!(self.2 <= to.len() && self.1 <= to.len() - self.2);
        // SAFETY: the assertion.
        unsafe { self.0.store_some(to.as_mut_ptr().add(self.1), self.2, vector) }
    }
}

/// Does the same for each vector of slices that are equally long, the last of which may be a part of one:
/// `at.load(slice)` and `at.store(slice, vector)` in the block mean what stands at the present place. A macro and no function
/// of a closure, since the compiler could decide not to inline a closure, and would then compile it for no instruction set.
#[macro_export]
macro_rules! along {
    ($simd:expr, $length:expr, |$at:ident| $body:block) => {{
        let (simd, length) = ($simd, $length);
        let lanes = $crate::simd::lanes(simd);
        let mut start = 0;
        while length - start >= lanes {
            let $at = $crate::simd::Whole::new(simd, start);
            $body
            start += lanes;
        }
        if start < length {
            let $at = $crate::simd::Rest::new(simd, start, length - start);
            $body
        }
    }};
}

/// [`Simd::LANES`] of a token.
#[inline(always)]
pub fn lanes<S: Simd>(_: S) -> usize {
    S::LANES
}
