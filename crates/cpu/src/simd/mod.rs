//! Vectors of floats: the few operations that kernels are written in, for each instruction set.
//!
//! A kernel is generic over [`Simd`], a token of no size that proves that the machine has the instructions; its
//! [`kernels!`](crate::kernels) entry points are compiled once for each set. Every operation rounds alike in all sets but the
//! portable one, whose multiply-add rounds twice.

use std::fmt::Debug;
use std::ops::{Add, Div, Mul, Sub};

mod along;
#[cfg(target_arch = "aarch64")]
mod neon;
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

pub use along::{Rest, Whole, lanes};
#[cfg(target_arch = "aarch64")]
pub use neon::Neon;
pub use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub use x86::{Avx2, Avx512};

/// Rows and columns of the squares that are transposed in registers.
pub const SQUARE: usize = 8;

/// Proof that the machine has an instruction set, and what makes vectors of its width.
///
/// All methods are inlined: they are of use only within functions that are compiled for the set, as those of
/// [`kernels!`](crate::kernels) are.
#[allow(unsafe_code)]
pub trait Simd: Copy + Debug + Send + Sync + 'static {
    /// A register of numbers.
    type Vector: Vector;

    /// Numbers in a vector.
    const LANES: usize;

    /// Vectors that it has registers for.
    const REGISTERS: usize;

    /// The same number in all lanes.
    fn splat(self, number: f32) -> Self::Vector;

    /// Neighbouring numbers.
    ///
    /// # Safety
    /// [`Simd::LANES`] numbers can be read from there on.
    unsafe fn load(self, from: *const f32) -> Self::Vector;

    /// The first `count` lanes, at most all; the others are zero.
    ///
    /// # Safety
    /// `count` numbers can be read from there on.
    unsafe fn load_some(self, from: *const f32, count: usize) -> Self::Vector;

    /// Stores all lanes.
    ///
    /// # Safety
    /// [`Simd::LANES`] numbers can be written from there on.
    unsafe fn store(self, to: *mut f32, vector: Self::Vector);

    /// Stores the first `count` lanes, at most all.
    ///
    /// # Safety
    /// `count` numbers can be written from there on.
    unsafe fn store_some(self, to: *mut f32, count: usize, vector: Self::Vector);

    /// `to[row][column] = from[column][row]` for the first `to_rows` rows of a square of [`SQUARE`] numbers a side, of which
    /// rows beyond the first `from_rows` are not read; what stands for them is arbitrary.
    ///
    /// # Safety
    /// Rows of [`SQUARE`] numbers that are read and written are there, strides apart.
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
        for row in 0..to_rows {
            for column in 0..SQUARE {
                // SAFETY: the caller's promise.
                unsafe { *to.add(row * to_stride + column) = *from.add(column.min(from_rows - 1) * from_stride + row) };
            }
        }
    }

    /// Small whole numbers that stand as bytes.
    ///
    /// # Safety
    /// [`Simd::LANES`] bytes can be read from there on.
    unsafe fn load_bytes(self, from: *const u8) -> Self::Vector;

    /// Stores whole numbers from 0 to 255 as bytes.
    ///
    /// # Safety
    /// [`Simd::LANES`] bytes can be written from there on.
    unsafe fn store_bytes(self, to: *mut u8, vector: Self::Vector);

    /// Numbers that stand as floats of 16 bits (IEEE's binary16), lower byte first.
    ///
    /// # Safety
    /// [`Simd::LANES`] pairs of bytes can be read from there on.
    unsafe fn load_half(self, from: *const [u8; 2]) -> Self::Vector;

    /// Stores numbers as floats of 16 bits, rounded to the nearest.
    ///
    /// # Safety
    /// [`Simd::LANES`] pairs of bytes can be written from there on.
    unsafe fn store_half(self, to: *mut [u8; 2], vector: Self::Vector);

    /// No numbers but zero.
    #[inline(always)]
    fn zero(self) -> Self::Vector {
        self.splat(0.0)
    }
}

/// Numbers that are handled at once.
pub trait Vector:
    Copy + Debug + Send + Sync + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self>
{
    /// `self * by + to`, rounded once where the set has such an instruction.
    fn multiply_add(self, by: Self, to: Self) -> Self;

    /// The square root.
    fn sqrt(self) -> Self;

    /// The larger number of each lane, `other`'s where one of them is not a number.
    fn max(self, other: Self) -> Self;

    /// The smaller number of each lane, `other`'s where one of them is not a number.
    fn min(self, other: Self) -> Self;

    /// `yes` in the lanes in which `self > other`, and `no` elsewhere, also where one of them is not a number.
    fn where_greater(self, other: Self, yes: Self, no: Self) -> Self;

    /// `yes` in the lanes in which `self == other`, and `no` elsewhere, also where one of them is not a number.
    fn where_equal(self, other: Self, yes: Self, no: Self) -> Self;
}

/// Asks the memory for the line of the cache that an address is in; it will be wanted soon.
#[inline(always)]
#[allow(unsafe_code)]
pub fn prefetch(address: *const f32) {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: a hint, which changes nothing but the cache whatever the address; every x86-64 has the instruction.
    unsafe {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        _mm_prefetch::<_MM_HINT_T0>(address.cast());
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = address;
}

#[cfg(test)]
mod tests;
