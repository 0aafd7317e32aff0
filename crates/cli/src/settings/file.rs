//! Experiment files: any of the flags, without their dashes, as TOML.

use std::fmt::Display;
use std::path::Path;

use anyhow::{Context, Result, anyhow};
use clap::{Args, Command};
use ringstep_data::file::read_text;
use serde::Deserialize;
use serde::de::DeserializeOwned;
use toml::de::{DeTable, DeValue, ValueDeserializer};
use toml::{Table, Value};

use super::{Experiment, ModelName, Settings};
use crate::names::nearest;

/// What begins each row's own settings, as `[[row]]`.
const ROW: &str = "row";

/// What only `quantize` reads, as `[quantize]`.
const QUANTIZE: &str = "quantize";

/// What all rows have in common, since they are to be compared.
const OF_ALL_ROWS: [&str; 5] = ["model", "dataset", "data", "samples", "log-every"];

/// A file that is read, for errors that name it.
struct Source<'a> {
    path: &'a Path,
    text: &'a str,
}

impl Source<'_> {
    /// An error in the line of this byte.
    fn refuse(&self, at: usize, problem: impl Display) -> anyhow::Error {
        let line = 1 + self.text[..at].matches('\n').count();
        anyhow!("{}, line {line}: {}", self.path.display(), problem.to_string().trim_end().replace('\n', " "))
    }

    /// The first line of toml's own message only says that there is an error.
    fn refuse_syntax(&self, error: &toml::de::Error) -> anyhow::Error {
        self.refuse(error.span().map_or(0, |span| span.start), error.message())
    }

    /// Takes settings key by key, so that an error has its line.
    fn settings(&self, table: DeTable<'_>, of_row: bool) -> Result<Settings> {
        let command = Settings::augment_args(Command::new(""));
        let known: Vec<&str> = command.get_arguments().filter_map(|argument| argument.get_long()).collect();
        let mut settings = Table::new();
        for (key, value) in table {
            let (at, key) = (key.span().start, key.into_inner());
            if !known.contains(&&*key) {
                let nearest = nearest(&key, &known).unwrap_or_default();
                return Err(self.refuse(at, format_args!("unknown field `{key}`; nearest is `{nearest}`")));
            }
            if of_row && OF_ALL_ROWS.contains(&&*key) {
                return Err(self.refuse(at, format_args!("`{key}` is for all rows: none can have its own")));
            }
            let value =
                Value::deserialize(ValueDeserializer::from(value)).map_err(|error| self.refuse_syntax(&error))?;
            let alone = Table::from_iter([(key.to_string(), value.clone())]);
            alone.try_into::<Settings>().map_err(|error| self.refuse(at, error.message()))?;
            settings.insert(key.into_owned(), value);
        }
        Ok(settings.try_into()?)
    }
}

/// Reads an experiment.
pub fn read(path: &Path) -> Result<Experiment> {
    let text = read_text(path).with_context(|| path.display().to_string())?;
    parse(path, &text)
}

/// An experiment's text; errors call it by this path.
pub(crate) fn parse(path: &Path, text: &str) -> Result<Experiment> {
    let source = Source { path, text };
    let mut common = DeTable::parse(text).map_err(|error| source.refuse_syntax(&error))?.into_inner();
    common.remove(QUANTIZE);
    let mut rows = Vec::new();
    if let Some(given) = common.remove(ROW) {
        let at = given.span().start;
        let DeValue::Array(given) = given.into_inner() else {
            return Err(source.refuse(at, "each row begins with [[row]]"));
        };
        for row in given {
            let at = row.span().start;
            let DeValue::Table(row) = row.into_inner() else {
                return Err(source.refuse(at, "each row begins with [[row]]"));
            };
            rows.push(source.settings(row, true)?);
        }
    }
    let mut common = source.settings(common, false)?;
    // A run keeps the network beside its settings.
    if let Some(ModelName::File(model)) = &mut common.model.model {
        let beside = path.with_file_name(&*model);
        if model.is_relative() && beside.is_file() {
            *model = beside;
        }
    }
    Ok(Experiment { common, rows })
}

/// Reads any TOML file; an error names the line.
pub fn read_toml<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = read_text(path).with_context(|| path.display().to_string())?;
    parse_toml(path, &text)
}

/// The same from a text; errors call it by this path.
pub(crate) fn parse_toml<T: DeserializeOwned>(path: &Path, text: &str) -> Result<T> {
    toml::from_str(text).map_err(|error| Source { path, text }.refuse_syntax(&error))
}
