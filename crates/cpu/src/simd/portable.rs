//! Arrays of four numbers, for machines of which nothing more is known.

use std::ops::{Add, Div, Mul, Sub};

use super::{Simd, Vector};
use crate::half::{from_f16, round_to_f16};

/// What every machine has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Portable(());

impl Portable {
    pub(crate) fn new() -> Self {
        Self(())
    }
}

const LANES: usize = 4;

/// Four numbers.
#[derive(Debug, Clone, Copy)]
#[repr(C, align(16))]
pub struct Four([f32; LANES]);

#[allow(unsafe_code)]
impl Simd for Portable {
    type Vector = Four;
    const LANES: usize = LANES;
    const REGISTERS: usize = 16;

    #[inline(always)]
    fn splat(self, number: f32) -> Four {
        Four([number; LANES])
    }

    #[inline(always)]
    unsafe fn load(self, from: *const f32) -> Four {
        // SAFETY: the caller's promise.
        Four(unsafe { from.cast::<[f32; LANES]>().read_unaligned() })
    }

    #[inline(always)]
    unsafe fn load_some(self, from: *const f32, count: usize) -> Four {
        let mut numbers = [0.0; LANES];
        for (lane, number) in numbers.iter_mut().enumerate().take(count) {
            // SAFETY: the caller's promise.
            *number = unsafe { *from.add(lane) };
        }
        Four(numbers)
    }

    #[inline(always)]
    unsafe fn store(self, to: *mut f32, vector: Four) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[f32; LANES]>().write_unaligned(vector.0) };
    }

    #[inline(always)]
    unsafe fn store_some(self, to: *mut f32, count: usize, vector: Four) {
        for (lane, number) in vector.0.into_iter().enumerate().take(count) {
            // SAFETY: the caller's promise.
            unsafe { *to.add(lane) = number };
        }
    }

    #[inline(always)]
    unsafe fn load_bytes(self, from: *const u8) -> Four {
        // SAFETY: the caller's promise.
        Four(unsafe { from.cast::<[u8; LANES]>().read() }.map(f32::from))
    }

    #[inline(always)]
    unsafe fn store_bytes(self, to: *mut u8, vector: Four) {
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[u8; LANES]>().write(vector.0.map(|number| number as u8)) };
    }

    #[inline(always)]
    unsafe fn load_half(self, from: *const [u8; 2]) -> Four {
        // SAFETY: the caller's promise.
        let halves = unsafe { from.cast::<[[u8; 2]; LANES]>().read() };
        Four(halves.map(|half| from_f16(u16::from_le_bytes(half))))
    }

    #[inline(always)]
    unsafe fn store_half(self, to: *mut [u8; 2], vector: Four) {
        let halves = vector.0.map(|number| round_to_f16(number).to_le_bytes());
        // SAFETY: the caller's promise.
        unsafe { to.cast::<[[u8; 2]; LANES]>().write(halves) };
    }
}

impl Four {
    #[inline(always)]
    fn zip(self, other: Self, of: impl Fn(f32, f32) -> f32) -> Self {
        Self(std::array::from_fn(|lane| of(self.0[lane], other.0[lane])))
    }
}

macro_rules! operator {
    ($trait:ident $method:ident $sign:tt) => {
        impl $trait for Four {
            type Output = Self;

            #[inline(always)]
            fn $method(self, other: Self) -> Self {
                self.zip(other, |a, b| a $sign b)
            }
        }
    };
}
operator!(Add add +);
operator!(Sub sub -);
operator!(Mul mul *);
operator!(Div div /);

impl Vector for Four {
    #[inline(always)]
    fn multiply_add(self, by: Self, to: Self) -> Self {
        self * by + to
    }

    #[inline(always)]
    fn sqrt(self) -> Self {
        Self(self.0.map(f32::sqrt))
    }

    #[inline(always)]
    fn max(self, other: Self) -> Self {
        self.zip(other, |a, b| if a > b { a } else { b })
    }

    #[inline(always)]
    fn min(self, other: Self) -> Self {
        self.zip(other, |a, b| if a < b { a } else { b })
    }

    #[inline(always)]
    fn where_greater(self, other: Self, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|lane| if self.0[lane] > other.0[lane] { yes.0[lane] } else { no.0[lane] }))
    }

    #[inline(always)]
    fn where_equal(self, other: Self, yes: Self, no: Self) -> Self {
        Self(std::array::from_fn(|lane| if self.0[lane] == other.0[lane] { yes.0[lane] } else { no.0[lane] }))
    }
}
