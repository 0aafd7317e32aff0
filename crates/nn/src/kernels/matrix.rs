//! Views of slices as matrices.

use std::marker::PhantomData;
use std::ops::Range;

use super::end;
use crate::team::Parts;

/// A view of a slice as a matrix.
#[derive(Debug, Clone, Copy)]
pub struct Matrix<'a> {
    pub(super) data: &'a [f32],
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
    pub(super) column_stride: usize,
}

impl<'a> Matrix<'a> {
    /// Row after row.
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// Rows that begin `stride` numbers apart; the slice may be longer.
    pub fn strided(data: &'a [f32], rows: usize, columns: usize, stride: usize) -> Self {
        check_size(rows, columns, stride, data.len());
        Self { data, rows, columns, row_stride: stride, column_stride: 1 }
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

/// A view of a slice as a matrix that one can write to. Matrices with other columns of the same rows can exist beside
/// it, in other threads too.
#[derive(Debug)]
pub struct MatrixMut<'a, T = f32> {
    pub(super) start: *mut T,
    pub(super) rows: usize,
    pub(super) columns: usize,
    pub(super) row_stride: usize,
    slice: PhantomData<&'a mut [T]>,
}

// SAFETY: it stands for the exclusive borrow of its elements.
#[allow(unsafe_code)]
unsafe impl<T: Send> Send for MatrixMut<'_, T> {}
// SAFETY: a shared one gives no access but by `ByColumns`, whose parts do not overlap.
#[allow(unsafe_code)]
unsafe impl<T: Send> Sync for MatrixMut<'_, T> {}

impl<'a, T> MatrixMut<'a, T> {
    /// Row after row.
    pub fn new(data: &'a mut [T], rows: usize, columns: usize) -> Self {
        Self::strided(data, rows, columns, columns)
    }

    /// Rows that begin `stride` numbers apart.
    pub fn strided(data: &'a mut [T], rows: usize, columns: usize, stride: usize) -> Self {
        check_size(rows, columns, stride, data.len());
        Self { start: data.as_mut_ptr(), rows, columns, row_stride: stride, slice: PhantomData }
    }

    /// The same for a shorter time.
    pub fn reborrow(&mut self) -> MatrixMut<'_, T> {
        MatrixMut { slice: PhantomData, ..*self }
    }

    /// Some columns of a row.
    #[inline(always)]
    #[allow(unsafe_code)]
    pub fn part(&mut self, row: usize, column: usize, length: usize) -> &mut [T] {
        assert!(row < self.rows && column <= self.columns && length <= self.columns - column);
        // SAFETY: within the slice by the assertions here and in `strided`, and this matrix's alone.
        unsafe { std::slice::from_raw_parts_mut(self.start.add(row * self.row_stride + column), length) }
    }

    /// Some of its rows: as many as `count`, from `first` on, each `step` rows after the one before.
    pub fn every(&mut self, first: usize, step: usize, count: usize) -> MatrixMut<'_, T> {
        assert!(step > 0 && (count == 0 || end(&[(count, step)], first) < self.rows), "rows beyond the last");
        let start = self.start.wrapping_add(first * self.row_stride);
        MatrixMut { start, rows: count, columns: self.columns, row_stride: step * self.row_stride, slice: PhantomData }
    }

    /// Some neighbouring columns.
    pub fn columns(&mut self, first: usize, count: usize) -> MatrixMut<'_, T> {
        assert!(first <= self.columns && count <= self.columns - first, "columns beyond the last");
        MatrixMut { start: self.start.wrapping_add(first), columns: count, slice: PhantomData, ..*self }
    }

    /// Rows, columns, and from one row to the next, for those who write to it by [`MatrixMut::as_mut_ptr`].
    #[inline(always)]
    pub fn size(&self) -> [usize; 3] {
        [self.rows, self.columns, self.row_stride]
    }

    /// The first number.
    #[inline(always)]
    pub fn as_mut_ptr(&mut self) -> *mut T {
        self.start
    }
}

/// Deals a matrix out by columns.
pub struct ByColumns<'a, T = f32> {
    matrix: MatrixMut<'a, T>,
    unit: usize,
}

impl<'a, T> ByColumns<'a, T> {
    /// `unit` columns a unit; the last may have fewer.
    pub fn new(matrix: MatrixMut<'a, T>, unit: usize) -> Self {
        Self { matrix, unit }
    }
}

#[allow(unsafe_code)]
impl<'a, T: Send> Parts for ByColumns<'a, T> {
    type Part = MatrixMut<'a, T>;

    fn check(&self, units: usize, _: usize) {
        assert_eq!(units, self.matrix.columns.div_ceil(self.unit), "units of columns");
    }

    unsafe fn part(&self, _: usize, range: Range<usize>) -> MatrixMut<'a, T> {
        let [first, end] = [range.start, range.end].map(|unit| (unit * self.unit).min(self.matrix.columns));
        let MatrixMut { start, rows, row_stride, .. } = self.matrix;
        MatrixMut { start: start.wrapping_add(first), rows, columns: end - first, row_stride, slice: PhantomData }
    }
}

/// Panics unless so many rows, `stride` apart, fit into `length` numbers.
fn check_size(rows: usize, columns: usize, stride: usize, length: usize) {
    assert!(columns <= stride || rows <= 1, "rows overlap");
    let fits = rows == 0 || end(&[(rows, stride)], columns) <= length;
    assert!(fits, "a matrix larger than its numbers");
}
