//! Names that tell the rows of a comparison apart.

use anyhow::{Result, bail};
use ringstep_train::SyncMethod;
use toml::{Table, Value};

use super::{Run, SyncName, compress, slow, sync};
use crate::names::Named;

/// Names each run by its way, its algorithm where there is a choice, its compression, who is slow in it, and whatever else
/// its settings have that those of another run of the same way do not have.
pub fn tell_apart(runs: &mut [Run], settings: &[(SyncName, Table)]) -> Result<()> {
    for (at, (way, own)) in settings.iter().enumerate() {
        let twins: Vec<&Table> = settings.iter().filter(|(other, _)| other == way).map(|(_, table)| table).collect();
        let differs = |key: &str| twins.iter().any(|twin| twin.get(key) != own.get(key));
        let job = &runs[at].job;
        let algorithm = job.sync.algorithm().map(|_| job.sync.algorithm_name().to_owned());
        let mut parts: Vec<String> = job.compress.iter().map(compress::title).collect();
        let warms_up = own.get("warm-up").is_some_and(|epochs| *epochs != Value::Float(0.0));
        let others = own.iter().filter(|(key, _)| {
            !TOLD.contains(&key.as_str())
                && (warms_up || !key.starts_with("warm-up"))
                && !compress::is_in_title(key)
                && sync::OPTIONS.has_meaning(key, &[*way])
                && differs(key)
        });
        parts.extend(others.filter_map(|(key, value)| shown(key, value)));
        parts.extend((!job.slow.is_empty()).then(|| slow::title(&job.slow)));
        // The ways that are known for it are told by it; among others only if they differ in it.
        let famous =
            matches!(job.sync, SyncMethod::AllReduce { .. } | SyncMethod::Ddp { .. }) && job.compress.is_none();
        let joined = |algorithm: Option<String>, between: &str, written: fn(&str) -> String| {
            let parts = [Some(way.spelling().to_owned()), algorithm].into_iter().flatten().chain(parts.iter().cloned());
            parts.map(|part| written(&part)).collect::<Vec<_>>().join(between)
        };
        let title = joined(algorithm.clone().filter(|_| famous || differs(ALGORITHM)), ", ", str::to_owned);
        let name = joined(algorithm.filter(|_| differs(ALGORITHM)), "-", for_a_folder);
        if runs[..at].iter().any(|run| run.title == title) {
            bail!("{title} is given twice");
        }
        (runs[at].name, runs[at].title) = (name, title);
    }
    Ok(())
}

const ALGORITHM: &str = "algorithm";
/// What every title tells in its own words.
const TOLD: [&str; 4] = ["sync", ALGORITHM, "compress", "slow"];

/// A setting in a title; what is switched off is not told.
fn shown(key: &str, value: &Value) -> Option<String> {
    match value {
        Value::Boolean(on) => on.then(|| key.to_owned()),
        Value::String(text) => Some(format!("{key} {text}")),
        value => Some(format!("{key} {value}")),
    }
}

/// Text of which nothing has a meaning in a path.
fn for_a_folder(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_alphanumeric() || "-_.".contains(c) { c } else { '-' }).collect();
    text.trim_end_matches('-').to_owned()
}
