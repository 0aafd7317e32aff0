//! The right operand of a product, laid out in panels: some columns of the matrix, one row after the other.

use std::ops::Range;

use ringstep_cpu::{Level, kernels};

use super::end;
use super::matrix::Matrix;
use super::transpose::transpose_into;
use crate::team::{Team, Units};

/// Columns of a panel, on every machine: who lays out panels need not know which one it is.
pub const PANEL: usize = 16;

/// The right operand of a product, in panels.
#[derive(Debug, Clone, Copy)]
pub struct Panels<'a> {
    pub(super) data: &'a [f32], // ceil(columns / PANEL), panel_rows, PANEL
    /// Rows that a panel has, of which these are some.
    pub(super) panel_rows: usize,
    pub(super) first_row: usize,
    pub(super) rows: usize,
    pub(super) columns: usize,
}

impl<'a> Panels<'a> {
    /// Panels that lie in a slice already.
    pub fn new(data: &'a [f32], rows: usize, columns: usize) -> Self {
        Self { data: &data[..panels_len(rows, columns)], panel_rows: rows, first_row: 0, rows, columns }
    }

    /// Some of the rows.
    pub fn rows(self, range: Range<usize>) -> Self {
        assert!(range.start <= range.end && range.end <= self.rows, "rows beyond the last");
        Self { first_row: self.first_row + range.start, rows: range.len(), ..self }
    }

    /// The columns of some panels.
    pub fn panels(self, range: Range<usize>) -> Self {
        let panel = self.panel_rows * PANEL;
        let columns = self.columns.min(range.end * PANEL) - range.start * PANEL;
        Self { data: &self.data[range.start * panel..range.end * panel], columns, ..self }
    }
}

/// Numbers in the panels of a matrix.
pub fn panels_len(rows: usize, columns: usize) -> usize {
    rows.checked_mul(columns.next_multiple_of(PANEL)).expect("panels larger than the memory")
}

/// Lays a matrix out in panels, on all threads; what is missing in the last one is zero.
pub fn pack<'a>(team: &mut Team, panels: &'a mut [f32], matrix: Matrix<'_>) -> Panels<'a> {
    let level = team.level();
    team.deal(matrix.columns.div_ceil(PANEL), Units::new(panels, matrix.rows * PANEL), |range, panels| {
        pack_some(level, panels, matrix, range);
    });
    Panels::new(panels, matrix.rows, matrix.columns)
}

/// Lays out only these panels, at the beginning of `panels`.
pub fn pack_some(level: Level, panels: &mut [f32], matrix: Matrix<'_>, range: Range<usize>) {
    let Matrix { data, rows, columns, row_stride, column_stride } = matrix;
    for (panel, first) in panels.chunks_exact_mut((rows * PANEL).max(1)).zip(range.map(|index| index * PANEL)) {
        let width = PANEL.min(columns - first);
        if column_stride == 1 {
            copy_columns(level, panel, &data[first.min(data.len())..], row_stride, width);
        } else {
            let from = data.get(first * column_stride..).unwrap_or_default();
            transpose_into(level, panel, PANEL, from, column_stride, width, rows);
            if width < PANEL {
                panel.chunks_exact_mut(PANEL).for_each(|row| row[width..].fill(0.0));
            }
        }
    }
}

kernels! {
    /// Copies the first `width` columns of a matrix, whose rows begin `stride` apart, to a panel; the others are zero.
    pub fn copy_columns<S>(simd: S, panel: &mut [f32], from: &[f32], stride: usize, width: usize) {
        let rows = panel.len() / PANEL;
        let fits = rows == 0 || end(&[(rows, stride)], width) <= from.len();
        assert!(width <= PANEL && fits, "a matrix larger than its numbers");
        for row in 0..rows {
            for lane in (0..PANEL).step_by(S::LANES) {
                // SAFETY: the assertion above; the panel has whole rows.
                unsafe {
                    let from = from.as_ptr().wrapping_add(row * stride + lane);
                    let vector = match width.saturating_sub(lane) {
                        count if count >= S::LANES => simd.load(from),
                        count => simd.load_some(from, count),
                    };
                    simd.store(panel.as_mut_ptr().add(row * PANEL + lane), vector);
                }
            }
        }
    }
}
