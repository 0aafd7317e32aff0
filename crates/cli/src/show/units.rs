//! Numbers for people.

/// `0.725` as `72.50%`.
pub fn percent(fraction: f64) -> String {
    format!("{:.2}%", 100.0 * fraction)
}

/// Three digits and a unit: `1.23 s`, `45.6 ms`, `789 us`.
pub fn seconds(seconds: f64) -> String {
    scaled(seconds, &[(1.0, "s"), (1e-3, "ms"), (1e-6, "us")])
}

/// Three digits and a unit, 1 MB = 1,000,000 B.
pub fn bytes(bytes: u64) -> String {
    scaled(bytes as f64, &[(1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "B")])
}

fn scaled(value: f64, units: &[(f64, &str)]) -> String {
    // The thresholds are those of rounding: 999.6 ms is 1.00 s.
    let (size, unit) = units.iter().find(|(size, _)| value >= 0.9995 * size).unwrap_or(&units[units.len() - 1]);
    let value = value / size;
    let digits = match value {
        _ if *unit == "B" || value == 0.0 || value >= 99.95 => 0,
        _ if value >= 9.995 => 1,
        _ => 2,
    };
    format!("{value:.digits$} {unit}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_a_unit() {
        assert_eq!(seconds(61.26), "61.3 s");
        assert_eq!(seconds(0.00123), "1.23 ms");
        assert_eq!(seconds(0.000_789), "789 us");
        assert_eq!((seconds(9.999), seconds(0.9999)), ("10.0 s".to_owned(), "1.00 s".to_owned()));
        assert_eq!((bytes(0), bytes(5)), ("0 B".to_owned(), "5 B".to_owned()));
        assert_eq!(bytes(185_118_000), "185 MB");
        assert_eq!(percent(0.5), "50.00%");
    }
}
