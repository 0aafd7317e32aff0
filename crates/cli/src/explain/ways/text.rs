//! A lesson in the terminal.

use std::fmt::Write;

use super::{Cell, Lesson, Mark, Table};

const STRONG: &str = "1";
const QUIET: &str = "2";
const NEW: &str = "33";
const SENT: &str = "1;34";
const COMMON: &str = "32";

/// All of it.
pub fn text(lesson: &Lesson, colour: bool) -> String {
    let paint = |code: &str, text: &str| if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() };
    let mut text = format!("{}\n", paint(STRONG, &lesson.title));
    for note in &lesson.notes {
        let _ = writeln!(text, "{note}");
    }
    for scene in &lesson.scenes {
        let _ = writeln!(text, "\n{}", paint(STRONG, &scene.title));
        for line in &scene.lines {
            let _ = writeln!(text, "  {}", paint(QUIET, line));
        }
        for table in &scene.tables {
            text.push('\n');
            draw(table, &mut text, &paint);
        }
    }
    let _ = writeln!(text, "\n[] sent  * the same for all workers\n{}", paint(STRONG, &lesson.closing));
    text
}

fn draw(table: &Table, text: &mut String, paint: &impl Fn(&str, &str) -> String) {
    let named = table.rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
    let columns = table.rows.iter().map(|(_, cells)| cells.len()).max().unwrap_or(0);
    let width = |column: usize| {
        let cells = table.rows.iter().filter_map(|(_, cells)| cells.get(column)).map(|cell| marked(cell).len());
        cells.chain(table.head.get(column).map(|name| name.len() + 1)).max().unwrap_or(0)
    };
    let widths: Vec<usize> = (0..columns).map(width).collect();
    // Rows that have no names stand below that of the table.
    let indent = if named == 0 { "   ".to_owned() } else { " ".repeat(named + 2) };
    if named == 0 || table.head.is_empty() {
        let _ = writeln!(text, "  {}", paint(QUIET, &table.title));
    }
    if !table.head.is_empty() {
        let head: String =
            table.head.iter().zip(&widths).map(|(name, width)| format!("  {:>width$}", format!("{name} "))).collect();
        let _ = writeln!(text, "{indent}{}", paint(QUIET, head.trim_end()));
    }
    for (name, cells) in &table.rows {
        let mut row = if named == 0 { indent.clone() } else { format!("  {name:<named$}") };
        for (cell, width) in cells.iter().zip(&widths) {
            let cell_text = format!("{:>width$}", marked(cell));
            row += "  ";
            row += &match cell.mark {
                Mark::Plain => cell_text,
                Mark::New => paint(NEW, &cell_text),
                Mark::Sent => paint(SENT, &cell_text),
                Mark::Common => paint(COMMON, &cell_text),
            };
        }
        let _ = writeln!(text, "{}", row.trim_end());
    }
}

/// Numbers stand below each other, whatever is around them.
fn marked(cell: &Cell) -> String {
    match cell.mark {
        Mark::Plain | Mark::New => format!("{} ", cell.text),
        Mark::Sent => format!("[{}]", cell.text),
        Mark::Common => format!("{}*", cell.text),
    }
}
