//! Lines over time, epochs, bytes or whatever else, as inline SVG. The read-out under the pointer is the page's script's,
//! which finds the numbers in the lines themselves.

use std::fmt::Write;

use super::style::Style;
use super::svg::{Axis, Unit};
use crate::html::escape;

const WIDTH: f64 = 540.0;
const HEIGHT: f64 = 320.0;
const LEFT: f64 = 88.0;
const RIGHT: f64 = 18.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 48.0;

/// With so few points, each gets a dot.
const FEW: usize = 12;
/// Lines of one width.
pub const THIN: f64 = 1.8;

/// A point of a line.
pub type Point = (f64, f64);

/// One line of a plot.
pub struct Line {
    /// Which row of the legend it is, if it is one.
    pub row: Option<usize>,
    pub name: String,
    pub style: Style,
    pub width: f64,
    pub points: Vec<Point>,
}

/// What is along an axis.
#[derive(Clone, Copy)]
pub struct Quantity {
    pub name: &'static str,
    pub unit: Unit,
    pub log: bool,
}

impl Quantity {
    /// Equal ways are equal differences.
    pub const fn linear(name: &'static str, unit: Unit) -> Self {
        Self { name, unit, log: false }
    }

    /// Equal ways are equal factors.
    pub const fn log(name: &'static str, unit: Unit) -> Self {
        Self { name, unit, log: true }
    }
}

/// Something beside the lines that the plot points at.
pub enum Mark {
    /// A level, such as a target.
    Level(f64, String),
    /// A place along the way, such as the speed of a network.
    Place(f64, String),
    /// A point of a row.
    At { row: usize, style: Style, point: Point, kind: &'static str, text: String },
}

/// A plot.
pub struct Chart {
    pub over: Quantity,
    pub of: Quantity,
    pub lines: Vec<Line>,
    pub marks: Vec<Mark>,
    /// What is beyond is drawn at the edge, so that one row that gets out of hand does not flatten the others.
    pub ceiling: Option<f64>,
}

impl Chart {
    /// A plot without marks.
    pub fn new(of: Quantity, over: Quantity, lines: Vec<Line>) -> Self {
        Self { over, of, lines, marks: Vec::new(), ceiling: None }
    }

    fn axes(&self) -> [Axis; 2] {
        let points = || self.lines.iter().flat_map(|line| &line.points);
        let range = |values: &mut dyn Iterator<Item = f64>| {
            values.fold([f64::INFINITY, f64::NEG_INFINITY], |[low, high], value| [low.min(value), high.max(value)])
        };
        let known = |range: [f64; 2]| if range[0] <= range[1] { range } else { [0.0, 1.0] };
        let across = known(range(&mut points().map(|point| point.0)));
        let levels =
            self.marks.iter().filter_map(|mark| if let Mark::Level(level, _) = mark { Some(*level) } else { None });
        let up = known(range(&mut points().map(|point| point.1).chain(levels)));
        let x = match self.over.log {
            true => {
                Axis::log_exact(self.over.unit, [across[0], across[1].max(1.01 * across[0])], [LEFT, WIDTH - RIGHT])
            }
            false => {
                // Epochs begin with the first; before it nothing has been measured.
                let (low, least) =
                    if self.over.unit == Unit::Count { (across[0], 1.0) } else { (0.0, f64::MIN_POSITIVE) };
                Axis::linear(self.over.unit, [low, across[1].max(low + least)], false, [LEFT, WIDTH - RIGHT])
            }
        };
        // Losses and accuracies that are near each other are not seen from 0.
        let near = matches!(self.of.unit, Unit::Plain | Unit::Percent) && up[0] > up[1] / 2.0;
        // Rows that are all alike are in the middle of a range in which a difference would be seen.
        let least = 0.02 * up[1].abs();
        let up = if near && up[1] - up[0] < least { [up[0] - least, up[1] + least] } else { up };
        let low = if near { up[0] } else { 0.0 };
        let high = self.ceiling.map_or(up[1], |ceiling| up[1].min(ceiling)).max(low + 1e-12);
        let y = match self.of.log {
            true => Axis::log(self.of.unit, up, [HEIGHT - BOTTOM, TOP]),
            false => Axis::linear(self.of.unit, [low, high], true, [HEIGHT - BOTTOM, TOP]),
        };
        [x, y]
    }

