//! Plots as inline SVG. Colours and fonts come from the page's style sheet, the read-out under the pointer from its
//! script.

use std::fmt::Write;

use crate::html::escape;
use crate::show::{Split, seconds};

const WIDTH: f64 = 640.0;
const HEIGHT: f64 = 340.0;
const LEFT: f64 = 90.0;
const RIGHT: f64 = 14.0;
const TOP: f64 = 14.0;
const BOTTOM: f64 = 50.0;

/// How many colours the style sheet has.
pub const COLOURS: usize = 6;
/// With so few points, each gets a dot.
const FEW: usize = 12;

/// Beyond this, neighbouring points are drawn as one, their mean.
const MOST: usize = 500;

/// One line of a plot: a value for each epoch or step.
pub struct Series {
    pub name: String,
    pub values: Vec<f64>,
}

/// What a plot's values are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Plain,
    Percent,
    Seconds,
}

/// A plot over epochs or steps.
pub struct Lines {
    pub name: &'static str,
    /// `epoch` or `step`.
    pub over: &'static str,
    pub unit: Unit,
    pub series: Vec<Series>,
    /// How many neighbours a point stands for.
    stride: usize,
}

impl Lines {
    /// Thins the series out where there are too many points to see.
    pub fn new(name: &'static str, over: &'static str, unit: Unit, mut series: Vec<Series>) -> Self {
        let longest = series.iter().map(|series| series.values.len()).max().unwrap_or(0);
        let stride = longest.div_ceil(MOST).max(1);
        if stride > 1 {
            for series in &mut series {
                let mean = |values: &[f64]| values.iter().sum::<f64>() / values.len() as f64;
                series.values = series.values.chunks(stride).map(mean).collect();
            }
        }
        Self { name, over, unit, series, stride }
    }

    /// The plot. Lines that coincide can all be seen: each is narrower than the one below it.
    pub fn svg(&self) -> String {
        let percent = self.unit == Unit::Percent;
        let epochs = self.series.iter().map(|series| series.values.len()).max().unwrap_or(0);
        let last = epochs.saturating_sub(1).max(1) as f64;
        let largest = self.series.iter().flat_map(|series| &series.values).copied().fold(0.0, f64::max);
        let step = if percent { 0.2 } else { nice_step(largest) };
        let top = if percent { 1.0 } else { ((largest / step).ceil() * step).max(step) };
        let x = |epoch: f64| LEFT + epoch / last * (WIDTH - LEFT - RIGHT);
        let y = |value: f64| HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM);
        let shown = |value: f64| match self.unit {
            Unit::Percent => format!("{:.0}%", 100.0 * value),
            Unit::Seconds => {
                let (size, unit) =
                    [(1.0, "s"), (1e-3, "ms")].into_iter().find(|(size, _)| top >= *size).unwrap_or((1e-6, "us"));
                format!("{:.*} {unit}", (-(step / size).log10().floor()).max(0.0) as usize, value / size)
            }
            Unit::Plain if top >= 1e5 => format!("{value:.0e}"),
            Unit::Plain => format!("{value:.*}", (-step.log10().floor()).max(0.0) as usize),
        };

