//! Names that stand for things, and what to say when there is no such thing.

use anyhow::{Result, anyhow};

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_names_get_the_known_and_the_nearest() {
        let error = lookup("fruit", "appel", &["pear", "apple"], |name| name).unwrap_err();
        assert_eq!(error.to_string(), "unknown fruit 'appel': known are pear, apple; nearest is 'apple'");
        assert_eq!(lookup("fruit", "pear", &["pear", "apple"], |name| name).unwrap(), "pear");
    }
}
