//! What each rank delivered, and how long it waited for others.

use std::fmt::Write;

use super::svg::{Bar, Unit, WIDE, name_column, number};
use crate::html::escape;
use crate::train::Row;

const RANKS: f64 = 62.0;
const BAR: f64 = 11.0;
const LINE: f64 = 14.0;
const GAP: f64 = 12.0;
const HEAD: f64 = 24.0;
/// For the number at the end of a bar.
const NUMBER: f64 = 56.0;

struct Column {
    name: &'static str,
    unit: Unit,
    values: fn(&Row) -> &[f64],
}

const COLUMNS: [Column; 3] = [
    Column { name: "images a second", unit: Unit::Plain, values: |row| &row.summary.rank_images_per_second },
    Column { name: "updates a second", unit: Unit::Plain, values: |row| &row.summary.rank_updates_per_second },
    Column { name: "waited for others", unit: Unit::Seconds, values: |row| &row.summary.wait_seconds },
];

/// A bar a rank, in three columns. Rows of one rank have nothing to compare.
pub fn bars(rows: &[Row]) -> Option<String> {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.run.job.workers > 1).collect();
    if rows.is_empty() {
        return None;
    }
    let names = name_column(rows.iter().map(|row| row.run.title.as_str())).min(240.0);
    let column = (WIDE - names - RANKS) / COLUMNS.len() as f64;
    let largest = COLUMNS
        .map(|column| rows.iter().flat_map(|row| (column.values)(row)).copied().fold(f64::MIN_POSITIVE, f64::max));
    let height = |row: &Row| row.run.job.ranks() as f64 * LINE + GAP;
    let whole = HEAD + rows.iter().map(|row| height(row)).sum::<f64>();
    let mut svg =
        format!(r#"<svg class="bars" viewBox="0 0 {WIDE} {whole}" role="img" aria-label="what each rank delivered">"#);
    for (index, Column { name, .. }) in COLUMNS.iter().enumerate() {
        let left = names + RANKS + index as f64 * column;
        let _ = write!(svg, r#"<text class="label" x="{left:.1}" y="14">{name}</text>"#);
    }
    let mut top = HEAD;
    for row in rows {
        let middle = top + (height(row) - GAP) / 2.0 + 5.0;
        // Names that are longer than their column are cut, and whole under the pointer.
        let title = escape(&row.run.title);
        let _ = write!(
            svg,
            r#"<text class="end" x="{}" y="{middle:.1}">{}<title>{title}</title></text>"#,
            names - 10.0,
            escape(&shortened(&row.run.title, names)),
        );
        for rank in 0..row.run.job.ranks() {
            let (class, mark) = kind(row, rank);
            let _ = write!(
                svg,
                r#"<text class="small end" x="{:.1}" y="{:.1}">{mark}</text>"#,
                names + RANKS - 6.0,
                top + BAR / 2.0 + 4.0
            );
            for (index, Column { unit, values, .. }) in COLUMNS.iter().enumerate() {
                if let Some(&value) = values(row).get(rank) {
                    let width = value / largest[index] * (column - NUMBER);
                    let left = names + RANKS + index as f64 * column;
                    Bar { class, left, top, width, height: BAR, text: number(*unit, value) }.draw(&mut svg);
                }
            }
            top += LINE;
        }
        top += GAP;
    }
    Some(svg + "</svg>")
}

/// How a rank is coloured and called.
fn kind(row: &Row, rank: usize) -> (&'static str, String) {
    let job = &row.run.job;
    match rank.checked_sub(job.workers) {
        Some(server) => ("other", format!("server {server}")),
        None if job.slow.iter().any(|slow| slow.rank == rank) => ("slowed", format!("rank {rank}")),
        None => ("compute", format!("rank {rank}")),
    }
}

fn shortened(title: &str, column: f64) -> String {
    let room = ((column - 16.0) / 7.0) as usize;
    match title.chars().count() > room {
        true => title.chars().take(room - 1).chain(['…']).collect(),
        false => title.to_owned(),
    }
}
