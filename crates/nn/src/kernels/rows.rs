//! Sums over rows and additions to rows: biases and their gradients.

use super::simd::vectorised;

vectorised! {
    /// Adds `row` to each row of a matrix.
    pub fn add_to_rows(matrix: &mut [f32], row: &[f32]) {
        for values in matrix.chunks_exact_mut(row.len()) {
            for (value, add) in values.iter_mut().zip(row) {
                *value += add;
            }
        }
    }

    /// Adds up the rows of a matrix.
    pub fn sum_rows(matrix: &[f32], sum: &mut [f32]) {
        sum.fill(0.0);
        for row in matrix.chunks_exact(sum.len()) {
            for (sum, value) in sum.iter_mut().zip(row) {
                *sum += value;
            }
        }
    }
}
