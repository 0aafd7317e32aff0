//! The story as one page that needs nothing but itself.

use anyhow::Result;
use serde::Serialize;

use super::story::Holding;
use super::{Lecture, number};
use crate::film::{self, Words};

const PARTS: &str = include_str!("page.html");
/// Values of a message that are shown.
const LIMIT: usize = 8;

/// What the page's script gets.
#[derive(Serialize)]
struct Film<'a> {
    workers: &'a [String],
    /// Where each chunk begins and ends.
    parts: Vec<[usize; 2]>,
    /// The start, then each round.
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
    title: String,
    lines: Vec<String>,
    moves: Vec<Move>,
    /// For each worker, each value as text.
    values: Vec<Vec<String>>,
    /// For each worker and value.
    finished: Vec<Vec<bool>>,
}

/// A message: these values go from one row to another.
#[derive(Serialize)]
struct Move {
    from: usize,
    to: usize,
    start: usize,
    values: Vec<String>,
}

/// The page.
pub fn page(lecture: &Lecture) -> Result<String> {
    let story = &lecture.story;
    let mut frames = vec![frame("Start".to_owned(), Vec::new(), Vec::new(), &story.start)];
    for (at, round) in story.rounds.iter().enumerate() {
        let title = format!("Round {} of {}, {}", at + 1, story.rounds.len(), lecture.phases[at]);
        let moves = round.messages.iter().filter(|message| !message.part.is_empty()).map(|message| Move {
            from: message.from,
            to: message.to,
            start: message.part.start,
            values: message.values.iter().map(|value| number(*value)).collect(),
        });
        frames.push(frame(title, lecture.lines(round, LIMIT), moves.collect(), &round.holds));
    }
    let parts = story.parts.iter().map(|part| [part.start, part.end]).collect();
    let film = Film { workers: &lecture.workers, parts, frames };
    let words = Words {
        title: &lecture.title,
        notes: &lecture.notes.join(" "),
        closing: &lecture.closing,
        origin: "What is shown was recorded while the real algorithm ran",
    };
    film::page(PARTS, &words, &film)
}

fn frame(title: String, lines: Vec<String>, moves: Vec<Move>, holds: &[Holding]) -> Frame {
    let texts = |holding: &Holding| holding.values.iter().map(|value| number(*value)).collect();
    Frame {
        title,
        lines,
        moves,
        values: holds.iter().map(texts).collect(),
        finished: holds.iter().map(|holding| holding.finished.clone()).collect(),
    }
}
