//! AVX2 with FMA and F16C, and AVX-512.
//!
//! Intrinsics are unsafe where the compiler cannot see that the machine has them. Here the values themselves show it: the
//! first vector comes from a token, and a token from detection.

#![allow(unsafe_code)]

use std::arch::x86_64::*;
use std::ops::{Add, Div, Mul, Sub};

use super::{SQUARE, Simd, Vector};

/// AVX2, FMA, and the conversions of 16-bit floats (F16C) that no processor with AVX2 is without.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx2(());

impl Avx2 {
    /// The token, if this machine has them.
    pub fn detect() -> Option<Self> {
        let has =
            is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c");
        has.then_some(Self(()))
    }
}

/// AVX-512: F, VL, BW and DQ, which all processors with vectors of 512 bits but the first have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Avx512(Avx2);

impl Avx512 {
    /// The token, if this machine has them.
    pub fn detect() -> Option<Self> {
        let has = is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512dq");
        Avx2::detect().filter(|_| has).map(Self)
    }

    /// Who has AVX-512 has AVX2.
    pub fn narrower(self) -> Avx2 {
        self.0
    }

    /// Whether there are also dot products of bytes (VNNI), which integer inference can use.
    pub fn has_vnni(self) -> bool {
        is_x86_feature_detected!("avx512vnni")
    }

    /// Whether there are also dot products of pairs of 16-bit floats.
    pub fn has_bf16(self) -> bool {
        is_x86_feature_detected!("avx512bf16")
    }
}

/// Eight numbers in a register of AVX.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct Eight(__m256);

/// Sixteen numbers in a register of AVX-512.
#[derive(Debug, Clone, Copy)]
#[repr(transparent)]
pub struct Sixteen(__m512);

impl Simd for Avx2 {
    type Vector = Eight;
    const LANES: usize = 8;
    const REGISTERS: usize = 16;

