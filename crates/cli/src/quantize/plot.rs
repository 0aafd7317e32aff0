//! Plots as inline SVG. Colours come from the page's style sheet.

use std::fmt::Write;

use crate::html::escape;

const WIDTH: f64 = 340.0;
const HEIGHT: f64 = 150.0;
const BOTTOM: f64 = 18.0;
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
        let x = |number: f32| f64::from(((number - low) / (high - low)).clamp(0.0, 1.0)) * WIDTH;
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
        let y = |count: u64| {
            let share = if count == 0 { 0.0 } else { (1.0 + count as f64).ln() / (1.0 + most).ln() };
            (HEIGHT - BOTTOM) * (1.0 - 0.94 * share)
        };
        let base = HEIGHT - BOTTOM;
        let wide = WIDTH / BARS as f64;
        let steps = |counts: &[u64]| {
            let mut path = String::new();
            for (bar, &count) in counts.iter().enumerate() {
                let (left, top) = (bar as f64 * wide, y(count));
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
        let _ = write!(svg, "<path class=\"float\" d=\"M0 {base}{}L{WIDTH} {base}Z\"/>", steps(&floats));
        let _ = write!(svg, "<path class=\"integer\" d=\"M0 {base}{}\"/>", steps(&integers));
        for &mark in self.marks {
            let _ = write!(svg, "<path class=\"mark\" d=\"M{:.1} {base}v4\"/>", x(mark));
        }
        for end in self.grid {
            let _ = write!(svg, "<path class=\"end\" d=\"M{:.1} 0V{base}\"/>", x(end));
        }
        let _ = write!(svg, "<path class=\"axis\" d=\"M0 {base}H{WIDTH}\"/>");
        let label = |at: f32, anchor: &str| {
            format!("<text x=\"{:.1}\" y=\"{HEIGHT}\" text-anchor=\"{anchor}\">{}</text>", x(at), short(at))
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

/// Horizontal bars of accuracies, each with its name; a line where floats are.
pub fn accuracies(rows: &[(String, f64)], float: f64) -> String {
    let (left, right, step) = (150.0, 70.0, 24.0);
    let (width, height) = (680.0, rows.len() as f64 * step + 8.0);
    let x = |accuracy: f64| left + accuracy * (width - left - right);
    let mut svg = format!("<svg class=\"wide\" viewBox=\"0 0 {width} {height}\" role=\"img\">");
    for (index, (name, accuracy)) in rows.iter().enumerate() {
        let y = index as f64 * step + 4.0;
        let _ = write!(
            svg,
            "<text x=\"{:.0}\" y=\"{:.0}\" text-anchor=\"end\">{}</text><rect class=\"bar\" x=\"{left}\" y=\"{y:.0}\" \
             width=\"{:.1}\" height=\"16\"/><text x=\"{:.1}\" y=\"{:.0}\">{:.2}%</text>",
            left - 8.0,
            y + 13.0,
            escape(name),
            x(*accuracy) - left,
            x(accuracy.max(float)) + 8.0,
            y + 13.0,
            100.0 * accuracy,
        );
    }
    let _ = write!(svg, "<path class=\"end\" d=\"M{:.1} 0V{height}\"/>", x(float));
    svg + "</svg>"
}
