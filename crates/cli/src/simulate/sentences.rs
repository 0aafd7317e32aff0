//! What the numbers say.

use ringstep_comm::Algorithm;

use super::study::{Row, Study};
use crate::show::{list, percent, seconds};

/// Efficient enough for nobody to complain.
const WELL: f64 = 0.9;

/// Sentences about these rows: how far it scales, what bounds it, and what is best where.
pub fn sentences(study: &Study, rows: &[Row]) -> Vec<String> {
    [reach(rows), bound(study, rows), changes(rows), failures(rows)].into_iter().flatten().collect()
}

/// Up to where workers do what they could.
fn reach(rows: &[Row]) -> Option<String> {
    let last = rows.last()?;
    let well = rows.iter().take_while(|row| row.efficiency >= WELL).last();
    Some(match well {
        Some(row) if row.workers == last.workers => format!(
            "It scales to {} workers: there a step is {} long, of which {} is what one worker alone takes.",
            last.workers,
            seconds(last.step_seconds()),
            percent(last.efficiency)
        ),
        Some(row) => format!(
            "Up to {} workers at least {:.0}% of a step is what one worker alone takes; {} workers reach {}.",
            row.workers,
            100.0 * WELL,
            last.workers,
            percent(last.efficiency)
        ),
        None => format!(
            "Already {} workers lose more than {:.0}% of a step to each other: {} of it is what one worker alone takes.",
            rows[0].workers,
            100.0 * (1.0 - WELL),
            percent(rows[0].efficiency)
        ),
    })
}

/// What the largest scale waits for.
fn bound(study: &Study, rows: &[Row]) -> Option<String> {
    let last = rows.last()?;
    let times = last.best.simulation.times;
    let parts = [
        (times.exposed_comm_seconds, "communication that nothing hides"),
        (times.waiting_seconds, "waiting for workers that are slow"),
        (times.compute_seconds - study.alone(), "cores that workers share"),
        (last.lost_seconds, "failures"),
    ];
    let (most, what) = parts.into_iter().max_by(|a, b| a.0.total_cmp(&b.0))?;
    if most < 0.01 * last.step_seconds() {
        return None;
    }
    let mut sentence = format!("With {} workers most of the loss is {what}: {} a step", last.workers, seconds(most));
    if what.starts_with("communication")
        && let Some(algorithm) = last.best.algorithm()
    {
        sentence += &format!(", bound by {}", bottleneck(study, last, algorithm));
    }
    Some(sentence + ".")
}

/// Whether latency or bandwidth is more of what an exchange takes, by the cost model.
fn bottleneck(study: &Study, row: &Row, algorithm: Algorithm) -> &'static str {
    let cluster = study.cluster(row.workers);
    let (tuning, topology) = (cluster.tuning(), &cluster.topology);
    let bytes = row.best.bucket().unwrap_or(1 << 20);
    let without_bytes = tuning.predict(algorithm, topology, 0);
    let whole = tuning.predict(algorithm, topology, bytes);
    if without_bytes > 0.5 * whole { "the latency of its steps" } else { "the bandwidth of its links" }
}

/// Where another algorithm becomes the best.
fn changes(rows: &[Row]) -> Option<String> {
    let searched = rows.iter().any(|row| row.best.by_algorithm.len() > 1);
    let mut stretches: Vec<(usize, Algorithm)> = Vec::new();
    for row in rows.iter().filter(|row| row.workers > 1) {
        let algorithm = row.best.algorithm()?;
        if stretches.last().is_none_or(|(_, last)| *last != algorithm) {
            stretches.push((row.workers, algorithm));
        }
    }
    match &stretches[..] {
        _ if !searched => None,
        [] => None,
        [(_, only)] => Some(format!("{} is the best at every scale.", only.name())),
        several => {
            let parts: Vec<String> = several
                .iter()
                .map(|(workers, algorithm)| format!("{} from {workers} workers on", algorithm.name()))
                .collect();
            Some(format!("The best is {}.", list(&parts, ", ", " and ")))
        }
    }
}

fn failures(rows: &[Row]) -> Option<String> {
    let worst = rows.last().filter(|row| row.lost_seconds > 0.0)?;
    let share = worst.lost_seconds / worst.step_seconds();
    Some(format!("Failures and checkpoints take {} of the time of {} workers.", percent(share), worst.workers))
}
