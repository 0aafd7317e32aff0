//! How old the parameters were that gradients were computed with.

use std::fmt::Write;

use ringstep_train::SyncMethod;

use super::style::Style;
use crate::html::escape;
use crate::train::Row;

const WIDTH: f64 = 380.0;
const HEIGHT: f64 = 190.0;
const LEFT: f64 = 16.0;
const TOP: f64 = 24.0;
const BOTTOM: f64 = 46.0;
/// Beyond this, all that is older is one column.
const MOST: usize = 12;

/// A histogram of each row that has one.
pub fn histograms(rows: &[Row], styles: &[Style]) -> String {
    rows.iter()
        .zip(styles)
        .filter(|(row, _)| row.summary.staleness_histogram.iter().sum::<u64>() > 0)
        .map(|(row, style)| {
            let counts = &row.summary.staleness_histogram;
            format!(
                "<figure><h3>{}</h3><p>{}</p>{}</figure>",
                escape(&row.run.title),
                escape(&caption(counts, row.run.job.sync)),
                histogram(counts, *style)
            )
        })
        .collect()
}

fn caption(counts: &[u64], sync: SyncMethod) -> String {
    let all: u64 = counts.iter().sum();
    let sum: f64 = counts.iter().enumerate().map(|(staleness, &count)| staleness as f64 * count as f64).sum();
    let largest = counts.iter().rposition(|&count| count > 0).unwrap_or(0);
    let bound = match sync {
        SyncMethod::Stale { staleness, .. } => format!(", bound {staleness}"),
        _ => String::new(),
    };
    format!("mean {:.2}, largest {largest}{bound}", sum / all as f64)
}

fn histogram(counts: &[u64], style: Style) -> String {
    let counts = lumped(counts);
    let all = counts.iter().sum::<u64>() as f64;
    let most = counts.iter().copied().max().unwrap_or(1).max(1) as f64;
    let wide = (WIDTH - 2.0 * LEFT) / counts.len().max(4) as f64;
    let bottom = HEIGHT - BOTTOM;
    let mut svg =
        format!(r#"<svg class="lines" viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="histogram of staleness">"#);
    for (staleness, &count) in counts.iter().enumerate() {
        let tall = count as f64 / most * (bottom - TOP);
        let (left, middle) = (LEFT + staleness as f64 * wide, LEFT + (staleness as f64 + 0.5) * wide);
        let share = 100.0 * count as f64 / all;
        let share = match share {
            0.0 => String::new(),
            _ if share < 0.95 => "<1%".replace('<', "&lt;"),
            _ => format!("{share:.0}%"),
        };
        let more = if staleness == MOST { "+" } else { "" };
        let _ = write!(
            svg,
            r#"<rect class="{}" x="{:.1}" y="{:.1}" width="{:.1}" height="{tall:.1}"><title>{count} times {staleness}{more}</title></rect><text class="small middle" x="{middle:.1}" y="{:.1}">{share}</text><text class="tick middle" x="{middle:.1}" y="{}">{staleness}{more}</text>"#,
            format_args!("dot {}", style.class()),
            left + 2.0,
            bottom - tall,
            wide - 4.0,
            bottom - tall - 5.0,
            bottom + 18.0,
        );
    }
    let _ = write!(
        svg,
        r#"<line class="axis" x1="{LEFT}" x2="{}" y1="{bottom}" y2="{bottom}"/><text class="label middle" x="{}" y="{}">steps behind</text></svg>"#,
        WIDTH - LEFT,
        WIDTH / 2.0,
        HEIGHT - 6.0
    );
    svg
}

fn lumped(counts: &[u64]) -> Vec<u64> {
    match counts.len() > MOST + 1 {
        true => counts[..MOST].iter().copied().chain([counts[MOST..].iter().sum()]).collect(),
        false => counts.to_vec(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_older_than_fits_is_one_column() {
        let counts = vec![1; 20];
        let lumped = lumped(&counts);
        assert_eq!((lumped.len(), lumped[MOST], lumped.iter().sum::<u64>()), (13, 8, 20));
    }

    #[test]
    fn captions_have_mean_largest_and_bound() {
        assert_eq!(caption(&[2, 2, 0], SyncMethod::ALL[11]), "mean 0.50, largest 1, bound 1");
        assert_eq!(caption(&[4], SyncMethod::ALL[12]), "mean 0.00, largest 0");
    }
}
