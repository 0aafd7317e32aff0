//! The story in the terminal.

use std::fmt::Write;

use super::story::Holding;
use super::{Lecture, number};

/// Values of a message that are shown.
const LIMIT: usize = 16;

const STRONG: &str = "1";
const QUIET: &str = "2";
const CHANGED: &str = "1;33";
const FINISHED: &str = "32";
const JUST_FINISHED: &str = "1;32";

/// All of it.
pub fn text(lecture: &Lecture, colour: bool) -> String {
    let story = &lecture.story;
    let paint = |code: &str, text: &str| if colour { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() };
    let states: Vec<&[Holding]> =
        std::iter::once(&story.start).chain(story.rounds.iter().map(|round| &round.holds)).map(Vec::as_slice).collect();
    // Columns are as wide as their widest value in all of the story, so that rounds can be compared.
    let widths: Vec<usize> = (0..story.start[0].values.len())
        .map(|index| {
            let widths = states.iter().copied().flatten().map(|holding| number(holding.values[index]).len());
            widths.max().unwrap_or(0)
        })
        .collect();
    let names = lecture.workers.iter().map(String::len).max().unwrap_or(0);
    let row = |state: usize, rank: usize| {
        let (now, before) = (&states[state][rank], &states[state.saturating_sub(1)][rank]);
        let mut row = String::new();
        for part in &story.parts {
            let values: Vec<String> =
                part.clone().map(|index| format!("{:>1$}", number(now.values[index]), widths[index])).collect();
            let finished = now.finished[part.start];
            let changed = part.clone().any(|index| now.values[index].to_bits() != before.values[index].to_bits())
                || finished != before.finished[part.start];
            let chunk = format!("[{}]{}", values.join(" "), if finished { "*" } else { " " });
            row += &match (finished, changed) {
                (true, true) => paint(JUST_FINISHED, &chunk),
                (true, false) => paint(FINISHED, &chunk),
                (false, true) => paint(CHANGED, &chunk),
                (false, false) => chunk,
            };
        }
        format!("  worker {:<names$}  {}", lecture.workers[rank], row.trim_end())
    };

    let mut text = format!("{}\n", paint(STRONG, &lecture.title));
    for note in &lecture.notes {
        let _ = writeln!(text, "{note}");
    }
    let _ = writeln!(text, "\n{}", paint(STRONG, "Start"));
    for state in 0..states.len() {
        if let Some(at) = state.checked_sub(1) {
            let title = format!("Round {state} of {}, {}", story.rounds.len(), lecture.phases[at]);
            let _ = writeln!(text, "\n{}", paint(STRONG, &title));
            for line in lecture.lines(&story.rounds[at], LIMIT) {
                let _ = writeln!(text, "  {}", paint(QUIET, &line));
            }
            text.push('\n');
        }
        for rank in 0..lecture.workers.len() {
            let _ = writeln!(text, "{}", row(state, rank));
        }
    }
    let _ = writeln!(text, "\n* finished: all workers' values are in it\n{}", paint(STRONG, &lecture.closing));
    text
}

#[cfg(test)]
mod tests {
    use ringstep_comm::{Algorithm, Op};

    use super::*;

    #[test]
    fn two_workers_from_beginning_to_end() {
        let values = vec![vec![1.0, 20.0], vec![3.0, 4.0]];
        let lecture = super::super::lecture(Algorithm::Ring, Op::Mean, values).unwrap();
        let expected = "\
ring all-reduce, 2 workers, mean of 2 values each
A mean is a sum until all is in it; then it is divided by 2.

Start
  worker 0  [1] [20]
  worker 1  [3] [ 4]

Round 1 of 2, share-reduce
  worker 0 -> worker 1: chunk 0 (1)
  worker 1 -> worker 0: chunk 1 (4)

  worker 0  [1] [12]*
  worker 1  [2]*[ 4]

Round 2 of 2, share-only
  worker 0 -> worker 1: chunk 1 (12)
  worker 1 -> worker 0: chunk 0 (2)

  worker 0  [2]*[12]*
  worker 1  [2]*[12]*

* finished: all workers' values are in it
2 steps = 2(p-1), 16 bytes sent by each worker = 2(p-1)/p x 16 bytes (p = 2)
";
        assert_eq!(text(&lecture, false), expected);
        let coloured = text(&lecture, true);
        assert!(coloured.contains("\x1b[1;32m[12]*\x1b[0m"), "{coloured}");
        let mut plain = coloured;
        for code in [STRONG, QUIET, CHANGED, FINISHED, JUST_FINISHED, "0"] {
            plain = plain.replace(&format!("\x1b[{code}m"), "");
        }
        let trimmed: Vec<&str> = plain.lines().map(str::trim_end).collect();
        assert_eq!(trimmed.join("\n") + "\n", expected);
    }
}
