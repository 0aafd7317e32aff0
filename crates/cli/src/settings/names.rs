//! Names that tell the rows of a comparison apart.

use anyhow::{Result, bail};
use toml::{Table, Value};

use super::sync::has_meaning;
use super::{Run, SyncName};
use crate::names::Named;

/// Names each run by its way, its algorithm where there is a choice, and whatever else its settings have that those of
/// another run of the same way do not have.
pub fn tell_apart(runs: &mut [Run], settings: &[(SyncName, Table)]) -> Result<()> {
    for (at, (way, own)) in settings.iter().enumerate() {
        let twins: Vec<&Table> = settings.iter().filter(|(other, _)| other == way).map(|(_, table)| table).collect();
        let differs = |key: &str| twins.iter().any(|twin| twin.get(key) != own.get(key));
        let algorithm = runs[at].job.sync.algorithm().map(|_| runs[at].job.sync.algorithm_name());
        let others =
            own.iter().filter(|(key, _)| ![SYNC, ALGORITHM].contains(&key.as_str()) && has_meaning(key, &[*way]));
        let others = others.filter(|(key, _)| differs(key));
        let others: Vec<String> = others.map(|(key, value)| format!("{key} {}", shown(value))).collect();
        let title = [Some(way.spelling()), algorithm].into_iter().flatten().chain(others.iter().map(String::as_str));
        let title = title.collect::<Vec<_>>().join(", ");
        if runs[..at].iter().any(|run| run.title == title) {
            bail!("{title} is given twice");
        }
        let algorithm = algorithm.filter(|_| differs(ALGORITHM));
        let name = [Some(way.spelling()), algorithm].into_iter().flatten().chain(others.iter().map(String::as_str));
        runs[at].name = name.map(for_a_folder).collect::<Vec<_>>().join("-");
        runs[at].title = title;
    }
    Ok(())
}

const SYNC: &str = "sync";
const ALGORITHM: &str = "algorithm";

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| value.to_string(), str::to_owned)
}

/// Text of which nothing has a meaning in a path.
fn for_a_folder(text: &str) -> String {
    text.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect()
}
