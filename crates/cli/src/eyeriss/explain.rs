//! One small convolution on the PE array, as text.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use ringstep_eyeriss::lecture::{Climb, Cycle, Lecture, Matrix, Step, lecture};

use super::{ExplainArgs, film};
use crate::explain::number;
use crate::show;

/// Larger ones do not fit on a screen.
const MOST_ROWS: usize = 16;
const MOST_PES: usize = 64;

/// Shows it in the terminal, or writes a page about it.
pub fn run(args: &ExplainArgs) -> Result<()> {
    let (filter, input) = (parse(&args.filter).context("--filter")?, parse(&args.input).context("--input")?);
    let lecture = lecture(filter, input, args.stride, args.macs_per_cycle)?;
    let pes = lecture.pes.len();
    ensure!(pes <= MOST_PES, "{pes} PEs: at most {MOST_PES} can be shown");
    match &args.html {
        Some(path) => {
            let page = film::page(&lecture)?;
            ringstep_data::file::write_whole(path, page.as_bytes()).with_context(|| path.display().to_string())?;
            show::print(format_args!("Page: {}", path.display()))
        }
        None => show::print(format_args!("{}", text(&lecture).trim_end())),
    }
}

/// Rows are separated by semicolons, numbers by commas or spaces.
fn parse(text: &str) -> Result<Matrix> {
    let mut rows = Matrix::new();
    for (index, row) in text.split(';').enumerate() {
        let words = row.split(|letter: char| letter == ',' || letter.is_whitespace()).filter(|word| !word.is_empty());
        let numbers = words.map(|word| {
            let value: f64 = word.parse().ok().with_context(|| format!("'{word}' is not a number"))?;
            ensure!(value.is_finite(), "'{word}' is not finite");
            Ok(value)
        });
        let numbers: Vec<f64> = numbers.collect::<Result<_>>().with_context(|| format!("row {}", index + 1))?;
        ensure!(!numbers.is_empty(), "row {} has no numbers", index + 1);
        ensure!(numbers.len() <= MOST_ROWS, "row {}: at most {MOST_ROWS} numbers can be shown", index + 1);
        rows.push(numbers);
    }
    ensure!(rows.len() <= MOST_ROWS, "at most {MOST_ROWS} rows can be shown");
    Ok(rows)
}

/// `2x3 filter on a 3x3 input, row-stationary on 2x2 PEs`.
pub fn title(lecture: &Lecture) -> String {
    let size = |matrix: &Matrix| format!("{}x{}", matrix.len(), matrix[0].len());
    let columns = lecture.output.len();
    let stride = if lecture.stride == 1 { String::new() } else { format!(", stride {}", lecture.stride) };
    let (filter, input) = (size(&lecture.filter), size(&lecture.input));
    format!("{filter} filter on a {input} input{stride}, row-stationary on {}x{columns} PEs", lecture.filter.len())
}

/// What one must know to follow.
pub fn notes(lecture: &Lecture) -> [String; 3] {
    let diagonal = if lecture.stride == 1 { "along a diagonal" } else { "down the array, a stride on for each column" };
    [
        "A filter row stays in the PEs of a row of the array.".to_owned(),
        format!("An input row goes {diagonal}; each PE slides its filter row along it."),
        "The sums of a column go up and come out at the top as a row of the output.".to_owned(),
    ]
}

/// `1x(-1) + 3x2 = 5`, with the sum so far before it.
pub fn arithmetic(step: &Step, begins: bool) -> String {
    let products = step.products.iter().map(|(pixel, weight)| format!("{}x{}", bracketed(*pixel), bracketed(*weight)));
    let before = (!begins).then(|| number(step.before));
    let terms: Vec<String> = before.into_iter().chain(products).collect();
    format!("{} = {}", terms.join(" + "), number(step.after))
}

/// As it stands in a product or sum: negative numbers in brackets.
fn bracketed(value: f64) -> String {
    if value < 0.0 { format!("({})", number(value)) } else { number(value) }
}

/// `2 + 5 = 7 is output row 1, column 1`: from the bottom up.
pub fn climb(climb: &Climb, column: usize) -> String {
    let sums: Vec<String> = climb.sums.iter().map(|sum| bracketed(*sum)).collect();
    let sum = if sums.len() == 1 { String::new() } else { format!("{} = ", sums.join(" + ")) };
    format!("{sum}{} is output row {}, column {}", number(climb.output), climb.column + 1, column + 1)
}

/// The output as far as it is known after these cycles.
pub fn known(lecture: &Lecture, cycles: &[Cycle]) -> Vec<Vec<Option<f64>>> {
    let mut known: Vec<Vec<Option<f64>>> = lecture.output.iter().map(|row| vec![None; row.len()]).collect();
    for cycle in cycles {
        for climb in &cycle.climbs {
            known[climb.column][cycle.column] = Some(climb.output);
        }
    }
    known
}

