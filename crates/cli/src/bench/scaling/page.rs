//! The tables as a page with plots, which needs nothing but itself.

use ringstep_cpu::cores;

use super::cells::{Scaling, Size};
use super::lab::{Cell, Lab};
use super::measure::Measured;
use super::sentences;
use super::tables::{Table, tables};
use crate::html::{self, escape};
use crate::report::chart::{Chart, Line, Point, Quantity, THIN};
use crate::report::style::{self, Style};
use crate::report::svg::Unit;
use crate::report::{self, split};
use crate::show::{self, Split};

const TEMPLATE: &str = include_str!("page.html");

const WORKERS: Quantity = Quantity::linear("workers", Unit::Count);

/// The page for what is measured so far.
pub fn page(lab: &Lab) -> String {
    let about = &lab.about;
    let curves = Curves::of(lab);
    let (speedups, bandwidths) = (curves.speedups(), curves.bandwidths(lab));
    let done = lab.measured.len();
    let state = match lab.plan.sizes.len() - done {
        0 => String::new(),
        left => format!("<p>{done} trainings are measured; {left} of those that were asked for are not.</p>"),
    };
    let facts = format!(
        "{}; epochs of {} images, the second of two is measured; {} a worker",
        about.way,
        about.samples,
        if about.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", about.threads) }
    );
    let mut fields = vec![
        ("{{title}}", escape(&format!("Scaling of {} on {}", about.model, about.dataset))),
        ("{{style}}", report::STYLE.to_owned()),
        ("{{script}}", report::SCRIPT.to_owned()),
        ("{{facts}}", escape(&facts)),
        ("{{version}}", escape(env!("CARGO_PKG_VERSION"))),
        ("{{machine}}", format!("{}, {} cores available", std::env::consts::ARCH, cores::allowed())),
        ("{{state}}", state),
        ("{{stopped}}", sentences::stopped(lab).map_or_else(String::new, |stop| format!("<p>{}</p>", escape(&stop)))),
        ("{{legend}}", legend(&speedups)),
        ("{{speedups}}", speedups.svg()),
        ("{{steps}}", curves.steps().svg()),
        ("{{bars}}", split::bars(&bars(lab))),
        ("{{legend-of-bandwidths}}", legend(&bandwidths)),
        ("{{bandwidths}}", bandwidths.svg()),
        ("{{said-of-speedups}}", list(sentences::scalings(lab))),
        ("{{said-of-steps}}", list(sentences::step_times(lab))),
        ("{{said-of-splits}}", list(sentences::splits(lab))),
        ("{{said-of-bandwidths}}", list(sentences::bandwidths(lab))),
        ("{{said-of-the-network}}", list(sentences::network(lab))),
        ("{{forecast}}", forecast(&lab.forecast)),
        ("{{attribution}}", escape(&format!("{}: {}.", about.dataset, about.licence))),
    ];
    const NAMES: [[&str; 3]; 4] = [
        ["{{title-1}}", "{{table-1}}", "{{note-1}}"],
        ["{{title-2}}", "{{table-2}}", "{{note-2}}"],
        ["{{title-3}}", "{{table-3}}", "{{note-3}}"],
        ["{{title-4}}", "{{table-4}}", "{{note-4}}"],
    ];
    for ([title, table, note], Table { title: of, headings, rows, note: about }) in NAMES.into_iter().zip(tables(lab)) {
        fields.push((title, escape(of)));
        fields.push((table, report::table(&headings, rows.into_iter())));
        fields.push((note, escape(&about)));
    }
    html::fill(TEMPLATE, &fields)
}

fn list(sentences: impl AsRef<[String]>) -> String {
    sentences.as_ref().iter().map(|sentence| format!("<li>{}</li>\n", escape(sentence))).collect()
}

fn forecast(sentences: &[String]) -> String {
    match sentences.is_empty() {
        true => String::new(),
        false => format!(
            "\n<h2>Ten times the machines</h2>\n<ul>\n{}</ul>\n<p>Simulated: the schedules of the same code on machines like this, with \
             workers that compute as long as one alone did here. <code>ringstep simulate</code> asks for more.</p>\n",
            list(sentences)
        ),
    }
}

/// One line of each plot: a batch that stays the same while there are more and more workers.
struct Curve<'a> {
    scaling: Scaling,
    batch: usize,
    cells: Vec<Cell<'a>>,
}

struct Curves<'a>(Vec<Curve<'a>>);

impl<'a> Curves<'a> {
    fn of(lab: &'a Lab) -> Self {
        let mut curves: Vec<Curve<'a>> = Vec::new();
        for cell in lab.cells() {
            let (scaling, batch) = (cell.place.scaling, cell.place.batch);
            match curves.iter_mut().find(|curve| (curve.scaling, curve.batch) == (scaling, batch)) {
                Some(curve) => curve.cells.push(cell),
                None => curves.push(Curve { scaling, batch, cells: vec![cell] }),
            }
        }
        Self(curves)
    }

