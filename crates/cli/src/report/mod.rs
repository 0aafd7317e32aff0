//! report.html: one page that needs nothing but itself.

mod agree;
pub mod chart;
mod compression;
mod ranks;
mod restarts;
mod series;
mod slowest;
pub mod split;
mod staleness;
pub mod style;
pub mod svg;
mod target;
mod timeline;

use std::fmt::Write;

use ringstep_cpu::cores;
use ringstep_data::Dataset;
use ringstep_train::summary::Summary;
use ringstep_train::trace::Kind;

use self::agree::Groups;
use self::chart::{Chart, Line, Mark, Point, Quantity, THIN};
use self::series::Over;
use self::style::Style;
use self::svg::Unit;
use crate::html::{self, escape};
use crate::show::{Column, LargeBatches, STEP_COLUMNS, Split, bytes, columns, large_batches, list, percent};
use crate::train::Row;

pub use self::style::twins;

const TEMPLATE: &str = include_str!("page.html");
/// The style sheet of pages with plots, and the script that reads numbers out of them.
pub const STYLE: &str = include_str!("style.css");
pub const SCRIPT: &str = include_str!("plots.js");

/// The page for these rows, with sentences about what bounded them.
pub fn page(rows: &[Row], sentences: &[String], config: &str, data: &Dataset) -> String {
    let look = Look { styles: style::styles(rows) };
    let title = match rows {
        [row] => format!("{} on {}, {}", row.run.job.model.name, data.name, row.run.title),
        _ => format!("{} on {}, {} ways", rows[0].run.job.model.name, data.name, rows.len()),
    };
    let instructions = &rows[0].summary.instructions;
    let machine =
        format!("{}, {} cores available, {instructions} instructions", std::env::consts::ARCH, cores::allowed());
    let facts = format!("{} training and {} test images", data.train.len(), data.test.len());

    let fields = [
        ("{{style}}", STYLE.to_owned()),
        ("{{script}}", SCRIPT.to_owned()),
        ("{{title}}", escape(&title)),
        ("{{facts}}", escape(&facts)),
        ("{{machine}}", escape(&machine)),
        ("{{version}}", escape(env!("CARGO_PKG_VERSION"))),
        ("{{table}}", of_columns(&columns(rows), rows)),
        ("{{sentences}}", sentences.iter().map(|sentence| format!("<li>{}</li>\n", escape(sentence))).collect()),
        ("{{large_batches}}", large_batch_recipes(rows)),
        ("{{target}}", target::section(rows).unwrap_or_default()),
        ("{{legend}}", look.legend(rows)),
        ("{{curves}}", curves(rows, &look, data.train.len())),
        ("{{bars}}", split::bars(&splits(rows))),
        ("{{step_table}}", of_columns(&STEP_COLUMNS, rows)),
        ("{{restarts}}", restarts::section(rows).unwrap_or_default()),
        ("{{ranks}}", by_rank(rows)),
        ("{{staleness}}", observed_staleness(rows, &look)),
        ("{{compression}}", compression::section(rows, &look).unwrap_or_default()),
        ("{{traffic}}", traffic(rows)),
        ("{{kinds}}", kinds(rows)),
        ("{{pictures}}", pictures(rows)),
        ("{{slowest}}", slowest_ranks(rows)),
        ("{{weights}}", weights(rows)),
        ("{{config}}", escape(config)),
        ("{{attribution}}", escape(&format!("{}: {}.", data.name, data.licence))),
    ];
    html::fill(TEMPLATE, &fields)
}

/// How the rows are drawn, in all plots the same.
pub struct Look {
    styles: Vec<Style>,
}

impl Look {
    /// The line of a row.
    fn line(&self, rows: &[Row], row: usize, width: f64, points: Vec<Point>) -> Line {
        Line { row: Some(row), name: rows[row].run.title.clone(), style: self.styles[row], width, points }
    }

    /// Lines of all rows that have points.
    fn lines(&self, rows: &[Row], width: impl Fn(usize) -> f64, points: impl Fn(&Row) -> Vec<Point>) -> Vec<Line> {
        let lines = rows.iter().enumerate().map(|(at, row)| self.line(rows, at, width(at), points(row)));
        lines.filter(|line| !line.points.is_empty()).collect()
    }

