//! The sum of two activations whose scales differ from each other's and from the sum's.

use ringstep_cpu::dots;
use ringstep_cpu::dots::{DotLevel, Dots, Rescale};

use super::FixedPoint;
use super::conv::SIGN;
use super::fixed::rescale;

/// A sum, number by number. Both are brought to a common scale first, and so many bits to the left that none is lost.
#[derive(Debug, Clone, Copy)]
pub struct IntegerSum {
    /// The integers, from -128 on, that stand for zero in the inputs.
    pub input_zeros: [i32; 2],
    /// What each is multiplied by.
    pub inputs: [FixedPoint; 2],
    /// Bits that both are shifted to the left by before.
    pub headroom: u32,
    /// What the sum is multiplied by.
    pub output: FixedPoint,
    /// The integer that stands for zero in the output.
    pub output_zero: i32,
    /// The least and the most that comes out.
    pub limits: [i32; 2],
}

impl IntegerSum {
    /// Of as many bytes as the slices have.
    pub fn forward(&self, level: DotLevel, left: &[u8], right: &[u8], output: &mut [u8]) {
        assert!(left.len() == output.len() && right.len() == output.len(), "sums of as many numbers");
        let done = add(level, self, left, right, output);
        for ((&left, &right), out) in left.iter().zip(right).zip(output).skip(done) {
            let scaled = |which: usize, byte: u8| {
                let number = i32::from(byte) - SIGN - self.input_zeros[which];
                self.inputs[which].times(number << self.headroom)
            };
            let sum = self.output.times(scaled(0, left) + scaled(1, right)) + self.output_zero;
            *out = (sum.clamp(self.limits[0], self.limits[1]) + SIGN) as u8;
        }
    }
}

dots! {
    /// Vectors of sums; says how many numbers are done.
    fn add<S>(simd: S, sum: &IntegerSum, left: &[u8], right: &[u8], output: &mut [u8]) -> usize {
        let vectors = output.len() / S::LANES;
        let scaled = [to_common_scale(simd, sum, 0), to_common_scale(simd, sum, 1)];
        let zeros = [simd.splat(SIGN + sum.input_zeros[0]), simd.splat(SIGN + sum.input_zeros[1])];
        let limits = [sum.limits[0] + SIGN, sum.limits[1] + SIGN];
        let to_output = splat(simd, rescale(sum.output, sum.output_zero + SIGN, limits));
        for at in (0..vectors * S::LANES).step_by(S::LANES) {
            // SAFETY: the slices are as long, and have so many vectors.
            unsafe {
                let [left, right] = [simd.load_bytes(left.as_ptr().add(at)), simd.load_bytes(right.as_ptr().add(at))];
                let left = simd.rescale(simd.subtract(left, zeros[0]), scaled[0]);
                let right = simd.rescale(simd.subtract(right, zeros[1]), scaled[1]);
                simd.store_bytes(output.as_mut_ptr().add(at), S::LANES, simd.rescale(simd.add(left, right), to_output));
            }
        }
        vectors * S::LANES
    }
}

/// What is done to an input, in all lanes.
#[inline(always)]
fn to_common_scale<S: Dots>(simd: S, sum: &IntegerSum, which: usize) -> Rescale<S::Sums> {
    let how = rescale(sum.inputs[which], 0, [i32::MIN, i32::MAX]);
    splat(simd, Rescale { left: how.left + sum.headroom as i32, ..how })
}

/// The same in all lanes.
#[inline(always)]
fn splat<S: Dots>(simd: S, how: Rescale<i32>) -> Rescale<S::Sums> {
    let Rescale { left, multiplier, right, half, ties, zero, least, most } = how;
    Rescale {
        left: simd.splat(left),
        multiplier: simd.splat(multiplier),
        right: simd.splat(right),
        half: simd.splat(half),
        ties: simd.splat(ties),
        zero: simd.splat(zero),
        least: simd.splat(least),
        most: simd.splat(most),
    }
}
