//! Registers of 512 bits: AVX-512's instructions under the names that [`super`] calls them by.

pub use std::arch::x86_64::{
    __m512i as Register, _mm512_add_epi16 as add_words, _mm512_add_epi32 as add, _mm512_and_si512 as and,
    _mm512_dpbusd_epi32 as dot_bytes, _mm512_loadu_si512 as load, _mm512_madd_epi16 as multiply_words,
    _mm512_max_epi32 as larger, _mm512_mullo_epi32 as times, _mm512_set1_epi16 as splat_words,
    _mm512_set1_epi32 as splat, _mm512_slli_epi16 as left_words, _mm512_srai_epi16 as right_words,
    _mm512_srav_epi32 as shift_right, _mm512_srli_epi16 as logical_right_words, _mm512_storeu_si512 as store,
    _mm512_sub_epi16 as subtract_words, _mm512_sub_epi32 as subtract,
};

use std::arch::x86_64::*;

use super::super::Rescale;

/// Sums in a register.
pub const LANES: usize = 16;

/// Two products of words are added to each sum. The instruction is written out: of the function for it the compiler makes a
/// multiplication and an addition, which take a third more time.
///
/// # Safety
/// The machine has VNNI.
#[inline]
#[target_feature(enable = "avx512f,avx512vnni")]
pub unsafe fn dot_words(mut sums: Register, pair: Register, weights: Register) -> Register {
    // SAFETY: the caller's promise; it touches nothing but these registers.
    unsafe {
        std::arch::asm!(
            "vpdpwssd {sums}, {pair}, {weights}",
            sums = inout(zmm_reg) sums,
            pair = in(zmm_reg) pair,
            weights = in(zmm_reg) weights,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// # Safety
/// The machine has AVX-512; 16 bytes can be read from there on.
#[inline(always)]
pub unsafe fn load_bytes(from: *const u8) -> Register {
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast())) }
}

/// # Safety
/// The machine has AVX-512; 32 bytes can be read from there on.
#[inline(always)]
pub unsafe fn widen(from: *const u8) -> Register {
    // SAFETY: the caller's promise.
    unsafe { _mm512_cvtepu8_epi16(_mm256_loadu_si256(from.cast())) }
}

/// As with [`super::ymm::rescale`].
///
/// # Safety
/// The machine has AVX-512.
#[inline(always)]
pub unsafe fn rescale(sums: Register, how: Rescale<Register>) -> Register {
    // SAFETY: the caller's promise.
    unsafe {
        let (sums, nudge) = (_mm512_sllv_epi32(sums, how.left), _mm512_set1_epi64(1 << 30));
        let even = _mm512_add_epi64(_mm512_mul_epi32(sums, how.multiplier), nudge);
        let [odd_sums, odd_factors] = [_mm512_srli_epi64::<32>(sums), _mm512_srli_epi64::<32>(how.multiplier)];
        let odd = _mm512_add_epi64(_mm512_mul_epi32(odd_sums, odd_factors), nudge);
        let [even, odd] = [_mm512_srli_epi64::<31>(even), _mm512_slli_epi64::<1>(odd)];
        let high = _mm512_mask_blend_epi32(0b1010_1010_1010_1010, even, odd);
        let down = _mm512_and_si512(_mm512_srai_epi32::<31>(high), how.ties);
        let rounded = _mm512_srav_epi32(_mm512_add_epi32(high, _mm512_add_epi32(how.half, down)), how.right);
        let moved = _mm512_add_epi32(rounded, how.zero);
        _mm512_min_epi32(_mm512_max_epi32(moved, how.least), how.most)
    }
}

/// # Safety
/// The machine has AVX-512; `count` bytes can be written from there on.
#[inline(always)]
pub unsafe fn store_bytes(to: *mut u8, count: usize, sums: Register) {
    let lanes = ((1u32 << count.min(LANES)) - 1) as __mmask16;
    // SAFETY: the caller's promise: lanes that the mask leaves out are not written.
    unsafe { _mm_mask_storeu_epi8(to.cast(), lanes, _mm512_cvtepi32_epi8(sums)) }
}