    /// A batch has a hue, and strong scaling a pattern.
    fn style(&self, curve: &Curve<'_>) -> Style {
        let mut batches: Vec<usize> = self.0.iter().map(|curve| curve.batch).collect();
        batches.dedup();
        let number = 1 + batches.iter().position(|&batch| batch == curve.batch).unwrap_or(0);
        let style = Style::numbered(number);
        if curve.scaling == Scaling::Strong { style.twin() } else { style }
    }

    fn lines(&self, of: impl Fn(&Cell<'a>) -> Option<f64>) -> Vec<Line> {
        let line = |(row, curve): (usize, &Curve<'a>)| {
            let points: Vec<Point> =
                curve.cells.iter().filter_map(|cell| Some((cell.place.workers as f64, of(cell)?))).collect();
            Line { row: Some(row), name: curve.name(), style: self.style(curve), width: THIN, points }
        };
        self.0.iter().enumerate().map(line).filter(|line| !line.points.is_empty()).collect()
    }

    fn speedups(&self) -> Chart {
        let mut lines = self.lines(|cell| Some(cell.speedup()));
        let cells = || self.0.iter().flat_map(|curve| &curve.cells);
        let mut counts: Vec<(usize, f64)> = cells().map(|cell| (cell.place.workers, cell.allowed)).collect();
        counts.sort_by_key(|(workers, _)| *workers);
        counts.dedup();
        let mut bound = |name: &str, style: Style, of: fn(&(usize, f64)) -> f64| {
            let points = counts.iter().map(|count| (count.0 as f64, of(count))).collect();
            lines.push(Line { row: Some(lines.len()), name: name.to_owned(), style, width: 1.2, points });
        };
        bound("ideal", Style::plain(), |(workers, _)| *workers as f64);
        if counts.iter().any(|(workers, allowed)| *allowed < *workers as f64) {
            bound("what the cores allow", Style::plain().twin(), |(_, allowed)| *allowed);
        }
        Chart::new(Quantity::linear("speed-up", Unit::Plain), WORKERS, lines)
    }

    fn steps(&self) -> Chart {
        Chart::new(
            Quantity::log("time of a step", Unit::Seconds),
            WORKERS,
            self.lines(|cell| Some(cell.at.step_seconds())),
        )
    }

    fn bandwidths(&self, lab: &Lab) -> Chart {
        let mut lines = self.lines(|cell| cell.at.bandwidth());
        let points: Vec<Point> = lab.ceilings.iter().map(|(&workers, &rate)| (workers as f64, rate)).collect();
        let (name, style) = ("an all-reduce alone".to_owned(), Style::plain());
        lines.push(Line { row: None, name, style, width: 1.2, points });
        Chart::new(Quantity::log("bandwidth", Unit::BytesPerSecond), WORKERS, lines)
    }
}

/// Which line is which.
fn legend(chart: &Chart) -> String {
    let key = |(at, line)| {
        let Line { row, name, style, .. }: &Line = line;
        (row.unwrap_or(at), name.as_str(), *style)
    };
    style::legend(chart.lines.iter().enumerate().map(key))
}

impl Curve<'_> {
    fn name(&self) -> String {
        match self.scaling {
            Scaling::Weak => format!("weak, {} a worker", self.batch),
            Scaling::Strong => format!("strong, {} a step", self.batch),
        }
    }
}

/// Where the time of each training went.
fn bars(lab: &Lab) -> Vec<(String, Split)> {
    let mut measured: Vec<&Measured> = lab.measured.iter().collect();
    measured.sort_by_key(|measured| {
        let Size { workers, batch } = measured.size;
        (batch, workers)
    });
    let bar = |measured: &Measured| {
        let at = &measured.split;
        let other = (measured.with_data - at.compute - at.exposed - at.waiting).max(0.0);
        let split = show::Split {
            compute: at.compute,
            exposed: at.exposed,
            waiting: at.waiting,
            other,
            hidden: measured.hidden,
        };
        (measured.size.to_string(), split)
    };
    measured.into_iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::super::lab::tests::hand_made;
    use super::*;

    #[test]
    fn a_page_has_every_table_and_every_curve() {
        let page = page(&hand_made());
        for part in ["Table 1", "Table 2", "Table 3", "weak, 32 a worker", "strong, 128 a step", "what the cores allow"]
        {
            assert!(page.contains(part), "{part}");
        }
        assert!(!page.contains("{{") && !page.contains("of those that were asked for"));
    }

    #[test]
    fn a_page_of_a_run_that_was_stopped_says_so() {
        let mut lab = hand_made();
        lab.measured.truncate(1);
        assert!(page(&lab).contains("1 trainings are measured; 8 of those"), "{}", page(&lab));
        lab.measured.clear();
        assert!(page(&lab).contains("0 trainings are measured; 9 of those"));
    }
}
