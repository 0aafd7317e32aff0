//! What can be reduced: seven types of numbers, five operations.

use std::fmt;

use bytemuck::{Pod, Zeroable};
use half::{bf16, f16};

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

fn zip<T: Copy>(into: &mut [T], other: &[T], op: impl Fn(T, T) -> T) {
    for (a, &b) in into.iter_mut().zip(other) {
        *a = op(*a, b);
    }
}

macro_rules! float {
    ($type:ty, $name:ident) => {
        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;

            fn reduce(op: Op, into: &mut [Self], other: &[Self]) {
                match op {
                    Op::Sum | Op::Mean => zip(into, other, |a, b| a + b),
                    Op::Product => zip(into, other, |a, b| a * b),
                    Op::Max => zip(into, other, |a, b| if b.total_cmp(&a).is_gt() { b } else { a }),
                    Op::Min => zip(into, other, |a, b| if b.total_cmp(&a).is_lt() { b } else { a }),
                }
            }

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
    ($type:ty, $name:ident) => {
        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;

            fn reduce(op: Op, into: &mut [Self], other: &[Self]) {
                match op {
                    Op::Sum | Op::Mean => zip(into, other, |a, b| Self::from_f32(a.to_f32() + b.to_f32())),
                    Op::Product => zip(into, other, |a, b| Self::from_f32(a.to_f32() * b.to_f32())),
                    Op::Max => zip(into, other, |a, b| if b.total_cmp(&a).is_gt() { b } else { a }),
                    Op::Min => zip(into, other, |a, b| if b.total_cmp(&a).is_lt() { b } else { a }),
                }
            }

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
    ($type:ty, $name:ident) => {
        impl Element for $type {
            const TYPE: ElementType = ElementType::$name;

            fn reduce(op: Op, into: &mut [Self], other: &[Self]) {
                match op {
                    Op::Sum | Op::Mean => zip(into, other, <$type>::wrapping_add),
                    Op::Product => zip(into, other, <$type>::wrapping_mul),
                    Op::Max => zip(into, other, <$type as Ord>::max),
                    Op::Min => zip(into, other, <$type as Ord>::min),
                }
            }

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

float!(f32, F32);
float!(f64, F64);
half!(f16, F16);
half!(bf16, Bf16);
integer!(i32, I32);
integer!(i64, I64);
integer!(u8, U8);

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
