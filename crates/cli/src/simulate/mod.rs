//! `ringstep simulate`: what a job would take on a cluster of any size.
//!
//! | look for | in |
//! | --- | --- |
//! | the words of the command line | [`args`] |
//! | the job and the cluster, validated, and a row for each scale | [`study`] |
//! | the best algorithm and buckets | [`search`] |
//! | what this machine takes for computing and for messages | [`machine`] |
//! | what the numbers say, in sentences | [`sentences`] |
//! | the page | [`page`] |

pub(crate) mod args;
mod machine;
mod page;
mod search;
mod sentences;
mod study;

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use ringstep_comm::Algorithm;
use ringstep_sim::What;
use ringstep_train::trace::{Kind, Span, Track};
use serde::Serialize;

pub use self::args::SimulateArgs;
use self::sentences::sentences;
use self::study::{Row, Study};
use crate::launch::Interrupts;
use crate::show::{self, bytes, percent, seconds};
use crate::trace_file::TraceFile;

/// What `--json` prints.
#[derive(Serialize)]
struct Rows<'a> {
    rows: Vec<JsonRow<'a>>,
}

#[derive(Serialize)]
struct JsonRow<'a> {
    workers: usize,
    algorithm: Option<&'a str>,
    bucket: Option<usize>,
    step_seconds: f64,
    compute_seconds: f64,
    exposed_comm_seconds: f64,
    waiting_seconds: f64,
    /// What failures cost.
    lost_seconds: f64,
    efficiency: f64,
}

impl<'a> From<&'a Row> for JsonRow<'a> {
    fn from(row: &'a Row) -> Self {
        let times = row.best.simulation.times;
        Self {
            workers: row.workers,
            algorithm: row.best.algorithm().map(Algorithm::name),
            bucket: row.best.bucket(),
            step_seconds: row.step_seconds(),
            compute_seconds: times.compute_seconds,
            exposed_comm_seconds: times.exposed_comm_seconds,
            waiting_seconds: times.waiting_seconds,
            lost_seconds: row.lost_seconds,
            efficiency: row.efficiency,
        }
    }
}

/// Simulates each scale, and shows what comes out.
pub fn run(args: &SimulateArgs) -> Result<()> {
    let study = Study::new(args, &Interrupts::catch()?)?;
    if let Some(folder) = &args.out {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let rows: Vec<Row> = args.workers.0.iter().map(|&workers| study.row(workers)).collect::<Result<_>>()?;
    if let Some(path) = &args.trace {
        let last = rows.last().expect("there is a scale");
        trace(path, last)?;
    }
    let page = args.out.as_ref().map(|folder| folder.join("simulation.html"));
    if let Some(path) = &page {
        let html = page::page(&study, &rows);
        ringstep_data::file::write_whole(path, html.as_bytes()).with_context(|| path.display().to_string())?;
    }
    if args.json {
        let rows = Rows { rows: rows.iter().map(JsonRow::from).collect() };
        return show::print(format_args!("{}", serde_json::to_string_pretty(&rows)?));
    }
    show::print(format_args!("{}\n{}", title(&study), table(&rows)))?;
    for sentence in sentences(&study, &rows) {
        show::print(format_args!("{sentence}"))?;
    }
    for (what, path) in [("Page", &page), ("Trace", &args.trace)] {
        if let Some(path) = path {
            show::print(format_args!("{what}: {}", path.display()))?;
        }
    }
    Ok(())
}

/// What is simulated.
fn title(study: &Study) -> String {
    let Study { job, network, speed, .. } = study;
    let compress = job.compress.map_or_else(String::new, |compression| format!(" with {}", compression.method.name()));
    format!("{} by {}{compress}, {} images a worker, {network}, {speed}", job.model.name, job.sync.name(), job.batch)
}

/// A heading, and what stands below it.
type Column = (&'static str, fn(&Row) -> String);

/// The columns of the table; some only if there is something in them.
fn columns(rows: &[Row]) -> Vec<Column> {
    let mut columns: Vec<Column> = vec![
        ("workers", |row| row.workers.to_string()),
        ("algorithm", |row| row.best.algorithm().map_or("none", Algorithm::name).to_owned()),
        ("bucket", |row| row.best.bucket().map_or_else(String::new, |size| bytes(size as u64))),
        ("step", |row| seconds(row.step_seconds())),
        ("computation", |row| seconds(row.best.simulation.times.compute_seconds)),
        ("exposed comm", |row| seconds(row.best.simulation.times.exposed_comm_seconds)),
        ("waiting", |row| seconds(row.best.simulation.times.waiting_seconds)),
        ("failures", |row| seconds(row.lost_seconds)),
        ("efficiency", |row| percent(row.efficiency)),
    ];
    let none = |rows: &[Row], of: fn(&Row) -> f64| rows.iter().all(|row| of(row) < 1e-9);
    if none(rows, |row| row.lost_seconds) {
        columns.retain(|(name, _)| *name != "failures");
    }
    if none(rows, |row| row.best.simulation.times.waiting_seconds) {
        columns.retain(|(name, _)| *name != "waiting");
    }
    if rows.iter().all(|row| row.best.bucket().is_none()) {
        columns.retain(|(name, _)| *name != "bucket");
    }
    columns
}

fn table(rows: &[Row]) -> Table {
    let columns = columns(rows);
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY.row_separator(comfy_table::LineStyle::none()));
    table.set_header(columns.iter().map(|(name, _)| *name));
    for row in rows {
        table.add_row(columns.iter().map(|(_, cell)| cell(row)));
    }
    for (column, (name, _)) in table.column_iter_mut().zip(&columns) {
        column.set_cell_alignment(if *name == "algorithm" { CellAlignment::Left } else { CellAlignment::Right });
    }
    table
}

/// What the first workers did at a scale, in the form that Perfetto opens.
fn trace(path: &Path, row: &Row) -> Result<()> {
    let spans = &row.best.simulation.spans;
    let ranks = spans.iter().map(|span| span.rank + 1).max().unwrap_or(1);
    let mut file = TraceFile::create(path, ranks, 0)?;
    for rank in 0..ranks {
        let of_rank = spans.iter().filter(|span| span.rank == rank).map(|span| {
            let (track, kind, name) = match span.what {
                What::Forward => (Track::Computation, Kind::Forward, "forward".to_owned()),
                What::Backward => (Track::Computation, Kind::Backward, "backward".to_owned()),
                What::Update => (Track::Computation, Kind::Optimizer, "optimizer".to_owned()),
                What::Pull => (Track::Communication, Kind::Communication, "pull".to_owned()),
                What::Sum(slice) => (Track::Communication, Kind::Communication, format!("exchange {slice}")),
            };
            Span { track, name, kind, step: span.step, began: span.began, seconds: span.ended - span.began }
        });
        file.add(rank, &of_rank.collect::<Vec<_>>())?;
    }
    Ok(())
}
