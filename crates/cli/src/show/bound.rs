//! What bounded each row, in a sentence that is made of its numbers.

use ringstep_train::summary::Summary;

use super::Split;
use super::units::bytes;
use crate::train::Row;

/// A sentence for each row, and another if workers crowd the cores.
pub fn bounds(rows: &[Row], crowd: Option<&str>) -> Vec<String> {
    let of_row = |row: &Row| bound(&row.run.title, &Split::of(&row.summary), Traffic::of(&row.summary));
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
            messages: messages_sent / steps as u64,
            bytes_a_message: bytes_sent.checked_div(messages_sent).unwrap_or(0),
        }
    }
}

const COMMUNICATION: &str = "exposed communication";

/// What takes most of a row's time; what comes next is told if it takes at least half as much.
fn bound(name: &str, split: &Split, traffic: Traffic) -> String {
    let mut parts = [
        ("computation", split.compute),
        (COMMUNICATION, split.exposed),
        ("waiting for the slowest rank", split.waiting),
        ("other work (data, records)", split.other),
    ];
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let percent = |part: f64, whole: f64| format!("{:.0}%", 100.0 * part / whole);
    let whole: f64 = parts.iter().map(|(_, seconds)| seconds).sum();
    let [(most, seconds), (next, next_seconds), ..] = parts;
    let mut sentence = format!("{name}: {most} takes {} of a step", percent(seconds, whole));
    if most == COMMUNICATION {
        let Traffic { messages, bytes_a_message } = traffic;
        sentence += &format!(" (busiest rank: {messages} messages of {})", bytes(bytes_a_message));
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

#[cfg(test)]
mod tests {
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
            "ddp, ring: waiting for the slowest rank takes 40% of a step, computation 30%; 75% of the communication is \
             hidden."
        );
    }
}
