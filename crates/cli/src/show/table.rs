//! The table at the end of a run.

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, ColumnConstraint, LineStyle, Table, Width};

use ringstep_train::summary::Summary;

use super::units::{bytes, count, percent, seconds};
use crate::train::Row;

/// Names that are longer than this go on in the next line, so that a table fits into a terminal.
const NAME: u16 = 28;

/// So many rows have room for lines between them and for sentences about each.
pub const FEW: usize = 8;

/// A column of a table; the report's tables have the same.
#[derive(Clone, Copy)]
pub struct Column {
    /// May break.
    pub heading: &'static str,
    pub cell: fn(&Row) -> String,
}

const WAY: Column = Column { heading: "way", cell: |row| row.run.title.clone() };

/// What came out. The time to a target is there if one was asked for.
pub fn columns(rows: &[Row]) -> Vec<Column> {
    let mut columns = vec![
        WAY,
        Column {
            heading: "work-\ners x\nbatch",
            cell: |row| format!("{} x {}", row.run.job.workers, row.run.job.batch),
        },
        Column { heading: "train\nloss", cell: |row| format!("{:.3}", row.summary.train_loss) },
        Column { heading: "test\nacc.", cell: |row| percent(row.summary.test_accuracy) },
        Column { heading: "time", cell: |row| seconds(row.summary.seconds) },
        Column { heading: "median\nstep", cell: |row| seconds(row.summary.seconds_per_step) },
        Column { heading: "images\n/s", cell: |row| count(row.summary.images_per_second) },
        Column { heading: "comp", cell: |row| share(row, Split::of(&row.summary).compute, 0) },
        Column { heading: "comm", cell: |row| share(row, Split::of(&row.summary).exposed, 0) },
        Column { heading: "wait", cell: |row| share(row, Split::of(&row.summary).waiting, 0) },
        Column { heading: "most\nsent", cell: |row| bytes(row.summary.bytes_sent) },
    ];
    if rows.iter().any(|row| row.run.target.is_some()) {
        let time = |row: &Row| row.summary.time_to_target.map_or_else(|| "never".to_owned(), seconds);
        columns.insert(4, Column { heading: "to\ntarget", cell: time });
    }
    columns
}

/// Where a step's time goes. Computation, exposed communication, waiting and other are the whole; hidden communication goes on
/// beside them.
pub const STEP_COLUMNS: [Column; 9] = [
    WAY,
    Column { heading: "mean\nstep", cell: |row| seconds(row.summary.mean_seconds_per_step) },
    Column {
        heading: "pre-\ndicted",
        cell: |row| row.summary.predicted_seconds_per_step.map_or_else(String::new, seconds),
    },
    Column { heading: "comp", cell: |row| share(row, Split::of(&row.summary).compute, 1) },
    Column { heading: "exposed\ncomm", cell: |row| share(row, Split::of(&row.summary).exposed, 1) },
    Column { heading: "wait", cell: |row| share(row, Split::of(&row.summary).waiting, 1) },
    Column { heading: "other", cell: |row| share(row, Split::of(&row.summary).other, 1) },
    Column { heading: "hidden\ncomm", cell: |row| share(row, Split::of(&row.summary).hidden, 1) },
    Column { heading: "messages\nof busiest", cell: |row| row.summary.messages_sent.to_string() },
];

/// A part of a row's time in percent, with so many digits.
fn share(row: &Row, part: f64, digits: usize) -> String {
    format!("{:.digits$}%", 100.0 * part / row.summary.seconds)
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
pub fn table(rows: &[Row], columns: &[Column]) -> Table {
    let headings: Vec<&str> = columns.iter().map(|column| column.heading).collect();
    let cells = |row: &Row| columns.iter().map(|column| (column.cell)(row)).collect();
    table_of(&headings, rows.iter().map(cells).collect())
}

/// Cells under these headings, which may break, as text.
pub fn table_of(headings: &[&str], rows: Vec<Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(match rows.len() {
        ..=FEW => UTF8_HORIZONTAL_ONLY,
        _ => UTF8_HORIZONTAL_ONLY.row_separator(LineStyle::none()),
    });
    table.set_header(headings);
    table.add_rows(rows);
    // Narrow enough for a terminal of 80 to 100 columns.
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 0));
        column.set_cell_alignment(if index == 0 { CellAlignment::Left } else { CellAlignment::Right });
        if index == 0 {
            column.set_constraint(ColumnConstraint::UpperBoundary(Width::Fixed(NAME)));
        }
    }
    table
}
