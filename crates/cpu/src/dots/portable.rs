//! One product after the other.

#![allow(unsafe_code)]

use super::{Dots, Rescale};
use crate::simd::Portable;

const LANES: usize = 4;

impl Dots for Portable {
    type Sums = [i32; LANES];
    type Weights = [[i8; 4]; LANES];
    type Bytes = [u8; 4];
    type Words = [[i16; 2]; LANES];
    const LANES: usize = LANES;
    const ROWS: usize = 2;
    const WORD_ROWS: usize = 2;
    const FAST_WORDS: bool = true;
    const OFFSET: i32 = 0;

    #[inline(always)]
    unsafe fn load(self, from: *const i32) -> Self::Sums {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[i32; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> Self::Sums {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[u8; LANES]>().read_unaligned() }.map(i32::from)
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut i32, sums: Self::Sums) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[i32; LANES]>().write_unaligned(sums) }
    }

    #[inline(always)]
    fn splat(self, number: i32) -> Self::Sums {
        [number; LANES]
    }

    #[inline(always)]
    unsafe fn weights(self, from: *const i8) -> Self::Weights {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[[i8; 4]; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn bytes(self, from: *const u8) -> Self::Bytes {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[u8; 4]>().read_unaligned() }
    }

    #[inline(always)]
    fn dot(self, sums: Self::Sums, bytes: Self::Bytes, weights: Self::Weights) -> Self::Sums {
        std::array::from_fn(|lane| {
            let products = bytes.iter().zip(weights[lane]).map(|(&byte, weight)| i32::from(byte) * i32::from(weight));
            sums[lane].wrapping_add(products.sum())
        })
    }

    #[inline(always)]
    fn add(self, a: Self::Sums, b: Self::Sums) -> Self::Sums {
        std::array::from_fn(|lane| a[lane].wrapping_add(b[lane]))
    }

    #[inline(always)]
    fn subtract(self, a: Self::Sums, b: Self::Sums) -> Self::Sums {
        std::array::from_fn(|lane| a[lane].wrapping_sub(b[lane]))
    }

    #[inline(always)]
    fn times(self, a: Self::Sums, b: Self::Sums) -> Self::Sums {
        std::array::from_fn(|lane| a[lane].wrapping_mul(b[lane]))
    }

    #[inline(always)]
    fn shift_right(self, sums: Self::Sums, by: Self::Sums) -> Self::Sums {
        std::array::from_fn(|lane| sums[lane] >> by[lane])
    }

    #[inline(always)]
    fn larger(self, a: Self::Sums, b: Self::Sums) -> Self::Sums {
        std::array::from_fn(|lane| a[lane].max(b[lane]))
    }

    #[inline(always)]
    fn rescale(self, sums: Self::Sums, how: Rescale<Self::Sums>) -> Self::Sums {
        std::array::from_fn(|lane| {
            let number = sums[lane].wrapping_shl(how.left[lane] as u32);
            let high = ((i64::from(number) * i64::from(how.multiplier[lane]) + (1 << 30)) >> 31) as i32;
            let nudge = how.half[lane].wrapping_add((high >> 31) & how.ties[lane]);
            let rounded = high.wrapping_add(nudge) >> how.right[lane];
            rounded.wrapping_add(how.zero[lane]).max(how.least[lane]).min(how.most[lane])
        })
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, count: usize, sums: Self::Sums) {
        for (lane, sum) in sums.into_iter().enumerate().take(count) {
            // SAFETY: the caller's promise.
            unsafe { *to.add(lane) = sum as u8 };
        }
    }

    #[inline(always)]
    unsafe fn widen(self, from: *const u8) -> Self::Words {
        // SAFETY: the caller's promise.
        let bytes = unsafe { from.cast::<[[u8; 2]; LANES]>().read_unaligned() };
        bytes.map(|pair| pair.map(i16::from))
    }

    #[inline(always)]
    unsafe fn load_words(self, from: *const i16) -> Self::Words {
        // SAFETY: the caller's promise.
        unsafe { from.cast::<[[i16; 2]; LANES]>().read_unaligned() }
    }

    #[inline(always)]
    unsafe fn store_words(self, to: *mut i16, words: Self::Words) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[[i16; 2]; LANES]>().write_unaligned(words) }
    }

    #[inline(always)]
    fn splat_words(self, number: i16) -> Self::Words {
        [[number; 2]; LANES]
    }

    #[inline(always)]
    fn add_words(self, a: Self::Words, b: Self::Words) -> Self::Words {
        std::array::from_fn(|lane| std::array::from_fn(|at| a[lane][at].wrapping_add(b[lane][at])))
    }

    #[inline(always)]
    fn subtract_words(self, a: Self::Words, b: Self::Words) -> Self::Words {
        std::array::from_fn(|lane| std::array::from_fn(|at| a[lane][at].wrapping_sub(b[lane][at])))
    }

    #[inline(always)]
    unsafe fn pair(self, from: *const i16) -> Self::Words {
        // SAFETY: the caller's promise.
        [unsafe { from.cast::<[i16; 2]>().read_unaligned() }; LANES]
    }

    #[inline(always)]
    fn dot_words(self, sums: Self::Sums, pair: Self::Words, weights: Self::Words) -> Self::Sums {
        std::array::from_fn(|lane| {
            let products = [0, 1].map(|at| i32::from(pair[lane][at]) * i32::from(weights[lane][at]));
            sums[lane].wrapping_add(products[0]).wrapping_add(products[1])
        })
    }
}