    /// The plot.
    pub fn svg(&self) -> String {
        let [x, y] = self.axes();
        let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
        let mut svg = format!(
            r#"<svg class="lines" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{} over {}" data-x="{}" data-y="{}">"#,
            self.of.name,
            self.over.name,
            escape(&x.data()),
            escape(&y.data()),
        );
        for (value, text) in y.ticks() {
            let at = y.at(value);
            let _ = write!(
                svg,
                r#"<line class="grid" x1="{LEFT}" x2="{right}" y1="{at:.1}" y2="{at:.1}"/><text class="tick end" x="{}" y="{:.1}">{text}</text>"#,
                LEFT - 8.0,
                at + 5.0,
            );
        }
        for (value, text) in spaced(&x) {
            let at = x.at(value);
            let _ = write!(
                svg,
                r#"<line class="axis" x1="{at:.1}" x2="{at:.1}" y1="{bottom}" y2="{}"/><text class="tick middle" x="{:.1}" y="{}">{text}</text>"#,
                bottom + 5.0,
                // The last may have no room on its right.
                at.min(WIDTH - 4.0 * text.len() as f64),
                bottom + 20.0,
            );
        }
        let _ = write!(
            svg,
            r#"<line class="axis" x1="{LEFT}" x2="{right}" y1="{bottom}" y2="{bottom}"/><text class="label middle" x="{}" y="{}">{}</text><text class="label middle" transform="translate(13 {}) rotate(-90)">{}</text>"#,
            (LEFT + right) / 2.0,
            HEIGHT - 6.0,
            self.over.name,
            (TOP + bottom) / 2.0,
            self.of.name,
        );
        for line in &self.lines {
            draw_line(&mut svg, line, &x, &y);
        }
        for mark in &self.marks {
            draw_mark(&mut svg, mark, &x, &y);
        }
        let _ = write!(svg, r#"<line class="cursor" x1="0" x2="0" y1="{TOP}" y2="{bottom}"/></svg>"#);
        svg
    }
}

/// The ticks that have room beside each other.
fn spaced(axis: &Axis) -> Vec<(f64, String)> {
    let mut ticks = axis.ticks();
    let longest = ticks.iter().map(|(_, text)| text.len()).max().unwrap_or(0) as f64 * 8.0 + 10.0;
    let room = ((WIDTH - LEFT - RIGHT) / longest).max(2.0) as usize;
    let every = ticks.len().div_ceil(room).max(1);
    ticks.drain(..).step_by(every).collect()
}

fn draw_line(svg: &mut String, line: &Line, x: &Axis, y: &Axis) {
    let Line { row, name, style, width, points } = line;
    let (class, name) = (style.class(), escape(name));
    let row = row.map_or_else(String::new, |row| format!(r#" data-row="{row}""#));
    let places: Vec<[String; 2]> =
        points.iter().map(|&(across, up)| [format!("{:.1}", x.at(across)), format!("{:.2}", y.at(up))]).collect();
    let joined: Vec<String> = places.iter().map(|place| place.join(",")).collect();
    let _ = write!(
        svg,
        r#"<polyline class="line {class}" stroke-width="{width:.1}" data-name="{name}"{row} points="{}"><title>{name}</title></polyline>"#,
        joined.join(" ")
    );
    if places.len() <= FEW {
        for [x, y] in &places {
            let radius = 1.5 + width / 2.0;
            let _ = write!(svg, r#"<circle class="dot {class}"{row} cx="{x}" cy="{y}" r="{radius:.1}"/>"#);
        }
    }
}

fn draw_mark(svg: &mut String, mark: &Mark, x: &Axis, y: &Axis) {
    let (right, bottom) = (WIDTH - RIGHT, HEIGHT - BOTTOM);
    let _ = match mark {
        Mark::Level(level, text) => {
            let at = y.at(*level);
            write!(
                svg,
                r#"<line class="mark" x1="{LEFT}" x2="{right}" y1="{at:.1}" y2="{at:.1}"/><text class="small end" x="{right}" y="{:.1}">{}</text>"#,
                at - 5.0,
                escape(text)
            )
        }
        Mark::Place(place, text) => {
            let at = x.at(*place);
            let (side, class) = if at > WIDTH * 0.7 { (-6.0, "small end") } else { (6.0, "small") };
            write!(
                svg,
                r#"<line class="mark" x1="{at:.1}" x2="{at:.1}" y1="{TOP}" y2="{bottom}"/><text class="{class}" x="{:.1}" y="{:.1}">{}</text>"#,
                at + side,
                TOP + 12.0,
                escape(text)
            )
        }
        Mark::At { row, style, point, kind, text } => write!(
            svg,
            r#"<circle class="{kind} {}" data-row="{row}" cx="{:.1}" cy="{:.1}" r="5"><title>{}</title></circle>"#,
            style.class(),
            x.at(point.0),
            y.at(point.1),
            escape(text)
        ),
    };
}
