//! What compression saves, what it costs, and on which networks the one is more than the other.

use super::chart::{Chart, Line, Mark, Quantity, THIN};
use super::series;
use super::style::Style;
use super::svg::{Unit, number};
use super::{Look, table};
use crate::show::{bytes, seconds};
use crate::train::Row;

/// Points of a line over speeds of the network.
const POINTS: usize = 60;
/// Networks that are drawn at least, in bytes a second: 10 Mbit/s to 10 Gbit/s.
const SPEEDS: [f64; 2] = [1.25e6, 1.25e9];
/// And at most: 1 Mbit/s to 1 Tbit/s.
const ALL_SPEEDS: [f64; 2] = [1.25e5, 1.25e11];

/// A step with and without compression.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PayOff {
    /// Bytes that the busiest rank would send.
    pub dense: f64,
    /// Bytes that it sends.
    pub sent: f64,
    /// Seconds of encoding and decoding.
    pub encode: f64,
}

impl PayOff {
    fn of(row: &Row) -> Self {
        let summary = &row.summary;
        let a_step = |amount: f64| amount / summary.steps.max(1) as f64;
        Self {
            dense: a_step(summary.bytes_dense as f64),
            sent: a_step(summary.bytes_sent as f64),
            encode: a_step(summary.encode_seconds),
        }
    }

    /// Bytes a second below which sending the difference takes longer than encoding: none if there is no difference, all if
    /// encoding takes no time.
    pub fn below(&self) -> f64 {
        let saved = self.dense - self.sent;
        if saved <= 0.0 { 0.0 } else { saved / self.encode }
    }

    /// A step that computes for so long on a network of this speed, nothing hidden.
    fn step_time(&self, compute: f64, speed: f64) -> f64 {
        compute + self.encode + self.sent / speed
    }

    /// The same without compression.
    fn dense_step_time(&self, compute: f64, speed: f64) -> f64 {
        compute + self.dense / speed
    }
}

fn is_compressed(row: &Row) -> bool {
    row.run.job.compress.is_some()
}

/// Whether a row is compressed, or synchronises as those do that are.
fn is_beside(row: &Row, rows: &[Row]) -> bool {
    let name = row.run.job.sync.name();
    rows.iter().any(|other| is_compressed(other) && other.run.job.sync.name() == name)
}

/// Bytes a second of the network that was made for a row, if one was and if it is not only slow to answer.
fn network_speed(row: &Row) -> Option<f64> {
    let link = row.run.workers.link.as_ref()?;
    Some(link.net().bytes_per_second).filter(|speed| speed.is_finite())
}

/// A section for rows with compression, if there are any.
pub fn section(rows: &[Row], look: &Look) -> Option<String> {
    rows.iter().any(is_compressed).then(|| {
        format!(
            r#"<h2>Compression</h2>
<div class="scroll">{}</div>
<p>Ratios are bytes that the busiest rank would have sent as 32-bit floats to bytes that it sent: of data alone, and with what
the messages need on the wire. The error is the norm of what was left out over the norm of what there was to send, over all
steps. With E seconds of encoding and decoding in a step and D bytes less to send, compression pays off on networks
slower than D/E.</p>
<div class="beside">{}<div class="plots"><figure>{}<div class="readout"></div></figure><figure>{}<div class="readout"></div></figure></div></div>
<p>Right: a step is computation, encoding, and bytes over speed, one after the other; what is hidden behind computation makes
steps shorter with and without compression. A circle is where a row's line crosses the same step sent dense: compression pays
off left of it.{}</p>"#,
            numbers(rows),
            look.legend(rows),
            errors(rows, look).svg(),
            speeds(rows, look).svg(),
            if rows.iter().any(|row| network_speed(row).is_some()) {
                " Dots are steps as they were measured on the network that --net made."
            } else {
                ""
            },
        )
    })
}

fn numbers(rows: &[Row]) -> String {
    let headings = [
        "way",
        "dense a step",
        "sent a step",
        "ratio",
        "ratio on the wire",
        "encoding a step",
        "relative error",
        "pays off below",
    ];
    let cells = |row: &Row| {
        let pay_off = PayOff::of(row);
        let steps = row.summary.steps.max(1) as f64;
        let ratio = |sent: f64| if sent > 0.0 { format!("{:.1}", pay_off.dense / sent) } else { String::new() };
        vec![
            row.run.title.clone(),
            bytes(pay_off.dense as u64),
            bytes(pay_off.sent as u64),
            ratio(pay_off.sent),
            ratio(row.summary.wire_bytes_sent as f64 / steps),
            seconds(pay_off.encode),
            row.summary.compression_error.map_or_else(String::new, |error| number(Unit::Percent, error)),
            below(&pay_off),
        ]
    };
    table(&headings, rows.iter().filter(|row| is_compressed(row)).map(cells))
}

