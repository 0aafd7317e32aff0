//! Which rank the others waited for, step by step.

use std::fmt::Write;

use super::chart::COLOURS;
use crate::html::escape;
use crate::show::seconds;
use crate::train::Row;

const WIDTH: f64 = 960.0;
const NAMES: f64 = 160.0;
const ROW: f64 = 34.0;
/// Beyond this a step has no width worth drawing: only every so many are drawn.
const MOST: usize = 400;

/// A strip a row: a step is coloured by its slowest rank, and as high as the ranks were apart.
pub fn strips(rows: &[Row]) -> String {
    let rows: Vec<&Row> = rows.iter().filter(|row| row.run.job.workers > 1).collect();
    let steps = rows.iter().map(|row| row.steps.len()).max().unwrap_or(0);
    let stride = steps.div_ceil(MOST).max(1);
    let height = ROW * rows.len() as f64 + 30.0;
    let mut svg = format!(r#"<svg class="bars" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="slowest ranks">"#);
    for (index, row) in rows.iter().enumerate() {
        let top = ROW * index as f64;
        let name = escape(&row.run.title);
        let _ = write!(svg, r#"<text class="name end" x="{}" y="{}">{name}</text>"#, NAMES - 12.0, top + 20.0);
        // The longest decides what is full height, but for the first step, in which everything is late.
        let furthest = row.steps.iter().skip(1).map(|step| step.behind).fold(f64::MIN_POSITIVE, f64::max);
        let width = (WIDTH - NAMES - 14.0) / steps.div_ceil(stride) as f64;
        for (at, (number, step)) in row.steps.iter().enumerate().step_by(stride).enumerate() {
            let tall = (step.behind / furthest).min(1.0) * (ROW - 8.0);
            let _ = write!(
                svg,
                r#"<rect class="r{}" x="{:.2}" y="{:.2}" width="{:.2}" height="{:.2}"><title>step {number}: rank {} was last, {} after the first</title></rect>"#,
                step.slowest % COLOURS,
                NAMES + at as f64 * width,
                top + ROW - 4.0 - tall.max(1.0),
                (width - 0.4).max(0.4),
                tall.max(1.0),
                step.slowest,
                seconds(step.behind),
            );
        }
    }
    let _ = write!(
        svg,
        r#"<text class="label" x="{NAMES}" y="{0}">step 0</text><text class="label end" x="{1}" y="{0}">step {2}</text></svg>"#,
        height - 8.0,
        WIDTH - 14.0,
        steps.saturating_sub(1),
    );
    svg
}

/// Which colour is which rank.
pub fn legend(rows: &[Row]) -> String {
    let ranks = rows.iter().map(|row| row.run.job.workers).max().unwrap_or(0).min(COLOURS);
    (0..ranks)
        .map(|rank| format!(r#"<span class="key"><span class="swatch r{rank}"></span>rank {rank}</span>"#))
        .collect()
}
