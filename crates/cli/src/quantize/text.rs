//! The study in the terminal.

use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};

use super::study::Study;
use super::subject::Subject;
use crate::show::{bytes, percent, seconds};

/// Steps, layers, and what both models take.
pub fn text(subject: &Subject, study: &Study) -> String {
    let [steps, layers, costs] = [steps(study), layers(study), costs(study)].map(|rows| table(&rows));
    format!("{}\n\n{steps}\n{layers}\n{}\n{costs}\n{}", title(subject, study), checked(study), changes(study))
}

/// What was quantized, and how.
pub fn title(subject: &Subject, study: &Study) -> String {
    let recipe = subject.recipe;
    let each = match recipe.granularity.name() {
        "channel" => "a scale for each filter",
        _ => "a scale for each layer",
    };
    format!(
        "{} on {}, {} bits, {each}, calibrated by {} with {} training images",
        subject.name,
        subject.data.name,
        recipe.bits.count(),
        recipe.calibration.name(),
        study.calibrated_with
    )
}

/// Accuracy after each step, headings first.
pub fn steps(study: &Study) -> Vec<Vec<String>> {
    let mut rows = vec![row(["integers are", "accuracy", "change"])];
    rows.push(row(["none", &percent(study.float), ""]));
    for (step, accuracy) in &study.steps {
        let name = match *step {
            "weights" => "weights",
            "activations" => "weights and activations",
            _ => "all, biases too: no float is left",
        };
        rows.push(row([name, &percent(*accuracy), &points(accuracy - study.float)]));
    }
    rows
}

/// A difference of accuracies.
pub fn points(difference: f64) -> String {
    format!("{:+.2} points", 100.0 * difference)
}

/// Each activation, headings first.
pub fn layers(study: &Study) -> Vec<Vec<String>> {
    let mut rows = vec![row(["activation", "of", "scale", "zero point", "integers", "clipped", "SQNR"])];
    for layer in &study.layers {
        let sqnr = layer.sqnr_db.map_or_else(|| "exact".to_owned(), |ratio| format!("{ratio:.1} dB"));
        rows.push(row([
            &layer.name,
            layer.kind,
            &format!("{:.3e}", layer.grid.scale),
            &layer.grid.zero_point.to_string(),
            &format!("{} to {}", layer.seen.least, layer.seen.most),
            &format!("{:.3}%", 100.0 * layer.clipped),
            &sqnr,
        ]));
    }
    rows
}

/// How many inputs of layers were looked at.
pub fn checked(study: &Study) -> String {
    let [low, high] = study.model.bits.activations();
    format!(
        "Checked: the {} inputs of all layers for {} test images are integers from {low} to {high}.",
        study.checked, study.checked_images
    )
}

/// What both models take, headings first.
pub fn costs(study: &Study) -> Vec<Vec<String>> {
    let (float, integer) = (&study.float_cost, &study.integer_cost);
    let times = |ratio: f64| format!("{ratio:.2} x");
    let batch = format!("images/s, batch {}", float.batch);
    vec![
        row(["", "float", &format!("integers, {}", study.instructions), "better by"]),
        row([
            "weights",
            &bytes(float.bytes as u64),
            &bytes(integer.bytes as u64),
            &times(float.bytes as f64 / integer.bytes as f64),
        ]),
        row([
            "one image",
            &seconds(float.latency.p50_seconds),
            &seconds(integer.latency.p50_seconds),
            &times(float.latency.p50_seconds / integer.latency.p50_seconds),
        ]),
        row([
            &batch,
            &format!("{:.0}", float.images_per_second),
            &format!("{:.0}", integer.images_per_second),
            &times(integer.images_per_second / float.images_per_second),
        ]),
    ]
}

/// What a bias in the last layer costs, for a network that has none.
pub fn with_bias(study: &Study) -> String {
    let after = |step: usize| percent(study.steps[step].1);
    format!(
        "With a bias in the last layer: {} in floats, {} with the bias a float still, {} with an integer.",
        percent(study.float),
        after(1),
        after(2)
    )
}

/// How many answers changed.
pub fn changes(study: &Study) -> String {
    format!("{} of {} test images changed their answer.", study.changes, study.tried)
}

fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(str::to_owned).to_vec()
}

fn table(rows: &[Vec<String>]) -> Table {
    let mut table = Table::new();
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header(&rows[0]);
    table.add_rows(&rows[1..]);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        column.set_cell_alignment(if index == 0 { CellAlignment::Left } else { CellAlignment::Right });
    }
    table
}
