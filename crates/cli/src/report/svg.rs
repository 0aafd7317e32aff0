//! What all pictures share: axes with round numbers on them. Colours and fonts come from the page's style sheet.

use std::fmt::Write;

use crate::show::{bytes, seconds};

/// How wide pictures are that have the page for themselves.
pub const WIDE: f64 = 960.0;
/// How wide a letter of them is, about.
const LETTER: f64 = 7.6;

/// What the numbers along an axis are.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    /// Numbers of no unit.
    Plain,
    /// Epochs or steps, which are whole.
    Count,
    /// Shares of one.
    Percent,
    /// Time.
    Seconds,
    /// Sizes.
    Bytes,
    /// The speed of a network.
    BitsPerSecond,
    /// That of memory, and of collectives.
    BytesPerSecond,
}

impl Unit {
    /// How the page's script knows it.
    pub fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Count => "count",
            Self::Percent => "percent",
            Self::Seconds => "seconds",
            Self::Bytes => "bytes",
            Self::BitsPerSecond => "bits",
            Self::BytesPerSecond => "rate",
        }
    }
}

/// Numbers from one end to the other, and where they are drawn.
pub struct Axis {
    unit: Unit,
    range: [f64; 2],
    pixels: [f64; 2],
    /// Whether equal ways are equal factors.
    log: bool,
    /// From one tick to the next, where equal ways are equal differences.
    step: f64,
}

impl Axis {
    /// Equal ways are equal differences. Ends at round numbers if it is to be `rounded`.
    pub fn linear(unit: Unit, range: [f64; 2], rounded: bool, pixels: [f64; 2]) -> Self {
        let length = (range[1] - range[0]).max(f64::MIN_POSITIVE);
        let step = if unit == Unit::Count { nice_step(length).max(1.0) } else { nice_step(length) };
        let range = match rounded {
            true => [(range[0] / step).floor() * step, ((range[1] / step).ceil() * step).max(step)],
            false => [range[0], range[0] + length],
        };
        Self { unit, range, pixels, log: false, step }
    }

    /// Equal ways are equal factors, from one power of ten to another.
    pub fn log(unit: Unit, range: [f64; 2], pixels: [f64; 2]) -> Self {
        let [low, high] = range.map(|end| end.max(f64::MIN_POSITIVE).log10());
        let low = (low + 1e-9).floor();
        let range = [10f64.powf(low), 10f64.powf((high - 1e-9).ceil().max(low + 1.0))];
        Self { unit, range, pixels, log: true, step: 1.0 }
    }

    /// The same range, without rounding to powers of ten.
    pub fn log_exact(unit: Unit, range: [f64; 2], pixels: [f64; 2]) -> Self {
        Self { range, ..Self::log(unit, range, pixels) }
    }

    /// Where a number is drawn; the end, if it is beyond.
    pub fn at(&self, value: f64) -> f64 {
        let [from, to] = self.range;
        let [start, end] = self.pixels;
        let share = match self.log {
            true => (value.max(f64::MIN_POSITIVE) / from).ln() / (to / from).ln(),
            false => (value - from) / (to - from),
        };
        start + share.clamp(0.0, 1.0) * (end - start)
    }

    /// What the page's script needs to turn a place back into a number.
    pub fn data(&self) -> String {
        let [[from, to], [start, end]] = [self.range, self.pixels];
        serde_json::json!({ "unit": self.unit.name(), "from": from, "to": to, "start": start, "end": end, "log": self.log })
            .to_string()
    }

    /// Round numbers, and what is written there.
    pub fn ticks(&self) -> Vec<(f64, String)> {
        let [from, to] = self.range;
        if self.log {
            let (low, high) = ((from.log10() - 1e-9).ceil() as i32, (to.log10() + 1e-9).floor() as i32);
            // On one or two decades there is room for more than their ends.
            let factors: &[f64] = if high - low < 2 { &[1.0, 2.0, 5.0] } else { &[1.0] };
            let every = ((high - low) / 7 + 1) as usize;
            return (low - 1..=high)
                .step_by(every)
                .flat_map(|power| factors.iter().map(move |factor| factor * 10f64.powi(power)))
                .filter(|value| (from * (1.0 - 1e-9)..=to * (1.0 + 1e-9)).contains(value))
                .map(|value| (value, self.shown(value)))
                .collect();
        }
        let first = (from / self.step - 1e-9).ceil() as i64;
        let last = (to / self.step + 1e-9).floor() as i64;
        // What is counted from a number that is not round begins there, if there is room for it.
        let start = (self.unit == Unit::Count && first as f64 * self.step - from >= self.step / 2.0).then_some(from);
        let round = (first..=last).map(|tick| tick as f64 * self.step);
        start.into_iter().chain(round).map(|value| (value, self.shown(value))).collect()
    }

