//! Stacked bars, for the report.

use std::fmt::Write;

use super::text::quantity;
use crate::html::escape;

/// A bar: its name, its parts, and what stands behind it.
pub struct Bar {
    pub name: String,
    pub parts: Vec<f64>,
    pub label: String,
}

/// Horizontal bars, each stacked of parts with these names and classes.
pub fn stacks(label: &str, parts: &[(&str, &str)], bars: &[Bar]) -> String {
    const NAMES: f64 = 170.0;
    const TOTALS: f64 = 120.0;
    const ROW: f64 = 34.0;
    const WIDE: f64 = 960.0;
    let height = ROW * bars.len() as f64 + 8.0;
    let longest = bars.iter().map(|bar| bar.parts.iter().sum()).fold(f64::MIN_POSITIVE, f64::max);
    let mut svg =
        format!(r#"<svg class="bars" viewBox="0 0 {WIDE} {height}" role="img" aria-label="{}">"#, escape(label));
    for (index, bar) in bars.iter().enumerate() {
        let top = 4.0 + ROW * index as f64;
        let name = escape(&bar.name);
        let _ = write!(svg, r#"<text class="end" x="{}" y="{}">{name}</text>"#, NAMES - 12.0, top + 19.0);
        let mut left = NAMES;
        for (value, (part, class)) in bar.parts.iter().zip(parts) {
            let width = value / longest * (WIDE - NAMES - TOTALS);
            let title = format!("{}: {part} {}", bar.name, quantity(*value));
            let _ = write!(
                svg,
                r#"<rect class="{class}" x="{left:.1}" y="{top}" width="{width:.1}" height="{}"><title>{}</title></rect>"#,
                ROW - 8.0,
                escape(&title)
            );
            left += width;
        }
        let _ = write!(svg, r#"<text x="{:.1}" y="{}">{}</text>"#, left + 8.0, top + 19.0, escape(&bar.label));
    }
    svg + "</svg>"
}

/// Which colour is which part.
pub fn legend(parts: &[(&str, &str)]) -> String {
    let key = |(part, class): &(&str, &str)| {
        format!(r#"<span class="key"><span class="swatch {class}"></span>{}</span>"#, escape(part))
    };
    format!(r#"<div class="legend">{}</div>"#, parts.iter().map(key).collect::<String>())
}
