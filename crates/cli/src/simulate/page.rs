//! The page: the table, what it says, and plots.

use std::fmt::Write;

use ringstep_comm::Algorithm;

use super::sentences::sentences;
use super::study::{Row, Study};
use super::{columns, title};
use crate::html::{self, escape};
use crate::report::chart::{Chart, Line, Quantity, THIN};
use crate::report::style::{Style, legend};
use crate::report::svg::{Unit, WIDE};
use crate::report::{SCRIPT, STYLE};
use crate::show::seconds;

const TEMPLATE: &str = include_str!("page.html");
/// The parts of a step, with their classes in the style sheet.
const PARTS: [(&str, &str); 4] = [
    ("computation", "compute"),
    ("exposed communication", "comm"),
    ("waiting for slow workers", "wait"),
    ("failures", "slowed"),
];

/// The page.
pub fn page(study: &Study, rows: &[Row]) -> String {
    let (said, over) = (sentences(study, rows), Quantity::log("workers", Unit::Count));
    let line = |number, name: &str, points| Line {
        row: Some(number),
        name: name.to_owned(),
        style: Style::numbered(number),
        width: THIN,
        points,
    };
    let efficiency = rows.iter().map(|row| (row.workers as f64, row.efficiency)).collect();
    let efficiency =
        Chart::new(Quantity::linear("efficiency", Unit::Percent), over, vec![line(2, "efficiency", efficiency)]);
    let algorithms: Vec<Algorithm> = Algorithm::ALL
        .into_iter()
        .filter(|&algorithm| rows.iter().any(|row| time_of(row, algorithm).is_some()))
        .collect();
    let lines = algorithms.iter().enumerate().map(|(number, &algorithm)| {
        let points = rows.iter().filter_map(|row| Some((row.workers as f64, time_of(row, algorithm)?)));
        line(number, algorithm.name(), points.collect())
    });
    let by_algorithm = match algorithms.len() {
        0 | 1 => String::new(),
        _ => {
            let chart = Chart::new(Quantity::log("step", Unit::Seconds), over, lines.collect());
            let keys = algorithms.iter().enumerate().map(|(at, algorithm)| (at, algorithm.name(), Style::numbered(at)));
            format!(
                "<h2>Algorithms</h2><p>A step by each algorithm with its best buckets. One that cannot be the best at a \
                 scale, by what its links take at least, is not simulated there.</p><div class=\"legend\">{}</div>{}",
                legend(keys),
                figure(&chart)
            )
        }
    };
    let fields = [
        ("{{style}}", STYLE.to_owned()),
        ("{{script}}", SCRIPT.to_owned()),
        ("{{title}}", escape(&title(study))),
        ("{{version}}", escape(env!("CARGO_PKG_VERSION"))),
        ("{{sentences}}", said.iter().map(|sentence| format!("<li>{}</li>\n", escape(sentence))).collect()),
        ("{{table}}", table(rows)),
        ("{{steps}}", bars(rows)),
        ("{{efficiency}}", figure(&efficiency)),
        ("{{algorithms}}", by_algorithm),
    ];
    html::fill(TEMPLATE, &fields)
}

/// Seconds of a step by an algorithm at a scale, if it was simulated.
fn time_of(row: &Row, algorithm: Algorithm) -> Option<f64> {
    row.best.by_algorithm.iter().find(|(of, _)| *of == algorithm).map(|(_, seconds)| *seconds)
}

fn figure(chart: &Chart) -> String {
    format!(
        "<div class=\"plots\"><figure style=\"max-width: 640px\">{}<div class=\"readout\"></div></figure></div>",
        chart.svg()
    )
}

fn table(rows: &[Row]) -> String {
    let columns = columns(rows);
    let headings: String = columns.iter().map(|(name, _)| format!("<th>{name}</th>")).collect();
    let cells =
        |row: &Row| columns.iter().map(|(_, cell)| format!("<td>{}</td>", escape(&cell(row)))).collect::<String>();
    let rows: String = rows.iter().map(|row| format!("<tr>{}</tr>", cells(row))).collect();
    format!("<table><thead><tr>{headings}</tr></thead><tbody>{rows}</tbody></table>")
}

/// A step of each scale, stacked.
fn bars(rows: &[Row]) -> String {
    const NAMES: f64 = 130.0;
    const TOTALS: f64 = 90.0;
    const ROW: f64 = 30.0;
    let longest = rows.iter().map(Row::step_seconds).fold(f64::MIN_POSITIVE, f64::max);
    let height = ROW * rows.len() as f64 + 4.0;
    let mut svg =
        format!(r#"<svg class="bars" viewBox="0 0 {WIDE} {height}" role="img" aria-label="a step of each scale">"#);
    for (index, row) in rows.iter().enumerate() {
        let (top, times) = (2.0 + ROW * index as f64, row.best.simulation.times);
        let base = top + 16.0;
        let _ = write!(svg, r#"<text class="end" x="{}" y="{base}">{} workers</text>"#, NAMES - 10.0, row.workers);
        let mut left = NAMES;
        let parts = [times.compute_seconds, times.exposed_comm_seconds, times.waiting_seconds, row.lost_seconds];
        for (time, (part, class)) in parts.into_iter().zip(PARTS) {
            let width = time / longest * (WIDE - NAMES - TOTALS);
            let _ = write!(
                svg,
                r#"<rect class="{class}" x="{left:.1}" y="{top}" width="{width:.1}" height="22"><title>{} workers: {part} {}</title></rect>"#,
                row.workers,
                seconds(time)
            );
            left += width;
        }
        let _ = write!(svg, r#"<text x="{:.1}" y="{base}">{}</text>"#, left + 8.0, seconds(row.step_seconds()));
    }
    let shown = |at: usize| match at {
        2 => rows.iter().any(|row| row.best.simulation.times.waiting_seconds > 1e-9),
        3 => rows.iter().any(|row| row.lost_seconds > 0.0),
        _ => true,
    };
    let key = |(_, (part, class)): (usize, (&str, &str))| {
        format!(r#"<span class="key"><span class="swatch {class}"></span>{part}</span>"#)
    };
    let keys: String = PARTS.into_iter().enumerate().filter(|(at, _)| shown(*at)).map(key).collect();
    format!(r#"<div class="legend">{keys}</div><figure class="scroll">{svg}</svg></figure>"#)
}
