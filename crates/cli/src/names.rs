//! Names and sizes as users write them, and what to say when there is no such thing.

use anyhow::{Context, Result, anyhow};

/// The thing of this name among `all`, or an error with the known names and the nearest.
pub fn lookup<T: Copy>(kind: &str, text: &str, all: &[T], name: impl Fn(T) -> &'static str) -> Result<T> {
    all.iter().copied().find(|&thing| name(thing) == text).ok_or_else(|| {
        let known: Vec<&str> = all.iter().map(|&thing| name(thing)).collect();
        let nearest = known.iter().copied().max_by(|a, b| {
            let likeness = |name| strsim::jaro_winkler(text, name);
            likeness(a).total_cmp(&likeness(b))
        });
        anyhow!("unknown {kind} '{text}': known are {}; nearest is '{}'", known.join(", "), nearest.unwrap_or_default())
    })
}

/// `64KiB`, `1MB`, `4096`.
pub fn parse_bytes(text: &str) -> Result<usize> {
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let units: [(&str, usize); 8] = [
        ("", 1),
        ("B", 1),
        ("KiB", 1 << 10),
        ("kB", 1000),
        ("MiB", 1 << 20),
        ("MB", 1_000_000),
        ("GiB", 1 << 30),
        ("GB", 1_000_000_000),
    ];
    let unit = units.iter().find(|(name, _)| *name == text[digits..].trim());
    let number = text[..digits].parse::<usize>().ok();
    let size = number.zip(unit).and_then(|(number, (_, unit))| number.checked_mul(*unit));
    size.with_context(|| format!("'{text}' is no size: write 4096, 64KiB or 1MB"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_get_the_known_and_the_nearest() {
        let error = lookup("fruit", "appel", &["pear", "apple"], |name| name).unwrap_err();
        assert_eq!(error.to_string(), "unknown fruit 'appel': known are pear, apple; nearest is 'apple'");
        assert_eq!(lookup("fruit", "pear", &["pear", "apple"], |name| name).unwrap(), "pear");
    }

    #[test]
    fn sizes_have_units() {
        for (text, bytes) in
            [("4096", 4096), ("1KiB", 1024), ("64MiB", 64 << 20), ("1MB", 1_000_000), ("2 GiB", 2 << 30)]
        {
            assert_eq!(parse_bytes(text).unwrap(), bytes);
        }
        for text in ["", "KiB", "1XB", "-1", "99999999999GiB"] {
            assert!(parse_bytes(text).is_err(), "{text}");
        }
    }
}
