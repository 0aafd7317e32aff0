//! Sums over rows and additions to rows: biases, their gradients, and other sums of slices.

use ringstep_cpu::{Simd, along, kernels};

/// Rows that are added up side by side: together they fill whole vectors, however short they are, on every machine.
const BESIDE: usize = 16;
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
            let whole;
            (whole, rest) = matrix.split_at(matrix.len() / beside.len() * beside.len());
            for first in (0..beside.len()).step_by(2 * BESIDE) {
                if first + 2 * BESIDE <= beside.len() {
                    sum_columns::<S, { 2 * BESIDE }>(simd, whole, first, beside);
                } else {
                    sum_columns::<S, BESIDE>(simd, whole, first, beside);
                }
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

/// Adds up some neighbouring columns of a matrix that is as wide as the sums, in registers. There are whole vectors of them.
#[inline(always)]
#[allow(unsafe_code)]
fn sum_columns<S: Simd, const COLUMNS: usize>(simd: S, matrix: &[f32], first: usize, sums: &mut [f32]) {
    let width = sums.len();
    assert!(first + COLUMNS <= width && COLUMNS.is_multiple_of(S::LANES));
    let mut totals = [simd.zero(); MOST_VECTORS];
    let vectors = COLUMNS / S::LANES;
    for row in matrix.chunks_exact(width) {
        for vector in 0..vectors {
            // SAFETY: the assertion.
            totals[vector] = totals[vector] + unsafe { simd.load(row.as_ptr().add(first + vector * S::LANES)) };
        }
    }
    for vector in 0..vectors {
        // SAFETY: the assertion.
        unsafe { simd.store(sums.as_mut_ptr().add(first + vector * S::LANES), totals[vector]) };
    }
}

/// Of the narrowest kind, in [`sum_columns`].
const MOST_VECTORS: usize = 2 * BESIDE / 4;

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
