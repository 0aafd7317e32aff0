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

/// Three digits, with a `k` for thousands.
pub fn count(value: f64) -> String {
    scaled(value, &[(1e6, "M"), (1e3, "k"), (1.0, "")]).replace(' ', "")
}

/// Items one after the other, the last two joined by `and`.
pub fn list<T: AsRef<str>>(items: &[T], comma: &str, and: &str) -> String {
    let items: Vec<&str> = items.iter().map(AsRef::as_ref).collect();
    match items.split_last() {
        Some((last, others)) if !others.is_empty() => format!("{}{and}{last}", others.join(comma)),
        _ => items.concat(),
    }
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
        assert_eq!([0.5, 12.34, 987.0, 1234.0, 45_678.0].map(count), ["0.50", "12.3", "987", "1.23k", "45.7k"]);
    }

    #[test]
    fn lists_end_with_their_last_word() {
        assert_eq!(list(&["a", "b", "c"], ", ", " and "), "a, b and c");
        assert_eq!((list(&["a"], ", ", " and "), list::<&str>(&[], ", ", " and ")), ("a".to_owned(), String::new()));
    }
}
