//! What can be reduced: seven types of numbers, five operations.

use std::fmt;

use bytemuck::{Pod, Zeroable, must_cast_slice, must_cast_slice_mut};
use half::{bf16, f16};
use ringstep_cpu::half::{sum_bf16s, sum_f16s};
use ringstep_cpu::{Level, kernels};

/// How two numbers become one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Op {
    /// Their sum. Integers wrap around.
    Sum,
    /// The sum over all ranks, divided by their number. Integers round towards zero.
    Mean,
    /// The larger one. Floats follow IEEE's total order, so that -0 < +0 and NaN is the largest of all.
    Max,
    /// The smaller one, in the same order.
    Min,
    /// Their product. Integers wrap around.
    Product,
}

impl Op {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Sum, Self::Mean, Self::Max, Self::Min, Self::Product];

    /// The name on the command line and in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Sum => "sum",
            Self::Mean => "mean",
            Self::Max => "max",
            Self::Min => "min",
            Self::Product => "product",
        }
    }
}

/// The types of [`Element`]s, for messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
#[allow(missing_docs)]
pub enum ElementType {
    F32,
    F64,
    F16,
    Bf16,
    I32,
    I64,
    U8,
}

impl ElementType {
    /// Rust's name for it.
    pub fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F64 => "f64",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::I32 => "i32",
            Self::I64 => "i64",
            Self::U8 => "u8",
        }
    }

    /// The bytes of a number.
    #[cfg(feature = "mpi")]
    pub(crate) fn size(self) -> usize {
        match self {
            Self::F32 | Self::I32 => 4,
            Self::F64 | Self::I64 => 8,
            Self::F16 | Self::Bf16 => 2,
            Self::U8 => 1,
        }
    }
}

/// A number that ranks can exchange and reduce.
pub trait Element: Pod + Zeroable + PartialEq + fmt::Debug + fmt::Display + Send + Sync {
    /// Which one it is.
    const TYPE: ElementType;

    /// `into[i] = into[i] op other[i]`. All operations are commutative to the bit.
    fn reduce(op: Op, into: &mut [Self], other: &[Self]);

    /// Divides by the number of ranks.
    fn divide(values: &mut [Self], ranks: usize);

    /// The nearest value to a small number; for examples and tests.
    fn from_f64(value: f64) -> Self;
}

#[inline(always)]
fn zip<T: Copy>(into: &mut [T], other: &[T], op: impl Fn(T, T) -> T) {
    for (a, &b) in into.iter_mut().zip(other) {
        *a = op(*a, b);
    }
}

/// One more way to compile a loop: for each instruction level. The compiler vectorises it, since all elements are independent.
macro_rules! compiled_for_each_level {
    ($module:ident, $type:ty, $($name:ident: $op:expr),+) => {
        mod $module {
            #[allow(unused_imports)]
            use super::*;

            kernels! {$(
                pub(super) fn $name<S>(_simd: S, into: &mut [$type], other: &[$type]) {
                    zip(into, other, $op);
                }
            )+}
        }
    };
}

/// `into[i] = into[i] op other[i]`, with the widest instructions that the machine has: they all round alike.
macro_rules! reduce {
    ($module:ident, $sum:path, $product:expr) => {
        fn reduce(op: Op, into: &mut [Self], other: &[Self]) {
            let level = Level::best();
            match op {
                Op::Sum | Op::Mean => $sum(level, into, other),
                Op::Product => $product(level, into, other),
                Op::Max => $module::max(level, into, other),
                Op::Min => $module::min(level, into, other),
            }
        }
    };
}

macro_rules! float {
    ($type:ty, $name:ident, $module:ident) => {
        compiled_for_each_level!($module, $type,
            sum: |a, b| a + b,
            product: |a, b| a * b,
            max: |a, b| if b.total_cmp(&a).is_gt() { b } else { a },
            min: |a, b| if b.total_cmp(&a).is_lt() { b } else { a });

        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;

            reduce!($module, $module::sum, $module::product);

            fn divide(values: &mut [Self], ranks: usize) {
                for value in values {
                    *value /= ranks as $type;
                }
            }

            fn from_f64(value: f64) -> Self {
                value as $type
            }
        }
    };
}