fn below(pay_off: &PayOff) -> String {
    match pay_off.below() {
        0.0 => "never: it sends no less".to_owned(),
        speed if speed.is_infinite() => "any speed".to_owned(),
        speed => number(Unit::BitsPerSecond, 8.0 * speed),
    }
}

fn errors(rows: &[Row], look: &Look) -> Chart {
    let lines = rows.iter().enumerate().filter(|(_, row)| is_compressed(row));
    let lines = lines.map(|(at, row)| look.line(rows, at, THIN, series::errors(row))).collect();
    Chart::new(Quantity::linear("relative error", Unit::Percent), Quantity::linear("steps", Unit::Count), lines)
}

/// The time of a step on networks of all speeds.
fn speeds(rows: &[Row], look: &Look) -> Chart {
    let compressed: Vec<(usize, PayOff)> =
        rows.iter().enumerate().filter(|(_, row)| is_compressed(row)).map(|(at, row)| (at, PayOff::of(row))).collect();
    let compute = median(
        rows.iter()
            .filter(|row| is_beside(row, rows))
            .map(|row| row.summary.compute_seconds / row.summary.steps.max(1) as f64)
            .collect(),
    );
    let crossings = compressed
        .iter()
        .map(|(_, pay_off)| pay_off.below())
        .filter(|speed| (ALL_SPEEDS[0]..ALL_SPEEDS[1]).contains(speed));
    let [slow, fast] = crossings.fold(SPEEDS, |[slow, fast], speed| [slow.min(speed / 2.0), fast.max(2.0 * speed)]);
    let speed = |at: usize| slow * (fast / slow).powf(at as f64 / POINTS as f64);
    let over = |time: &dyn Fn(f64) -> f64| (0..=POINTS).map(|at| (8.0 * speed(at), time(speed(at)))).collect();

    let mut chart = Chart::new(
        Quantity::log("time of a step", Unit::Seconds),
        Quantity::log("speed of the network", Unit::BitsPerSecond),
        Vec::new(),
    );
    // The dense row itself, or what the rows say that it would be.
    let dense_row = rows.iter().position(|row| !is_compressed(row) && is_beside(row, rows));
    if let Some((_, pay_off)) = compressed.first() {
        let points = over(&|speed| pay_off.dense_step_time(compute, speed));
        chart.lines.push(match dense_row {
            Some(row) => look.line(rows, row, THIN + 1.0, points),
            None => Line { row: None, name: "dense".to_owned(), style: Style::plain(), width: THIN + 1.0, points },
        });
    }
    for (row, pay_off) in &compressed {
        chart.lines.push(look.line(rows, *row, THIN, over(&|speed| pay_off.step_time(compute, speed))));
        let crossing = pay_off.below();
        if (slow..=fast).contains(&crossing) {
            let point = (8.0 * crossing, pay_off.step_time(compute, crossing));
            let text = format!("{}: pays off below {}", rows[*row].run.title, below(pay_off));
            chart.marks.push(Mark::At { row: *row, style: look.styles[*row], point, kind: "ring", text });
        }
    }
    let nets: Vec<f64> = rows.iter().filter_map(network_speed).collect();
    if let Some(&net) = nets.first()
        && nets.iter().all(|other| *other == net)
        && (slow..=fast).contains(&net)
    {
        chart.marks.push(Mark::Place(8.0 * net, number(Unit::BitsPerSecond, 8.0 * net)));
    }
    for (at, row) in rows.iter().enumerate() {
        if let Some(net) = network_speed(row).filter(|_| is_beside(row, rows))
            && (slow..=fast).contains(&net)
        {
            let time = row.summary.mean_seconds_per_step;
            let text = format!("{}: {} measured", row.run.title, seconds(time));
            chart.marks.push(Mark::At { row: at, style: look.styles[at], point: (8.0 * net, time), kind: "dot", text });
        }
    }
    chart
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(0.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 30 MB less to send for 0.1 s of encoding: worth it below 300 MB/s.
    const PAY_OFF: PayOff = PayOff { dense: 40e6, sent: 10e6, encode: 0.1 };

    #[test]
    fn compression_pays_off_where_sending_the_rest_would_take_longer_than_encoding() {
        assert_eq!(PAY_OFF.below(), 300e6);
        let faster = |speed| PAY_OFF.step_time(1.0, speed) < PAY_OFF.dense_step_time(1.0, speed);
        assert!(faster(299e6) && !faster(301e6));
        assert_eq!(below(&PAY_OFF), "2.40 Gbit/s");
    }

    #[test]
    fn what_sends_no_less_never_pays_off_and_what_costs_nothing_always_does() {
        assert_eq!(below(&PayOff { sent: 50e6, ..PAY_OFF }), "never: it sends no less");
        assert_eq!(below(&PayOff { encode: 0.0, ..PAY_OFF }), "any speed");
    }
}
