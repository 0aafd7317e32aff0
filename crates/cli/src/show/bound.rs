//! What bounded each row, in a sentence that is made of its numbers.

use ringstep_train::Job;
use ringstep_train::accounts::Total;
use ringstep_train::summary::Summary;

use super::Split;
use super::units::{bytes, list};
use crate::train::Row;

/// A sentence for each row, and another if workers crowd the cores.
pub fn bounds(rows: &[Row], crowd: Option<&str>) -> Vec<String> {
    let of_row = |row: &Row| {
        let bound = bound(&row.run.title, &Split::of(&row.summary), Traffic::of(&row.summary));
        let waits = waits(&row.run.job, &row.ranks, row.summary.seconds).map(|waits| format!(" {waits}"));
        bound + &waits.unwrap_or_default()
    };
    let crowd = crowd.map(|crowd| format!("{crowd}, so some of the time is spent waiting for a core."));
    rows.iter().map(of_row).chain(crowd).collect()
}

/// What the busiest rank sends in a step.
#[derive(Clone, Copy)]
struct Traffic {
    messages: u64,
    bytes_a_message: u64,
}

impl Traffic {
    fn of(summary: &Summary) -> Self {
        let Summary { messages_sent, bytes_sent, steps, .. } = *summary;
        Self {
            messages: messages_sent / steps.max(1) as u64,
            bytes_a_message: bytes_sent.checked_div(messages_sent).unwrap_or(0),
        }
    }
}

const COMMUNICATION: &str = "exposed communication";

fn percent(part: f64, whole: f64) -> String {
    format!("{:.0}%", 100.0 * part / whole)
}

/// What takes most of a row's time; what comes next is told if it takes at least half as much.
fn bound(name: &str, split: &Split, traffic: Traffic) -> String {
    let mut parts = [
        ("computation", split.compute),
        (COMMUNICATION, split.exposed),
        ("waiting for other ranks", split.waiting),
        ("other work (data, records)", split.other),
    ];
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let whole: f64 = parts.iter().map(|(_, seconds)| seconds).sum();
    let [(most, seconds), (next, next_seconds), ..] = parts;
    let mut sentence = format!("{name}: {most} takes {} of a step", percent(seconds, whole));
    if most == COMMUNICATION {
        let Traffic { messages, bytes_a_message } = traffic;
        // What is sent in the end alone is less than a message a step.
        sentence += &match messages {
            0 => String::new(),
            1 => format!(" (busiest rank: a message of {})", bytes(bytes_a_message)),
            _ => format!(" (busiest rank: {messages} messages of {})", bytes(bytes_a_message)),
        };
    }
    if next_seconds >= seconds / 2.0 {
        sentence += &format!(", {next} {}", percent(next_seconds, whole));
    }
    // Less would be shown as nothing.
    if split.hidden >= 0.005 * (split.hidden + split.exposed) && split.hidden > 0.0 {
        sentence +=
            &format!("; {} of the communication is hidden", percent(split.hidden, split.hidden + split.exposed));
    }
    sentence + "."
}

/// A share of the time that is worth a sentence.
const MUCH: f64 = 0.2;

/// Who waits for whom: some workers for others that hardly wait, or all of them for the servers.
fn waits(job: &Job, ranks: &[Total], seconds: f64) -> Option<String> {
    let (workers, servers) = ranks.split_at(job.workers);
    let waited: Vec<f64> = workers.iter().map(|total| total.shares.waiting as f64 / 1e9).collect();
    let most = waited.iter().copied().fold(0.0, f64::max);
    if workers.len() < 2 || most < MUCH * seconds {
        return None;
    }
    let (waiting, awaited): (Vec<usize>, Vec<usize>) = (0..job.workers).partition(|&rank| waited[rank] >= 0.5 * most);
    let mean = waiting.iter().map(|&rank| waited[rank]).sum::<f64>() / waiting.len() as f64;
    let share = percent(mean, seconds);
    if awaited.is_empty() {
        let named = if servers.len() == 1 { "the server" } else { "the servers" };
        return (!servers.is_empty()).then(|| format!("All workers wait {share} of the time for {named}."));
    }
    let slowed = awaited.iter().all(|&rank| job.slow.iter().any(|slow| slow.rank == rank));
    if awaited.len() > waiting.len() || !(slowed || is_clear(workers, &waiting, &awaited)) {
        return None;
    }
    let slowed = match (slowed, awaited.len()) {
        (false, _) => "",
        (true, 1) => ", which is slowed",
        (true, _) => ", which are slowed",
    };
    let verb = if waiting.len() == 1 { "waits" } else { "wait" };
    let names = self::ranks(&waiting);
    Some(format!(
        "{}{} {verb} {share} of the time for {}{slowed}.",
        names[..1].to_uppercase(),
        &names[1..],
        self::ranks(&awaited)
    ))
}

