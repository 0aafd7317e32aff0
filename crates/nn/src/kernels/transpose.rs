//! Rows become columns, in squares that are transposed in registers.

use super::simd::vectorised;

/// Rows, and columns, of a square.
pub const SIDE: usize = 8;

vectorised! {
    /// `to[row][column] = from[column][row]` for matrices whose rows begin `to_stride` and `from_stride` apart. Rows of `to`
    /// have room for a multiple of [`SIDE`] columns; what is written after the last column is arbitrary.
    pub fn transpose_into(to: &mut [f32], to_stride: usize, from: &[f32], from_stride: usize, columns: usize, rows: usize) {
        if rows * columns == 0 {
            return;
        }
        assert!((columns - 1) * from_stride + rows <= from.len(), "a matrix larger than its numbers");
        assert!(columns.next_multiple_of(SIDE) <= to_stride && rows * to_stride <= to.len(), "no room for whole squares");
        for row in (0..rows).step_by(SIDE) {
            for column in (0..columns).step_by(SIDE) {
                let (at, there) = (column * from_stride + row, row * to_stride + column);
                let wide = SIDE.min(columns - column);
                if row + SIDE <= rows {
                    // SAFETY: the condition here, and the assertions above.
                    unsafe {
                        let (from, to) = (from.as_ptr().add(at), to.as_mut_ptr().add(there));
                        transpose::<FUSED>(from, from_stride, wide, to, to_stride, SIDE);
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

/// `to[row][column] = from[column][row]` for the first `to_rows` rows, which like those of `from` have [`SIDE`] numbers each.
/// Rows of `from` beyond the first `from_rows` are not read; what stands for them is arbitrary.
///
/// In functions with fused instructions, which on x86-64 are those for AVX2, it is written out: the compiler finds no good
/// way by itself.
///
/// # Safety
/// Rows that are read and written are there, strides apart.
#[inline(always)]
#[allow(unsafe_code)]
pub unsafe fn transpose<const FUSED: bool>(
    from: *const f32,
    from_stride: usize,
    from_rows: usize,
    to: *mut f32,
    to_stride: usize,
    to_rows: usize,
) {
    #[cfg(target_arch = "x86_64")]
    if FUSED {
        // SAFETY: the machine has these instructions; the rest is the caller's promise.
        return unsafe { transpose_avx2(from, from_stride, from_rows, to, to_stride, to_rows) };
    }
    for row in 0..to_rows {
        for column in 0..SIDE {
            // SAFETY: the caller's promise.
            unsafe { *to.add(row * to_stride + column) = *from.add(column.min(from_rows - 1) * from_stride + row) };
        }
    }
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
#[allow(unsafe_code)]
unsafe fn transpose_avx2(
    from: *const f32,
    from_stride: usize,
    from_rows: usize,
    to: *mut f32,
    to_stride: usize,
    to_rows: usize,
) {
    use std::arch::x86_64::*;
    // SAFETY: the caller's promise.
    let row = |row: usize| unsafe { _mm256_loadu_ps(from.add(row.min(from_rows - 1) * from_stride)) };
    // Within halves of rows: pairs of numbers, then fours; then the halves.
    let pairs = |a, b| [_mm256_unpacklo_ps(a, b), _mm256_unpackhi_ps(a, b)];
    let fours = |a, b| [_mm256_shuffle_ps::<0x44>(a, b), _mm256_shuffle_ps::<0xee>(a, b)];
    let half = |first: usize| {
        let [a, b] = pairs(row(first), row(first + 1));
        let [c, d] = pairs(row(first + 2), row(first + 3));
        let [[e, f], [g, h]] = [fours(a, c), fours(b, d)];
        [e, f, g, h]
    };
    let (upper, lower) = (half(0), half(SIDE / 2));
    for row in 0..SIDE {
        let (upper, lower) = (upper[row % 4], lower[row % 4]);
        let values = if row < SIDE / 2 {
            _mm256_permute2f128_ps::<0x20>(upper, lower)
        } else {
            _mm256_permute2f128_ps::<0x31>(upper, lower)
        };
        if row < to_rows {
            // SAFETY: the caller's promise.
            unsafe { _mm256_storeu_ps(to.add(row * to_stride), values) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns_whatever_their_number() {
        for (rows, columns) in [(0usize, 3usize), (3, 0), (1, 1), (8, 8), (9, 7), (25, 16), (400, 10), (16, 33)] {
            let from: Vec<f32> = (0..columns * (rows + 2)).map(|at| at as f32).collect();
            let stride = columns.next_multiple_of(SIDE) + 3;
            let mut to = vec![-1.0; rows * stride];
            transpose_into(&mut to, stride, &from, rows + 2, columns, rows);
            for (row, to) in to.chunks_exact(stride).enumerate() {
                for (column, &value) in to[..columns].iter().enumerate() {
                    assert_eq!(value, from[column * (rows + 2) + row]);
                }
                assert_eq!(to[stride - 3..], [-1.0; 3], "nothing is written between rows");
            }
        }
    }
}
