//! `explain`: a collective, a way to stay in step or a way to send less, step by step, as a lecture would show it.
//!
//! | look for | in |
//! | --- | --- |
//! | the numbers that workers begin with | [`values`] |
//! | running the real algorithm and noting all that happens | [`record`] |
//! | putting what workers did into rounds | [`story`] |
//! | steps and bytes against their formulas | [`formula`] |
//! | the story in the terminal | [`text`] |
//! | the story as a page that moves | [`page`] |
//! | all that is no collective | [`ways`] |

mod formula;
mod page;
mod record;
mod story;
mod text;
mod values;
mod ways;

use std::io::{self, IsTerminal};

use anyhow::{Context, Result, bail, ensure};
use ringstep_comm::collective::Combine;
use ringstep_comm::{Algorithm, Op};

use self::story::{Message, Round, Story};
use self::ways::{Lesson, Way};
use crate::args::ExplainArgs;
use crate::names::{ByName, Named, lookup};
use crate::show;

/// A story, and what is said before and after it.
struct Lecture {
    title: String,
    /// What one must know to follow.
    notes: Vec<String>,
    /// The name of each worker.
    workers: Vec<String>,
    /// The name of what happens in each round.
    phases: Vec<&'static str>,
    story: Story,
    /// Steps and bytes.
    closing: String,
}

/// What can be explained.
#[derive(Clone, Copy)]
enum Subject {
    Collective(Algorithm),
    Way(Way),
}

impl Subject {
    fn name(self) -> &'static str {
        match self {
            Self::Collective(algorithm) => algorithm.name(),
            Self::Way(way) => way.spelling(),
        }
    }

    /// The options that it knows, beside --html.
    fn options(self) -> &'static [&'static str] {
        match self {
            Self::Collective(_) => &["--workers", "--op", "--values"],
            Self::Way(way) => way.options(),
        }
    }
}

/// Shows a subject in the terminal, or writes a page about it.
pub fn run(args: &ExplainArgs) -> Result<()> {
    let collectives = Algorithm::ALL.map(Subject::Collective);
    let ways = Way::all().into_iter().map(Subject::Way);
    let subjects: Vec<Subject> = collectives.into_iter().chain(ways).collect();
    let subject = lookup("algorithm or way", &args.subject, &subjects, Subject::name)?;
    for option in args.given() {
        if !subject.options().contains(&option) {
            bail!("{option} says nothing about {}: it knows {}", subject.name(), subject.options().join(", "));
        }
    }
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let colour = wanted && io::stdout().is_terminal();
    match subject {
        Subject::Collective(algorithm) => {
            let ByName(op) = args.op.unwrap_or(ByName(Op::Sum));
            let lecture = lecture(algorithm, op, values::choose(args.values.as_deref(), args.workers)?)?;
            output(args, || page::page(&lecture), || text::text(&lecture, colour))
        }
        Subject::Way(way) => {
            let lesson = Lesson::of(way, args)?;
            output(args, || ways::page(&lesson), || ways::text(&lesson, colour))
        }
    }
}

/// Writes the page if one is wanted, or else shows the text.
fn output(args: &ExplainArgs, page: impl FnOnce() -> Result<String>, text: impl FnOnce() -> String) -> Result<()> {
    let Some(path) = &args.html else { return show::print(format_args!("{}", text().trim_end())) };
    ringstep_data::file::write_whole(path, page()?.as_bytes()).with_context(|| path.display().to_string())?;
    show::print(format_args!("Page: {}", path.display()))
}

/// Runs the algorithm on these values, a row for each worker.
fn lecture(algorithm: Algorithm, op: Op, values: Vec<Vec<f64>>) -> Result<Lecture> {
    let (world, length) = (values.len(), values[0].len());
    let recording = record::record(algorithm, op, values)?;
    let story = Story::of(&recording);
    let result = &recording.ranks[0].end;
    ensure!(
        recording.ranks.iter().all(|rank| rank.end == *result || result.iter().any(|value| value.is_nan())),
        "the workers ended with different values"
    );
    let closing = formula::closing(algorithm, &recording, story.rounds.len())?;
    let each = if length == 1 { "value" } else { "values" };
    let mut notes = Vec::new();
    if algorithm == Algorithm::Hierarchical {
        notes.push("Two hosts, told apart by letters; only the first worker of each sends to the other.".to_owned());
    }
    if algorithm.needs_shared_memory() {
        notes.push("Nothing is sent: everyone lays its values out in shared memory and reads the others'.".to_owned());
    }
    if op == Op::Mean {
        notes.push(format!("A mean is a sum until all is in it; then it is divided by {world}."));
    }
    Ok(Lecture {
        title: format!("{} all-reduce, {world} workers, {} of {length} {each} each", algorithm.name(), op.name()),
        notes,
        workers: (0..world).map(|rank| recording.name(rank)).collect(),
        phases: story.rounds.iter().map(|round| phase(algorithm, &recording.hosts, round)).collect(),
        story,
        closing,
    })
}

