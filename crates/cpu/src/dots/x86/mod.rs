//! AVX2 and AVX-512, each with and without VNNI: what they have in common but for the width of their registers.

#![allow(unsafe_code)]

use super::{Dots, Rescale};
use crate::simd::{Avx2, Avx512};

mod ymm;
mod zmm;

/// AVX2 with dot products of bytes (AVX-VNNI).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AvxVnni(Avx2);

impl AvxVnni {
    /// The token, if this machine has them.
    pub fn detect() -> Option<Self> {
        Avx2::detect().filter(|_| is_x86_feature_detected!("avxvnni")).map(Self)
    }
}

/// AVX-512 with dot products of bytes (VNNI).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx512Vnni(Avx512);

impl Avx512Vnni {
    /// The token, if this machine has them.
    pub fn detect() -> Option<Self> {
        Avx512::detect().filter(|avx512| avx512.has_vnni()).map(Self)
    }
}

/// An operation of registers that is one instruction.
macro_rules! operations {
    ($width:ident: $($name:ident($($argument:ident),+);)+) => {$(
        #[inline(always)]
        fn $name(self, $($argument: $width::Register),+) -> $width::Register {
            // SAFETY: the token.
            unsafe { $width::$name($($argument),+) }
        }
    )+};
}

/// What is the same with dot products and without.
macro_rules! common {
    ($width:ident) => {
        type Sums = $width::Register;
        type Words = $width::Register;
        const LANES: usize = $width::LANES;
        const OFFSET: i32 = 0;
        const FAST_WORDS: bool = true;

        operations! { $width:
            add(a, b);
            subtract(a, b);
            times(a, b);
            larger(a, b);
            shift_right(sums, by);
            add_words(a, b);
            subtract_words(a, b);
        }

        #[inline(always)]
        unsafe fn load(self, from: *const i32) -> $width::Register {
            // SAFETY: the token, and the caller's promise.
            unsafe { $width::load(from.cast()) }
        }

        #[inline(always)]
        unsafe fn load_bytes(self, from: *const u8) -> $width::Register {
            // SAFETY: the token, and the caller's promise.
            unsafe { $width::load_bytes(from) }
        }

        #[inline(always)]
        unsafe fn store(self, to: *mut i32, sums: $width::Register) {
            // SAFETY: the token, and the caller's promise.
            unsafe { $width::store(to.cast(), sums) }
        }

        #[inline(always)]
        fn splat(self, number: i32) -> $width::Register {
            // SAFETY: the token.
            unsafe { $width::splat(number) }
        }

        #[inline(always)]
        fn rescale(self, sums: $width::Register, how: Rescale<$width::Register>) -> $width::Register {
            // SAFETY: the token.
            unsafe { $width::rescale(sums, how) }
        }

        #[inline(always)]
        unsafe fn store_bytes(self, to: *mut u8, count: usize, sums: $width::Register) {
            // SAFETY: the token, and the caller's promise.
            unsafe { $width::store_bytes(to, count, sums) }
        }

        #[inline(always)]
        unsafe fn widen(self, from: *const u8) -> $width::Register {
            // SAFETY: the token, and the caller's promise.
            unsafe { $width::widen(from) }
        }

        #[inline(always)]
        unsafe fn load_words(self, from: *const i16) -> $width::Register {
            // SAFETY: the token, and the caller's promise.
            unsafe { $width::load(from.cast()) }
        }

        #[inline(always)]
        unsafe fn store_words(self, to: *mut i16, words: $width::Register) {
            // SAFETY: the token, and the caller's promise.
            unsafe { $width::store(to.cast(), words) }
        }

        #[inline(always)]
        fn splat_words(self, number: i16) -> $width::Register {
            // SAFETY: the token.
            unsafe { $width::splat_words(number) }
        }

        #[inline(always)]
        unsafe fn pair(self, from: *const i16) -> $width::Register {
            // SAFETY: the token, and the caller's promise.
            unsafe { $width::splat(from.cast::<i32>().read_unaligned()) }
        }
    };
}

/// Weights and bytes as they are, for instructions that multiply and add them.
macro_rules! with_vnni {
    ($width:ident) => {
        type Weights = $width::Register;
        type Bytes = $width::Register;

        #[inline(always)]
        unsafe fn weights(self, from: *const i8) -> $width::Register {
            // SAFETY: the token, and the caller's promise.
            unsafe { $width::load(from.cast()) }
        }

        #[inline(always)]
        unsafe fn bytes(self, from: *const u8) -> $width::Register {
            // SAFETY: the token, and the caller's promise.
            unsafe { $width::splat(from.cast::<i32>().read_unaligned()) }
        }

        #[inline(always)]
        fn dot(self, sums: Self::Sums, bytes: Self::Bytes, weights: Self::Weights) -> Self::Sums {
            // SAFETY: the token.
            unsafe { $width::dot_bytes(sums, bytes, weights) }
        }

        #[inline(always)]
        fn dot_words(self, sums: Self::Sums, pair: Self::Words, weights: Self::Words) -> Self::Sums {
            // SAFETY: the token.
            unsafe { $width::dot_words(sums, pair, weights) }
        }
    };
}

/// Weights and bytes with the even and the odd ones apart, as numbers of 16 bits.
macro_rules! without_vnni {
    ($width:ident) => {
        type Weights = [$width::Register; 2];
        type Bytes = [$width::Register; 2];

        #[inline(always)]
        unsafe fn weights(self, from: *const i8) -> Self::Weights {
            // SAFETY: the token, and the caller's promise.
            unsafe {
                let all = $width::load(from.cast());
                [$width::right_words::<8>($width::left_words::<8>(all)), $width::right_words::<8>(all)]
            }
        }

        #[inline(always)]
        unsafe fn bytes(self, from: *const u8) -> Self::Bytes {
            // SAFETY: the token, and the caller's promise.
            unsafe {
                let all = $width::splat(from.cast::<i32>().read_unaligned());
                [$width::and(all, $width::splat(0x00ff_00ff)), $width::logical_right_words::<8>(all)]
            }
        }

        #[inline(always)]
        fn dot(self, sums: Self::Sums, bytes: Self::Bytes, weights: Self::Weights) -> Self::Sums {
            self.dot_words(self.dot_words(sums, bytes[0], weights[0]), bytes[1], weights[1])
        }

        #[inline(always)]
        fn dot_words(self, sums: Self::Sums, pair: Self::Words, weights: Self::Words) -> Self::Sums {
            // SAFETY: the token.
            unsafe { $width::add(sums, $width::multiply_words(pair, weights)) }
        }
    };
}

impl Dots for Avx2 {
    const ROWS: usize = 3;
    const WORD_ROWS: usize = 6;
    common!(ymm);
    without_vnni!(ymm);
}

impl Dots for AvxVnni {
    const ROWS: usize = 6;
    const WORD_ROWS: usize = 6;
    common!(ymm);
    with_vnni!(ymm);
}

impl Dots for Avx512 {
    const ROWS: usize = 10;
    const WORD_ROWS: usize = 12;
    common!(zmm);
    without_vnni!(zmm);
}

impl Dots for Avx512Vnni {
    const ROWS: usize = 12;
    const WORD_ROWS: usize = 12;
    common!(zmm);
    with_vnni!(zmm);
}