/// 16-bit floats are computed with in f32 and rounded after each operation.
macro_rules! half {
    ($type:ty, $name:ident, $module:ident, $sum:ident by $kernel:path) => {
        fn $sum(level: Level, into: &mut [$type], other: &[$type]) {
            $kernel(level, must_cast_slice_mut(into), must_cast_slice(other));
        }

        compiled_for_each_level!($module, $type,
            max: |a, b| if b.total_cmp(&a).is_gt() { b } else { a },
            min: |a, b| if b.total_cmp(&a).is_lt() { b } else { a });

        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;

            // Nobody multiplies many of them: not worth instructions of their own.
            reduce!($module, $sum, |_, into: &mut [$type], other: &[$type]| {
                zip(into, other, |a, b| Self::from_f32(a.to_f32() * b.to_f32()));
            });

            fn divide(values: &mut [Self], ranks: usize) {
                for value in values {
                    *value = Self::from_f32(value.to_f32() / ranks as f32);
                }
            }

            fn from_f64(value: f64) -> Self {
                Self::from_f64(value)
            }
        }
    };
}

macro_rules! integer {
    ($type:ty, $name:ident, $module:ident) => {
        compiled_for_each_level!($module, $type,
            sum: <$type>::wrapping_add,
            product: <$type>::wrapping_mul,
            max: <$type as Ord>::max,
            min: <$type as Ord>::min);

        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;

            reduce!($module, $module::sum, $module::product);

            fn divide(values: &mut [Self], ranks: usize) {
                for value in values {
                    *value = (i128::from(*value) / ranks as i128) as $type;
                }
            }

            fn from_f64(value: f64) -> Self {
                value as $type
            }
        }
    };
}

float!(f32, F32, of_f32);
float!(f64, F64, of_f64);
half!(f16, F16, of_f16, sum_f16 by sum_f16s);
half!(bf16, Bf16, of_bf16, sum_bf16 by sum_bf16s);
integer!(i32, I32, of_i32);
integer!(i64, I64, of_i64);
integer!(u8, U8, of_u8);

#[cfg(test)]
mod tests {
    use super::*;

    /// Whatever the operands, even zeros of both signs and NaN: the order of two must not change a bit, or ranks that
    /// reduce with each other would drift apart.
    #[test]
    fn operations_are_commutative_to_the_bit() {
        let values = [0.0f32, -0.0, 1.5, -1.5, f32::INFINITY, f32::NEG_INFINITY, f32::NAN, 1e-42];
        for op in Op::ALL {
            for a in values {
                for b in values {
                    let of = |a: f32, b: f32| {
                        let mut into = [a];
                        f32::reduce(op, &mut into, &[b]);
                        into[0]
                    };
                    let (one, other) = (of(a, b), of(b, a));
                    let same = one.to_bits() == other.to_bits() || (one.is_nan() && other.is_nan());
                    assert!(same, "{a} {op:?} {b}: {one} and {other}");
                }
            }
        }
    }

    /// What every level computes is what the portable one does, to the bit, whatever the length.
    #[test]
    fn every_level_reduces_alike() {
        for length in [0, 1, 7, 16, 33, 100] {
            let (a, b): (Vec<f32>, Vec<f32>) =
                (0..length).map(|at| ((at as f32).sin() * 1e3, (at as f32 * 0.7).cos() / 3.0)).unzip();
            for kernel in [of_f32::sum, of_f32::product, of_f32::max, of_f32::min] {
                let of = |level: Level| {
                    let mut into = a.clone();
                    kernel(level, &mut into, &b);
                    into.iter().map(|number| number.to_bits()).collect::<Vec<_>>()
                };
                let levels = Level::available();
                assert!(levels.iter().all(|&level| of(level) == of(levels[0])), "{length}");
            }
        }
    }

    #[test]
    fn integers_wrap_and_divide_towards_zero() {
        let mut bytes = [250u8];
        u8::reduce(Op::Sum, &mut bytes, &[10]);
        assert_eq!(bytes, [4]);
        let mut numbers = [-7i32, 7];
        i32::divide(&mut numbers, 2);
        assert_eq!(numbers, [-3, 3]);
    }

    #[test]
    fn halves_are_added_in_f32() {
        let mut sum = [f16::from_f32(2048.0)];
        f16::reduce(Op::Sum, &mut sum, &[f16::from_f32(3.0)]);
        assert_eq!(sum[0].to_f32(), 2052.0); // 2051 rounded to even: steps are 2 here
    }
}
