//! Dot products of bytes and of words: what inference in integers is made of, for each instruction set.
//!
//! A lane is a sum of 32 bits, to which products of four neighbouring bytes, or of two words of 16 bits, are added at once. The
//! bytes are one without a sign and one with: VNNI has no other. Integers do not round, so all sets find the same sums.
//!
//! | set | bytes | words |
//! | --- | --- | --- |
//! | AVX-512 VNNI, AVX-VNNI | one instruction (`vpdpbusd`) | one instruction (`vpdpwssd`) |
//! | AVX-512, AVX2 | even and odd bytes widened to words: the pairs that `vpmaddubsw` adds up in 16 bits would saturate | `vpmaddwd` and an addition |
//! | NEON with dot products | one instruction (`sdot`), whose bytes both have a sign | two multiplications and two additions |
//! | portable | one product after the other | the same |

use std::fmt::Debug;

use crate::Level;

#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

#[cfg(target_arch = "aarch64")]
pub use neon::NeonDots;
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx512Vnni, AvxVnni};

use crate::simd::Portable;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};

/// How sums become bytes, for the filters of the lanes: multiplied by a fixed-point number, moved, and cut off.
#[derive(Debug, Clone, Copy)]
pub struct Rescale<V> {
    /// Shift to the left, before.
    pub left: V,
    /// The factor: the high half of twice the product counts, rounded to the nearest, ties upwards.
    pub multiplier: V,
    /// Shift to the right, after.
    pub right: V,
    /// Half of what that divides by; zero if it divides by one.
    pub half: V,
    /// All ones where it divides by more than one: ties then go away from zero.
    pub ties: V,
    /// What is added.
    pub zero: V,
    /// The least that comes out.
    pub least: V,
    /// The most.
    pub most: V,
}