        let mut svg = format!(
            r#"<svg class="lines" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{} over {over}s" data-left="{LEFT}" data-right="{}" data-unit="{}" data-over="{over}" data-stride="{}" data-series="{}">"#,
            self.name,
            WIDTH - RIGHT,
            match self.unit {
                Unit::Plain => "plain",
                Unit::Percent => "percent",
                Unit::Seconds => "seconds",
            },
            self.stride,
            escape(&self.data()),
            over = self.over,
        );
        for tick in 0..=(top / step).round() as usize {
            let value = tick as f64 * step;
            let at = y(value);
            let _ = write!(
                svg,
                r#"<line class="grid" x1="{LEFT}" x2="{:.1}" y1="{at:.1}" y2="{at:.1}"/><text class="tick end" x="{:.1}" y="{:.1}">{}</text>"#,
                WIDTH - RIGHT,
                LEFT - 8.0,
                at + 5.0,
                shown(value)
            );
        }
        // Ticks are at round numbers of epochs or steps, whatever a point stands for.
        let stride = self.stride as f64;
        let epoch_step = nice_step(last * stride).max(1.0);
        for tick in 0..=(last * stride / epoch_step).floor() as usize {
            let epoch = tick as f64 * epoch_step;
            if epoch / stride < epochs as f64 {
                let bottom = HEIGHT - BOTTOM;
                let _ = write!(
                    svg,
                    r#"<line class="axis" x1="{0:.1}" x2="{0:.1}" y1="{bottom}" y2="{1}"/><text class="tick middle" x="{0:.1}" y="{2}">{epoch}</text>"#,
                    x(epoch / stride),
                    bottom + 5.0,
                    bottom + 21.0
                );
            }
        }
        let _ = write!(
            svg,
            r#"<line class="axis" x1="{LEFT}" x2="{}" y1="{1}" y2="{1}"/><text class="label middle" x="{2}" y="{3}">{4}</text>"#,
            WIDTH - RIGHT,
            HEIGHT - BOTTOM,
            (LEFT + WIDTH - RIGHT) / 2.0,
            HEIGHT - 6.0,
            self.over
        );
        let middle = (TOP + HEIGHT - BOTTOM) / 2.0;
        let _ = write!(
            svg,
            r#"<text class="label middle" transform="translate(16 {middle}) rotate(-90)">{}</text>"#,
            self.name
        );
        for (index, series) in self.series.iter().enumerate() {
            let points: Vec<String> = series
                .values
                .iter()
                .enumerate()
                .map(|(epoch, &value)| format!("{:.1},{:.1}", x(epoch as f64), y(value)))
                .collect();
            let _ = write!(
                svg,
                r#"<polyline class="line c{}" stroke-width="{}" points="{}"/>"#,
                index % COLOURS,
                self.line_width(index),
                points.join(" ")
            );
            if epochs <= FEW {
                for point in &points {
                    let (x, y) = point.split_once(',').expect("a point has two coordinates");
                    let radius = 2.0 + self.line_width(index) / 2.0;
                    let _ = write!(svg, r#"<circle class="dot c{}" cx="{x}" cy="{y}" r="{radius}"/>"#, index % COLOURS);
                }
            }
        }
        let _ = write!(svg, r#"<line class="cursor" x1="0" x2="0" y1="{TOP}" y2="{}"/></svg>"#, HEIGHT - BOTTOM);
        svg
    }

    /// Times are all different, and need no layers.
    fn line_width(&self, index: usize) -> f64 {
        if self.unit == Unit::Seconds { 2.0 } else { line_width(index, self.series.len()) }
    }

    /// Names and values for the page's script.
    fn data(&self) -> String {
        let series: Vec<_> = self
            .series
            .iter()
            .map(|series| serde_json::json!({ "name": series.name, "values": series.values }))
            .collect();
        serde_json::Value::from(series).to_string()
    }
}

fn line_width(index: usize, count: usize) -> f64 {
    2.0 + 4.0 * (count - 1 - index).min(3) as f64
}

/// Which colour is which row.
pub fn legend(names: impl ExactSizeIterator<Item = String>) -> String {
    let count = names.len();
    names
        .enumerate()
        .map(|(index, name)| {
            format!(
                r#"<span class="key"><svg viewBox="0 0 32 14" width="32" height="14"><line class="line c{}" stroke-width="{}" x1="2" x2="30" y1="7" y2="7"/></svg>{}</span>"#,
                index % COLOURS,
                line_width(index, count),
                escape(&name)
            )
        })
        .collect()
}

/// Where a row's time went.
pub struct Bar {
    pub name: String,
    pub split: Split,
}

/// Horizontal bars, stacked, with the seconds beside them. What went on behind the computation is a strip below.
pub fn bars(bars: &[Bar]) -> String {
    const NAMES: f64 = 160.0;
    const TOTALS: f64 = 90.0;
    const ROW: f64 = 48.0;
    const STRIP: f64 = 8.0;
    const WIDE: f64 = 960.0;
    let height = ROW * bars.len() as f64 + 8.0;
    let parts = |Split { compute, exposed, waiting, other, .. }: &Split| {
        [
            (*compute, "computation", "compute"),
            (*exposed, "exposed communication", "comm"),
            (*waiting, "waiting for the slowest rank", "wait"),
            (*other, "other", "other"),
        ]
    };
    let whole = |split: &Split| parts(split).iter().map(|part| part.0).sum::<f64>();
    let longest = bars.iter().map(|bar| whole(&bar.split)).fold(f64::MIN_POSITIVE, f64::max);
    let wide = |time: f64| time / longest * (WIDE - NAMES - TOTALS);
    let mut svg =
        format!(r#"<svg class="bars" viewBox="0 0 {WIDE} {height}" role="img" aria-label="where the time went">"#);
    for (index, Bar { name, split }) in bars.iter().enumerate() {
        let (top, name) = (4.0 + ROW * index as f64, escape(name));
        let _ = write!(svg, r#"<text class="name end" x="{}" y="{}">{name}</text>"#, NAMES - 12.0, top + 21.0);
        let mut left = NAMES;
        for (time, label, class) in parts(split) {
            let (width, text) = (wide(time), seconds(time));
            let _ = write!(
                svg,
                r#"<rect class="{class}" x="{left:.1}" y="{top}" width="{width:.1}" height="32"><title>{name}: {label} {text}</title></rect>"#,
            );
            // A label only where it fits.
            if width > 70.0 {
                let middle = left + width / 2.0;
                let _ = write!(svg, r#"<text class="in middle" x="{middle:.1}" y="{}">{text}</text>"#, top + 21.0);
            }
            left += width;
        }
        let _ = write!(
            svg,
            r#"<rect class="hidden" x="{NAMES}" y="{}" width="{:.1}" height="{STRIP}"><title>{name}: hidden communication {}</title></rect>"#,
            top + 33.0,
            wide(split.hidden),
            seconds(split.hidden),
        );
        let _ = write!(
            svg,
            r#"<text class="name" x="{:.1}" y="{}">{}</text>"#,
            left + 8.0,
            top + 21.0,
            seconds(whole(split))
        );
    }
    svg + "</svg>"
}

/// A step of 1, 2 or 5 times a power of ten that cuts `range` into four to ten.
pub fn nice_step(range: f64) -> f64 {
    if range <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf((range / 4.0).log10().floor());
    [5.0, 2.0, 1.0].into_iter().map(|factor| factor * power).find(|step| range / step >= 4.0).unwrap_or(power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_four_to_ten_steps() {
        for range in [1e-6, 0.07, 0.3, 1.0, 2.3, 4.0, 9.99, 10.0, 99.0, 12345.0] {
            let count = range / nice_step(range);
            assert!((4.0..=10.0).contains(&count), "{range}: {count}");
        }
    }
}
