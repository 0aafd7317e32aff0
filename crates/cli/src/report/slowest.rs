//! Which rank the others waited for, step by step.

use std::fmt::Write;

use super::style::HUES;
use super::svg::{WIDE, name_column};
use crate::html::escape;
use crate::show::seconds;
use crate::train::Row;

const ROW: f64 = 30.0;
const RIGHT: f64 = 14.0;
/// Beyond this a step has no width worth drawing: only every so many are drawn.
const MOST: usize = 400;

/// A legend and a strip a row: a step is coloured by its slowest rank, and as high as the ranks were apart. Only rows whose
/// ranks do their steps together have a slowest.
pub fn strips(rows: &[Row]) -> Option<String> {
    let together = |row: &&Row| row.run.job.workers > 1 && row.steps.iter().all(|step| step.rank.is_none());
    let rows: Vec<&Row> = rows.iter().filter(together).collect();
    let steps = rows.iter().map(|row| row.steps.len()).max()?;
    let stride = steps.div_ceil(MOST).max(1);
    let names = name_column(rows.iter().map(|row| row.run.title.as_str()));
    let height = ROW * rows.len() as f64 + 30.0;
    let mut svg = format!(r#"<svg class="bars" viewBox="0 0 {WIDE} {height}" role="img" aria-label="slowest ranks">"#);
    for (index, row) in rows.iter().enumerate() {
        let top = ROW * index as f64;
        let name = escape(&row.run.title);
        let _ = write!(svg, r#"<text class="end" x="{}" y="{}">{name}</text>"#, names - 10.0, top + ROW - 9.0);
        // The longest decides what is full height, but for the first step, in which everything is late.
        let furthest = row.steps.iter().skip(1).map(|step| step.behind).fold(f64::MIN_POSITIVE, f64::max);
        let width = (WIDE - names - RIGHT) / steps.div_ceil(stride) as f64;
        for (at, (number, step)) in row.steps.iter().enumerate().step_by(stride).enumerate() {
            let tall = (step.behind / furthest).min(1.0) * (ROW - 8.0);
            let _ = write!(
                svg,
                r#"<rect class="dot h{}" x="{:.2}" y="{:.2}" width="{:.2}" height="{:.2}"><title>step {number}: rank {} was last, {} after the first</title></rect>"#,
                step.slowest % HUES,
                names + at as f64 * width,
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
        r#"<text class="label" x="{names}" y="{0}">step 0</text><text class="label end" x="{1}" y="{0}">step {2}</text></svg>"#,
        height - 8.0,
        WIDE - RIGHT,
        steps.saturating_sub(1),
    );
    let ranks = rows.iter().map(|row| row.run.job.workers).max().unwrap_or(0).min(HUES);
    let legend: String = (0..ranks)
        .map(|rank| format!(r#"<span class="key"><span class="swatch dot h{rank}"></span>rank {rank}</span>"#))
        .collect();
    Some(format!(r#"<div class="legend">{legend}</div><figure class="scroll">{svg}</figure>"#))
}
