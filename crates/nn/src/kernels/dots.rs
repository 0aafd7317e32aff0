//! Products of a few rows with a few others, all of them read along, where they lie: nothing is packed.
//!
//! The lanes of a register run along the rows, so a sum is there in [`LANES`] parts until [`totals`] adds them up. A
//! tile's sums fill 12 of 16 registers, and seven loads serve twelve multiplications: as good as a product of packed
//! matrices, for an operand that is used so seldom that packing it would cost more than it saves.

use super::simd::{multiply_add, prefetch, vectorised};

/// Rows of the left operand of a tile.
pub const LEFT: usize = 3;
/// Rows of the right operand of a tile.
pub const RIGHT: usize = 4;
const LANES: usize = 8;
/// Numbers in the sums of a tile. // RIGHT,LEFT,LANES
pub const SUMS: usize = LEFT * RIGHT * LANES;

/// Adds the products of a chunk of each left row with one of a right row. Written out, and a right row at a time: so the
/// compiler keeps three chunks of the left, one of the right and all sums in 16 registers.
#[inline(always)]
fn add_to_column<const FUSED: bool>(
    sums: &mut [[f32; LANES]; LEFT],
    left: [&[f32; LANES]; LEFT],
    right: &[f32; LANES],
) {
    add_to_lanes::<FUSED>(&mut sums[0], left[0], right);
    add_to_lanes::<FUSED>(&mut sums[1], left[1], right);
    add_to_lanes::<FUSED>(&mut sums[2], left[2], right);
}

#[inline(always)]
fn add_to_lanes<const FUSED: bool>(sums: &mut [f32; LANES], left: &[f32; LANES], right: &[f32; LANES]) {
    for lane in 0..LANES {
        sums[lane] = multiply_add::<FUSED>(left[lane], right[lane], sums[lane]);
    }
}

vectorised! {
    /// Adds the products of each row of `left` with each row of `right` to the sums. Meanwhile the memory is asked
    /// for `next`, a row that will be wanted soon. All rows are equally long.
    pub fn add_dots(sums: &mut [f32; SUMS], left: [&[f32]; LEFT], right: [&[f32]; RIGHT], next: &[f32]) {
        // A copy of its own, so that it stays in registers.
        let mut tile = [[[0.0; LANES]; LEFT]; RIGHT];
        for (tile, sums) in tile.as_flattened_mut().iter_mut().zip(sums.as_chunks::<LANES>().0) {
            *tile = *sums;
        }
        let (left_chunks, right_chunks) = (left.map(|row| row.as_chunks().0), right.map(|row| row.as_chunks().0));
        let lefts = left_chunks[0].iter().zip(left_chunks[1]).zip(left_chunks[2]);
        let rights = right_chunks[0].iter().zip(right_chunks[1]).zip(right_chunks[2]).zip(right_chunks[3]);
        let rows = lefts.zip(rights).zip(next.as_chunks::<LANES>().0);
        for ((((left0, left1), left2), (((right0, right1), right2), right3)), next) in rows {
            prefetch(next);
            let left = [left0, left1, left2];
            add_to_column::<FUSED>(&mut tile[0], left, right0);
            add_to_column::<FUSED>(&mut tile[1], left, right1);
            add_to_column::<FUSED>(&mut tile[2], left, right2);
            add_to_column::<FUSED>(&mut tile[3], left, right3);
        }
        for (sums, tile) in sums.as_chunks_mut::<LANES>().0.iter_mut().zip(tile.as_flattened()) {
            *sums = *tile;
        }
        let length = left[0].len();
        for at in length / LANES * LANES..length {
            for (pair, sums) in sums.as_chunks_mut::<LANES>().0.iter_mut().enumerate() {
                let sum = &mut sums[at % LANES];
                *sum = multiply_add::<FUSED>(left[pair % LEFT][at], right[pair / LEFT][at], *sum);
            }
        }
    }

    /// What the sums amount to. // RIGHT,LEFT
    pub fn totals(sums: &[f32; SUMS]) -> [[f32; LEFT]; RIGHT] {
        let mut totals = [[0.0; LEFT]; RIGHT];
        for (total, lanes) in totals.as_flattened_mut().iter_mut().zip(sums.as_chunks::<LANES>().0) {
            let four: [f32; 4] = std::array::from_fn(|lane| lanes[lane] + lanes[lane + 4]);
            *total = (four[0] + four[2]) + (four[1] + four[3]);
        }
        totals
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tiles_agree_with_the_definition() {
        for length in [0, 1, 7, 8, 9, 40, 67] {
            // Small integers: every order of adding them is exact.
            let row = |seed: usize| -> Vec<f32> { (0..length).map(|i| ((i + seed) * 7 % 11) as f32 - 5.0).collect() };
            let (left, right): ([_; LEFT], [_; RIGHT]) =
                (std::array::from_fn(row), std::array::from_fn(|index| row(index + 20)));
            let mut sums = [0.0; SUMS];
            for times in 1..=2 {
                add_dots(&mut sums, left.each_ref().map(Vec::as_slice), right.each_ref().map(Vec::as_slice), &left[0]);
                for (totals, right) in totals(&sums).iter().zip(&right) {
                    for (&total, left) in totals.iter().zip(&left) {
                        let dot: f32 = left.iter().zip(right).map(|(left, right)| left * right).sum();
                        assert_eq!(total, times as f32 * dot, "{length}");
                    }
                }
            }
        }
    }
}