/// Proof that the machine has an instruction set, and what multiplies bytes with it.
///
/// All methods are inlined: they are of use only within functions that are compiled for the set, as those of
/// [`dots!`](crate::dots) are.
#[allow(unsafe_code)]
pub trait Dots: Copy + Debug + Send + Sync + 'static {
    /// A register of sums.
    type Sums: Copy + Debug;
    /// Four weights for each lane.
    type Weights: Copy;
    /// Four bytes, the same for all lanes.
    type Bytes: Copy;
    /// A register of numbers of 16 bits, two for each lane.
    type Words: Copy + Debug;

    /// Sums in a register.
    const LANES: usize;

    /// Rows of two registers of sums for which there are registers while bytes are multiplied.
    const ROWS: usize;

    /// The same while words are multiplied.
    const WORD_ROWS: usize;

    /// Whether half as many products of words take no more instructions than products of bytes do, or hardly more: then it
    /// pays to save multiplications of bytes by multiplying words instead.
    const FAST_WORDS: bool;

    /// What is taken from every byte before it is multiplied: 128 where the bytes must have a sign.
    const OFFSET: i32;

    /// Neighbouring numbers.
    ///
    /// # Safety
    /// [`Dots::LANES`] numbers can be read from there on.
    unsafe fn load(self, from: *const i32) -> Self::Sums;

    /// Neighbouring bytes.
    ///
    /// # Safety
    /// [`Dots::LANES`] bytes can be read from there on.
    unsafe fn load_bytes(self, from: *const u8) -> Self::Sums;

    /// Stores all lanes.
    ///
    /// # Safety
    /// [`Dots::LANES`] numbers can be written from there on.
    unsafe fn store(self, to: *mut i32, sums: Self::Sums);

    /// The same number in all lanes.
    fn splat(self, number: i32) -> Self::Sums;

    /// Four weights for each lane, one lane after the other.
    ///
    /// # Safety
    /// Four times [`Dots::LANES`] bytes can be read from there on.
    unsafe fn weights(self, from: *const i8) -> Self::Weights;

    /// Four neighbouring bytes, for all lanes.
    ///
    /// # Safety
    /// Four bytes can be read from there on.
    unsafe fn bytes(self, from: *const u8) -> Self::Bytes;

    /// Adds four products to each sum.
    fn dot(self, sums: Self::Sums, bytes: Self::Bytes, weights: Self::Weights) -> Self::Sums;

    /// Sums, modulo 2^32 as all that is computed here.
    fn add(self, a: Self::Sums, b: Self::Sums) -> Self::Sums;

    /// Differences.
    fn subtract(self, a: Self::Sums, b: Self::Sums) -> Self::Sums;

    /// Products, of which the lower half counts.
    fn times(self, a: Self::Sums, b: Self::Sums) -> Self::Sums;

    /// Shifts to the right, of numbers with a sign.
    fn shift_right(self, sums: Self::Sums, by: Self::Sums) -> Self::Sums;

    /// The larger sum of each lane.
    fn larger(self, a: Self::Sums, b: Self::Sums) -> Self::Sums;

    /// Makes numbers from 0 to 255 of sums.
    fn rescale(self, sums: Self::Sums, how: Rescale<Self::Sums>) -> Self::Sums;

    /// Stores the first `count` lanes, at most all, as bytes.
    ///
    /// # Safety
    /// `count` bytes can be written from there on. Each lane is from 0 to 255.
    unsafe fn store_bytes(self, to: *mut u8, count: usize, sums: Self::Sums);

    /// Neighbouring bytes as words.
    ///
    /// # Safety
    /// Twice [`Dots::LANES`] bytes can be read from there on.
    unsafe fn widen(self, from: *const u8) -> Self::Words;

    /// Neighbouring words.
    ///
    /// # Safety
    /// Twice [`Dots::LANES`] words can be read from there on.
    unsafe fn load_words(self, from: *const i16) -> Self::Words;

    /// Stores them.
    ///
    /// # Safety
    /// Twice [`Dots::LANES`] words can be written from there on.
    unsafe fn store_words(self, to: *mut i16, words: Self::Words);

    /// The same word everywhere.
    fn splat_words(self, number: i16) -> Self::Words;

    /// Sums of words, modulo 2^16.
    fn add_words(self, a: Self::Words, b: Self::Words) -> Self::Words;

    /// Differences.
    fn subtract_words(self, a: Self::Words, b: Self::Words) -> Self::Words;

    /// Two neighbouring words, for all lanes.
    ///
    /// # Safety
    /// Two words can be read from there on.
    unsafe fn pair(self, from: *const i16) -> Self::Words;

    /// Adds two products to each sum, modulo 2^32.
    fn dot_words(self, sums: Self::Sums, pair: Self::Words, weights: Self::Words) -> Self::Sums;
}

/// The instructions by which this machine multiplies bytes. Each variant holds a token that only detection gives out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DotLevel {
    /// What every machine of the architecture has.
    Portable(Portable),
    /// AVX2.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX2 with dot products of bytes.
    #[cfg(target_arch = "x86_64")]
    AvxVnni(AvxVnni),
    /// AVX-512.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// AVX-512 with dot products of bytes.
    #[cfg(target_arch = "x86_64")]
    Avx512Vnni(Avx512Vnni),
    /// NEON with dot products of bytes.
    #[cfg(target_arch = "aarch64")]
    NeonDots(NeonDots),
}

impl DotLevel {
    /// The levels of this machine, slowest first.
    pub fn available() -> Vec<Self> {
        let mut levels = vec![Self::Portable(Portable::new())];
        #[cfg(target_arch = "x86_64")]
        {
            levels.extend(Avx2::detect().map(Self::Avx2));
            levels.extend(AvxVnni::detect().map(Self::AvxVnni));
            levels.extend(Avx512::detect().map(Self::Avx512));
            levels.extend(Avx512Vnni::detect().map(Self::Avx512Vnni));
        }
        #[cfg(target_arch = "aarch64")]
        levels.extend(NeonDots::detect().map(Self::NeonDots));
        levels
    }

