//! Where time went, row by row.

use std::fmt::Write;

use super::svg::{WIDE, name_column};
use crate::html::escape;
use crate::show::{Split, seconds};

const TOTALS: f64 = 80.0;
const STRIP: f64 = 6.0;

/// Horizontal bars of rows with these names, stacked, with the seconds beside them. What went on behind the computation is a strip below.
pub fn bars(rows: &[(String, Split)]) -> String {
    // Many rows are lower, so that they can be seen at once.
    let bar = if rows.len() > 8 { 18.0 } else { 30.0 };
    let row_height = bar + STRIP + 10.0;
    let height = row_height * rows.len() as f64 + 4.0;
    let parts = |Split { compute, exposed, waiting, other, .. }: &Split| {
        [
            (*compute, "computation", "compute"),
            (*exposed, "exposed communication", "comm"),
            (*waiting, "waiting for other ranks", "wait"),
            (*other, "other", "other"),
        ]
    };
    let whole = |split: &Split| parts(split).iter().map(|part| part.0).sum::<f64>();
    let longest = rows.iter().map(|(_, split)| whole(split)).fold(f64::MIN_POSITIVE, f64::max);
    let names = name_column(rows.iter().map(|(name, _)| name.as_str()));
    let wide = |time: f64| time / longest * (WIDE - names - TOTALS);
    let mut svg =
        format!(r#"<svg class="bars" viewBox="0 0 {WIDE} {height}" role="img" aria-label="where the time went">"#);
    for (index, (name, split)) in rows.iter().enumerate() {
        let (top, name) = (2.0 + row_height * index as f64, escape(name));
        let base = top + bar / 2.0 + 5.0;
        let _ = write!(svg, r#"<text class="end" x="{}" y="{base}">{name}</text>"#, names - 10.0);
        let mut left = names;
        for (time, label, class) in parts(split) {
            let (width, text) = (wide(time), seconds(time));
            let _ = write!(
                svg,
                r#"<rect class="{class}" x="{left:.1}" y="{top}" width="{width:.1}" height="{bar}"><title>{name}: {label} {text}</title></rect>"#,
            );
            // A label only where it fits.
            if width > 66.0 {
                let _ =
                    write!(svg, r#"<text class="in middle" x="{:.1}" y="{base}">{text}</text>"#, left + width / 2.0);
            }
            left += width;
        }
        let _ = write!(
            svg,
            r#"<rect class="hidden" x="{names}" y="{}" width="{:.1}" height="{STRIP}"><title>{name}: hidden communication {}</title></rect><text x="{:.1}" y="{base}">{}</text>"#,
            top + bar + 1.0,
            wide(split.hidden),
            seconds(split.hidden),
            left + 8.0,
            seconds(whole(split))
        );
    }
    svg + "</svg>"
}
