//! The tables, for terminals and pages alike.

use super::cells::{Place, Scaling};
use super::lab::{Cell, Lab};
use crate::show::{bytes, seconds};

/// A table with what is to be known to read it.
pub struct Table {
    pub title: &'static str,
    /// These may break.
    pub headings: Vec<&'static str>,
    pub rows: Vec<Vec<String>>,
    pub note: String,
}

/// All of them.
pub fn tables(lab: &Lab) -> Vec<Table> {
    vec![speedups(lab), splits(lab), bandwidths(lab), network(lab)]
}

fn percent(share: f64) -> String {
    format!("{:.0}%", 100.0 * share)
}

/// A time that may be negative, as a difference is.
fn difference(time: f64) -> String {
    if time < 0.0 { format!("-{}", seconds(-time)) } else { seconds(time) }
}

/// GB/s.
fn rate(bytes_a_second: f64) -> String {
    format!("{:.3}", bytes_a_second / 1e9)
}

/// Weak scaling, and strong scaling beside it.
fn speedups(lab: &Lab) -> Table {
    let cells = lab.cells();
    let strong = |place: Place| {
        let twin = Place { scaling: Scaling::Strong, ..place };
        cells.iter().find(move |cell| cell.place == twin)
    };
    let times = |cell: &Cell<'_>| {
        [
            seconds(cell.at.split.seconds),
            seconds(cell.at.with_data),
            format!("{:.2}", cell.speedup()),
            percent(cell.efficiency()),
        ]
    };
    let row = |weak: &Cell<'_>| {
        let strong = strong(weak.place).map_or_else(|| [const { String::new() }; 4], times);
        let place =
            [weak.place.batch, weak.place.workers, lab.about.threads, weak.cores].map(|count| count.to_string());
        let allowed = format!("{:.2}", weak.allowed);
        [&place[..], &times(weak)[..], &strong[..], &[allowed][..]].concat()
    };
    let rows: Vec<Vec<String>> = cells.iter().filter(|cell| cell.place.scaling == Scaling::Weak).map(row).collect();
    let crowded = cells.iter().filter(|cell| cell.is_crowded()).max_by_key(|cell| cell.place.workers);
    let crowd = crowded.map_or_else(String::new, |cell| {
        let (workers, threads, cores) = (cell.place.workers, lab.about.threads, lab.about.cores);
        format!(
            " Workers outnumber cores: {workers} of {} share {cores}, which allow a speed-up of {:.2}.",
            if threads == 1 { "1 thread".to_owned() } else { format!("{threads} threads") },
            cell.allowed
        )
    });
    Table {
        title: "Table 1: time of an epoch, and speed-up over one worker",
        headings: vec![
            "batch",
            "work-\ners",
            "thr-\neads",
            "cores",
            "weak:\ntime",
            "with\ndata",
            "speed\nup",
            "effi-\nciency",
            "strong:\ntime",
            "with\ndata",
            "speed\nup",
            "effi-\nciency",
            "cores\nallow",
        ],
        rows,
        note: format!(
            "Weak scaling: each worker takes a batch at once. Strong scaling: all workers together do. An epoch has {} images; times \
             are without and with the loading of data. Efficiency is the speed-up over the number of workers.{crowd}",
            lab.about.samples
        ),
    }
}

/// Cells that differ: one worker is the same in both scalings.
fn different<'a>(lab: &'a Lab) -> impl Iterator<Item = Cell<'a>> {
    lab.cells().into_iter().filter(|cell| cell.place.workers > 1 || cell.place.scaling == Scaling::Weak)
}

/// Computation and communication, measured and by subtraction.
fn splits(lab: &Lab) -> Table {
    let row = |cell: Cell<'_>| {
        let (at, subtraction) = (cell.at, cell.subtraction());
        let alone = cell.place.workers == 1;
        let scaling = if alone { "" } else { cell.place.scaling.name() };
        let mut row = vec![at.size.to_string(), scaling.to_owned()];
        row.extend([at.split.compute, at.comm(), at.split.exposed, at.hidden, at.split.waiting].map(seconds));
        row.extend([subtraction.compute, subtraction.comm].map(difference));
        row.push(at.predicted.map_or_else(String::new, seconds));
        row
    };
    Table {
        title: "Table 2: computation and communication of an epoch",
        headings: vec![
            "workers\nx batch",
            "scaling",
            "compu-\ntation",
            "commu-\nnication",
            "of it\nexposed",
            "of it\nhidden",
            "waiting",
            "subtracted:\ncomputation",
            "commu-\nnication",
            "pre-\ndicted",
        ],
        rows: different(lab).map(row).collect(),
        note: "Measured: hidden communication goes on beside the computation; waiting is for other workers to come to an \
               exchange. Subtracted: one worker's time over the number of workers, and what is left of the time then. Predicted \
               is the time of the epoch."
            .to_owned(),
    }
}

/// What all-reduces make of the network.
fn bandwidths(lab: &Lab) -> Table {
    let row = |cell: Cell<'_>| {
        let (at, reduced) = (cell.at, cell.at.reduced?);
        let p = cell.place.workers as f64;
        Some(vec![
            at.size.to_string(),
            cell.place.scaling.name().to_owned(),
            bytes(reduced as u64),
            bytes((2.0 * (p - 1.0) / p * reduced) as u64),
            seconds(at.comm()),
            at.bandwidth().map_or_else(String::new, rate),
            cell.ceiling.map_or_else(String::new, rate),
            cell.utilisation().map_or_else(String::new, percent),
        ])
    };
    Table {
        title: "Table 3: bandwidth, in GB/s",
        headings: vec![
            "workers\nx batch",
            "scaling",
            "bytes\nsummed",
            "x\n2(p-1)/p",
            "time in\nall-reduce",
            "band-\nwidth",
            "ceiling",
            "ratio",
        ],
        rows: lab.cells().into_iter().filter_map(row).collect(),
        note: format!(
            "Each of p workers has to send 2(p-1)/p of the bytes (Patarasuk and Yuan, 2009). The ceiling is the bandwidth of an \
             all-reduce of {} by workers that do nothing else.",
            bytes(lab.about.gradients as u64)
        ),
    }
}

/// Bytes by what they are.
fn network(lab: &Lab) -> Table {
    let row = |measured: &super::measure::Measured| {
        let mut row = vec![measured.size.to_string()];
        row.extend(measured.sent.by_name().map(|(_, count)| bytes(count)));
        row.push(bytes(measured.sent.total()));
        row.push(bytes(measured.sent.total() / measured.steps as u64));
        row
    };
    Table {
        title: "What is on the network, bytes of all workers in an epoch",
        headings: vec![
            "workers\nx batch",
            "gradients",
            "para-\nmeters",
            "batch-norm\nstatistics",
            "images",
            "control",
            "in all",
            "in a\nstep",
        ],
        rows: lab.together().map(row).collect(),
        note: "Control is requests, and the headers and padding of all messages.".to_owned(),
    }
}