/// What happens in a round.
fn phase(algorithm: Algorithm, hosts: &[usize], round: &Round) -> &'static str {
    let all = |combine| round.messages.iter().all(|message| message.combine == combine);
    let within = |message: &Message| hosts[message.from] == hosts[message.to];
    let between_hosts = algorithm == Algorithm::Hierarchical && !round.messages.iter().any(within);
    let within_hosts = algorithm == Algorithm::Hierarchical && round.messages.iter().all(within);
    match (all(Combine::Reduce), all(Combine::Copy)) {
        (true, _) if algorithm == Algorithm::Ring => "share-reduce",
        (_, true) if algorithm == Algorithm::Ring => "share-only",
        (true, _) if between_hosts => "reduce between hosts",
        (_, true) if between_hosts => "hand on between hosts",
        (true, _) if within_hosts => "reduce within hosts",
        (_, true) if within_hosts => "hand on within hosts",
        (true, _) => "reduce",
        (_, true) => "hand on",
        _ => "reduce and hand on",
    }
}

impl Lecture {
    /// Who sends what to whom in a round, a line each, with at most `limit` values.
    fn lines(&self, round: &Round, limit: usize) -> Vec<String> {
        let mut lines = Vec::new();
        for message in round.messages.iter().filter(|message| !message.in_memory) {
            let values: Vec<String> = message.values.iter().map(|value| number(*value)).collect();
            let shown = match values.len() {
                0 => String::new(),
                count if count > limit => format!(" ({} ...)", values[..limit].join(" ")),
                _ => format!(" ({})", values.join(" ")),
            };
            let (from, to) = (&self.workers[message.from], &self.workers[message.to]);
            lines.push(format!("worker {from} -> worker {to}: {}{shown}", self.story.part_name(&message.part)));
        }
        // In shared memory everyone reads everyone: a line for each reader is enough.
        for (rank, name) in self.workers.iter().enumerate() {
            let read = round.messages.iter().filter(|message| message.in_memory && message.to == rank);
            let read: Vec<&str> = read.map(|message| self.workers[message.from].as_str()).collect();
            match read.as_slice() {
                [] => {}
                [one] => lines.push(format!("worker {name} <- worker {one}: all")),
                all if all.len() + 1 == self.workers.len() => lines.push(format!("worker {name} <- all others: all")),
                many => lines.push(format!("worker {name} <- workers {}: all", many.join(", "))),
            }
        }
        lines
    }
}

/// A number as a person writes it: no needless decimals, and no more than four.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if value == 0.0 || !value.is_finite() {
        return value.to_string();
    }
    if !(1e-4..1e16).contains(&size) {
        return format!("{value:e}");
    }
    let text = format!("{value:.4}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_as_a_person_writes_them() {
        let written = [3.0, 2.25, -0.0, 0.1 + 0.2, 100.0, 7.0 / 3.0, 1e16, -2.5e-7, 9f64.powi(16)].map(number);
        let expected = ["3", "2.25", "-0", "0.3", "100", "2.3333", "1e16", "-2.5e-7", "1853020188851841"];
        assert_eq!(written, expected);
    }

    #[test]
    fn a_ring_has_its_two_phases() {
        let lecture = lecture(Algorithm::Ring, Op::Sum, values::choose(None, Some(3)).unwrap()).unwrap();
        assert_eq!(lecture.phases, ["share-reduce", "share-reduce", "share-only", "share-only"]);
    }

    #[test]
    fn two_hosts_have_levels() {
        let lecture = lecture(Algorithm::Hierarchical, Op::Sum, values::choose(None, Some(4)).unwrap()).unwrap();
        let expected = ["reduce within hosts", "reduce between hosts", "hand on between hosts", "hand on within hosts"];
        assert_eq!(lecture.phases, expected);
        assert_eq!(lecture.workers, ["0a", "1a", "2b", "3b"]);
    }
}
