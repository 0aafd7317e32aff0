//! One source, compiled for several instruction sets; the machine chooses when the program runs.
//!
//! The inner loops are plain Rust over slices and arrays of fixed size, which the compiler turns into vector
//! instructions, for whatever set a function is compiled for. So there is nothing to write twice, and what runs on a
//! machine that nobody here has is the code that was tested on another.

use std::sync::OnceLock;

/// An instruction set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// What every machine of the architecture has: SSE2 on x86-64, NEON on aarch64.
    Portable,
    /// Eight numbers at once, multiplied and added in one instruction.
    Avx2,
    /// Sixteen.
    Avx512,
}

impl Level {
    /// The best that this machine has.
    pub fn of_this_machine() -> Self {
        static LEVEL: OnceLock<Level> = OnceLock::new();
        *LEVEL.get_or_init(|| {
            // Also where there is AVX-512: what the compiler makes of the kernels for it is twenty times slower.
            #[cfg(target_arch = "x86_64")]
            if is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") {
                return Self::Avx2;
            }
            Self::Portable
        })
    }

    /// How it is called in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable => "portable",
            Self::Avx2 => "AVX2+FMA",
            Self::Avx512 => "AVX-512",
        }
    }
}

/// `a * b + c`, in one instruction where there is one; elsewhere it would be a call of the mathematical library.
#[inline(always)]
pub fn multiply_add<const FUSED: bool>(a: f32, b: f32, c: f32) -> f32 {
    if FUSED { a.mul_add(b, c) } else { a * b + c }
}

/// Asks the memory for the line of the cache that something begins in; it will be wanted soon.
#[inline(always)]
#[allow(unsafe_code)]
pub fn prefetch<T>(something: &T) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which changes nothing but the cache; every x86-64 has the instruction.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(something).cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = something;
}

/// Whether the portable code has a fused multiply-add.
pub const PORTABLE_FUSED: bool = cfg!(target_arch = "aarch64");

/// Defines functions that are compiled once for each instruction set. In the body, `FUSED` says whether
/// [`multiply_add`] is one instruction.
macro_rules! vectorised {
    ($($(#[$attribute:meta])* $visible:vis fn $name:ident($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? $body:block)+) => {$(
        $(#[$attribute])*
        #[allow(clippy::too_many_arguments, unsafe_code)]
        $visible fn $name($($argument: $type),*) $(-> $result)? {
            #[inline(always)]
            fn body<const FUSED: bool>($($argument: $type),*) $(-> $result)? $body
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma")]
            fn avx2($($argument: $type),*) $(-> $result)? { body::<true>($($argument),*) }
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,avx512f,avx512vl")]
            fn avx512($($argument: $type),*) $(-> $result)? { body::<true>($($argument),*) }

            match $crate::kernels::simd::Level::of_this_machine() {
                // SAFETY: the machine has these instructions.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::simd::Level::Avx512 => unsafe { avx512($($argument),*) },
                // SAFETY: the machine has these instructions.
                #[cfg(target_arch = "x86_64")]
                $crate::kernels::simd::Level::Avx2 => unsafe { avx2($($argument),*) },
                _ => body::<{ $crate::kernels::simd::PORTABLE_FUSED }>($($argument),*),
            }
        }
    )+};
}
pub(crate) use vectorised;
