//! What is to be looked at: a run's weights on its data, or a file's on those that flags name.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use ringstep_data::Shape;
use ringstep_data::file::read_whole;
use ringstep_quant::file as quantized_file;
use ringstep_train::checkpoint;
use ringstep_train::job::Design;

use crate::args::SubjectArgs;
use crate::datasets::DataPlan;
use crate::run_dir::{self, CONFIG, QUANTIZED, WEIGHTS};
use crate::settings::{DataFlags, Experiment, ModelFlags, Settings};

/// Weights, with the model and the data that they belong to.
pub struct Subject {
    /// The file.
    pub weights: PathBuf,
    /// What the model is called.
    pub name: String,
    /// What the file is.
    pub kind: Kind,
    /// What it is tried on.
    pub data: DataPlan,
    /// The settings that say all of this again.
    pub settings: Settings,
    /// The folder of the run, if it is one.
    pub folder: Option<PathBuf>,
}

/// What a file of weights is.
pub enum Kind {
    /// Floats for this network.
    Float(Design),
    /// Integers, which say themselves which network they are for.
    Quantized,
}

impl Subject {
    /// A run's folder says all that flags do not.
    pub fn find(given: &Path, SubjectArgs { model, dataset, data }: &SubjectArgs) -> Result<Self> {
        let (weights, config, folder) = match given.is_dir() {
            true => {
                let (weights, config) = run(given)?;
                (weights, Experiment::read(&config)?.common, Some(given.to_owned()))
            }
            false => {
                ensure!(given.exists(), "{}: there is no such run or file", given.display());
                (given.to_owned(), Settings::default(), None)
            }
        };
        let bytes = read_whole(&weights).with_context(|| weights.display().to_string())?;
        let quantized = quantized_file::is_quantized(&bytes);
        checkpoint::check_bytes(&bytes, &weights)?;
        ensure!(
            folder.is_some() || quantized || model.is_some(),
            "--model is missing: {} does not say which network its weights are for",
            given.display()
        );
        // Of a data set that is named here all test images count, not those that go with the run's samples.
        let mut flags = match dataset.is_some() || data.is_some() {
            true => DataFlags { data: data.clone(), ..DataFlags::default() },
            false => DataFlags { data: config.data.data, samples: config.data.samples, ..DataFlags::default() },
        };
        flags.normalise = config.data.normalise;
        flags.dataset = dataset.or(config.data.dataset);
        let mut model = ModelFlags { model: model.clone().or(config.model.model), init: None };
        let (name, input, kind) = match quantized {
            true => {
                let integers = quantized_file::load(&weights)?;
                let file = weights.file_stem().map(|stem| stem.to_string_lossy().into_owned());
                let name = model.model.as_ref().map(ToString::to_string).or(file).unwrap_or_default();
                let input = integers.input;
                (name, Shape::new(input.height, input.width, input.channels), Kind::Quantized)
            }
            false => {
                let design = model.design()?;
                (design.name.clone(), design.input(), Kind::Float(design))
            }
        };
        let data = flags.plan(input)?;
        let settings = Settings { model, data: flags, ..Settings::default() };
        Ok(Self { weights, name, kind, data, settings, folder })
    }
}

/// The weights and the settings of a run, of one way of a comparison, or of what was quantized.
fn run(folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let shown = folder.display();
    let Some(weights) = [WEIGHTS, QUANTIZED].map(|name| folder.join(name)).into_iter().find(|path| path.is_file())
    else {
        let ways = ways(folder);
        ensure!(!ways.is_empty(), "{shown}: there is no {WEIGHTS} in it");
        let ways = ways.join(", ");
        match folder.join(CONFIG).is_file() {
            true => bail!("{shown} is a comparison, with weights for each way: choose one of {ways}"),
            false => bail!("{shown} is no run, but has some in it: choose one of {ways}"),
        }
    };
    match run_dir::config_of(folder) {
        Some(config) => Ok((weights, config)),
        None => bail!("{shown}: there is no config.toml in it or above it"),
    }
}

/// The folders in this one that have weights.
fn ways(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    let with_weights = entries.map(|entry| entry.path()).filter(|path| path.join(WEIGHTS).is_file());
    let mut ways: Vec<String> = with_weights.map(|path| path.display().to_string()).collect();
    ways.sort_unstable();
    ways
}
