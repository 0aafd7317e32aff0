//! The study in the terminal.

use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};

use ringstep_quant::graph::Op;

use super::study::Study;
use super::subject::Subject;
use crate::show::{bytes, percent, seconds};

/// With fewer channels or filters than this the bytes that are multiplied at once are mostly not there.
const FEW_CHANNELS: usize = 16;

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
        thousands(study.checked),
        thousands(study.checked_images)
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

/// Why integers are slower, where they are: by how many products there are, and in which layers.
pub fn slower(study: &Study) -> Option<String> {
    let (float, integer) = (&study.float_cost, &study.integer_cost);
    let one = float.latency.p50_seconds / integer.latency.p50_seconds;
    let many = integer.images_per_second / float.images_per_second;
    if one >= 1.0 && many >= 1.0 {
        return None;
    }
    let (mut all, mut few, mut names) = (0, 0, Vec::new());
    for node in &study.graph.nodes {
        let Op::Conv { geometry, .. } = &node.op else { continue };
        let products = geometry.window() * geometry.output.len();
        all += products;
        if geometry.input.channels.min(geometry.output.channels) < FEW_CHANNELS {
            few += products;
            names.push(node.name.as_str());
        }
    }
    let where_few = match names.is_empty() {
        true => String::new(),
        false => format!(
            ", {} of them in layers with fewer than {FEW_CHANNELS} channels or filters ({}), which leave most of a register of bytes \
             empty",
            percent(few as f64 / all as f64),
            names.join(", ")
        ),
    };
    Some(format!(
        "Integers are {one:.2} times as fast as floats for one image and {many:.2} times at batch {}: an image takes {} products\
         {where_few}, and {} pixels and all sums have to become bytes besides.",
        integer.batch,
        thousands(all),
        thousands(study.model.input.len())
    ))
}

/// What is cut off where there is a tangent, in whatever way ranges are chosen.
pub fn tanh(study: &Study) -> &'static str {
    match study.layers.iter().any(|layer| layer.cut.is_some()) {
        true => {
            "What goes into a tanh is cut off at 4 and -4, whatever the calibration: beyond, what comes out is the same integer. That \
             lowers its SQNR, and costs nothing."
        }
        false => "",
    }
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

/// A number with a comma after every thousand.
fn thousands(number: usize) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).expect("digits are ASCII")).collect();
    groups.join(",")
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thousands_are_apart() {
        assert_eq!([0, 999, 1000, 15_616_000].map(thousands), ["0", "999", "1,000", "15,616,000"]);
    }
}
