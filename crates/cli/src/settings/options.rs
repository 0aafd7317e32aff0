//! Options that belong to some choices only: a bucket is ddp's, a rank is PowerSGD's.

use anyhow::{Result, bail};
use toml::Table;

use crate::names::Named;

/// Options by their keys, each with the choices that have it.
pub struct Options<T: 'static>(pub &'static [(&'static str, &'static [T])]);

impl<T: Named + PartialEq> Options<T> {
    /// Whether a key means something to one of these choices.
    pub fn has_meaning(&self, key: &str, chosen: &[T]) -> bool {
        self.0.iter().all(|(option, of)| *option != key || chosen.iter().any(|choice| of.contains(choice)))
    }

    /// Refuses options that mean nothing to any of these choices, instead of ignoring them.
    pub fn refuse_foreign(&self, given: &Table, chosen: &[T]) -> Result<()> {
        for (option, of) in self.0 {
            if given.contains_key(*option) && !self.has_meaning(option, chosen) {
                let names = |choices: &[T]| choices.iter().map(|it| it.spelling()).collect::<Vec<_>>().join(", ");
                let (last, others) = of.split_last().expect("an option belongs to a choice");
                let and = if others.is_empty() { "" } else { " and " };
                bail!("--{option} belongs to {}{and}{}, not to {}", names(others), last.spelling(), names(chosen));
            }
        }
        Ok(())
    }
}
