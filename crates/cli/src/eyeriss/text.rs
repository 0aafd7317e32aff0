//! The study in the terminal, and the tables that the page shows too.

use std::fmt::Write;

use comfy_table::presets::UTF8_HORIZONTAL_ONLY;
use comfy_table::{CellAlignment, Table};
use ringstep_eyeriss::arch::Architecture;
use ringstep_eyeriss::array;
use ringstep_eyeriss::counts::{Accesses, Kinds};
use ringstep_eyeriss::layer::Layer;
use ringstep_eyeriss::mapping::Mapping;

use super::study::{LayerOutcome, Outcome, Study};

/// A table for the terminal and for the page.
pub struct Grid {
    pub title: String,
    pub headings: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// Larger arrays do not fit on a screen.
const MOST_COLUMNS: usize = 64;

/// All of it; in brief without each layer's picture and accesses.
pub fn text(study: &Study, brief: bool) -> String {
    let mut text = format!("{}\n\n", title(study));
    for outcome in study.main().layers.iter().filter(|_| !brief) {
        text += &block(outcome, &study.arch);
        text.push('\n');
    }
    for grid in grids(study) {
        let _ = writeln!(text, "{}\n{}\n", grid.title, table(&grid));
    }
    text
}

/// `alexnet, batch 4, on the Eyeriss chip ...`.
pub fn title(study: &Study) -> String {
    let Study { network, batch, arch, objective, .. } = study;
    let (rows, columns, clock) = (arch.rows, arch.columns, arch.clock_mhz);
    let flows: Vec<&str> = study.outcomes.iter().map(|outcome| outcome.dataflow.name()).collect();
    let least = objective.name();
    format!(
        "{network}, batch {batch}, on {} ({rows}x{columns} PEs, {clock} MHz), {}, for the least {least}",
        arch.name,
        flows.join(", ")
    )
}

/// All tables.
pub fn grids(study: &Study) -> Vec<Grid> {
    let mut grids = vec![layers(study), energies(study.main(), &study.arch)];
    grids.extend(zeros(study.main(), &study.arch));
    grids.extend((study.outcomes.len() > 1).then(|| dataflows(study)));
    grids.extend(chip(study));
    grids
}

/// A picture of the array on the left; mapping, time and accesses on the right.
fn block(outcome: &LayerOutcome, arch: &Architecture) -> String {
    let analysis = outcome.analysis();
    let facts = facts(outcome, arch);
    let mut right = facts;
    right.push(format!("{:<12}{:>24}{:>24}{:>24}", "words", "input", "filter", "partial sum"));
    for (name, kinds) in Accesses::NAMES.iter().zip(analysis.accesses.each()) {
        right.push(format!("{name:<12}{}", access_cells(&kinds).map(|cell| format!("{cell:>24}")).concat()));
    }
    let left: Vec<String> = match outcome.mapping {
        Some(mapping) if arch.columns <= MOST_COLUMNS => picture(&outcome.layer, &mapping, arch),
        _ => Vec::new(),
    };
    let width = left.first().map_or(0, |row| row.chars().count());
    let mut text = format!("{}: {}\n", outcome.layer.name, outcome.layer.describe());
    for at in 0..left.len().max(right.len()) {
        let (left, right) = (left.get(at).map_or("", String::as_str), right.get(at).map_or("", String::as_str));
        let gap = if width == 0 { "" } else { "  " };
        let _ = writeln!(text, "{}", format!("  {left:<width$}{gap}{right}").trim_end());
    }
    text
}

/// `12.3M read, 4.56k written`, for each kind.
pub fn access_cells(kinds: &Kinds) -> [String; 3] {
    kinds.each().map(|access| match (access.reads, access.writes) {
        (0, 0) => "-".to_owned(),
        (reads, 0) => format!("{} r", quantity(reads as f64)),
        (0, writes) => format!("{} w", quantity(writes as f64)),
        (reads, writes) => format!("{} r {} w", quantity(reads as f64), quantity(writes as f64)),
    })
}

/// What there is to say of a layer in a few lines.
pub fn facts(outcome: &LayerOutcome, arch: &Architecture) -> Vec<String> {
    let (analysis, layer) = (outcome.analysis(), &outcome.layer);
    let mut facts = Vec::new();
    if let Some(mapping) = &outcome.mapping {
        let Mapping { e, p, q, r, t, .. } = *mapping;
        let height = layer.filter_height;
        let folded = e.div_ceil(arch.columns);
        let parts = if folded > 1 { format!(", folded into {folded} parts") } else { String::new() };
        let strips = layer.output_height().div_ceil(e);
        let cut = if strips > 1 { format!(", {strips} strips of rows") } else { String::new() };
        facts.push(format!("mapping {mapping}"));
        facts.push(format!(
            "{r} x {t} sets (channels x filters) of {height}x{e} PEs{parts}{cut}; in each {q} x {p} (q x p)"
        ));
    } else {
        facts.push(parameters(outcome));
    }
    facts.push(format!(
        "{} of {} PEs; {} passes, {} cycles: {:.2} ms, {:.2} ms with DRAM; bound by {}",
        analysis.active_pes,
        arch.pes(),
        quantity(analysis.passes as f64),
        quantity(analysis.cycles.total() as f64),
        analysis.processing_ms(arch),
        analysis.total_ms(arch),
        analysis.bound(arch)
    ));
    facts
}

/// The physical array: a letter for each set, a dot for a PE that idles.
pub fn picture(layer: &Layer, mapping: &Mapping, arch: &Architecture) -> Vec<String> {
    let mut grid = vec![vec!['·'; arch.columns]; arch.rows];
    for part in array::place(arch.rows, arch.columns, layer.filter_height, mapping.e, mapping.r * mapping.t) {
        let letter = char::from(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ"[part.set % 26]);
        for row in &mut grid[part.row..part.row + layer.filter_height] {
            row[part.column..part.column + part.columns].fill(letter);
        }
    }
    grid.into_iter().map(String::from_iter).collect()
}

fn parameters(outcome: &LayerOutcome) -> String {
    let parts = outcome.layout.parameters.iter().map(|(name, size)| format!("{name}={size}"));
    parts.collect::<Vec<_>>().join(if outcome.mapping.is_some() { " " } else { ", " })
}

fn layers(study: &Study) -> Grid {
    let (arch, outcome) = (&study.arch, study.main());
    let row = |layer: &LayerOutcome| {
        let analysis = layer.analysis();
        let cycles = analysis.cycles.total();
        vec![
            layer.layer.name.clone(),
            parameters(layer),
            analysis.active_pes.to_string(),
            percent(analysis.active_pes as f64 / arch.pes() as f64),
            quantity(analysis.passes as f64),
            quantity(cycles as f64),
            percent(analysis.macs as f64 / (cycles as f64 * arch.pes() as f64)),
            format!("{:.2}", analysis.processing_ms(arch)),
            format!("{:.2}", analysis.total_ms(arch)),
            quantity(analysis.macs as f64),
            quantity(arch.bytes(analysis.accesses.dram.total()) as f64),
            quantity(arch.bytes(analysis.accesses.buffer.total()) as f64),
            analysis.bound(arch).to_owned(),
        ]
    };
    let total = outcome.total(arch);
    let mut rows: Vec<Vec<String>> = outcome.layers.iter().map(row).collect();
    rows.push(vec![
        "total".to_owned(),
        String::new(),
        String::new(),
        String::new(),
        quantity(total.passes as f64),
        quantity(total.cycles.total() as f64),
        percent(total.macs as f64 / (total.cycles.total() as f64 * arch.pes() as f64)),
        format!("{:.2}", total.processing_ms),
        format!("{:.2}", total.total_ms),
        quantity(total.macs as f64),
        quantity(arch.bytes(total.accesses.dram.total()) as f64),
        quantity(arch.bytes(total.accesses.buffer.total()) as f64),
        String::new(),
    ]);
    Grid {
        title: format!("Layers, {}", outcome.dataflow.name()),
        headings: words(
            "layer|mapping|active\nPEs|of all|passes|cycles|PEs\nbusy|ms|ms with\nDRAM|MACs|DRAM\nbytes|buffer\nbytes|bound by",
        ),
        rows,
    }
}

fn energies(outcome: &Outcome, arch: &Architecture) -> Grid {
    let row = |name: &str, energy: &ringstep_eyeriss::counts::Energy| {
        let mut row = vec![name.to_owned(), quantity(energy.mac)];
        row.extend(energy.by_level().map(quantity));
        row.extend(energy.by_kind().map(quantity));
        row.extend([
            quantity(energy.total()),
            format!("{:.2}", energy.total() / energy.mac.max(1.0) * arch.energy.mac),
        ]);
        row
    };
    let mut rows: Vec<_> =
        outcome.layers.iter().map(|layer| row(&layer.layer.name, &layer.analysis().energy(arch))).collect();
    rows.push(row("total", &outcome.total(arch).energy));
    Grid {
        title: "Energy in MACs, by level and by kind".to_owned(),
        headings: words("layer|MACs|DRAM|buffer|array|scratch-\npads|input|filter|partial\nsums|total|a MAC"),
        rows,
    }
}

fn zeros(outcome: &Outcome, arch: &Architecture) -> Option<Grid> {
    let row = |layer: &LayerOutcome| {
        let zeros = layer.zeros?;
        let plain = arch.bytes(layer.analysis().accesses.dram.total()) as f64;
        let (saved, coded) = (layer.gated_energy(arch)?, layer.coded_dram_bytes(arch)?);
        Some(vec![
            layer.layer.name.clone(),
            percent(zeros.input),
            percent(zeros.filters),
            percent(zeros.gated),
            percent(saved / layer.analysis().energy(arch).total()),
            quantity(plain),
            quantity(coded),
        ])
    };
    let rows: Vec<_> = outcome.layers.iter().filter_map(row).collect();
    (!rows.is_empty()).then(|| Grid {
        title: "Zeros in the run's own weights and activations, as 16-bit fixed point".to_owned(),
        headings: words(
            "layer|zeros in\ninput|zeros in\nfilters|MACs\ngated|energy\nsaved|DRAM\nbytes|run-length\ncoded",
        ),
        rows,
    })
}

fn dataflows(study: &Study) -> Grid {
    let arch = &study.arch;
    let least = study.main().total(arch).energy.total();
    let row = |outcome: &Outcome| {
        let total = outcome.total(arch);
        let macs = total.macs as f64;
        let mut row = vec![outcome.dataflow.name().to_owned(), format!("{:.2}", total.energy.total() / least)];
        row.push(format!("{:.2}", total.energy.total() / macs));
        row.extend(total.energy.by_level().map(|energy| format!("{:.2}", energy / macs)));
        row.extend(total.energy.by_kind().map(|energy| format!("{:.2}", energy / macs)));
        row.push(quantity(arch.bytes(total.accesses.dram.total()) as f64));
        row
    };
    Grid {
        title: "Dataflows: energy a MAC, by level and by kind".to_owned(),
        headings: words(
            "dataflow|times the\nfirst|all|DRAM|buffer|array|scratch-\npads|input|filter|partial\nsums|DRAM\nbytes",
        ),
        rows: study.outcomes.iter().map(row).collect(),
    }
}

/// Published and simulated side by side.
fn chip(study: &Study) -> Option<Grid> {
    let arch = &study.arch;
    let pairs = study.beside_the_chip()?;
    let against = |value: f64, published: f64| format!("{value:.1} ({:+.0}%)", 100.0 * (value / published - 1.0));
    let mut sums = [[0.0; 2]; 4];
    let mut rows = Vec::new();
    for (layer, chip) in &pairs {
        let analysis = layer.analysis();
        let megabytes = |words| arch.bytes(words) as f64 / 1e6;
        let (dram, buffer) = (analysis.accesses.dram.total(), analysis.accesses.buffer.total());
        let values = [
            [chip.processing_ms, analysis.processing_ms(arch)],
            [chip.total_ms, analysis.total_ms(arch)],
            [chip.buffer_mb, megabytes(buffer)],
            [chip.dram_mb, megabytes(dram)],
        ];
        let mut row = vec![chip.name.to_owned(), chip.active_pes.to_string(), analysis.active_pes.to_string()];
        for (sum, [published, value]) in sums.iter_mut().zip(values) {
            sum[0] += published;
            sum[1] += value;
            row.extend([format!("{published:.1}"), against(value, published)]);
        }
        rows.push(row);
    }
    let mut total = vec!["total".to_owned(), String::new(), String::new()];
    total.extend(sums.iter().flat_map(|[published, value]| [format!("{published:.1}"), against(*value, *published)]));
    rows.push(total);
    Some(Grid {
        title: "Beside the chip (Chen et al., JSSC 2017): published, then simulated; DRAM published run-length coded, \
                simulated plain"
            .to_owned(),
        headings: words("layer|PEs|sim.|ms|sim.|ms with\nDRAM|sim.|buffer\nMB|sim.|DRAM\nMB|sim."),
        rows,
    })
}

fn words(text: &str) -> Vec<String> {
    text.split('|').map(str::to_owned).collect()
}

fn table(grid: &Grid) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_HORIZONTAL_ONLY).set_header(grid.headings.clone());
    table.add_rows(grid.rows.clone());
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        column.set_cell_alignment(if index == 0 { CellAlignment::Left } else { CellAlignment::Right });
    }
    table
}

