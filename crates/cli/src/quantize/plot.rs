//! Plots as inline SVG. Colours come from the page's style sheet.

use std::fmt::Write;

use crate::html::escape;

const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 160.0;
/// Below the axis are its numbers.
const BOTTOM: f64 = 22.0;
/// To the left of the bars is the scale of their heights.
const LEFT: f64 = 40.0;
/// Bars of a histogram.
const BARS: usize = 85;

/// A distribution in floats, with what the integers make of it.
pub struct Distribution<'a> {
    /// Numbers and how often they occur.
    pub floats: Vec<(f32, u64)>,
    /// The same after rounding.
    pub integers: Vec<(f32, u64)>,
    /// The least and the largest number.
    pub range: [f32; 2],
    /// The least and the largest that integers stand for.
    pub grid: [f32; 2],
    /// Where the integers stand, if they are few enough to see.
    pub marks: &'a [f32],
    /// Three deviations around the mean.
    pub band: [f32; 2],
}

impl Distribution<'_> {
    /// Floats as an area, integers as a line over it, by the logarithm of the count; the band, and the ends of the grid.
    pub fn svg(&self) -> String {
        let margin = (self.range[1] - self.range[0]).max(f32::MIN_POSITIVE) * 0.03;
        let (low, high) = (self.range[0] - margin, self.range[1] + margin);
        let x = |number: f32| f64::from(((number - low) / (high - low)).clamp(0.0, 1.0)) * (WIDTH - LEFT) + LEFT;
        let bars = |numbers: &[(f32, u64)]| {
            let mut bars = vec![0u64; BARS];
            for &(number, count) in numbers {
                let bar = ((number - low) / (high - low) * BARS as f32).clamp(0.0, BARS as f32 - 1.0);
                bars[bar as usize] += count;
            }
            bars
        };
        let (floats, integers) = (bars(&self.floats), bars(&self.integers));
        let most = floats.iter().chain(&integers).copied().max().unwrap_or(1).max(2) as f64;
        let y = |count: f64| {
            let share = (1.0 + count).ln() / (1.0 + most).ln();
            (HEIGHT - BOTTOM) * (1.0 - 0.94 * share)
        };
        let base = HEIGHT - BOTTOM;
        let wide = (WIDTH - LEFT) / BARS as f64;
        let steps = |counts: &[u64]| {
            let mut path = String::new();
            for (bar, &count) in counts.iter().enumerate() {
                let (left, top) = (LEFT + bar as f64 * wide, y(count as f64));
                let _ = write!(path, "L{left:.1} {top:.1}H{:.1}", left + wide);
            }
            path
        };
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">");
        let [begin, end] = self.band.map(x);
        let _ = write!(
            svg,
            "<rect class=\"band\" x=\"{begin:.1}\" y=\"0\" width=\"{:.1}\" height=\"{base}\"/>",
            end - begin
        );
        let _ = write!(svg, "<path class=\"float\" d=\"M{LEFT} {base}{}L{WIDTH} {base}Z\"/>", steps(&floats));
        let _ = write!(svg, "<path class=\"integer\" d=\"M{LEFT} {base}{}\"/>", steps(&integers));
        for &mark in self.marks {
            let _ = write!(svg, "<path class=\"mark\" d=\"M{:.1} {base}v4\"/>", x(mark));
        }
        for end in self.grid {
            let _ = write!(svg, "<path class=\"end\" d=\"M{:.1} 0V{base}\"/>", x(end));
        }
        let _ = write!(svg, "<path class=\"axis\" d=\"M{LEFT} {base}H{WIDTH}\"/>");
        // Heights by their share of all numbers, a power of ten each, as long as that is a number at least and not the neighbour's.
        let total: u64 = floats.iter().sum();
        let mut above = f64::NEG_INFINITY;
        for share in [0.1, 0.01, 1e-3, 1e-4] {
            let (count, at) = (share * total as f64, y(share * total as f64));
            if (1.0..=most).contains(&count) && at - above > 16.0 {
                let text = format!("{}%", 100.0 * share);
                let _ = write!(
                    svg,
                    "<path class=\"tick\" d=\"M{LEFT} {at:.1}H{WIDTH}\"/><text x=\"{:.1}\" y=\"{:.1}\" \
                     text-anchor=\"end\">{text}</text>",
                    LEFT - 4.0,
                    at + 4.0
                );
                above = at;
            }
        }
        let text_at = HEIGHT - 6.0;
        let label = |at: f32, anchor: &str| {
            format!("<text x=\"{:.1}\" y=\"{text_at}\" text-anchor=\"{anchor}\">{}</text>", x(at), short(at))
        };
        svg + &label(self.range[0], "start") + &label(self.range[1], "end") + "</svg>"
    }
}

/// A number with three digits.
pub fn short(number: f32) -> String {
    match number.abs() {
        0.0 => "0".to_owned(),
        0.01..1000.0 => format!("{number:.3}"),
        _ => format!("{number:.2e}"),
    }
}

/// Horizontal bars of accuracies, each with its name; a line where floats are. Of HTML, so that text has its size however narrow
/// the page is.
pub fn accuracies(rows: &[(String, f64)], float: f64) -> String {
    let mut html = String::from("<div class=\"bars\">");
    for (name, accuracy) in rows {
        let _ = write!(
            html,
            "<span>{}</span><span class=\"track\"><i style=\"width:{:.2}%\"></i><b style=\"left:{:.2}%\"></b></span>\
             <span>{:.2}%</span>",
            escape(name),
            100.0 * accuracy,
            100.0 * float,
            100.0 * accuracy,
        );
    }
    html + "</div>"
}
