//! Rows become columns, in squares that are transposed in registers.

use ringstep_cpu::kernels;
pub use ringstep_cpu::simd::SQUARE;

use super::end;

kernels! {
    /// `to[row][column] = from[column][row]` for matrices whose rows begin `to_stride` and `from_stride` apart. Rows of `to`
    /// have room for a multiple of [`SQUARE`] columns; what is written after the last column is arbitrary.
    pub fn transpose_into<S>(simd: S, to: &mut [f32], to_stride: usize, from: &[f32], from_stride: usize, columns: usize, rows: usize) {
        if rows == 0 || columns == 0 {
            return;
        }
        assert!(end(&[(columns, from_stride)], rows) <= from.len(), "a matrix larger than its numbers");
        let fits = columns <= to_stride && columns.next_multiple_of(SQUARE) <= to_stride;
        assert!(fits && end(&[(rows, to_stride)], to_stride) <= to.len(), "no room for whole squares");
        for row in (0..rows).step_by(SQUARE) {
            for column in (0..columns).step_by(SQUARE) {
                let (at, there) = (column * from_stride + row, row * to_stride + column);
                let wide = SQUARE.min(columns - column);
                if row + SQUARE <= rows {
                    // SAFETY: the condition here, and the assertions above.
                    unsafe {
                        let (from, to) = (from.as_ptr().add(at), to.as_mut_ptr().add(there));
                        simd.transpose_square(from, from_stride, wide, to, to_stride, SQUARE);
                    }
                } else {
                    copy_transposed(&from[at..], from_stride, wide, &mut to[there..], to_stride, rows - row);
                }
            }
        }
    }
}

/// Where a whole square would go beyond the end. Not inlined: the loops around it shall be short.
#[cold]
#[inline(never)]
pub fn copy_transposed(
    from: &[f32],
    from_stride: usize,
    from_rows: usize,
    to: &mut [f32],
    to_stride: usize,
    to_rows: usize,
) {
    for row in 0..to_rows {
        for column in 0..from_rows {
            to[row * to_stride + column] = from[column * from_stride + row];
        }
    }
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::Level;

    use super::*;

    #[test]
    fn rows_become_columns_whatever_their_number() {
        for (rows, columns) in [(0usize, 3usize), (3, 0), (1, 1), (8, 8), (9, 7), (25, 16), (400, 10), (16, 33)] {
            let from: Vec<f32> = (0..columns * (rows + 2)).map(|at| at as f32).collect();
            let stride = columns.next_multiple_of(SQUARE) + 3;
            let mut to = vec![-1.0; rows * stride];
            for level in Level::available() {
                transpose_into(level, &mut to, stride, &from, rows + 2, columns, rows);
                for (row, to) in to.chunks_exact(stride).enumerate() {
                    for (column, &value) in to[..columns].iter().enumerate() {
                        assert_eq!(value, from[column * (rows + 2) + row]);
                    }
                    assert_eq!(to[stride - 3..], [-1.0; 3], "nothing is written between rows");
                }
            }
        }
    }
}
