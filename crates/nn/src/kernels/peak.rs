//! How fast this machine can multiply and add at best.

use std::time::Instant;

use super::matmul::{Matrix, MatrixMut, Mode, Panels, panel_width, product};
use crate::team::{Shares, Team};

/// A product that stays within the first-level cache, and whose tiles stay long in registers.
const ROWS: usize = 24;
const INNER: usize = 128;
/// About a millisecond.
const ROUNDS: usize = 500;

/// Multiplications and additions a second of all threads together, where memory does not matter; the best of many tries.
pub fn measure(team: &mut Team) -> f64 {
    let (threads, width) = (team.threads(), panel_width());
    let [left, right, out] = [ROWS * INNER, INNER * width, ROWS * width];
    let share = left + right + out;
    let mut numbers = vec![0.5; threads * share];
    let try_once = |_| {
        let started = Instant::now();
        team.deal(threads, Shares::new(&mut numbers, share), |_, share| {
            let (left, rest) = share.split_at_mut(left);
            let (right, out) = rest.split_at_mut(right);
            for _ in 0..ROUNDS {
                let out = MatrixMut::new(out, ROWS, width);
                product(out, Mode::Set, Matrix::new(left, ROWS, INNER), Panels::new(right, INNER, width));
            }
        });
        (threads * ROUNDS * ROWS * INNER * width * 2) as f64 / started.elapsed().as_secs_f64()
    };
    (0..50).map(try_once).fold(0.0, f64::max)
}