    fn shown(&self, value: f64) -> String {
        let top = if self.log { value } else { self.range[1] };
        let step = if self.log { value } else { self.step };
        // All ticks of an axis have one unit and so many digits as their steps need.
        let scaled = |units: &[(f64, &str)]| {
            let (size, unit) = units.iter().find(|(size, _)| top >= 0.999 * size).unwrap_or(&units[units.len() - 1]);
            format!("{:.*} {unit}", digits(step / size), value / size)
        };
        match self.unit {
            Unit::Count => format!("{value:.0}"),
            Unit::Percent => format!("{:.*}%", digits(100.0 * step), 100.0 * value),
            Unit::Plain if top >= 1e5 => format!("{value:.0e}"),
            Unit::Plain => format!("{value:.*}", digits(step)),
            _ if value == 0.0 => "0".to_owned(),
            Unit::Seconds => scaled(&[(1.0, "s"), (1e-3, "ms"), (1e-6, "us")]),
            Unit::Bytes => scaled(&[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")]),
            Unit::BitsPerSecond => scaled(&[(1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")]),
            Unit::BytesPerSecond => scaled(&[(1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s")]),
        }
    }
}

/// Digits after the point that tell multiples of a step apart.
fn digits(step: f64) -> usize {
    (-(step * (1.0 + 1e-9)).log10().floor()).max(0.0) as usize
}

/// A step of 1, 2 or 5 times a power of ten that cuts `range` into four to ten.
pub fn nice_step(range: f64) -> f64 {
    if range <= 0.0 {
        return 1.0;
    }
    let power = 10f64.powf((range / 4.0).log10().floor());
    [5.0, 2.0, 1.0].into_iter().map(|factor| factor * power).find(|step| range / step >= 4.0).unwrap_or(power)
}

/// How wide the column of names has to be, within reason.
pub fn name_column<'a>(names: impl Iterator<Item = &'a str>) -> f64 {
    let longest = names.map(|name| name.chars().count()).max().unwrap_or(0) as f64;
    (longest * LETTER + 16.0).clamp(100.0, 320.0)
}

/// A horizontal bar with its number beside it.
pub struct Bar<'a> {
    /// Of the style sheet.
    pub class: &'a str,
    pub left: f64,
    pub top: f64,
    pub width: f64,
    pub height: f64,
    /// What is written at its end.
    pub text: String,
}

impl Bar<'_> {
    pub fn draw(&self, svg: &mut String) {
        let Self { class, left, top, width, height, text } = self;
        let _ = write!(
            svg,
            r#"<rect class="{class}" x="{left:.1}" y="{top:.1}" width="{:.1}" height="{height:.1}"/><text class="small" x="{:.1}" y="{:.1}">{text}</text>"#,
            width.max(0.5),
            left + width + 6.0,
            top + height / 2.0 + 4.0,
        );
    }
}

/// A number of a unit, for people.
pub fn number(unit: Unit, value: f64) -> String {
    match unit {
        Unit::Seconds => seconds(value),
        Unit::Bytes => bytes(value as u64),
        Unit::BytesPerSecond => format!("{}/s", bytes(value as u64)),
        Unit::Percent => format!("{:.1}%", 100.0 * value),
        Unit::BitsPerSecond => {
            let (size, unit) = [(1e12, "Tbit/s"), (1e9, "Gbit/s"), (1e6, "Mbit/s"), (1e3, "kbit/s")]
                .into_iter()
                .find(|(size, _)| value >= 0.9995 * size)
                .unwrap_or((1.0, "bit/s"));
            format!("{} {unit}", three_digits(value / size))
        }
        Unit::Plain | Unit::Count => three_digits(value),
    }
}

fn three_digits(value: f64) -> String {
    match value {
        _ if value == 0.0 || value >= 99.95 => format!("{value:.0}"),
        _ if value >= 9.995 => format!("{value:.1}"),
        _ => format!("{value:.2}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_have_four_to_ten_steps() {
        for range in [1e-6, 0.07, 0.3, 1.0, 2.3, 4.0, 9.99, 10.0, 99.0, 12345.0] {
            let count = range / nice_step(range);
            assert!((4.0..=10.0).contains(&count), "{range}: {count}");
        }
    }

    #[test]
    fn ticks_are_round_and_within_their_axis() {
        let texts = |axis: Axis| -> Vec<String> { axis.ticks().into_iter().map(|(_, text)| text).collect() };
        let pixels = [0.0, 100.0];
        assert_eq!(
            texts(Axis::linear(Unit::Percent, [0.61, 0.98], true, pixels)),
            ["60%", "65%", "70%", "75%", "80%", "85%", "90%", "95%", "100%"]
        );
        assert_eq!(
            texts(Axis::linear(Unit::Seconds, [0.0, 0.05], false, pixels)),
            ["0", "10 ms", "20 ms", "30 ms", "40 ms", "50 ms"]
        );
        assert_eq!(texts(Axis::linear(Unit::Count, [0.0, 2.0], false, pixels)), ["0", "1", "2"]);
        assert_eq!(
            texts(Axis::log(Unit::Bytes, [5e3, 4e8], pixels)),
            ["1 kB", "10 kB", "100 kB", "1 MB", "10 MB", "100 MB", "1 GB"]
        );
    }

    #[test]
    fn a_decade_is_as_wide_as_the_next() {
        let axis = Axis::log(Unit::Bytes, [1e3, 1e6], [100.0, 400.0]);
        for (value, place) in [(1e3, 100.0), (1e4, 200.0), (1e5, 300.0), (1e6, 400.0), (1e9, 400.0), (0.0, 100.0)] {
            assert!((axis.at(value) - place).abs() < 1e-6, "{value}");
        }
    }

    #[test]
    fn speeds_are_told_in_bits() {
        assert_eq!(number(Unit::BitsPerSecond, 1e8), "100 Mbit/s");
        assert_eq!(number(Unit::BitsPerSecond, 2.345e9), "2.35 Gbit/s");
    }
}