fn text(lecture: &Lecture) -> String {
    let mut text = format!("{}\n", title(lecture));
    for note in notes(lecture) {
        let _ = writeln!(text, "{note}");
    }
    let row = |values: &[f64]| values.iter().map(|value| number(*value)).collect::<Vec<_>>().join(" ");
    let _ = writeln!(text, "\nThe array");
    let name = |index: usize| format!("PE{}", index + 1);
    let height = lecture.filter.len();
    let cell = |index: usize| {
        let place = lecture.pes[index];
        format!("{}: filter row {}, input row {}", name(index), place.row + 1, place.input_row + 1)
    };
    let width = (0..lecture.pes.len()).map(|index| cell(index).len()).max().unwrap_or(0);
    for i in 0..height {
        let cells = (0..lecture.output.len()).map(|j| format!("[{:<width$}]", cell(j * height + i)));
        let _ = writeln!(text, "  {}", cells.collect::<Vec<_>>().join(" "));
    }
    for (index, filter) in lecture.filter.iter().enumerate() {
        let stays = (0..lecture.pes.len()).filter(|at| lecture.pes[*at].row == index).map(name).collect::<Vec<_>>();
        let _ = writeln!(text, "  filter row {} ({}) stays in {}", index + 1, row(filter), stays.join(", "));
    }
    for (index, input) in lecture.input.iter().enumerate() {
        let goes =
            (0..lecture.pes.len()).filter(|at| lecture.pes[*at].input_row == index).map(name).collect::<Vec<_>>();
        let to = if goes.is_empty() { "nobody".to_owned() } else { goes.join(", ") };
        let _ = writeln!(text, "  input row {} ({}) goes to {to}", index + 1, row(input));
    }
    for (index, cycle) in lecture.cycles.iter().enumerate() {
        let _ = writeln!(text, "\nCycle {} of {}, output column {}", index + 1, lecture.cycles.len(), cycle.column + 1);
        for (index, step) in cycle.steps.iter().enumerate() {
            let _ = writeln!(text, "  {}: {}", name(index), arithmetic(step, cycle.taps.start == 0));
        }
        for up in &cycle.climbs {
            let _ = writeln!(text, "  up column {}: {}", up.column + 1, climb(up, cycle.column));
        }
        if !cycle.climbs.is_empty() {
            text.push_str("  output so far:\n");
            let known = known(lecture, &lecture.cycles[..=index]);
            let shown = |value: &Option<f64>| value.map_or_else(|| "-".to_owned(), number);
            let width = known.iter().flatten().map(|value| shown(value).len()).max().unwrap_or(0);
            for row in known {
                let cells: Vec<String> = row.iter().map(|value| format!("{:>width$}", shown(value))).collect();
                let _ = writeln!(text, "    {}", cells.join(" "));
            }
        }
    }
    let _ = writeln!(text, "\n{}", closing(lecture));
    text
}

/// MACs and cycles.
pub fn closing(lecture: &Lecture) -> String {
    let count = |number: usize, of: &str| if number == 1 { format!("1 {of}") } else { format!("{number} {of}s") };
    let macs: usize = lecture.cycles.iter().flat_map(|cycle| &cycle.steps).map(|step| step.products.len()).sum();
    let (outputs, cycles) = (lecture.output.len() * lecture.output[0].len(), lecture.cycles.len());
    format!("{} for {} in {}", count(macs, "MAC"), count(outputs, "output"), count(cycles, "cycle"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lectures_example_from_beginning_to_end() {
        let lecture = lecture(parse("-1,2; 1,0").unwrap(), parse("1,3,9; 2 4 1; 0,5,2").unwrap(), 1, None).unwrap();
        let expected = "\
2x2 filter on a 3x3 input, row-stationary on 2x2 PEs
A filter row stays in the PEs of a row of the array.
An input row goes along a diagonal; each PE slides its filter row along it.
The sums of a column go up and come out at the top as a row of the output.

The array
  [PE1: filter row 1, input row 1] [PE3: filter row 1, input row 2]
  [PE2: filter row 2, input row 2] [PE4: filter row 2, input row 3]
  filter row 1 (-1 2) stays in PE1, PE3
  filter row 2 (1 0) stays in PE2, PE4
  input row 1 (1 3 9) goes to PE1
  input row 2 (2 4 1) goes to PE2, PE3
  input row 3 (0 5 2) goes to PE4

Cycle 1 of 2, output column 1
  PE1: 1x(-1) + 3x2 = 5
  PE2: 2x1 + 4x0 = 2
  PE3: 2x(-1) + 4x2 = 6
  PE4: 0x1 + 5x0 = 0
  up column 1: 2 + 5 = 7 is output row 1, column 1
  up column 2: 0 + 6 = 6 is output row 2, column 1
  output so far:
    7 -
    6 -

Cycle 2 of 2, output column 2
  PE1: 3x(-1) + 9x2 = 15
  PE2: 4x1 + 1x0 = 4
  PE3: 4x(-1) + 1x2 = -2
  PE4: 5x1 + 2x0 = 5
  up column 1: 4 + 15 = 19 is output row 1, column 2
  up column 2: 5 + (-2) = 3 is output row 2, column 2
  output so far:
    7 19
    6  3

16 MACs for 4 outputs in 2 cycles
";
        // The last column is as wide as its widest number so far.
        let got = text(&lecture);
        let squeeze = |text: &str| {
            text.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect::<Vec<_>>()
        };
        assert_eq!(squeeze(&got), squeeze(expected), "{got}");
    }
}
