//! report.html: one page that needs nothing but itself.

mod chart;
mod slowest;
mod timeline;

use std::fmt::Write;

use ringstep_cpu::cores;
use ringstep_data::Dataset;
use ringstep_train::summary::Summary;

use self::chart::{Bar, Lines, Series, Unit};
use crate::html::{self, escape};
use crate::show::{HEADINGS, STEP_HEADINGS, Split, bytes, cells, step_cells};
use crate::train::Row;

const TEMPLATE: &str = include_str!("page.html");

/// The page for these rows, with sentences about what bounded them.
pub fn page(rows: &[Row], bounds: &[String], config: &str, data: &Dataset) -> String {
    let series = |values: fn(&Row) -> Vec<f64>| -> Vec<Series> {
        rows.iter().map(|row| Series { name: row.run.title.clone(), values: values(row) }).collect()
    };
    let plots = [
        Lines::new("training loss", "epoch", Unit::Plain, series(|row| row.summary.epoch_losses.clone())),
        Lines::new("training accuracy", "epoch", Unit::Percent, series(|row| row.summary.epoch_accuracies.clone())),
        Lines::new(
            "training loss",
            "step",
            Unit::Plain,
            series(|row| row.steps.iter().map(|step| step.loss).collect()),
        ),
        // The first warms everything up, and would flatten the others.
        Lines::new("time of a step", "step", Unit::Seconds, series(step_times)),
    ];
    let [loss, accuracy, step_loss, step_time] = plots.map(|plot| plot.svg());
    let bars: Vec<Bar> =
        rows.iter().map(|row| Bar { name: row.run.title.clone(), split: Split::of(&row.summary) }).collect();
    let title = match rows {
        [row] => format!("{} on {}, {}", row.run.job.model.name, data.name, row.run.title),
        _ => format!("{} on {}, {} ways to synchronise", rows[0].run.job.model.name, data.name, rows.len()),
    };
    let instructions = &rows[0].summary.instructions;
    let machine =
        format!("{}, {} cores available, {instructions} instructions", std::env::consts::ARCH, cores::allowed());
    let facts = format!("{} training and {} test images", data.train.len(), data.test.len());

    let fields = [
        ("{{title}}", escape(&title)),
        ("{{facts}}", escape(&facts)),
        ("{{machine}}", escape(&machine)),
        ("{{version}}", escape(env!("CARGO_PKG_VERSION"))),
        ("{{table}}", table(&HEADINGS, rows.iter().map(|row| cells(row).to_vec()))),
        ("{{legend}}", chart::legend(rows.iter().map(|row| row.run.title.clone()))),
        ("{{loss}}", loss),
        ("{{accuracy}}", accuracy),
        ("{{step_loss}}", step_loss),
        ("{{step_time}}", step_time),
        ("{{step_table}}", table(&STEP_HEADINGS, rows.iter().map(|row| step_cells(row).to_vec()))),
        ("{{bounds}}", escape(&bounds.join("\n")).replace('\n', "<br>\n")),
        ("{{traffic}}", traffic(rows)),
        ("{{pictures}}", pictures(rows)),
        ("{{slowest}}", slowest_ranks(rows)),
        ("{{bars}}", chart::bars(&bars)),
        ("{{weights}}", weights(rows)),
        ("{{config}}", escape(config)),
        ("{{attribution}}", escape(&format!("{}: {}.", data.name, data.licence))),
    ];
    html::fill(TEMPLATE, &fields)
}

/// The first step takes the second's place.
fn step_times(row: &Row) -> Vec<f64> {
    let mut times: Vec<f64> = row.steps.iter().map(|step| step.seconds).collect();
    if let [first, second, ..] = &mut times[..] {
        *first = *second;
    }
    times
}

fn table(headings: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
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

/// What the busiest rank sent, in all and in a step.
fn traffic(rows: &[Row]) -> String {
    let headings = ["way", "bytes", "messages", "bytes a step", "messages a step", "bytes a message"];
    table(
        &headings,
        rows.iter().map(|row| {
            let Summary { bytes_sent, messages_sent, steps, .. } = row.summary;
            let steps = steps as u64;
            vec![
                row.run.title.clone(),
                bytes(bytes_sent),
                messages_sent.to_string(),
                bytes(bytes_sent / steps),
                (messages_sent / steps).to_string(),
                bytes_sent.checked_div(messages_sent).map_or_else(String::new, bytes),
            ]
        }),
    )
}

/// One step of each row.
fn pictures(rows: &[Row]) -> String {
    let picture = |row: &Row| {
        let (step, svg) = timeline::step_picture(row)?;
        Some(format!(r#"<h3>{}, step {step}</h3><figure class="scroll">{svg}</figure>"#, escape(&row.run.title),))
    };
    let pictures: String = rows.iter().filter_map(picture).collect();
    if pictures.is_empty() { "<p>No step was traced.</p>".to_owned() } else { pictures }
}

fn slowest_ranks(rows: &[Row]) -> String {
    match rows.iter().any(|row| row.run.job.workers > 1) {
        true => format!(
            r#"<div class="legend">{}</div><figure class="scroll">{}</figure>"#,
            slowest::legend(rows),
            slowest::strips(rows)
        ),
        false => "<p>One worker waits for nobody.</p>".to_owned(),
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
