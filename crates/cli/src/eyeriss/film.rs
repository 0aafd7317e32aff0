//! One small convolution as a page that moves.

use anyhow::Result;
use ringstep_eyeriss::lecture::{Cycle, Lecture, Matrix};
use serde::Serialize;

use super::explain::{arithmetic, climb, closing, known, notes, title};
use crate::explain::number;
use crate::film::{self, Words};

const PARTS: &str = include_str!("film.html");

/// What the page's script gets.
#[derive(Serialize)]
struct Film {
    filter: Vec<Vec<String>>,
    input: Vec<Vec<String>>,
    stride: usize,
    /// Row, column, input row.
    pes: Vec<[usize; 3]>,
    /// The start, then each cycle.
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
    title: String,
    lines: Vec<String>,
    /// The output's column, and the taps that are at work.
    column: usize,
    taps: [usize; 2],
    /// For each PE: what it computes, and its sum afterwards.
    work: Vec<[String; 2]>,
    /// For each column of the array, what comes out at the top; empty if nothing does.
    tops: Vec<String>,
    /// Empty where it is not known yet.
    output: Vec<Vec<String>>,
}

/// The page.
pub fn page(lecture: &Lecture) -> Result<String> {
    let texts = |matrix: &Matrix| matrix.iter().map(|row| row.iter().map(|value| number(*value)).collect()).collect();
    let start = Frame {
        title: "Start: the filter rows are in their PEs".to_owned(),
        lines: notes(lecture).to_vec(),
        column: 0,
        taps: [0, 0],
        work: vec![[String::new(), String::new()]; lecture.pes.len()],
        tops: Vec::new(),
        output: output(lecture, &[]),
    };
    let frames = (0..lecture.cycles.len()).map(|at| frame(lecture, at));
    let film = Film {
        filter: texts(&lecture.filter),
        input: texts(&lecture.input),
        stride: lecture.stride,
        pes: lecture.pes.iter().map(|pe| [pe.row, pe.column, pe.input_row]).collect(),
        frames: std::iter::once(start).chain(frames).collect(),
    };
    let words = Words {
        title: &title(lecture),
        notes: &notes(lecture).join(" "),
        closing: &closing(lecture),
        origin: "Each PE computes what its scratchpads hold",
    };
    film::page(PARTS, &words, &film)
}

fn frame(lecture: &Lecture, at: usize) -> Frame {
    let cycle = &lecture.cycles[at];
    let begins = cycle.taps.start == 0;
    let work: Vec<[String; 2]> =
        cycle.steps.iter().map(|step| [arithmetic(step, begins), number(step.after)]).collect();
    let macs = work.iter().enumerate().map(|(index, [text, _])| format!("PE{}: {text}", index + 1));
    let ups = cycle.climbs.iter().map(|up| format!("up column {}: {}", up.column + 1, climb(up, cycle.column)));
    Frame {
        title: format!("Cycle {} of {}, output column {}", at + 1, lecture.cycles.len(), cycle.column + 1),
        lines: macs.chain(ups).collect(),
        column: cycle.column,
        taps: [cycle.taps.start, cycle.taps.end],
        tops: cycle.climbs.iter().map(|climb| number(climb.output)).collect(),
        output: output(lecture, &lecture.cycles[..=at]),
        work,
    }
}

fn output(lecture: &Lecture, cycles: &[Cycle]) -> Vec<Vec<String>> {
    let known = known(lecture, cycles);
    known.iter().map(|row| row.iter().map(|value| value.map_or_else(String::new, number)).collect()).collect()
}
