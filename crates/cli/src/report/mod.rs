//! report.html: one page that needs nothing but itself.

mod chart;

use std::fmt::Write;

use ringstep_data::Dataset;

use self::chart::{Bar, Lines, Series};
use crate::html::{self, escape};
use crate::show::{HEADINGS, cells, row_name};
use crate::train::Row;

const TEMPLATE: &str = include_str!("page.html");

/// The page for these rows.
pub fn page(rows: &[Row], config: &str, data: &Dataset) -> String {
    let series = |values: fn(&Row) -> &[f64]| -> Vec<Series<'_>> {
        rows.iter().map(|row| Series { name: row_name(&row.job), values: values(row) }).collect()
    };
    let loss = Lines { name: "loss", percent: false, series: series(|row| &row.summary.epoch_losses) };
    let accuracy = Lines { name: "accuracy", percent: true, series: series(|row| &row.summary.epoch_accuracies) };
    let bars: Vec<Bar> = rows
        .iter()
        .map(|row| {
            let (compute, comm) = (row.summary.compute_seconds, row.summary.comm_seconds);
            let other = (row.summary.seconds - compute - comm).max(0.0);
            Bar { name: row_name(&row.job), parts: [compute, comm, other] }
        })
        .collect();
    let title = match rows {
        [row] => format!("{} on {}, {}", row.job.model.name, data.name, row_name(&row.job)),
        _ => format!("{} on {}, {} ways to synchronise", rows[0].job.model.name, data.name, rows.len()),
    };
    let threads = std::thread::available_parallelism().map_or(0, usize::from);
    let machine = format!("{}, {threads} cores available", std::env::consts::ARCH);
    let facts = format!("{} training and {} test images", data.train.len(), data.test.len());

    let fields = [
        ("{{title}}", escape(&title)),
        ("{{facts}}", escape(&facts)),
        ("{{machine}}", escape(&machine)),
        ("{{version}}", escape(env!("CARGO_PKG_VERSION"))),
        ("{{table}}", table(rows)),
        ("{{legend}}", chart::legend(rows.iter().map(|row| row_name(&row.job)))),
        ("{{loss}}", loss.svg()),
        ("{{accuracy}}", accuracy.svg()),
        ("{{bars}}", chart::bars(&bars)),
        ("{{weights}}", weights(rows)),
        ("{{config}}", escape(config)),
        ("{{attribution}}", escape(&format!("{}: {}.", data.name, data.licence))),
    ];
    html::fill(TEMPLATE, &fields)
}

fn table(rows: &[Row]) -> String {
    let mut html = String::from("<table><thead><tr>");
    for heading in HEADINGS {
        let _ = write!(html, "<th>{}</th>", escape(&heading.replace('\n', " ")));
    }
    html.push_str("</tr></thead><tbody>");
    for row in rows {
        html.push_str("<tr>");
        for cell in cells(row) {
            let _ = write!(html, "<td>{}</td>", escape(&cell));
        }
        html.push_str("</tr>");
    }
    html + "</tbody></table>"
}

fn weights(rows: &[Row]) -> String {
    rows.iter()
        .map(|row| {
            let (name, sha256) = (escape(&row_name(&row.job)), &row.summary.weights_sha256);
            format!("<tr><td>{name}</td><td><code>{sha256}</code></td></tr>")
        })
        .collect()
}
