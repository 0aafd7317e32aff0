//! What is to be evaluated: a run's weights on its data, or a file's on those that flags name.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use ringstep_train::job::Design;

use crate::args::EvalArgs;
use crate::datasets::DataPlan;
use crate::run_dir::{self, EVALUATION, WEIGHTS};
use crate::settings::{DataFlags, Experiment, ModelFlags, Settings};

/// Weights, with the model and the data that they belong to.
pub struct Subject {
    /// The file.
    pub weights: PathBuf,
    /// The model that they are of.
    pub design: Design,
    /// What it is tried on.
    pub data: DataPlan,
    /// Where the page goes, if anywhere.
    pub page: Option<PathBuf>,
}

impl Subject {
    /// A run's folder says all that flags do not.
    pub fn find(args: &EvalArgs) -> Result<Self> {
        let given = &args.weights;
        let (weights, config, page) = match given.is_dir() {
            true => {
                let (weights, config) = run(given)?;
                (weights, Experiment::read(&config)?.common, Some(given.join(EVALUATION)))
            }
            false => {
                ensure!(given.exists(), "{}: there is no such run or file", given.display());
                ensure!(
                    args.model.is_some(),
                    "--model is missing: {} does not say which network its weights are for",
                    given.display()
                );
                (given.clone(), Settings::default(), None)
            }
        };
        // Of a data set that is named here all test images count, not those that go with the run's samples.
        let mut data = match args.dataset.is_some() || args.data.is_some() {
            true => DataFlags { data: args.data.clone(), ..DataFlags::default() },
            false => DataFlags { data: config.data.data, samples: config.data.samples, ..DataFlags::default() },
        };
        data.dataset = args.dataset.or(config.data.dataset);
        let mut model = ModelFlags { model: args.model.clone().or(config.model.model), init: None };
        let design = model.design()?;
        Ok(Self { weights, data: data.plan(design.input())?, design, page: args.html.clone().or(page) })
    }
}

/// The weights and the settings of a run, or of one way of a comparison.
fn run(folder: &Path) -> Result<(PathBuf, PathBuf)> {
    let (weights, shown) = (folder.join(WEIGHTS), folder.display());
    if !weights.is_file() {
        let ways = ways(folder);
        ensure!(!ways.is_empty(), "{shown}: there is no {WEIGHTS} in it");
        bail!("{shown} is a comparison, with weights for each way: choose one of {}", ways.join(", "));
    }
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