    #[inline(always)]
    fn splat(self, number: f32) -> Eight {
        // SAFETY: the token.
        Eight(unsafe { _mm256_set1_ps(number) })
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Eight {
        // SAFETY: the token, and the caller's promise.
        Eight(unsafe { _mm256_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn load_some(self, from: *const f32, count: usize) -> Eight {
        // SAFETY: the token, and the caller's promise: lanes that the mask leaves out are not read.
        Eight(unsafe { _mm256_maskload_ps(from, first_lanes(count)) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, vector: Eight) {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm256_storeu_ps(to, vector.0) };
    }

    #[inline(always)]
    unsafe fn store_some(self, to: *mut f32, count: usize, vector: Eight) {
        // SAFETY: the token, and the caller's promise: lanes that the mask leaves out are not written.
        unsafe { _mm256_maskstore_ps(to, first_lanes(count), vector.0) };
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> Eight {
        // SAFETY: the token, and the caller's promise.
        Eight(unsafe { _mm256_cvtepi32_ps(_mm256_cvtepu8_epi32(_mm_loadl_epi64(from.cast()))) })
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, vector: Eight) {
        // SAFETY: the token, and the caller's promise.
        unsafe {
            let whole = _mm256_cvttps_epi32(vector.0);
            let words = _mm_packus_epi32(_mm256_castsi256_si128(whole), _mm256_extracti128_si256::<1>(whole));
            _mm_storel_epi64(to.cast(), _mm_packus_epi16(words, words));
        }
    }

    #[inline(always)]
    unsafe fn load_half(self, from: *const [u8; 2]) -> Eight {
        // SAFETY: the token, and the caller's promise.
        Eight(unsafe { _mm256_cvtph_ps(_mm_loadu_si128(from.cast())) })
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut [u8; 2], vector: Eight) {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm_storeu_si128(to.cast(), _mm256_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(vector.0)) };
    }

    #[inline(always)]
    unsafe fn transpose_square(
        self,
        from: *const f32,
        from_stride: usize,
        from_rows: usize,
        to: *mut f32,
        to_stride: usize,
        to_rows: usize,
    ) {
        // SAFETY: the token, and the caller's promise.
        unsafe { transpose_square(from, from_stride, from_rows, to, to_stride, to_rows) };
    }
}

/// A mask of the first `count` lanes.
///
/// # Safety
/// The machine has AVX2.
#[inline(always)]
unsafe fn first_lanes(count: usize) -> __m256i {
    static LANES: [i32; 16] = [-1, -1, -1, -1, -1, -1, -1, -1, 0, 0, 0, 0, 0, 0, 0, 0];
    // SAFETY: eight of sixteen numbers, from the first to the eighth.
    unsafe { _mm256_loadu_si256(LANES.as_ptr().add(8 - count.min(8)).cast()) }
}

/// Within halves of rows pairs of numbers, then fours; then the halves.
#[inline]
#[target_feature(enable = "avx2")]
unsafe fn transpose_square(
    from: *const f32,
    from_stride: usize,
    from_rows: usize,
    to: *mut f32,
    to_stride: usize,
    to_rows: usize,
) {
    // SAFETY: the caller's promise.
    let row = |row: usize| unsafe { _mm256_loadu_ps(from.add(row.min(from_rows - 1) * from_stride)) };
    let pairs = |a, b| [_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)];
    let fours = |a, b| [_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xee>(a, b)];
    let half = |first: usize| {
        let [a, b] = pairs(row(first), row(first + 1));
        let [c, d] = pairs(row(first + 2), row(first + 3));
        let [[e, f], [g, h]] = [fours(a, c), fours(b, d)];
        [e, f, g, h]
    };
    let (upper, lower) = (half(0), half(SQUARE / 2));
    for row in 0..SQUARE {
        let (upper, lower) = (upper[row % 4], lower[row % 4]);
        let values = if row < SQUARE / 2 {
            _mm256_permute2f128_ps::<0x20>(upper, lower)
        } else {
            _mm256_permute2f128_ps::<0x31>(upper, lower)
        };
        if row < to_rows {
            // SAFETY: the caller's promise.
            unsafe { _mm256_storeu_ps(to.add(row * to_stride), values) };
        }
    }
}

impl Simd for Avx512 {
    type Vector = Sixteen;
    const LANES: usize = 16;
    const REGISTERS: usize = 32;

    #[inline(always)]
    fn splat(self, number: f32) -> Sixteen {
        // SAFETY: the token.
        Sixteen(unsafe { _mm512_set1_ps(number) })
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Sixteen {
        // SAFETY: the token, and the caller's promise.
        Sixteen(unsafe { _mm512_loadu_ps(from) })
    }

    #[inline(always)]
    unsafe fn load_some(self, from: *const f32, count: usize) -> Sixteen {
        // SAFETY: the token, and the caller's promise: lanes that the mask leaves out are not read.
        Sixteen(unsafe { _mm512_maskz_loadu_ps(first_bits(count), from) })
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, vector: Sixteen) {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm512_storeu_ps(to, vector.0) };
    }

    #[inline(always)]
    unsafe fn store_some(self, to: *mut f32, count: usize, vector: Sixteen) {
        // SAFETY: the token, and the caller's promise: lanes that the mask leaves out are not written.
        unsafe { _mm512_mask_storeu_ps(to, first_bits(count), vector.0) };
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> Sixteen {
        // SAFETY: the token, and the caller's promise.
        Sixteen(unsafe { _mm512_cvtepi32_ps(_mm512_cvtepu8_epi32(_mm_loadu_si128(from.cast()))) })
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, vector: Sixteen) {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm_storeu_si128(to.cast(), _mm512_cvtepi32_epi8(_mm512_cvttps_epi32(vector.0))) };
    }

    #[inline(always)]
    unsafe fn load_half(self, from: *const [u8; 2]) -> Sixteen {
        // SAFETY: the token, and the caller's promise.
        Sixteen(unsafe { _mm512_cvtph_ps(_mm256_loadu_si256(from.cast())) })
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut [u8; 2], vector: Sixteen) {
        // SAFETY: the token, and the caller's promise.
        unsafe { _mm256_storeu_si256(to.cast(), _mm512_cvtps_ph::<_MM_FROUND_TO_NEAREST_INT>(vector.0)) };
    }

    #[inline(always)]
    unsafe fn transpose_square(
        self,
        from: *const f32,
        from_stride: usize,
        from_rows: usize,
        to: *mut f32,
        to_stride: usize,
        to_rows: usize,
    ) {
        // SAFETY: the caller's promise.
        unsafe { self.narrower().transpose_square(from, from_stride, from_rows, to, to_stride, to_rows) };
    }
}

/// As many ones, at most sixteen.
#[inline(always)]
fn first_bits(count: usize) -> __mmask16 {
    ((1u32 << count.min(16)) - 1) as __mmask16
}

macro_rules! arithmetic {
    ($vector:ident: $($trait:ident $method:ident $intrinsic:ident),+) => {$(
        impl $trait for $vector {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                // SAFETY: there are vectors, so there was a token.
                Self(unsafe { $intrinsic(self.0, other.0) })
            }
        }
    )+};
}
arithmetic!(Eight: Add add _mm256_add_ps, Sub sub _mm256_sub_ps, Mul mul _mm256_mul_ps, Div div _mm256_div_ps);
arithmetic!(Sixteen: Add add _mm512_add_ps, Sub sub _mm512_sub_ps, Mul mul _mm512_mul_ps, Div div _mm512_div_ps);

impl Vector for Eight {
    #[inline(always)]
    fn multiply_add(self, by: Self, to: Self) -> Self {
        // SAFETY: there are vectors, so there was a token.
        Self(unsafe { _mm256_fmadd_ps(self.0, by.0, to.0) })
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_sqrt_ps(self.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn where_greater(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_GT_OQ>(self.0, other.0)) })
    }

    #[inline(always)]
    fn where_equal(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm256_blendv_ps(no.0, yes.0, _mm256_cmp_ps::<_CMP_EQ_OQ>(self.0, other.0)) })
    }
}

impl Vector for Sixteen {
    #[inline(always)]
    fn multiply_add(self, by: Self, to: Self) -> Self {
        // SAFETY: there are vectors, so there was a token.
        Self(unsafe { _mm512_fmadd_ps(self.0, by.0, to.0) })
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_sqrt_ps(self.0) })
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_max_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_min_ps(self.0, other.0) })
    }

    #[inline(always)]
    fn where_greater(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_GT_OQ>(self.0, other.0), no.0, yes.0) })
    }

    #[inline(always)]
    fn where_equal(self, other: Self, yes: Self, no: Self) -> Self {
        // SAFETY: as above.
        Self(unsafe { _mm512_mask_blend_ps(_mm512_cmp_ps_mask::<_CMP_EQ_OQ>(self.0, other.0), no.0, yes.0) })
    }
}
