//! NEON with dot products (FEAT_DotProd). The language has no stable functions for these, so the instruction is written out.

#![allow(unsafe_code)]

use std::arch::aarch64::*;
use std::arch::asm;

use super::{Dots, Rescale};

/// NEON with dot products of bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NeonDots(());

impl NeonDots {
    /// The token, if this machine has them.
    pub fn detect() -> Option<Self> {
        std::arch::is_aarch64_feature_detected!("dotprod").then_some(Self(()))
    }
}

impl Dots for NeonDots {
    type Sums = int32x4_t;
    type Weights = int8x16_t;
    type Bytes = int8x16_t;
    type Words = int16x8_t;
    const LANES: usize = 4;
    const ROWS: usize = 12;
    const WORD_ROWS: usize = 8;
    const FAST_WORDS: bool = false;
    const OFFSET: i32 = 128;

    #[inline(always)]
    unsafe fn load(self, from: *const i32) -> int32x4_t {
        // SAFETY: the token, and the caller's promise.
        unsafe { vld1q_s32(from) }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> int32x4_t {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let bytes = vcreate_u8(u64::from(from.cast::<u32>().read_unaligned()));
            vreinterpretq_s32_u32(vmovl_u16(vget_low_u16(vmovl_u8(bytes))))
        }
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut i32, sums: int32x4_t) {
        // SAFETY: the token, and the caller's promise.
        unsafe { vst1q_s32(to, sums) }
    }

    #[inline(always)]
    fn splat(self, number: i32) -> int32x4_t {
        // SAFETY: the token.
        unsafe { vdupq_n_s32(number) }
    }

    #[inline(always)]
    unsafe fn weights(self, from: *const i8) -> int8x16_t {
        // SAFETY: the token, and the caller's promise.
        unsafe { vld1q_s8(from) }
    }

    #[inline(always)]
    unsafe fn bytes(self, from: *const u8) -> int8x16_t {
        // SAFETY: the token, and the caller's promise. With the highest bit turned a byte is itself less 128.
        unsafe { vreinterpretq_s8_u32(vdupq_n_u32(from.cast::<u32>().read_unaligned() ^ 0x8080_8080)) }
    }

    #[inline(always)]
    fn dot(self, sums: int32x4_t, bytes: int8x16_t, weights: int8x16_t) -> int32x4_t {
        let mut sums = sums;
        // SAFETY: the token; it touches nothing but these registers.
        unsafe {
            asm!(
                ".arch_extension dotprod",
                "sdot {sums:v}.4s, {bytes:v}.16b, {weights:v}.16b",
                sums = inout(vreg) sums,
                bytes = in(vreg) bytes,
                weights = in(vreg) weights,
                options(pure, nomem, nostack, preserves_flags),
            );
        }
        sums
    }

    #[inline(always)]
    fn add(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: the token.
        unsafe { vaddq_s32(a, b) }
    }

    #[inline(always)]
    fn subtract(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: the token.
        unsafe { vsubq_s32(a, b) }
    }

    #[inline(always)]
    fn times(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: the token.
        unsafe { vmulq_s32(a, b) }
    }

    #[inline(always)]
    fn shift_right(self, sums: int32x4_t, by: int32x4_t) -> int32x4_t {
        // SAFETY: the token.
        unsafe { vshlq_s32(sums, vnegq_s32(by)) }
    }

    #[inline(always)]
    fn larger(self, a: int32x4_t, b: int32x4_t) -> int32x4_t {
        // SAFETY: the token.
        unsafe { vmaxq_s32(a, b) }
    }

    #[inline(always)]
    fn rescale(self, sums: int32x4_t, how: Rescale<int32x4_t>) -> int32x4_t {
        // SAFETY: the token. `sqrdmulh` is the high half of twice the product, rounded.
        unsafe {
            let high = vqrdmulhq_s32(vshlq_s32(sums, how.left), how.multiplier);
            let down = vandq_s32(vshrq_n_s32::<31>(high), how.ties);
            let rounded = vshlq_s32(vaddq_s32(high, vaddq_s32(how.half, down)), vnegq_s32(how.right));
            vminq_s32(vmaxq_s32(vaddq_s32(rounded, how.zero), how.least), how.most)
        }
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, count: usize, sums: int32x4_t) {
        let mut numbers = [0i32; 4];
        // SAFETY: the token; four numbers.
        unsafe { vst1q_s32(numbers.as_mut_ptr(), sums) };
        for (lane, number) in numbers.into_iter().enumerate().take(count) {
            // SAFETY: the caller's promise.
            unsafe { *to.add(lane) = number as u8 };
        }
    }

    #[inline(always)]
    unsafe fn widen(self, from: *const u8) -> int16x8_t {
        // SAFETY: the token, and the caller's promise.
        unsafe { vreinterpretq_s16_u16(vmovl_u8(vld1_u8(from))) }
    }

    #[inline(always)]
    unsafe fn load_words(self, from: *const i16) -> int16x8_t {
        // SAFETY: the token, and the caller's promise.
        unsafe { vld1q_s16(from) }
    }

    #[inline(always)]
    unsafe fn store_words(self, to: *mut i16, words: int16x8_t) {
        // SAFETY: the token, and the caller's promise.
        unsafe { vst1q_s16(to, words) }
    }

    #[inline(always)]
    fn splat_words(self, number: i16) -> int16x8_t {
        // SAFETY: the token.
        unsafe { vdupq_n_s16(number) }
    }

    #[inline(always)]
    fn add_words(self, a: int16x8_t, b: int16x8_t) -> int16x8_t {
        // SAFETY: the token.
        unsafe { vaddq_s16(a, b) }
    }

    #[inline(always)]
    fn subtract_words(self, a: int16x8_t, b: int16x8_t) -> int16x8_t {
        // SAFETY: the token.
        unsafe { vsubq_s16(a, b) }
    }

    #[inline(always)]
    unsafe fn pair(self, from: *const i16) -> int16x8_t {
        // SAFETY: the token, and the caller's promise.
        unsafe { vreinterpretq_s16_s32(vdupq_n_s32(from.cast::<i32>().read_unaligned())) }
    }

    #[inline(always)]
    fn dot_words(self, sums: int32x4_t, pair: int16x8_t, weights: int16x8_t) -> int32x4_t {
        // SAFETY: the token.
        unsafe {
            let low = vmull_s16(vget_low_s16(pair), vget_low_s16(weights));
            vaddq_s32(sums, vpaddq_s32(low, vmull_high_s16(pair, weights)))
        }
    }
}
