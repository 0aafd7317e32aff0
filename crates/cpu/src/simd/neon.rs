//! NEON, which every aarch64 has.

#![allow(unsafe_code)]

use std::arch::aarch64::*;
use std::ops::{Add, Div, Mul, Sub};

use super::{Simd, Vector};
use crate::half::{from_f16, round_to_f16};

/// NEON.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Neon(());

impl Neon {
    /// The token, if this machine has it.
    pub fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("neon").then_some(Self(()))
    }
}

const LANES: usize = 4;

/// Four numbers in a register.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct Four(float32x4_t);

impl Simd for Neon {
    type Vector = Four;
    const LANES: usize = LANES;
    const REGISTERS: usize = 32;

    #[inline(always)]
    fn splat(self, number: f32) -> Four {
        // SAFETY: the token.
        Four(unsafe { vdupq_n_f32(number) })
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Four {
        // SAFETY: the token, and the caller's promise.
        Four(unsafe { vld1q_f32(from) })
    }

    #[inline(always)]
    unsafe fn load_some(self, from: *const f32, count: usize) -> Four {
        let mut numbers = [0.0; LANES];
        for (lane, number) in numbers.iter_mut().enumerate().take(count) {
            // SAFETY: the caller's promise.
            *number = unsafe { *from.add(lane) };
        }
        // SAFETY: the token; four numbers.
        Four(unsafe { vld1q_f32(numbers.as_ptr()) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, vector: Four) {
        // SAFETY: the token, and the caller's promise.
        unsafe { vst1q_f32(to, vector.0) };
    }

    #[inline(always)]
    unsafe fn store_some(self, to: *mut f32, count: usize, vector: Four) {
        let mut numbers = [0.0; LANES];
        // SAFETY: the token; four numbers.
        unsafe { vst1q_f32(numbers.as_mut_ptr(), vector.0) };
        for (lane, number) in numbers.into_iter().enumerate().take(count) {
            // SAFETY: the caller's promise.
            unsafe { *to.add(lane) = number };
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> Four {
        // SAFETY: the caller's promise.
        let numbers = unsafe { from.cast::<[u8; LANES]>().read() }.map(f32::from);
        // SAFETY: the token; four numbers.
        Four(unsafe { vld1q_f32(numbers.as_ptr()) })
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, vector: Four) {
        let mut numbers = [0.0f32; LANES];
        // SAFETY: the token and four numbers; the caller's promise.
        unsafe {
            vst1q_f32(numbers.as_mut_ptr(), vector.0);
            to.cast::<[u8; LANES]>().write(numbers.map(|number| number as u8));
        }
    }

    // By integers, since the language has no stable type for what the instructions take.
    #[inline(always)]
    unsafe fn load_half(self, from: *const [u8; 2]) -> Four {
        // SAFETY: the caller's promise.
        let halves = unsafe { from.cast::<[[u8; 2]; LANES]>().read() };
        let numbers = halves.map(|half| from_f16(u16::from_le_bytes(half)));
        // SAFETY: the token; four numbers.
        Four(unsafe { vld1q_f32(numbers.as_ptr()) })
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut [u8; 2], vector: Four) {
        let mut numbers = [0.0f32; LANES];
        // SAFETY: the token and four numbers; the caller's promise.
        unsafe {
            vst1q_f32(numbers.as_mut_ptr(), vector.0);
            to.cast::<[[u8; 2]; LANES]>().write(numbers.map(|number| round_to_f16(number).to_le_bytes()));
        }
    }
}

macro_rules! arithmetic {
    ($($trait:ident $method:ident $intrinsic:ident),+) => {$(
        impl $trait for Four {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                // SAFETY: there are vectors, so there was a token.
                Self(unsafe { $intrinsic(self.0, other.0) })
            }
        }
    )+};
}
arithmetic!(Add add vaddq_f32, Sub sub vsubq_f32, Mul mul vmulq_f32, Div div vdivq_f32);

impl Vector for Four {
    #[inline(always)]
    fn multiply_add(self, by: Self, to: Self) -> Self {
        // SAFETY: there are vectors, so there was a token.
        Self(unsafe { vfmaq_f32(to.0, self.0, by.0) })
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        // SAFETY: as above.
        Self(unsafe { vsqrtq_f32(self.0) })
    }

    // Not the instructions for it, which treat what is not a number otherwise than those of other machines.
    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.where_greater(other, self, other)
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        other.where_greater(self, self, other)
    }

    #[inline(always)]
    fn where_greater(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { vbslq_f32(vcgtq_f32(self.0, other.0), yes.0, no.0) })
    }

    #[inline(always)]
    fn where_equal(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { vbslq_f32(vceqq_f32(self.0, other.0), yes.0, no.0) })
    }
}
