//! What rows show beside each other: who gains where a rank is slow, and who repeats.

use ringstep_train::slow::Slow;
use ringstep_train::strategy::Round;
use ringstep_train::{Job, SyncMethod};

use super::bound::ranks;
use super::units::list;
use crate::report::twins;
use crate::settings::Run;
use crate::train::Row;

/// Sentences about several rows.
pub fn comparisons(rows: &[Row]) -> Vec<String> {
    stragglers(rows).into_iter().chain(unrepeatable(rows)).collect()
}

/// What is kept of the images a second where ranks are slowed, for each choice of slowed ranks.
fn stragglers(rows: &[Row]) -> Vec<String> {
    let mut groups: Vec<(&Job, Vec<Kept>)> = Vec::new();
    for (row, twin) in rows.iter().zip(twins(rows)) {
        let Some(twin) = twin.map(|twin| &rows[twin]) else { continue };
        let share = row.summary.images_per_second / twin.summary.images_per_second;
        let kept = Kept { name: &twin.run.title, share };
        let same = |job: &Job| job.slow == row.run.job.slow && job.workers == row.run.job.workers;
        match groups.iter_mut().find(|(job, _)| same(job)) {
            Some((_, group)) => group.push(kept),
            None => groups.push((&row.run.job, vec![kept])),
        }
    }
    groups.into_iter().map(|(job, kept)| straggler(&job.slow, job.workers, kept)).collect()
}

/// What a way keeps of its images a second.
struct Kept<'a> {
    name: &'a str,
    share: f64,
}

fn straggler(slow: &[Slow], workers: usize, mut kept: Vec<Kept<'_>>) -> String {
    // A worker's speed, and what the arithmetic allows: if all wait for the slowest, and if nobody waits.
    let speed = |rank: usize| {
        slow.iter()
            .filter(|slow| slow.rank == rank)
            .map(|slow| 1.0 / (1.0 + slow.probability * (slow.factor - 1.0)))
            .product::<f64>()
    };
    let speeds: Vec<f64> = (0..workers).map(speed).collect();
    let all_wait = speeds.iter().copied().fold(1.0, f64::min);
    let nobody_waits = speeds.iter().sum::<f64>() / workers as f64;
    kept.sort_by(|a, b| b.share.total_cmp(&a.share));
    let kept: Vec<String> = kept.iter().map(|Kept { name, share }| format!("{name} {:.0}%", 100.0 * share)).collect();
    let slowed: Vec<usize> = (0..workers).filter(|&rank| speeds[rank] < 1.0).collect();
    let times = |slow: &Slow| match slow.probability {
        1.0 => format!("{} times", slow.factor),
        share => format!("{} times in {:.0}% of its steps", slow.factor, 100.0 * share),
    };
    let times = match slow {
        [one] => format!(" {}", times(one)),
        _ => String::new(),
    };
    format!(
        "With {} slowed{times}, of its images a second a way can keep {:.0}% if all wait for the slowest, {:.0}% if nobody \
         waits and each has a core. These kept: {}.",
        ranks(&slowed),
        100.0 * all_wait,
        100.0 * nobody_waits,
        list(&kept, "; ", "; ")
    )
}

/// Which rows would not give the same bits again, and why.
fn unrepeatable(rows: &[Row]) -> Option<String> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in rows.iter().filter(|row| !row.summary.repeatable) {
        let (reason, title) = (reason(&row.run), row.run.title.as_str());
        match reasons.iter_mut().find(|(known, _)| *known == reason) {
            Some((_, titles)) => titles.push(title),
            None => reasons.push((reason, vec![title])),
        }
    }
    let told = |(reason, titles): &(&str, Vec<&str>)| format!("{} ({reason})", list(titles, "; ", " and "));
    let told: Vec<String> = reasons.iter().map(told).collect();
    (!told.is_empty()).then(|| format!("Not repeatable bit for bit: {}.", list(&told, "; ", "; ")))
}

fn reason(run: &Run) -> &'static str {
    let sync = run.job.sync;
    match (sync, sync.round()) {
        (SyncMethod::Async { .. }, _) => "gradients are applied as they arrive",
        (SyncMethod::Stale { .. }, _) => "what a worker reads depends on how far the others are",
        (_, Some(Round::Period(_))) => "averages are taken by the clock",
        _ if run.learners_found => "its number of learners was measured",
        _ => "it depends on times",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_gains_and_who_waits_is_told_beside_what_is_possible() {
        let slow = [Slow { rank: 3, factor: 4.0, probability: 1.0 }];
        let kept = vec![
            Kept { name: "ddp, ring", share: 0.26 },
            Kept { name: "async", share: 0.79 },
            Kept { name: "stale", share: 0.7 },
        ];
        assert_eq!(
            straggler(&slow, 4, kept),
            "With rank 3 slowed 4 times, of its images a second a way can keep 25% if all wait for the slowest, 81% if nobody \
             waits and each has a core. These kept: async 79%; stale 70%; ddp, ring 26%."
        );
    }
}
