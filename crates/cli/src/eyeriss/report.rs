//! The study as one page that needs nothing but itself.

use std::fmt::Write;

use ringstep_eyeriss::arch::Architecture;
use ringstep_eyeriss::counts::{Accesses, Energy, Kinds};

use super::stacks::{Bar, legend, stacks};
use super::study::{LayerOutcome, Study};
use super::text::{Grid, access_cells, facts, grids, picture, quantity, title};
use crate::html::{self, escape};

const TEMPLATE: &str = include_str!("report.html");
const LEVELS: [(&str, &str); 5] =
    [("MACs", "mac"), ("DRAM", "dram"), ("buffer", "buffer"), ("array", "array"), ("scratchpads", "pads")];
const KINDS: [(&str, &str); 4] = [("MACs", "mac"), ("input", "input"), ("filter", "filter"), ("partial sums", "sums")];

/// Said where the chip's numbers are shown.
const DIFFERENCES: &str = "<h2>Why published and simulated differ</h2>\
<p>Time: passes wait for filters and for the first window of the input, as the buses allow; the chip's control has costs that \
no paper gives, and its mappings need not be the best ones found here. DRAM: the chip's bytes are run-length coded, these are \
plain. Buffer: here the filling from DRAM and the emptying to it are counted, too.</p>";

/// The page.
pub fn page(study: &Study) -> String {
    let arch = toml::to_string(&study.arch).unwrap_or_default();
    let fields = [
        ("{{title}}", escape(&title(study))),
        ("{{version}}", escape(env!("CARGO_PKG_VERSION"))),
        ("{{tables}}", grids(study).iter().map(table).collect()),
        ("{{energy}}", energy(study)),
        ("{{dataflows}}", dataflows(study)),
        ("{{layers}}", study.main().layers.iter().map(|layer| detail(layer, &study.arch)).collect()),
        ("{{differences}}", study.beside_the_chip().map_or_else(String::new, |_| DIFFERENCES.to_owned())),
        ("{{architecture}}", escape(&arch)),
    ];
    html::fill(TEMPLATE, &fields)
}

fn table(grid: &Grid) -> String {
    let mut html = format!("<h2>{}</h2><div class=\"scroll\"><table><thead><tr>", escape(&grid.title));
    for heading in &grid.headings {
        let _ = write!(html, "<th>{}</th>", escape(&heading.replace("-\n", "").replace('\n', " ")));
    }
    html.push_str("</tr></thead><tbody>");
    for row in &grid.rows {
        let class = if row[0] == "total" { " class=\"total\"" } else { "" };
        let _ = write!(html, "<tr{class}>");
        html.extend(row.iter().map(|cell| format!("<td>{}</td>", escape(cell))));
        html.push_str("</tr>");
    }
    html + "</tbody></table></div>"
}

fn by_level(energy: &Energy) -> Vec<f64> {
    std::iter::once(energy.mac).chain(energy.by_level()).collect()
}

fn by_kind(energy: &Energy) -> Vec<f64> {
    std::iter::once(energy.mac).chain(energy.by_kind()).collect()
}

/// Each layer's energy, stacked by level and by kind.
fn energy(study: &Study) -> String {
    let bars = |parts: fn(&Energy) -> Vec<f64>| -> Vec<Bar> {
        let bar = |layer: &LayerOutcome| {
            let energy = layer.analysis().energy(&study.arch);
            Bar { name: layer.layer.name.clone(), parts: parts(&energy), label: quantity(energy.total()) }
        };
        study.main().layers.iter().map(bar).collect()
    };
    figure("energy of each layer by level", &LEVELS, &bars(by_level))
        + &figure("energy of each layer by kind", &KINDS, &bars(by_kind))
}

/// The dataflows' energy a MAC, side by side.
fn dataflows(study: &Study) -> String {
    if study.outcomes.len() < 2 {
        return String::new();
    }
    let least = study.main().total(&study.arch).energy.total();
    let bars = |parts: fn(&Energy) -> Vec<f64>| -> Vec<Bar> {
        let bar = |outcome: &super::study::Outcome| {
            let total = outcome.total(&study.arch);
            let energy = total.energy.total();
            let label = format!("{:.2}, x{:.2}", energy / total.macs as f64, energy / least);
            Bar { name: outcome.dataflow.name().to_owned(), parts: parts(&total.energy), label }
        };
        study.outcomes.iter().map(bar).collect()
    };
    let all = figure("energy of each dataflow by level", &LEVELS, &bars(by_level))
        + &figure("energy of each dataflow by kind", &KINDS, &bars(by_kind));
    format!(
        "<h2>Dataflows side by side</h2><p>Behind each bar: energy a MAC, and how many times that of the first.</p>{all}"
    )
}

fn figure(label: &str, parts: &[(&str, &str)], bars: &[Bar]) -> String {
    format!("{}<figure class=\"scroll\">{}</figure>", legend(parts), stacks(label, parts, bars))
}

/// One layer: picture of the array, mapping and time, accesses.
fn detail(outcome: &LayerOutcome, arch: &Architecture) -> String {
    let drawn = outcome.mapping.map_or_else(String::new, |mapping| array(&picture(&outcome.layer, &mapping, arch)));
    let facts: String = facts(outcome, arch).iter().map(|fact| format!("<p>{}</p>", escape(fact))).collect();
    let headings: String = Kinds::NAMES.iter().map(|kind| format!("<th>{kind}</th>")).collect();
    let rows: String = Accesses::NAMES
        .iter()
        .zip(outcome.analysis().accesses.each())
        .map(|(level, kinds)| {
            let cells = access_cells(&kinds).map(|cell| format!("<td>{cell}</td>")).concat();
            format!("<tr><td>{level}</td>{cells}</tr>")
        })
        .collect();
    let (name, shape) = (escape(&outcome.layer.name), escape(&outcome.layer.describe()));
    format!(
        "<section class=\"layer\"><h3>{name}: {shape}</h3><div class=\"beside\">{drawn}<div class=\"said\">{facts}\
         <div class=\"scroll\"><table><thead><tr><th>words read (r), written (w)</th>{headings}</tr></thead>\
         <tbody>{rows}</tbody></table></div></div></div></section>"
    )
}

/// The array: a square for each PE, coloured by set.
fn array(picture: &[String]) -> String {
    let columns = picture.first().map_or(0, |row| row.chars().count());
    let side = (168 / columns.max(1)).clamp(2, 14);
    let (width, height) = (columns * side, picture.len() * side);
    let mut svg = format!(
        r#"<svg class="array" width="{width}" height="{height}" role="img" aria-label="PEs that work, by set">"#
    );
    for (y, row) in picture.iter().enumerate() {
        for (x, letter) in row.chars().enumerate() {
            let (class, what) = match letter {
                '·' => ("idle".to_owned(), "idle".to_owned()),
                set => (format!("s{}", (set as u32 - 'A' as u32) % 6), format!("set {set}")),
            };
            let _ = write!(
                svg,
                r#"<rect class="pe {class}" x="{}" y="{}" width="{}" height="{}"><title>{what}</title></rect>"#,
                x * side,
                y * side,
                side - 1,
                side - 1
            );
        }
    }
    svg + "</svg>"
}