    fn legend(&self, rows: &[Row]) -> String {
        let keys = rows.iter().enumerate().map(|(at, row)| (at, row.run.title.as_str(), self.styles[at]));
        format!(r#"<div class="legend">{}</div>"#, style::legend(keys))
    }
}

/// Loss and accuracy, over whatever there is to count.
fn curves(rows: &[Row], look: &Look, images: usize) -> String {
    let groups = Groups::of(rows);
    let tested = rows.iter().any(|row| row.summary.tests.len() > 1);
    let target = rows.iter().find_map(|row| row.run.target);
    let pair = |over: Over| {
        let width = |row: usize| if over == Over::Epochs { groups.width(row) } else { THIN };
        let mut loss = Chart::new(
            Quantity::linear("training loss", Unit::Plain),
            over.quantity(),
            look.lines(rows, width, |row| series::losses(row, over)),
        );
        // A row that gets out of hand is known by leaving the plot.
        loss.ceiling = rows
            .iter()
            .filter_map(|row| row.summary.epoch_losses.first())
            .copied()
            .reduce(f64::max)
            .map(|first| 2.0 * first);
        let accuracy = match (over, tested) {
            (Over::Steps, _) => Chart::new(
                Quantity::linear("time of a step", Unit::Seconds),
                over.quantity(),
                look.lines(rows, |_| THIN, series::step_times),
            ),
            (_, true) => {
                let lines = look.lines(rows, width, |row| series::test_accuracies(row, over));
                let mut chart = Chart::new(Quantity::linear("test accuracy", Unit::Percent), over.quantity(), lines);
                chart.marks.extend(target.map(|target| Mark::Level(target, format!("target {}", percent(target)))));
                chart
            }
            (_, false) => {
                let lines = look.lines(rows, width, |row| series::train_accuracies(row, over, images));
                Chart::new(Quantity::linear("training accuracy", Unit::Percent), over.quantity(), lines)
            }
        };
        let figure = |chart: &Chart| format!(r#"<figure>{}<div class="readout"></div></figure>"#, chart.svg());
        format!(r#"<div class="plots">{}{}</div>"#, figure(&loss), figure(&accuracy))
    };
    // What is sent after the last step is at no step's place.
    let is_silent = |row: &&Row| row.steps.iter().all(|step| step.bytes == 0);
    let silent: Vec<&str> = rows.iter().filter(is_silent).map(|row| row.run.title.as_str()).collect();
    let over_bytes = match silent.len() == rows.len() {
        true => String::new(),
        false => {
            let silent = match silent.is_empty() {
                true => String::new(),
                false => format!(" {} sent nothing before the end.", list(&silent, "; ", " and ")),
            };
            format!(
                "<h3>Over bytes</h3>{}<p>Data that the busiest rank had sent by then, on an axis of factors.{}</p>",
                pair(Over::Bytes),
                escape(&silent)
            )
        }
    };
    format!(
        "<h3>Over epochs</h3>{}<p>{}</p><h3>Over time</h3>{}{over_bytes}<h3>Over steps</h3>{}\
         <p>The loss of a step is the mean over its images, its time the mean over the ranks that take it together. Where there are \
         many steps, a point is the mean over a twenty-fifth of them. The first step, which warms everything up, is drawn as \
         long as the second. A loss of more than twice that of the first epoch is drawn at the upper edge.</p>",
        pair(Over::Epochs),
        escape(&groups.sentence(rows)),
        pair(Over::Seconds),
        pair(Over::Steps),
    )
}

/// Where the time of each row went.
fn splits(rows: &[Row]) -> Vec<(String, Split)> {
    rows.iter().map(|row| (row.run.title.clone(), Split::of(&row.summary))).collect()
}

/// A table whose headings may break.
pub fn table(headings: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let mut html = String::from("<table><thead><tr>");
    for heading in headings {
        let _ = write!(html, "<th>{}</th>", escape(&heading.replace("-\n", "").replace('\n', " ")));
    }
    html.push_str("</tr></thead><tbody>");
    for row in rows {
        html.push_str("<tr>");
        for cell in row {
            let _ = write!(html, "<td>{}</td>", escape(&cell));
        }
        html.push_str("</tr>");
    }
    html + "</tbody></table>"
}

/// A table like the terminal's.
fn of_columns(columns: &[Column], rows: &[Row]) -> String {
    let headings: Vec<&str> = columns.iter().map(|column| column.heading).collect();
    table(&headings, rows.iter().map(|row| columns.iter().map(|column| (column.cell)(row)).collect()))
}

/// What became of recipes for large batches, if rows follow some.
fn large_batch_recipes(rows: &[Row]) -> String {
    let Some(LargeBatches { headings, rows, sentences }) = large_batches(rows) else { return String::new() };
    let said: String = sentences.iter().map(|sentence| format!("<li>{}</li>\n", escape(sentence))).collect();
    format!(
        r#"<h2>Large batches</h2><div class="scroll">{}</div><ul>{said}</ul>
<p>Loss and accuracy in training are those of the last epoch. Goyal et al. (2017) trained ResNet-50 on ImageNet, with batches of
256 and of 8,192: top-1 errors. LARS: You et al. (2017).</p>"#,
        table(&headings, rows.into_iter())
    )
}

fn by_rank(rows: &[Row]) -> String {
    let Some(bars) = ranks::bars(rows) else { return String::new() };
    let slowed = rows.iter().any(|row| !row.run.job.slow.is_empty());
    let servers = rows.iter().any(|row| row.summary.servers > 0);
    let key =
        |class: &str, text: &str| format!(r#"<span class="key"><span class="swatch {class}"></span>{text}</span>"#);
    let mut legend = key("compute", "worker");
    legend += &if slowed { key("slowed", "worker that is made slow") } else { String::new() };
    legend += &if servers { key("other", "server") } else { String::new() };
    format!(
        r#"<h2>Rank by rank</h2><div class="legend">{legend}</div><figure class="scroll">{bars}</figure>
<p>Updates are a worker's steps, and those that a server's parameters took. A rank waits from when it comes to an exchange
until the others have come.</p>"#
    )
}

fn observed_staleness(rows: &[Row], look: &Look) -> String {
    let histograms = staleness::histograms(rows, &look.styles);
    match histograms.is_empty() {
        true => String::new(),
        false => format!(
            r#"<h2>Staleness</h2><div class="plots small">{histograms}</div>
<p>How many steps the parameters lacked, or had moved on, that gradients were computed from, as the servers saw it.</p>"#
        ),
    }
}

/// What the busiest rank sent and received, in all and in a step.
fn traffic(rows: &[Row]) -> String {
    let headings = [
        "way",
        "sent",
        "with headers",
        "received",
        "with headers",
        "messages sent",
        "sent a step",
        "messages a step",
        "bytes a message",
    ];
    table(
        &headings,
        rows.iter().map(|row| {
            let Summary { bytes_sent, messages_sent, steps, .. } = row.summary;
            let steps = steps.max(1) as u64;
            vec![
                row.run.title.clone(),
                bytes(bytes_sent),
                bytes(row.summary.wire_bytes_sent),
                bytes(row.summary.bytes_received),
                bytes(row.summary.wire_bytes_received),
                messages_sent.to_string(),
                bytes(bytes_sent / steps),
                (messages_sent / steps).to_string(),
                bytes_sent.checked_div(messages_sent).map_or_else(String::new, bytes),
            ]
        }),
    )
}

/// The colours of what was traced.
fn kinds(rows: &[Row]) -> String {
    let traced = |kind: Kind| rows.iter().flat_map(|row| row.spans.iter().flatten()).any(|span| span.kind == kind);
    let key = |kind: Kind| {
        let name = kind.name();
        format!(r#"<span class="key"><span class="swatch {name}"></span>{name}</span>"#)
    };
    Kind::ALL.into_iter().filter(|&kind| traced(kind)).map(key).collect()
}

/// One step of each row.
fn pictures(rows: &[Row]) -> String {
    let picture = |row: &Row| {
        let timeline::Picture { title, svg } = timeline::picture(row)?;
        Some(format!(r#"<h3>{}, {title}</h3><figure class="scroll">{svg}</figure>"#, escape(&row.run.title)))
    };
    let pictures: String = rows.iter().filter_map(picture).collect();
    if pictures.is_empty() { "<p>No step was traced.</p>".to_owned() } else { pictures }
}

fn slowest_ranks(rows: &[Row]) -> String {
    match slowest::strips(rows) {
        Some(strips) => format!(
            "{strips}<p>The colour is the rank that wrote its last gradient last, the height how long after the first.</p>"
        ),
        None => "<p>No rank waited for another at every step.</p>".to_owned(),
    }
}

fn weights(rows: &[Row]) -> String {
    rows.iter()
        .map(|row| {
            let (name, sha256) = (escape(&row.run.title), &row.summary.weights_sha256);
            format!("<tr><td>{name}</td><td><code>{sha256}</code></td></tr>")
        })
        .collect()
}
