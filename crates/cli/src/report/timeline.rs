//! A picture of one step: what each rank did when, computation above communication. Where ranks are at different steps, it
//! is a window of time, and each step has its number.

use std::fmt::Write;

use ringstep_train::trace::{Span, Track};

use super::svg::{WIDE, nice_step};
use crate::html::escape;
use crate::show::seconds;
use crate::train::Row;

const LEFT: f64 = 78.0;
const RIGHT: f64 = 14.0;
const TRACK: f64 = 18.0;
const GAP: f64 = 10.0;
const AXIS: f64 = 26.0;
/// For the numbers of steps above a rank's spans.
const NUMBERS: f64 = 15.0;
/// A window shows so many of rank 0's steps, so that others' steps can be seen to begin and end.
const STEPS: usize = 3;

/// What is drawn, and what it is called.
pub struct Picture {
    pub title: String,
    pub svg: String,
}

/// The traced step of median length, the first left out where there are more; or the time around it.
pub fn picture(row: &Row) -> Option<Picture> {
    match row.run.job.sync.lets_workers_differ() {
        false => one_step(row),
        true => window(row),
    }
}

fn one_step(row: &Row) -> Option<Picture> {
    let traced = row.spans.iter().flatten().map(|span| span.step + 1).max()?;
    let mut steps: Vec<usize> = (usize::from(traced > 1)..traced.min(row.steps.len())).collect();
    steps.sort_by(|&a, &b| row.steps[a].seconds.total_cmp(&row.steps[b].seconds));
    let step = *steps.get(steps.len() / 2)?;
    let ranks: Vec<Vec<&Span>> =
        row.spans.iter().map(|spans| spans.iter().filter(|span| span.step == step).collect()).collect();
    let all = || ranks.iter().flatten();
    let began = all().map(|span| span.began).fold(f64::INFINITY, f64::min);
    let ended = all().map(|span| span.began + span.seconds).fold(f64::NEG_INFINITY, f64::max);
    let svg = draw(row, &ranks, [began, ended], false);
    Some(Picture { title: format!("step {step}"), svg })
}

fn window(row: &Row) -> Option<Picture> {
    let of_rank_0 = row.spans.first()?;
    let [began, ended] = middle_steps(of_rank_0)?;
    let within = |span: &&Span| span.began < ended && span.began + span.seconds > began;
    let ranks: Vec<Vec<&Span>> = row.spans.iter().map(|spans| spans.iter().filter(within).collect()).collect();
    let svg = draw(row, &ranks, [began, ended], true);
    Some(Picture { title: "ranks at different steps".to_owned(), svg })
}

/// From when until when the steps in the middle of a rank's trace went on.
fn middle_steps(spans: &[Span]) -> Option<[f64; 2]> {
    let mut steps: Vec<usize> = spans.iter().map(|span| span.step).collect();
    steps.dedup();
    let first = steps.len().saturating_sub(STEPS) / 2;
    let shown = &steps[first..(first + STEPS).min(steps.len())];
    let (first, last) = (shown.first()?, shown.last()?);
    let within = || spans.iter().filter(|span| (first..=last).contains(&&span.step));
    let began = within().map(|span| span.began).fold(f64::INFINITY, f64::min);
    let ended = within().map(|span| span.began + span.seconds).fold(f64::NEG_INFINITY, f64::max);
    Some([began, ended])
}

fn draw(row: &Row, ranks: &[Vec<&Span>], [start, end]: [f64; 2], numbered: bool) -> String {
    let length = (end - start).max(f64::MIN_POSITIVE);
    let numbers = if numbered { NUMBERS } else { 0.0 };
    let tall = 2.0 * TRACK + GAP + numbers;
    let bottom = tall * ranks.len() as f64;
    let x = |time: f64| LEFT + ((time - start) / length).clamp(0.0, 1.0) * (WIDE - LEFT - RIGHT);
    let mut svg = format!(
        r#"<svg class="bars timeline" viewBox="0 0 {WIDE} {}" role="img" aria-label="one step on each rank">"#,
        bottom + AXIS
    );
    let tick = nice_step(length);
    for number in 0..=(length / tick) as usize {
        let (at, time) = (x(start + number as f64 * tick), number as f64 * tick);
        let label = if number == 0 { "0".to_owned() } else { seconds(time) };
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="0" y2="{bottom}"/><text class="tick middle" x="{:.1}" y="{}">{label}</text>"#,
            // The last may have no room on its right.
            at.min(WIDE - 30.0),
            bottom + 18.0,
        );
    }
    for (rank, spans) in ranks.iter().enumerate() {
        let top = tall * rank as f64 + numbers;
        let name = match rank.checked_sub(row.run.job.workers) {
            Some(server) => format!("server {server}"),
            None => format!("rank {rank}"),
        };
        let _ = write!(svg, r#"<text class="end" x="{}" y="{}">{name}</text>"#, LEFT - 10.0, top + TRACK + 5.0);
        for span in spans {
            let y = match span.track {
                Track::Computation => top,
                Track::Communication => top + TRACK,
            };
            let (left, right) = (x(span.began), x(span.began + span.seconds));
            let step = if numbered { format!("step {}, ", span.step) } else { String::new() };
            let _ = write!(
                svg,
                r#"<rect class="{}" x="{left:.2}" y="{y}" width="{:.2}" height="{}"><title>{step}{} {}: {}</title></rect>"#,
                span.kind.name(),
                (right - left).max(0.3),
                TRACK - 2.0,
                span.kind.name(),
                escape(&span.name),
                seconds(span.seconds),
            );
        }
        if numbered {
            number_steps(&mut svg, spans, top, x);
        }
    }
    svg + "</svg>"
}

/// Each step's number where it begins, with a line.
fn number_steps(svg: &mut String, spans: &[&Span], top: f64, x: impl Fn(f64) -> f64) {
    let mut steps: Vec<usize> = spans.iter().map(|span| span.step).collect();
    steps.sort_unstable();
    steps.dedup();
    let mut free = 0.0;
    for step in steps {
        let began = spans.iter().filter(|span| span.step == step).map(|span| span.began).fold(f64::INFINITY, f64::min);
        let (at, text) = (x(began), format!("step {step}"));
        let _ = write!(
            svg,
            r#"<line class="mark" x1="{at:.1}" x2="{at:.1}" y1="{}" y2="{}"/>"#,
            top - 12.0,
            top + 2.0 * TRACK
        );
        // A number only where it fits.
        if at >= free && at < WIDE - 50.0 {
            let _ = write!(svg, r#"<text class="small" x="{:.1}" y="{}">{text}</text>"#, at + 3.0, top - 3.0);
            free = at + 9.0 * text.len() as f64;
        }
    }
}

#[cfg(test)]
mod tests {
    use ringstep_train::trace::Kind;

    use super::*;

    #[test]
    fn a_window_is_the_middle_of_what_was_traced() {
        let span = |step: usize| Span {
            track: Track::Computation,
            name: String::new(),
            kind: Kind::Forward,
            step,
            began: step as f64,
            seconds: 0.5,
        };
        let spans: Vec<Span> = (0..7).map(span).collect();
        assert_eq!(middle_steps(&spans), Some([2.0, 4.5]));
        assert_eq!(middle_steps(&spans[..2]), Some([0.0, 1.5]));
        assert_eq!(middle_steps(&[]), None);
    }
}
