//! A picture of one step: what each rank did when, computation above communication.

use std::fmt::Write;

use ringstep_train::trace::{Span, Track};

use super::chart::nice_step;
use crate::html::escape;
use crate::show::seconds;
use crate::train::Row;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 74.0;
const RIGHT: f64 = 14.0;
const TRACK: f64 = 18.0;
const GAP: f64 = 10.0;
const AXIS: f64 = 26.0;

/// The traced step of median length, the first left out where there are more; with its number.
pub fn step_picture(row: &Row) -> Option<(usize, String)> {
    let traced = row.spans.iter().flatten().map(|span| span.step + 1).max()?;
    let mut steps: Vec<usize> = (usize::from(traced > 1)..traced.min(row.steps.len())).collect();
    steps.sort_by(|&a, &b| row.steps[a].seconds.total_cmp(&row.steps[b].seconds));
    let step = *steps.get(steps.len() / 2)?;
    let ranks: Vec<Vec<&Span>> =
        row.spans.iter().map(|spans| spans.iter().filter(|span| span.step == step).collect()).collect();
    Some((step, svg(&ranks)))
}

fn svg(ranks: &[Vec<&Span>]) -> String {
    let all = || ranks.iter().flatten();
    let start = all().map(|span| span.began).fold(f64::INFINITY, f64::min);
    let length = all().map(|span| span.began + span.seconds).fold(f64::NEG_INFINITY, f64::max) - start;
    let row = 2.0 * TRACK + GAP;
    let bottom = row * ranks.len() as f64;
    let x = |time: f64| LEFT + (time - start) / length * (WIDTH - LEFT - RIGHT);
    let mut svg = format!(
        r#"<svg class="bars timeline" viewBox="0 0 {WIDTH} {}" role="img" aria-label="one step on each rank">"#,
        bottom + AXIS
    );
    let tick = nice_step(length);
    for number in 0..=(length / tick) as usize {
        let (at, time) = (x(start + number as f64 * tick), number as f64 * tick);
        let label = if number == 0 { "0".to_owned() } else { seconds(time) };
        let _ = write!(
            svg,
            r#"<line class="grid" x1="{at:.1}" x2="{at:.1}" y1="0" y2="{bottom}"/><text class="tick middle" x="{at:.1}" y="{}">{label}</text>"#,
            bottom + 18.0,
        );
    }
    for (rank, spans) in ranks.iter().enumerate() {
        let top = row * rank as f64;
        let _ =
            write!(svg, r#"<text class="name end" x="{}" y="{}">rank {rank}</text>"#, LEFT - 10.0, top + TRACK + 5.0);
        for span in spans {
            let y = match span.track {
                Track::Computation => top,
                Track::Communication => top + TRACK,
            };
            let (left, right) = (x(span.began), x(span.began + span.seconds));
            let _ = write!(
                svg,
                r#"<rect class="{}" x="{left:.2}" y="{y}" width="{:.2}" height="{}"><title>{} {}: {}</title></rect>"#,
                span.kind.name(),
                (right - left).max(0.3),
                TRACK - 2.0,
                span.kind.name(),
                escape(&span.name),
                seconds(span.seconds),
            );
        }
    }
    svg + "</svg>"
}
