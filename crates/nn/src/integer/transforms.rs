//! The matrices of Winograd's `F(4 x 4, 3 x 3)` in integers.
//!
//! They are those of [`crate::layers::conv2d::transforms`], of which only G has fractions. 24 G has none, but its last row would
//! make more than 16 bits of a filter: so that row is halved, and A^T doubles what becomes of it. Down and across this makes
//! [`SCALE`] times the convolution.
//!
//! B^T takes up to ten times the largest of its numbers, 24 G twelve times: of bytes they make less than 25,501 and 18,433.

use std::ops::{Add, Sub};

use crate::layers::conv2d::transforms::{OUT, TAPS, WINDOW};

/// What comes out, over what should.
pub const SCALE: i32 = 24 * 24;

/// What is added and subtracted, modulo a power of two or not: a number, or many at once.
pub trait Ring: Copy + Add<Output = Self> + Sub<Output = Self> {}

impl<T: Copy + Add<Output = T> + Sub<Output = T>> Ring for T {}

#[inline(always)]
fn twice<T: Ring>(number: T) -> T {
    number + number
}

#[inline(always)]
fn four_times<T: Ring>(number: T) -> T {
    twice(twice(number))
}

/// `B^T d`
#[inline(always)]
pub fn b_transposed<T: Ring>([d0, d1, d2, d3, d4, d5]: [T; WINDOW]) -> [T; WINDOW] {
    let (even, odd) = (d4 - four_times(d2), d3 - four_times(d1));
    let (even2, odd2) = (d4 - d2, twice(d3 - d1));
    [four_times(d0 - d2) + even2, even + odd, even - odd, even2 + odd2, even2 - odd2, four_times(d1 - d3) + (d5 - d3)]
}

/// `24 G g`, the last row halved.
pub fn g([g0, g1, g2]: [i32; TAPS]) -> [i32; WINDOW] {
    let (even, odd) = (g0 + 4 * g2, 2 * g1);
    [6 * g0, -4 * (g0 + g1 + g2), -4 * (g0 - g1 + g2), even + odd, even - odd, 12 * g2]
}

/// `A^T m`, the last column doubled.
#[inline(always)]
pub fn a_transposed<T: Ring>([m0, m1, m2, m3, m4, m5]: [T; WINDOW]) -> [T; OUT] {
    let (sum, difference) = (m1 + m2, m1 - m2);
    let (sum2, difference2) = (m3 + m4, twice(m3 - m4));
    [
        m0 + sum + sum2,
        difference + difference2,
        sum + four_times(sum2),
        difference + four_times(difference2) + twice(m5),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn minimal_filtering_is_twenty_four_times_the_convolution() {
        for seed in 0..100 {
            let number = |at: i32| (seed * 7919 + at * 104_729) % 256 - 128;
            let (d, weights): ([i32; WINDOW], [i32; TAPS]) =
                (std::array::from_fn(|at| number(at as i32)), std::array::from_fn(|at| number(at as i32 + 6)));
            let (window, filter) = (b_transposed(d), g(weights));
            let made = a_transposed(std::array::from_fn(|at| window[at] * filter[at]));
            for (at, made) in made.into_iter().enumerate() {
                let expected: i32 = (0..TAPS).map(|tap| d[at + tap] * weights[tap]).sum();
                assert_eq!(made, 24 * expected);
            }
        }
    }

    /// The largest numbers that rows make of bytes fit in 16 bits.
    #[test]
    fn transformed_bytes_are_words() {
        let unit = |at: usize| std::array::from_fn(|other| i32::from(at == other));
        let gain = |columns: &[[i32; WINDOW]]| -> i32 {
            let of_row = |row: usize| columns.iter().map(|column: &[i32; WINDOW]| column[row].abs()).sum();
            (0..WINDOW).map(of_row).max().unwrap()
        };
        let windows: Vec<[i32; WINDOW]> = (0..WINDOW).map(|at| b_transposed(unit(at))).collect();
        let filters: Vec<[i32; WINDOW]> =
            (0..TAPS).map(|at| g(std::array::from_fn(|other| i32::from(at == other)))).collect();
        assert_eq!([gain(&windows), gain(&filters)], [10, 12]);
        assert!(10 * 10 * 255 <= i32::from(i16::MAX) && 12 * 12 * 128 <= i32::from(i16::MAX));
    }
}
