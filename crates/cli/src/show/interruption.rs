//! Runs that were told to end before their last step.

use crate::train::Row;

/// A sentence for each row that has not done all its steps.
pub fn interruptions(rows: &[Row], images: usize) -> Vec<String> {
    let rows = rows.iter().filter(|row| row.summary.interrupted);
    rows.map(|row| {
        let (done, all) = (row.summary.steps, row.run.job.steps(images));
        format!("{} was interrupted after {done} of {all} steps.", row.run.title)
    })
    .collect()
}
