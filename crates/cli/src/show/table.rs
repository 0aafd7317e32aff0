//! The table at the end of a run.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};

use super::units::{bytes, percent, row_name, seconds};
use crate::train::Row;

/// The columns and their headings, which may break; the report's table has the same.
pub const HEADINGS: [&str; 10] = [
    "way",
    "workers\nx batch",
    "train\nloss",
    "train\nacc.",
    "test\nacc.",
    "time",
    "median\nstep",
    "comp",
    "comm",
    "sent by\nbusiest",
];

/// A row's cells.
pub fn cells(row: &Row) -> [String; HEADINGS.len()] {
    let Row { job, summary } = row;
    [
        row_name(job),
        format!("{} x {}", job.workers, job.batch),
        format!("{:.4}", summary.train_loss),
        percent(summary.train_accuracy),
        percent(summary.test_accuracy),
        seconds(summary.seconds),
        seconds(summary.seconds_per_step),
        format!("{:.0}%", 100.0 * summary.compute_seconds / summary.seconds),
        format!("{:.0}%", 100.0 * summary.comm_seconds / summary.seconds),
        bytes(summary.bytes_sent),
    ]
}

/// All rows, as text.
pub fn table(rows: &[Row]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header(HEADINGS);
    for row in rows {
        table.add_row(cells(row));
    }
    // Narrow enough for a terminal of some 80 columns.
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 0));
        column.set_cell_alignment(if index == 0 { CellAlignment::Left } else { CellAlignment::Right });
    }
    table
}
