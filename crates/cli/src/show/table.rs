//! The table at the end of a run.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};

use ringstep_train::summary::Summary;

use super::units::{bytes, percent, seconds};
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
    let Row { run, summary, .. } = row;
    [
        run.title.clone(),
        format!("{} x {}", run.job.workers, run.job.batch),
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

/// The columns of the table of where a step's time goes.
pub const STEP_HEADINGS: [&str; 9] = [
    "way",
    "mean\nstep",
    "pre-\ndicted",
    "comp",
    "exposed\ncomm",
    "wait",
    "other",
    "hidden\ncomm",
    "messages\nof busiest",
];

/// A row's cells. Computation, exposed communication, waiting and other are the whole; hidden communication goes on
/// beside them.
pub fn step_cells(row: &Row) -> [String; STEP_HEADINGS.len()] {
    let summary = &row.summary;
    let share = |part: f64| format!("{:.1}%", 100.0 * part / summary.seconds);
    let split = Split::of(summary);
    [
        row.run.title.clone(),
        seconds(summary.mean_seconds_per_step),
        summary.predicted_seconds_per_step.map_or_else(String::new, seconds),
        share(split.compute),
        share(split.exposed),
        share(split.waiting),
        share(split.other),
        share(split.hidden),
        summary.messages_sent.to_string(),
    ]
}

/// Where a run's time went, in seconds.
pub struct Split {
    pub compute: f64,
    pub exposed: f64,
    pub waiting: f64,
    /// Data and records.
    pub other: f64,
    /// Beside the computation.
    pub hidden: f64,
}

impl Split {
    pub fn of(summary: &Summary) -> Self {
        let (compute, waiting) = (summary.compute_seconds, summary.waiting_seconds);
        let exposed = (summary.comm_seconds - waiting).max(0.0);
        let other = (summary.seconds - compute - summary.comm_seconds).max(0.0);
        Self { compute, exposed, waiting, other, hidden: summary.hidden_seconds }
    }
}

/// All rows, as text.
pub fn table(rows: &[Row]) -> Table {
    plain(&HEADINGS, rows.iter().map(|row| cells(row).to_vec()))
}

/// Where a step's time goes, as text.
pub fn step_table(rows: &[Row]) -> Table {
    plain(&STEP_HEADINGS, rows.iter().map(|row| step_cells(row).to_vec()))
}

fn plain(headings: &[&str], rows: impl Iterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header(headings);
    rows.for_each(|row| {
        table.add_row(row);
    });
    // Narrow enough for a terminal of some 80 columns.
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 0));
        column.set_cell_alignment(if index == 0 { CellAlignment::Left } else { CellAlignment::Right });
    }
    table
}
