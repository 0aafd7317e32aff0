//! How long it took to reach the accuracy that was asked for.

use std::fmt::Write;

use super::svg::{Bar, WIDE, name_column};
use crate::html::escape;
use crate::show::{percent, seconds};
use crate::train::Row;

const LINE: f64 = 22.0;
const BAR: f64 = 15.0;
const NUMBER: f64 = 90.0;

/// A bar a row, the fastest first; rows that never got there say how far they got. None if nothing was asked for.
pub fn section(rows: &[Row]) -> Option<String> {
    let target = rows.iter().find_map(|row| row.run.target)?;
    let mut order: Vec<&Row> = rows.iter().collect();
    let time = |row: &Row| row.summary.time_to_target.unwrap_or(f64::INFINITY);
    order.sort_by(|a, b| time(a).total_cmp(&time(b)));
    let longest = rows.iter().filter_map(|row| row.summary.time_to_target).fold(f64::MIN_POSITIVE, f64::max);
    let names = name_column(rows.iter().map(|row| row.run.title.as_str()));
    let height = LINE * rows.len() as f64 + 4.0;
    let mut svg =
        format!(r#"<svg class="bars" viewBox="0 0 {WIDE} {height}" role="img" aria-label="time to the target">"#);
    for (index, row) in order.iter().enumerate() {
        let top = 2.0 + LINE * index as f64;
        let base = top + BAR / 2.0 + 5.0;
        let _ = write!(svg, r#"<text class="end" x="{}" y="{base}">{}</text>"#, names - 10.0, escape(&row.run.title));
        let (width, text) = match row.summary.time_to_target {
            Some(time) => (time / longest * (WIDE - names - NUMBER), seconds(time)),
            None => (0.0, format!("not reached; at best {}", percent(best(row)))),
        };
        Bar { class: "compute", left: names, top, width, height: BAR, text }.draw(&mut svg);
    }
    Some(format!(
        r#"<h2>Time to {} on the test images</h2>
<figure class="scroll">{svg}</svg></figure>
<p>From the first step to the first test that reached it. Tests themselves take none of this time.</p>"#,
        percent(target)
    ))
}

fn best(row: &Row) -> f64 {
    row.summary.tests.iter().map(|test| test.accuracy).fold(row.summary.test_accuracy, f64::max)
}