/// Three digits and a letter: `1.23M`.
pub fn quantity(value: f64) -> String {
    let units = [(1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")];
    let Some((size, unit)) = units.into_iter().find(|(size, _)| value >= 0.9995 * size) else {
        return format!("{value:.0}");
    };
    let value = value / size;
    let digits = if value >= 99.95 { 0 } else { 1 + usize::from(value < 9.995) };
    format!("{value:.digits$}{unit}")
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use ringstep_eyeriss::networks::Network;

    use super::*;

    #[test]
    fn quantities_have_three_digits() {
        let shown = [0.0, 7.0, 999.4, 999.9, 1234.0, 45_600.0, 421_660_800.0, 2.663e9].map(quantity);
        assert_eq!(shown, ["0", "7", "999", "1.00k", "1.23k", "45.6k", "422M", "2.66G"]);
    }

    #[test]
    fn a_folded_set_stands_below_itself() {
        let layer = &Network::AlexNet.layers()[1];
        let mapping = Mapping { m: 64, n: 1, e: 27, p: 16, q: 2, r: 1, t: 1 };
        let picture = picture(layer, &mapping, &Architecture::default());
        assert_eq!((picture[4].as_str(), picture[9].as_str()), ("AAAAAAAAAAAAAA", "AAAAAAAAAAAAA·"));
        assert_eq!(picture[10], "·".repeat(14));
    }
}
