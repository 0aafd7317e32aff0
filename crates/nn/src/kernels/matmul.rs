//! Matrix products, by the `gemm` crate.

use gemm::Parallelism;

/// A view of a slice as a matrix.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    data: &'a [f32],
    rows: usize,
    columns: usize,
    row_stride: usize,
    column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row after row.
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        assert_eq!(data.len(), rows * columns);
        Self { data, rows, columns, row_stride: columns, column_stride: 1 }
    }

    /// The same numbers with rows and columns exchanged; nothing moves.
    pub fn transposed(self) -> Self {
        Self {
            rows: self.columns,
            columns: self.rows,
            row_stride: self.column_stride,
            column_stride: self.row_stride,
            ..self
        }
    }
}

/// `out = left * right`, row after row.
pub fn multiply(out: &mut [f32], left: Matrix<'_>, right: Matrix<'_>) {
    product(out, false, left, right);
}

/// `out += left * right`, row after row.
pub fn multiply_add(out: &mut [f32], left: Matrix<'_>, right: Matrix<'_>) {
    product(out, true, left, right);
}

#[allow(unsafe_code)]
fn product(out: &mut [f32], add: bool, left: Matrix<'_>, right: Matrix<'_>) {
    let (rows, inner, columns) = (left.rows, left.columns, right.columns);
    assert_eq!(inner, right.rows, "inner dimensions of a matrix product");
    assert_eq!(out.len(), rows * columns);
    // SAFETY: a Matrix covers its slice exactly whichever way its strides go, `out` is rows x columns by the assertion
    // above, and an exclusive borrow overlaps with no other.
    unsafe {
        gemm::gemm(
            rows,
            columns,
            inner,
            out.as_mut_ptr(),
            1,
            columns as isize,
            add,
            left.data.as_ptr(),
            left.column_stride as isize,
            left.row_stride as isize,
            right.data.as_ptr(),
            right.column_stride as isize,
            right.row_stride as isize,
            1.0,
            1.0,
            false,
            false,
            false,
            Parallelism::None,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Small integers: every order of adding them is exact.
    fn integers(length: usize) -> Vec<f32> {
        (0..length).map(|i| (i * 7 % 11) as f32 - 5.0).collect()
    }

    fn reference(rows: usize, inner: usize, columns: usize, left: &[f32], right: &[f32]) -> Vec<f32> {
        let element = |i: usize, j: usize| (0..inner).map(|k| left[i * inner + k] * right[k * columns + j]).sum();
        (0..rows * columns).map(|at| element(at / columns, at % columns)).collect()
    }

    fn transpose(data: &[f32], rows: usize, columns: usize) -> Vec<f32> {
        (0..rows * columns).map(|at| data[at % rows * columns + at / rows]).collect()
    }

    #[test]
    fn products_agree_with_the_definition_in_every_orientation() {
        for (m, k, n) in [(1, 1, 1), (3, 5, 2), (17, 1, 9), (40, 25, 6), (6, 100, 25), (0, 3, 2), (2, 0, 3)] {
            let (left, right) = (integers(m * k), integers(k * n));
            let expected = reference(m, k, n, &left, &right);
            let mut out = vec![f32::NAN; m * n];
            multiply(&mut out, Matrix::new(&left, m, k), Matrix::new(&right, k, n));
            assert_eq!(out, expected);

            let (left_t, right_t) = (transpose(&left, m, k), transpose(&right, k, n));
            multiply(&mut out, Matrix::new(&left_t, k, m).transposed(), Matrix::new(&right_t, n, k).transposed());
            assert_eq!(out, expected);

            multiply_add(&mut out, Matrix::new(&left, m, k), Matrix::new(&right, k, n));
            assert!(out.iter().zip(&expected).all(|(out, expected)| *out == 2.0 * expected));
        }
    }
}
