//! Sums over rows and additions to rows: biases and their gradients.

use super::simd::vectorised;

/// Rows that are added up side by side; short ones fill no vector by themselves.
const BESIDE: usize = 8;
/// The longest row that is short.
const SHORT: usize = 16;

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
        let columns = sum.len();
        let mut rest = matrix;
        if columns <= SHORT {
            let mut beside = [0.0; BESIDE * SHORT];
            let beside = &mut beside[..BESIDE * columns];
            let rows = matrix.chunks_exact(beside.len());
            rest = rows.remainder();
            for rows in rows {
                for (sum, value) in beside.iter_mut().zip(rows) {
                    *sum += value;
                }
            }
            add_rows(sum, beside);
        }
        add_rows(sum, rest);
    }
}

#[inline(always)]
fn add_rows(sum: &mut [f32], matrix: &[f32]) {
    for row in matrix.chunks_exact(sum.len()) {
        for (sum, value) in sum.iter_mut().zip(row) {
            *sum += value;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_agree_with_the_definition() {
        for (rows, columns) in [(0, 3), (1, 1), (7, 6), (8, 6), (100, 16), (30, 17), (9, 40)] {
            // Small integers: every order of adding them is exact.
            let matrix: Vec<f32> = (0..rows * columns).map(|at| (at * 7 % 11) as f32 - 5.0).collect();
            let mut sums = vec![f32::NAN; columns];
            sum_rows(&matrix, &mut sums);
            for (column, &sum) in sums.iter().enumerate() {
                assert_eq!(sum, (0..rows).map(|row| matrix[row * columns + column]).sum::<f32>());
            }
        }
    }
}
