//! Rows that follow the same curve over epochs, as ways do that compute the same.

use super::chart::THIN;
use crate::show::list;
use crate::train::Row;

/// One epoch is no curve, and losses that differ by less than this share cannot be told apart in a plot.
const NEAR: f64 = 0.005;
/// How much wider a line is than the one above it, and how often.
const WIDER: f64 = 2.2;
const LAYERS: usize = 4;

/// Rows in groups of the same curve, each in the rows' order.
pub struct Groups(Vec<Vec<usize>>);

impl Groups {
    pub fn of(rows: &[Row]) -> Self {
        Self::of_curves(&rows.iter().map(|row| row.summary.epoch_losses.as_slice()).collect::<Vec<_>>())
    }

    fn of_curves(curves: &[&[f64]]) -> Self {
        let same = |a: &[f64], b: &[f64]| {
            a.len() == b.len()
                && a.len() > 1
                && a.iter().zip(b).all(|(a, b)| (a - b).abs() <= NEAR * a.abs().max(b.abs()))
        };
        let mut groups: Vec<Vec<usize>> = Vec::new();
        for (row, curve) in curves.iter().enumerate() {
            match groups.iter_mut().find(|group| same(curves[group[0]], curve)) {
                Some(group) => group.push(row),
                None => groups.push(vec![row]),
            }
        }
        Self(groups)
    }

    /// How wide a row's line is: lines that coincide can all be seen, since each is narrower than the one below it.
    pub fn width(&self, row: usize) -> f64 {
        let above = |group: &Vec<usize>| group.iter().filter(|&&other| other > row).count();
        let above = self.0.iter().find(|group| group.contains(&row)).map_or(0, above);
        THIN + WIDER * above.min(LAYERS) as f64
    }

    /// Which rows coincide.
    pub fn sentence(&self, rows: &[Row]) -> String {
        let several: Vec<&Vec<usize>> = self.0.iter().filter(|group| group.len() > 1).collect();
        let name = |group: &&Vec<usize>| match group.len() {
            all if all == rows.len() => "All rows follow the same curve".to_owned(),
            _ => {
                let names: Vec<&str> = group.iter().map(|&row| rows[row].run.title.as_str()).collect();
                format!("The same curve is followed by {}", list(&names, "; ", "; and "))
            }
        };
        let names: Vec<String> = several.iter().map(name).collect();
        match names.is_empty() {
            true if rows.len() == 1 => String::new(),
            true => "No two rows follow the same curve.".to_owned(),
            false => format!(
                "{}. Lines that coincide are drawn on top of each other, each narrower than the one below.",
                names.join(". ")
            ),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn curves_within_half_a_percent_are_one() {
        let curves: [&[f64]; 4] = [&[2.3, 1.0], &[2.3, 0.9], &[2.301, 1.001], &[2.3]];
        let groups = Groups::of_curves(&curves);
        assert_eq!(groups.0, [vec![0, 2], vec![1], vec![3]]);
        assert!(groups.width(0) > groups.width(2));
        assert_eq!(groups.width(1), groups.width(2));
    }
}