/// Whether some workers wait longer in a step than others by more than a worker's steps differ among themselves. On cores that
/// are crowded now one comes late and now another.
fn is_clear(workers: &[Total], waiting: &[usize], awaited: &[usize]) -> bool {
    let of_group = |group: &[usize]| {
        let steps = || group.iter().map(|&rank| workers[rank].waiting());
        let count = group.len() as f64;
        let mean = steps().map(|[mean, _]| mean).sum::<f64>() / count;
        (mean, steps().map(|[_, deviation]| deviation * deviation).sum::<f64>() / count)
    };
    let ((more, one), (less, other)) = (of_group(waiting), of_group(awaited));
    more - less > (one + other).sqrt()
}

/// `rank 3`, or `ranks 0, 1 and 2`.
pub fn ranks(ranks: &[usize]) -> String {
    let numbers: Vec<String> = ranks.iter().map(usize::to_string).collect();
    format!("rank{} {}", if ranks.len() == 1 { "" } else { "s" }, list(&numbers, ", ", " and "))
}

#[cfg(test)]
mod tests {
    use ringstep_nn::Architecture;
    use ringstep_train::SyncMethod;
    use ringstep_train::accounts::Shares;
    use ringstep_train::job::{Design, Length};
    use ringstep_train::records::Step;
    use ringstep_train::slow::Slow;
    use ringstep_train::strategy::Servers;

    use super::*;

    const TRAFFIC: Traffic = Traffic { messages: 60, bytes_a_message: 6171 };

    #[test]
    fn the_largest_part_bounds_a_row() {
        let alone = Split { compute: 9.7, exposed: 0.0, waiting: 0.0, other: 0.3, hidden: 0.0 };
        assert_eq!(bound("single", &alone, TRAFFIC), "single: computation takes 97% of a step.");
        let messages = Split { compute: 2.0, exposed: 7.0, waiting: 0.5, other: 0.5, hidden: 0.0 };
        assert_eq!(
            bound("all-reduce, ring", &messages, TRAFFIC),
            "all-reduce, ring: exposed communication takes 70% of a step (busiest rank: 60 messages of 6.17 kB)."
        );
        let other = Split { compute: 1.0, exposed: 0.0, waiting: 0.0, other: 3.0, hidden: 0.0 };
        assert_eq!(bound("single", &other, TRAFFIC), "single: other work (data, records) takes 75% of a step.");
    }

    #[test]
    fn what_comes_close_is_told_and_what_is_hidden_too() {
        let even = Split { compute: 3.0, exposed: 1.0, waiting: 4.0, other: 2.0, hidden: 3.0 };
        assert_eq!(
            bound("ddp, ring", &even, TRAFFIC),
            "ddp, ring: waiting for other ranks takes 40% of a step, computation 30%; 75% of the communication is \
             hidden."
        );
    }

    /// A rank whose steps take a second and wait so long of it.
    fn total(waits: &[f64]) -> Total {
        let mut total = Total::default();
        for seconds in waits {
            let waiting = (seconds * 1e9) as i64;
            total.add(&Step::default(), Shares { waiting, compute: 1_000_000_000 - waiting, ..Shares::default() });
        }
        total
    }

    #[test]
    fn who_waits_is_named_unless_it_is_noise() {
        let lenet5 = Design::new("lenet5", Architecture::LeNet5.network()).unwrap();
        let sync = SyncMethod::ParameterServer { servers: Servers::Apart(1) };
        let job = Job::new(lenet5, sync, 4, 5, Length::Steps(4));
        let told = |job: &Job, of_ranks: &[&[f64]]| {
            let ranks: Vec<Total> = of_ranks.iter().map(|waits| total(waits)).collect();
            waits(job, &ranks, 4.0)
        };
        let (long, none): (&[f64], &[f64]) = (&[0.5, 0.6, 0.5, 0.4], &[0.0, 0.1, 0.0, 0.0]);
        let clear = told(&job, &[long, long, none, none, none]);
        assert_eq!(clear.as_deref(), Some("Ranks 0 and 1 wait 50% of the time for ranks 2 and 3."));
        // As long on the whole, but now and then.
        let (late, early): (&[f64], &[f64]) = (&[0.9, 0.0, 0.7, 0.4], &[0.0, 0.6, 0.0, 0.2]);
        assert_eq!(told(&job, &[late, late, early, early, none]), None);
        // Whoever is slowed now and then is waited for now and then.
        let slow = vec![Slow { rank: 3, factor: 4.0, probability: 0.5 }];
        let once: &[f64] = &[0.9, 0.0, 0.9, 0.0];
        assert_eq!(
            told(&Job { slow, ..job.clone() }, &[once, once, once, none, none]).as_deref(),
            Some("Ranks 0, 1 and 2 wait 45% of the time for rank 3, which is slowed.")
        );
        let alike = told(&job, &[long, long, long, long, none]);
        assert_eq!(alike.as_deref(), Some("All workers wait 50% of the time for the server."));
        assert_eq!(told(&job, &[none, none, none, none, none]), None);
    }
}
