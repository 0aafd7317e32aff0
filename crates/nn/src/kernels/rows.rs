//! Sums over rows and additions to rows: biases, their gradients, and other sums of slices.

use ringstep_cpu::{Simd, along, kernels};

/// Rows that are added up side by side; short ones fill no vector by themselves.
const BESIDE: usize = 8;
/// The longest row that is short.
const SHORT: usize = 16;

kernels! {
    /// Adds `row` to each row of a matrix.
    pub fn add_to_rows<S>(simd: S, matrix: &mut [f32], row: &[f32]) {
        for values in matrix.chunks_exact_mut(row.len()) {
            add_slices(simd, values, row);
        }
    }

    /// Adds up the rows of a matrix.
    pub fn sum_rows<S>(simd: S, matrix: &[f32], sum: &mut [f32]) {
        sum.fill(0.0);
        let columns = sum.len();
        let mut rest = matrix;
        if columns <= SHORT {
            let mut beside = [0.0; BESIDE * SHORT];
            let beside = &mut beside[..BESIDE * columns];
            let rows = matrix.chunks_exact(beside.len());
            rest = rows.remainder();
            for rows in rows {
                add_slices(simd, beside, rows);
            }
            for row in beside.chunks_exact(columns) {
                add_slices(simd, sum, row);
            }
        }
        for row in rest.chunks_exact(columns) {
            add_slices(simd, sum, row);
        }
    }

    /// Adds a slice to another.
    pub fn add_slice<S>(simd: S, sum: &mut [f32], other: &[f32]) {
        add_slices(simd, sum, other);
    }

    /// The sum of squares, in sixteen partial sums of doubles' precision that are added in one order on every machine.
    pub fn sum_of_squares<S>(_simd: S, numbers: &[f32]) -> f64 {
        const PARTS: usize = 16;
        let mut parts = [0.0f64; PARTS];
        let (chunks, rest) = numbers.as_chunks::<PARTS>();
        for chunk in chunks {
            for (part, &number) in parts.iter_mut().zip(chunk) {
                *part += f64::from(number) * f64::from(number);
            }
        }
        for (part, &number) in parts.iter_mut().zip(rest) {
            *part += f64::from(number) * f64::from(number);
        }
        parts.iter().sum()
    }
}

#[inline(always)]
fn add_slices<S: Simd>(simd: S, sum: &mut [f32], other: &[f32]) {
    assert_eq!(sum.len(), other.len());
    along!(simd, sum.len(), |at| {
        let added = at.load(sum) + at.load(other);
        at.store(sum, added);
    });
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::Level;

    use super::*;

    #[test]
    fn sums_agree_with_the_definition() {
        for (rows, columns) in [(0, 3), (1, 1), (7, 6), (8, 6), (100, 16), (30, 17), (9, 40)] {
            // Small integers: every order of adding them is exact.
            let matrix: Vec<f32> = (0..rows * columns).map(|at| (at * 7 % 11) as f32 - 5.0).collect();
            for level in Level::available() {
                let mut sums = vec![f32::NAN; columns];
                sum_rows(level, &matrix, &mut sums);
                for (column, &sum) in sums.iter().enumerate() {
                    assert_eq!(sum, (0..rows).map(|row| matrix[row * columns + column]).sum::<f32>());
                }
            }
        }
    }
}
