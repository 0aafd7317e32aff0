//! What is to be quantized, and how.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use ringstep_cpu::Level;
use ringstep_data::Dataset;
use ringstep_data::canvas::Canvas;
use ringstep_data::mnist::{self, MNIST};
use ringstep_nn::team::Team;
use ringstep_nn::{Architecture, Model};
use ringstep_quant::{Bits, Calibration, Granularity, Recipe};
use ringstep_train::job::Design;
use ringstep_train::{checkpoint, fit};

use crate::args::QuantizeArgs;
use crate::datasets::{self, Choice, DataPlan};
use crate::eval::subject::{self as evaluated, Kind};
use crate::settings::{DataFlags, ModelFlags, ModelName, Settings};

/// LeNet-5, trained for four epochs of MNIST.
const BUILT_IN: &[u8] = include_bytes!("lenet5.safetensors");
/// Training images to calibrate with, unless told otherwise.
const IMAGES: usize = 512;

/// A trained model, its data, and how it is quantized.
pub struct Subject {
    /// What the model is called.
    pub name: String,
    /// Where its weights come from.
    pub weights: String,
    /// The model.
    pub model: Model,
    /// What it is calibrated with and tried on.
    pub data: Dataset,
    /// How images stand in the model's input.
    pub canvas: Canvas,
    /// How it is quantized.
    pub recipe: Recipe,
    /// Training images to calibrate with.
    pub images: usize,
    /// Threads to compute on.
    pub threads: usize,
    /// Instructions to compute with.
    pub level: Level,
    /// The folder of the run, if it is one.
    pub folder: Option<PathBuf>,
    /// The settings that say which model and which data these are.
    pub settings: Settings,
}

impl Subject {
    /// All that the flags say, loaded.
    pub fn find(args: &QuantizeArgs) -> Result<Self> {
        let bits = bits(args.bits)?;
        let images = args.images.unwrap_or(IMAGES);
        ensure!(images > 0, "--images 0: there is nothing to calibrate with");
        let level = args.compute.level()?;
        let Found { design, data, weights, folder, settings } = match &args.weights {
            None => built_in(args)?,
            Some(given) => {
                let found = evaluated::Subject::find(given, &args.subject)?;
                let Kind::Float(design) = found.kind else {
                    bail!("{}: it is quantized already", found.weights.display());
                };
                let evaluated::Subject { weights, data, settings, folder, .. } = found;
                Found { design, data, weights: Some(weights), folder, settings }
            }
        };
        let mut model = design.build(1, Team::new(1, level));
        match &weights {
            Some(path) => checkpoint::load(&mut model, path)?,
            None => checkpoint::load_bytes(&mut model, BUILT_IN, Path::new("the built-in weights"))?,
        }
        let data = datasets::load(&data)?;
        let canvas = fit::fit(&design, &data)?;
        Ok(Self {
            name: design.name.clone(),
            weights: weights.map_or_else(|| "built-in weights".to_owned(), |path| path.display().to_string()),
            model,
            data,
            canvas,
            recipe: Recipe {
                bits,
                granularity: args.granularity.map_or(Granularity::Channel, |name| name.0),
                calibration: args.calibration.map_or(Calibration::MinMax, |name| name.0),
            },
            images,
            threads: args.compute.threads,
            level,
            folder,
            settings,
        })
    }
}

/// The bits that were asked for.
pub fn bits(given: Option<i64>) -> Result<Bits> {
    let given = given.unwrap_or(Bits::EIGHT.count().into());
    let bits = u32::try_from(given).ok().and_then(Bits::new);
    bits.with_context(|| format!("--bits {given}: from 2 to 8 are possible"))
}

/// What is to be quantized, before any of it is loaded.
struct Found {
    design: Design,
    data: DataPlan,
    /// None for those that are built in.
    weights: Option<PathBuf>,
    folder: Option<PathBuf>,
    settings: Settings,
}

/// The model that is built in, on the sample that is.
fn built_in(args: &QuantizeArgs) -> Result<Found> {
    if let Some(flag) = args.subject.given() {
        bail!("{flag}: the built-in model has its own; name a run or a file of weights");
    }
    let design = Design::new(Architecture::LeNet5.name(), Architecture::LeNet5.network())?;
    let mut data =
        DataFlags { dataset: Some(Choice::Files(&MNIST)), samples: Some(mnist::SAMPLE_TRAIN), ..DataFlags::default() };
    let plan = data.plan(design.input())?;
    let model = ModelFlags { model: Some(ModelName::Known(Architecture::LeNet5)), init: None };
    let settings = Settings { model, data, ..Settings::default() };
    Ok(Found { design, data: plan, weights: None, folder: None, settings })
}
