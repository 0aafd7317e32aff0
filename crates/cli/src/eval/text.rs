//! The evaluation in the terminal.

use comfy_table::presets::UTF8_BORDERS_ONLY;
use comfy_table::{CellAlignment, Table};

use super::Evaluation;
use crate::show::{bytes, percent, seconds};

/// Numbers, then the matrix.
pub fn text(evaluation: &Evaluation) -> String {
    format!(
        "{}\n\n{}\n\nHow often each class (rows) was taken for each (columns):\n{}",
        title(evaluation),
        numbers(evaluation),
        matrix(evaluation)
    )
}

/// What was evaluated, and how.
pub fn title(evaluation: &Evaluation) -> String {
    let Evaluation { model, dataset, images, threads, precision, instructions, .. } = evaluation;
    let plural = if *threads == 1 { "" } else { "s" };
    format!(
        "{model} on the {images} test images of {dataset}, {}, {threads} thread{plural}, {instructions} instructions",
        precision.name()
    )
}

/// Each number with its name and what belongs to it.
pub fn facts(evaluation: &Evaluation) -> [[String; 3]; 6] {
    let Evaluation { latency, memory, batch, .. } = evaluation;
    let fact = |name: &str, value: String, about: String| [name.to_owned(), value, about];
    [
        fact(
            "accuracy",
            percent(evaluation.accuracy),
            format!("{} of {} images", evaluation.correct, evaluation.images),
        ),
        fact("loss", format!("{:.4}", evaluation.loss), "mean cross-entropy".to_owned()),
        fact(
            "latency",
            format!("{} p50, {} p99", seconds(latency.p50_seconds), seconds(latency.p99_seconds)),
            format!("one image at once, {} of them", latency.images),
        ),
        fact("throughput", format!("{:.0} images/s", evaluation.images_per_second), format!("batch {batch}")),
        fact(
            "model memory",
            format!("{}, {}", bytes(memory.model_bytes_single as u64), bytes(memory.model_bytes_batch as u64)),
            format!("weights and buffers for 1 image, for {batch}"),
        ),
        fact("peak memory", bytes(memory.peak_bytes), "of the process, test images included".to_owned()),
    ]
}

fn numbers(evaluation: &Evaluation) -> String {
    let facts = facts(evaluation);
    let width = |column: usize| facts.iter().map(|fact| fact[column].chars().count()).max().unwrap_or(0);
    let [names, values] = [0, 1].map(width);
    facts.map(|[name, value, about]| format!("{name:names$}  {value:values$}  {about}")).join("\n")
}

/// Columns have the classes' numbers alone, since their names would be too wide.
fn matrix(evaluation: &Evaluation) -> Table {
    let Evaluation { classes, confusion, .. } = evaluation;
    let share = |share: Option<f64>| share.map_or_else(String::new, |share| format!("{:.1}%", 100.0 * share));
    let mut table = Table::new();
    let numbers = (0..confusion.columns()).map(|class| class.to_string());
    table.load_style(UTF8_BORDERS_ONLY);
    table.set_header([String::new()].into_iter().chain(numbers).chain(["recall".to_owned()]));
    for (class, row) in confusion.rows().enumerate() {
        let name = if classes[class] == class.to_string() { String::new() } else { format!(" {}", classes[class]) };
        let counts = row.iter().map(|&count| if count == 0 { "·".to_owned() } else { count.to_string() });
        table.add_row([format!("{class}{name}")].into_iter().chain(counts).chain([share(confusion.recall(class))]));
    }
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 1));
        column.set_cell_alignment(if index == 0 { CellAlignment::Left } else { CellAlignment::Right });
    }
    table
}
