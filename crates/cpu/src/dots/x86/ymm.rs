//! Registers of 256 bits: AVX2's instructions under the names that [`super`] calls them by.

pub use std::arch::x86_64::{
    __m256i as Register, _mm256_add_epi16 as add_words, _mm256_add_epi32 as add, _mm256_and_si256 as and,
    _mm256_dpbusd_avx_epi32 as dot_bytes, _mm256_loadu_si256 as load, _mm256_madd_epi16 as multiply_words,
    _mm256_max_epi32 as larger, _mm256_mullo_epi32 as times, _mm256_set1_epi16 as splat_words,
    _mm256_set1_epi32 as splat, _mm256_slli_epi16 as left_words, _mm256_srai_epi16 as right_words,
    _mm256_srav_epi32 as shift_right, _mm256_srli_epi16 as logical_right_words, _mm256_storeu_si256 as store,
    _mm256_sub_epi16 as subtract_words, _mm256_sub_epi32 as subtract,
};

use std::arch::x86_64::*;

use super::super::Rescale;

/// Sums in a register.
pub const LANES: usize = 8;

/// Two products of words are added to each sum. The instruction is written out: of the function for it the compiler makes a
/// multiplication and an addition, which take more time.
///
/// # Safety
/// The machine has AVX-VNNI.
#[inline]
#[target_feature(enable = "avx,avxvnni")]
pub unsafe fn dot_words(mut sums: Register, pair: Register, weights: Register) -> Register {
    // SAFETY: the caller's promise; it touches nothing but these registers.
    unsafe {
        std::arch::asm!(
            "{{vex}} vpdpwssd {sums}, {pair}, {weights}",
            sums = inout(ymm_reg) sums,
            pair = in(ymm_reg) pair,
            weights = in(ymm_reg) weights,
            options(pure, nomem, nostack, preserves_flags),
        );
    }
    sums
}

/// # Safety
/// The machine has AVX2; 8 bytes can be read from there on.
#[inline(always)]
pub unsafe fn load_bytes(from: *const u8) -> Register {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast())) }
}

/// # Safety
/// The machine has AVX2; 16 bytes can be read from there on.
#[inline(always)]
pub unsafe fn widen(from: *const u8) -> Register {
    // SAFETY: the caller's promise.
    unsafe { _mm256_cvtepu8_epi16(_mm_loadu_si128(from.cast())) }
}

/// Products of even and of odd lanes have 64 bits; the bits that count of the latter are moved to where these lanes are.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
pub unsafe fn rescale(sums: Register, how: Rescale<Register>) -> Register {
    // SAFETY: the caller's promise.
    unsafe {
        let (sums, nudge) = (_mm256_sllv_epi32(sums, how.left), _mm256_set1_epi64x(1 << 30));
        let even = _mm256_add_epi64(_mm256_mul_epi32(sums, how.multiplier), nudge);
        let [odd_sums, odd_factors] = [_mm256_srli_epi64::<32>(sums), _mm256_srli_epi64::<32>(how.multiplier)];
        let odd = _mm256_add_epi64(_mm256_mul_epi32(odd_sums, odd_factors), nudge);
        let high = _mm256_blend_epi32::<0b1010_1010>(_mm256_srli_epi64::<31>(even), _mm256_slli_epi64::<1>(odd));
        let down = _mm256_and_si256(_mm256_srai_epi32::<31>(high), how.ties);
        let rounded = _mm256_srav_epi32(_mm256_add_epi32(high, _mm256_add_epi32(how.half, down)), how.right);
        let moved = _mm256_add_epi32(rounded, how.zero);
        _mm256_min_epi32(_mm256_max_epi32(moved, how.least), how.most)
    }
}

/// # Safety
/// The machine has AVX2; `count` bytes can be written from there on.
#[inline(always)]
pub unsafe fn store_bytes(to: *mut u8, count: usize, sums: Register) {
    // SAFETY: the caller's promise.
    unsafe {
        let words = _mm_packus_epi32(_mm256_castsi256_si128(sums), _mm256_extracti128_si256::<1>(sums));
        let bytes = _mm_packus_epi16(words, words);
        if count >= LANES {
            _mm_storel_epi64(to.cast(), bytes);
        } else {
            let bytes = _mm_cvtsi128_si64(bytes).to_le_bytes();
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), to, count);
        }
    }
}
