//! Data sets on this machine: finding them, loading them, getting more.

use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::{env, fmt};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use ringstep_data::fetch::{self, Origin, Source};
use ringstep_data::mnist::{self, MNIST};
use ringstep_data::synthetic::{self, Recipe};
use ringstep_data::{DataError, Dataset, SOURCES, Shape};
use serde::{Deserialize, Serialize};

use crate::args::GetArgs;
use crate::names::{ByName, Named, Refusal, as_text, lookup};
use crate::show;

/// What to train on, as a user names it.
#[derive(Debug, Clone, Copy)]
pub enum Choice {
    /// Images in files.
    Files(&'static Source),
    /// Images made from a seed, of this shape or of whatever the model takes.
    Synthetic(Option<Shape>),
    /// All of MNIST if it is on this machine, the built-in sample of it otherwise.
    MnistOrSample,
    /// CIFAR-10 if it is on this machine, images made from a seed otherwise.
    Cifar10OrSynthetic,
}

impl Choice {
    fn name(self) -> &'static str {
        match self {
            Self::Files(source) => source.name,
            Self::Synthetic(_) => synthetic::NAME,
            Self::MnistOrSample => "mnist-or-sample",
            Self::Cifar10OrSynthetic => "cifar10-or-synthetic",
        }
    }
}

impl PartialEq for Choice {
    fn eq(&self, other: &Self) -> bool {
        self.to_string() == other.to_string()
    }
}

/// `mnist`, `synthetic` or `synthetic:28x28x1`.
impl FromStr for Choice {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        if let Some(shape) = text.strip_prefix(synthetic::NAME).and_then(|rest| rest.strip_prefix(':')) {
            return Ok(Self::Synthetic(Some(parse_shape(shape).with_context(|| {
                format!("dataset '{text}': a shape is rows x columns x channels, as in synthetic:32x32x3")
            })?)));
        }
        let others = [Self::Synthetic(None), Self::MnistOrSample, Self::Cifar10OrSynthetic];
        let all: Vec<Self> = SOURCES.into_iter().map(Self::Files).chain(others).collect();
        Ok(lookup(<&Source>::KIND, text, &all, Self::name)?)
    }
}

impl fmt::Display for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())?;
        match self {
            Self::Synthetic(Some(shape)) => write!(f, ":{shape}"),
            _ => Ok(()),
        }
    }
}

as_text!([] Choice);

impl Named for &'static Source {
    const KIND: &'static str = "dataset";

    fn all() -> Vec<Self> {
        SOURCES.to_vec()
    }

    fn spelling(self) -> &'static str {
        self.name
    }
}

fn parse_shape(text: &str) -> Option<Shape> {
    let sizes: Vec<usize> = text.split('x').map(|size| size.parse().ok()).collect::<Option<_>>()?;
    match sizes[..] {
        [height, width, channels] => Some(Shape { height, width, channels }),
        _ => None,
    }
}

/// What a run trains on.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DataPlan {
    /// Where the images come from.
    pub images: Images,
    /// How many of those to train on are used, if not all of them.
    pub samples: Option<usize>,
    /// How many of the test images are used, if not all of them.
    pub tests: Option<usize>,
    /// Mean and deviation that all channels are normalised by, if not those of the data set.
    pub normalise: Option<(f32, f32)>,
}

/// Where images come from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub enum Images {
    /// The sample of MNIST in this program.
    BuiltIn,
    /// Files of a data set.
    Files {
        /// Which one.
        source: ByName<&'static Source>,
        /// Where they are.
        folder: PathBuf,
    },
    /// They are made.
    Synthetic {
        /// Rows, columns and channels of each.
        shape: [usize; 3],
        /// How many there are to train on.
        count: usize,
    },
}

/// Synthetic images, unless more or fewer are asked for; of test images there are never more.
pub const SYNTHETIC_IMAGES: usize = 1_000;
/// As many classes as the other data sets have.
const SYNTHETIC_CLASSES: usize = 10;

/// Loads what a run trains on.
pub fn load(plan: &DataPlan) -> Result<Dataset> {
    let mut data = match &plan.images {
        Images::Files { source, folder } => (source.0.load)(folder)?,
        Images::BuiltIn => mnist::sample(),
        &Images::Synthetic { shape: [height, width, channels], count } => {
            let (shape, test) = (Shape { height, width, channels }, SYNTHETIC_IMAGES.min(count));
            // The images are what they are, whatever the seed of the training.
            let recipe = Recipe { shape, classes: SYNTHETIC_CLASSES, train: count, test, seed: 0 };
            recipe.validate()?;
            recipe.make()
        }
    };
    if let Some(samples) = plan.samples {
        let available = data.train.len();
        ensure!(samples <= available, "{samples} samples are more than the {available} training images that there are");
        data.keep_first(samples);
    }
    if let Some(tests) = plan.tests {
        data.test_with_first(tests);
    }
    if let Some(normalise) = plan.normalise {
        data.normalisation.fill(normalise);
    }
    Ok(data)
}