    /// The fastest that goes with a level of floats: dot products where the machine has them in this width.
    pub fn with(level: Level) -> Self {
        match level {
            Level::Portable(portable) => Self::Portable(portable),
            #[cfg(target_arch = "x86_64")]
            Level::Avx2(avx2) => AvxVnni::detect().map_or(Self::Avx2(avx2), Self::AvxVnni),
            #[cfg(target_arch = "x86_64")]
            Level::Avx512(avx512) => Avx512Vnni::detect().map_or(Self::Avx512(avx512), Self::Avx512Vnni),
            #[cfg(target_arch = "aarch64")]
            Level::Neon(_) => NeonDots::detect().map_or(Self::Portable(Portable::new()), Self::NeonDots),
        }
    }

    /// The name in records.
    pub fn name(self) -> &'static str {
        match self {
            Self::Portable(_) => "portable",
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => "avx2",
            #[cfg(target_arch = "x86_64")]
            Self::AvxVnni(_) => "avx-vnni",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => "avx512",
            #[cfg(target_arch = "x86_64")]
            Self::Avx512Vnni(_) => "avx512-vnni",
            #[cfg(target_arch = "aarch64")]
            Self::NeonDots(_) => "neon-dot",
        }
    }
}

/// Defines kernels of bytes, as [`kernels!`](crate::kernels) defines those of floats: functions that are compiled once for each
/// instruction set, and whose first argument says for which one they run.
#[macro_export]
macro_rules! dots {
    ($(
        $(#[$attribute:meta])*
        $visible:vis fn $name:ident<$set:ident>($simd:ident: $same:ident $(, $argument:ident: $type:ty)* $(,)?) $(-> $result:ty)? $body:block
    )+) => {$(
        $(#[$attribute])*
        #[allow(unsafe_code, clippy::too_many_arguments)]
        $visible fn $name(level: $crate::dots::DotLevel $(, $argument: $type)*) $(-> $result)? {
            #[allow(unused_imports)]
            use $crate::dots::Dots as _;

            #[inline(always)]
            fn body<$set: $crate::dots::Dots>($simd: $set $(, $argument: $type)*) $(-> $result)? $body

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2(simd: $crate::simd::Avx2 $(, $argument: $type)*) $(-> $result)? { body(simd $(, $argument)*) }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avxvnni")]
            fn avx2_vnni(simd: $crate::dots::AvxVnni $(, $argument: $type)*) $(-> $result)? { body(simd $(, $argument)*) }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq")]
            fn avx512(simd: $crate::simd::Avx512 $(, $argument: $type)*) $(-> $result)? { body(simd $(, $argument)*) }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512vl,avx512bw,avx512dq,avx512vnni")]
            fn avx512_vnni(simd: $crate::dots::Avx512Vnni $(, $argument: $type)*) $(-> $result)? { body(simd $(, $argument)*) }

            #[cfg(target_arch = "aarch64")]
            #[target_feature(enable = "neon,dotprod")]
            fn neon_dots(simd: $crate::dots::NeonDots $(, $argument: $type)*) $(-> $result)? { body(simd $(, $argument)*) }

            match level {
                $crate::dots::DotLevel::Portable(simd) => body(simd $(, $argument)*),
                // SAFETY: the token proves that the machine has the instructions.
                #[cfg(target_arch = "x86_64")]
                $crate::dots::DotLevel::Avx2(simd) => unsafe { avx2(simd $(, $argument)*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::dots::DotLevel::AvxVnni(simd) => unsafe { avx2_vnni(simd $(, $argument)*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::dots::DotLevel::Avx512(simd) => unsafe { avx512(simd $(, $argument)*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::dots::DotLevel::Avx512Vnni(simd) => unsafe { avx512_vnni(simd $(, $argument)*) },
                // SAFETY: as above.
                #[cfg(target_arch = "aarch64")]
                $crate::dots::DotLevel::NeonDots(simd) => unsafe { neon_dots(simd $(, $argument)*) },
            }
        }
    )+};
}
