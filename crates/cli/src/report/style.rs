//! Colours and patterns that tell rows apart: ten hues that colour-blind people can tell apart, too, each solid and in patterns.

use std::collections::HashSet;

use ringstep_train::Job;

use crate::html::escape;
use crate::train::Row;

/// How many hues the style sheet has.
pub const HUES: usize = 10;
/// Its patterns for the first, second and third time that a hue is used. The one after each is for a row that is like another,
/// but slowed: it has the other's hue.
const PATTERNS: [usize; 3] = [0, 2, 4];

/// How a row is drawn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Style {
    hue: usize,
    pattern: usize,
}

impl Style {
    /// Its classes in the style sheet.
    pub fn class(self) -> String {
        format!("h{} p{}", self.hue, self.pattern)
    }

    /// The style of a line that is the first, second, ... of a plot.
    pub fn numbered(number: usize) -> Self {
        Self { hue: number % HUES, pattern: PATTERNS[number / HUES % PATTERNS.len()] }
    }

    /// The same in a pattern of its own, for what belongs to the same row.
    pub fn twin(self) -> Self {
        Self { pattern: self.pattern + 1, ..self }
    }

    /// A style for what is no row.
    pub fn plain() -> Self {
        Self { hue: 0, pattern: 0 }
    }
}

/// A style for each row.
pub fn styles(rows: &[Row]) -> Vec<Style> {
    assign(&twins(rows))
}

/// For each slowed row the one that does the same without being slowed, if there is one.
pub fn twins(rows: &[Row]) -> Vec<Option<usize>> {
    let quick = |row: &Row| Job { slow: Vec::new(), ..row.run.job.clone() };
    let twin = |row: &Row| {
        let job = quick(row);
        rows.iter().position(|other| other.run.job == job && other.run.workers == row.run.workers)
    };
    rows.iter().map(|row| if row.run.job.slow.is_empty() { None } else { twin(row) }).collect()
}

/// Rows get hues in their order. A row with a twin has the twin's, in a pattern that says so, unless another has it already.
fn assign(twins: &[Option<usize>]) -> Vec<Style> {
    let mut taken = HashSet::new();
    let follows: Vec<bool> = twins.iter().map(|twin| twin.is_some_and(|twin| taken.insert(twin))).collect();
    let mut numbers = Vec::new();
    let mut next = 0;
    for &follows in &follows {
        numbers.push(next);
        next += usize::from(!follows);
    }
    let of_row = |(at, twin): (usize, &Option<usize>)| match twin {
        Some(twin) if follows[at] => Style::numbered(numbers[*twin]).twin(),
        _ => Style::numbered(numbers[at]),
    };
    twins.iter().enumerate().map(of_row).collect()
}

/// Which line is which row. The page's script shows one row alone while the pointer is on its name.
pub fn legend<'a>(rows: impl Iterator<Item = (usize, &'a str, Style)>) -> String {
    let key = |(at, name, style): (usize, &str, Style)| {
        format!(
            r#"<span class="key" data-row="{at}"><svg viewBox="0 0 36 14" width="36" height="14"><line class="line {}" stroke-width="3" x1="2" x2="34" y1="7" y2="7"/></svg>{}</span>"#,
            style.class(),
            escape(name)
        )
    };
    rows.map(key).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thirty_rows_and_their_slowed_twins_are_all_different() {
        let twins: Vec<Option<usize>> = (0..30).map(|_| None).chain((0..30).map(Some)).collect();
        let styles = assign(&twins);
        assert_eq!(styles.iter().collect::<HashSet<_>>().len(), 60);
        for row in 0..30 {
            assert_eq!(styles[row].hue, styles[30 + row].hue);
        }
    }

    #[test]
    fn a_second_twin_has_a_hue_of_its_own() {
        let styles = assign(&[None, Some(0), Some(0), None]);
        assert_eq!(styles.iter().collect::<HashSet<_>>().len(), 4);
        assert_eq!(styles[0].hue, styles[1].hue);
        assert_ne!(styles[0].hue, styles[2].hue);
    }
}