/// The folder where a data set is, if so many of its images must be read from files: `data get` has put them there.
pub fn folder_for(source: &Source, samples: Option<usize>) -> Result<Option<PathBuf>> {
    let sample_will_do = source.name == MNIST.name && samples.is_some_and(|samples| samples <= mnist::SAMPLE_TRAIN);
    if sample_will_do {
        return Ok(None);
    }
    let (name, folder) = (source.name, place(source)?);
    if !fetch::is_there(source, &folder) {
        let (what, or) = match name == MNIST.name {
            true => {
                ("all of mnist", format!(", or train on up to {} built-in images with --samples", mnist::SAMPLE_TRAIN))
            }
            false => (name, String::new()),
        };
        bail!("{what} is not on this machine: run `ringstep data get {name}`, or give --data DIR{or}");
    }
    Ok(Some(folder))
}

/// Whether a data set is where `data get` puts it.
pub fn is_here(source: &Source) -> Result<bool> {
    Ok(fetch::is_there(source, &place(source)?))
}

/// Says which of the two a run got that asked for a data set or what stands in for it.
pub fn tell_which(plan: &DataPlan) {
    match &plan.images {
        Images::Files { source, folder } => {
            show::tell(&format!("training on {}, in {}", source.0.name, folder.display()));
        }
        Images::BuiltIn => show::tell("mnist is not on this machine: training on the sample that is built in"),
        Images::Synthetic { .. } => {
            show::tell("cifar10 is not on this machine: training on images that are made from a seed");
        }
    }
}

/// Where a data set is kept.
fn place(source: &Source) -> Result<PathBuf> {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME")
        .or_else(|| set("HOME").map(|home| home.join(".cache")))
        .context("neither XDG_CACHE_HOME nor HOME says where data sets are kept")?;
    Ok(cache.join("ringstep").join(source.name))
}

/// `ringstep data get`.
pub fn get(args: &GetArgs) -> Result<()> {
    let ByName(source) = args.dataset;
    let folder = args.to.clone().map_or_else(|| place(source), Ok)?;
    let origin = match &args.from {
        None => Origin::Mirrors,
        Some(from) if from.contains("://") => Origin::Url(from.clone()),
        Some(from) => Origin::Folder(from.into()),
    };
    let style = ProgressStyle::with_template("{msg:28} {bar:30} {bytes:>10} / {total_bytes} {bytes_per_sec}")?;
    let bar = ProgressBar::new(0).with_style(style);
    fetch::get(source, &origin, &folder, &mut |file, done, total| {
        bar.set_message(file.to_owned());
        bar.set_length(total.unwrap_or(done));
        bar.set_position(done);
    })?;
    bar.finish_and_clear();
    show::print(format_args!(
        "{} is in {}: {}, verified ({})",
        source.name,
        folder.display(),
        source.summary,
        source.licence
    ))
}

/// `ringstep data list`.
pub fn list() -> Result<()> {
    let built_in = format!("built in: the first 2,000 training and 1,000 test images ({})", MNIST.licence);
    let made = "built in: made when needed, of any shape, as in --dataset synthetic:32x32x3".to_owned();
    let mut lines = vec![(MNIST.name, built_in), (synthetic::NAME, made)];
    for source in SOURCES {
        lines.push((source.name, state(source, &place(source)?)));
    }
    let lines: Vec<String> = lines.into_iter().map(|(name, state)| format!("{name:14} {state}")).collect();
    show::print(format_args!("{}", lines.join("\n")))
}

/// What there is of a data set in a folder.
fn state(source: &Source, folder: &Path) -> String {
    let shown = folder.display();
    let get = format!("ringstep data get {}", source.name);
    let problem = source.files.iter().find_map(|piece| fetch::verify(folder, piece).err());
    match problem {
        None => format!("in {shown}: {}, verified", source.summary),
        Some(_) if !folder.is_dir() => format!("not in {shown}: `{get}` gets it"),
        Some(DataError::NoFile { file, .. }) => format!("in {shown}, but {file} is missing: `{get}` completes it"),
        Some(problem) => format!("damaged: {problem}: `{get}` mends it"),
    }
}
