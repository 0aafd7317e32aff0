//! Workers that were lost, and how the job went on.

use std::fmt::Write;

use crate::html::escape;
use crate::show::seconds;
use crate::train::Row;

/// A table of all losses, if there were any.
pub fn section(rows: &[Row]) -> Option<String> {
    let mut table = String::new();
    for row in rows {
        for restart in &row.summary.restarts {
            let lost = restart.lost.iter().map(usize::to_string).collect::<Vec<_>>().join(", ");
            let cells = [
                escape(&row.run.title),
                lost,
                restart.step.to_string(),
                restart.workers.to_string(),
                restart.steps_lost.to_string(),
                seconds(restart.seconds),
            ];
            let cells = cells.map(|cell| format!("<td>{cell}</td>")).concat();
            let _ = write!(table, r#"<tr>{cells}<td class="words">{}</td></tr>"#, escape(&restart.cause));
        }
    }
    let joined = rows.iter().flat_map(|row| &row.summary.restarts).any(|restart| restart.lost.is_empty());
    let title = if joined { "Workers that were lost, and others that came" } else { "Workers that were lost" };
    (!table.is_empty()).then(|| {
        format!(
            r#"<h2>{title}</h2>
<div class="scroll"><table><thead><tr><th>way</th><th>ranks lost</th><th>gone on from step</th><th>with workers</th>
<th>steps done again</th><th>until the next step</th><th class="words">why</th></tr></thead><tbody>{table}</tbody></table></div>
<p>The others kept their processes and went back to the last step that all remember.</p>"#
        )
    })
}
