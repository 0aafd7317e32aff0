//! `ringstep eval`: how good a trained model is on test images, where it errs, and how fast it is.
//!
//! | look for | in |
//! | --- | --- |
//! | which weights, which model, which data | [`subject`] |
//! | the test images as a model takes them | [`pictures`] |
//! | what it says about each image, and how often each class is taken for each | [`judge`] |
//! | latency and images a second | [`measure`] |
//! | the result in the terminal and as a page | [`text`], [`page`], [`png`] |

pub mod judge;
pub mod measure;
mod page;
pub mod pictures;
pub mod png;
pub mod subject;
mod text;

use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use ringstep_cpu::{DotLevel, Level};
use ringstep_data::Dataset;
use ringstep_data::canvas::Canvas;
use ringstep_data::file;
use ringstep_nn::team::Team;
use ringstep_nn::{Frozen, Model};
use ringstep_quant::Quantized;
use ringstep_quant::engine::Engine;
use ringstep_quant::file as quantized_file;
use ringstep_quant::steps::Partly;
use ringstep_train::{checkpoint, fit};
use safetensors::tensor::{Dtype, TensorView};
use serde::Serialize;

use self::judge::{Confusion, Verdict};
use self::measure::Latency;
use self::pictures::Pictures;
use self::subject::{Kind, Subject};
use crate::args::EvalArgs;
use crate::run_dir::EVALUATION;
use crate::{datasets, peak_memory, show};

/// Images at once, unless told otherwise.
const BATCH: usize = 64;
/// Of the images that the model is most wrong about, so many are told.
const MOST_WRONG: usize = 48;

/// What says which class images are of.
pub trait Classifier {
    /// The most images it takes at once.
    fn batch(&self) -> usize;

    /// How many classes it tells apart.
    fn classes(&self) -> usize;

    /// A number for each class and image. // N,classes
    fn logits(&mut self, images: &[f32]) -> &[f32];
}

macro_rules! classifiers {
    ($($type:ty),+) => {$(
        impl Classifier for $type {
            fn batch(&self) -> usize {
                <$type>::batch(self)
            }

            fn classes(&self) -> usize {
                <$type>::classes(self)
            }

            fn logits(&mut self, images: &[f32]) -> &[f32] {
                <$type>::logits(self, images)
            }
        }
    )+};
}
classifiers!(Frozen, Engine, Partly);

/// What the weights are stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Precision {
    F32,
    Int8,
}

impl Precision {
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::Int8 => "int8",
        }
    }
}

/// What was found out; `--json` prints all of it.
#[derive(Serialize)]
struct Evaluation {
    weights: String,
    model: String,
    dataset: &'static str,
    precision: Precision,
    threads: usize,
    /// The instructions that it computed with.
    instructions: &'static str,
    /// Test images.
    images: usize,
    /// Those that were classified right.
    correct: usize,
    accuracy: f64,
    /// The mean cross-entropy, without label smoothing.
    loss: f64,
    /// What the rows and columns of the matrix are called.
    classes: Vec<String>,
    confusion: Confusion,
    /// At batch 1.
    latency: Latency,
    batch: usize,
    /// At that batch.
    images_per_second: f64,
    memory: Memory,
    most_wrong: Vec<Verdict>,
}

/// Bytes.
#[derive(Serialize)]
struct Memory {
    /// Of the frozen model's weights and buffers for one image at once.
    model_bytes_single: usize,
    /// Those for a batch.
    model_bytes_batch: usize,
    /// The most that the process had while it evaluated, test images included.
    peak_bytes: u64,
}

/// Evaluates and shows.
pub fn run(args: &EvalArgs) -> Result<()> {
    ensure!(args.batch != Some(0), "0 images a batch: at least 1 is needed");
    let level = args.compute.level()?;
    let subject = Subject::find(&args.weights, &args.subject)?;
    // The weights first: they are soon read, a data set may take a while.
    let loaded = Loaded::new(&subject, level)?;
    let mut data = datasets::load(&subject.data)?;
    let canvas = loaded.fit(&subject, &data)?;
    let pictures = Pictures::new(&data, canvas);
    let there = pictures.len();
    let batch = args.batch.unwrap_or(BATCH.min(there));
    ensure!(batch <= there, "--batch {batch}: there are {there} test images");

    let team = || Team::new(args.compute.threads, level);
    let precision = loaded.precision();
    let instructions = match precision {
        Precision::F32 => level.name(),
        Precision::Int8 => DotLevel::with(level).name(),
    };
    let ((mut single, single_bytes), (mut frozen, frozen_bytes)) =
        (loaded.classifier(1, team()), loaded.classifier(batch, team()));
    // What only loading has needed is no part of the memory that the evaluation takes.
    drop(loaded);
    Arc::make_mut(&mut data.train).clear();
    peak_memory::forget_peak();
    let mut heard = Heard { model: &mut *frozen, logits: args.logits.is_some().then(Vec::new) };
    let verdicts = judge_with_progress(&mut heard, &pictures)?;
    if let (Some(path), Some(logits)) = (&args.logits, heard.logits) {
        write_logits(path, &logits, there)?;
    }
    let latency = measure::latency(&mut *single, &pictures);
    let images_per_second = measure::throughput(&mut *frozen, &pictures);

    let correct = verdicts.iter().filter(|verdict| verdict.is_right()).count();
    let confusion = Confusion::new(data.classes, &verdicts);
    let evaluation = Evaluation {
        weights: subject.weights.display().to_string(),
        model: subject.name.clone(),
        dataset: data.name,
        precision,
        threads: args.compute.threads,
        instructions,
        images: there,
        correct,
        accuracy: correct as f64 / there as f64,
        loss: verdicts.iter().map(|verdict| verdict.loss).sum::<f64>() / there as f64,
        classes: (0..confusion.columns()).map(|class| data.class_name(class)).collect(),
        confusion,
        latency,
        batch,
        images_per_second,
        memory: Memory {
            model_bytes_single: single_bytes,
            model_bytes_batch: frozen_bytes,
            peak_bytes: peak_memory::peak_bytes(),
        },
        most_wrong: judge::most_wrong(&verdicts, MOST_WRONG),
    };
    let page_path = args.html.clone().or_else(|| subject.folder.as_ref().map(|folder| folder.join(EVALUATION)));
    if let Some(path) = &page_path {
        let page = page::page(&evaluation, &data)?;
        file::write_whole(path, page.as_bytes()).with_context(|| path.display().to_string())?;
    }
    if args.json {
        return show::print(format_args!("{}", serde_json::to_string(&evaluation)?));
    }
    show::print(format_args!("{}", text::text(&evaluation)))?;
    match &page_path {
        Some(path) => show::print(format_args!("Page: {}", path.display())),
        None => Ok(()),
    }
}

/// A model whose logits are kept.
struct Heard<'a> {
    model: &'a mut dyn Classifier,
    logits: Option<Vec<f32>>,
}

impl Classifier for Heard<'_> {
    fn batch(&self) -> usize {
        self.model.batch()
    }

    fn classes(&self) -> usize {
        self.model.classes()
    }

    fn logits(&mut self, images: &[f32]) -> &[f32] {
        let logits = self.model.logits(images);
        if let Some(kept) = &mut self.logits {
            kept.extend_from_slice(logits);
        }
        logits
    }
}

fn write_logits(path: &Path, logits: &[f32], images: usize) -> Result<()> {
    let bytes: Vec<u8> = logits.iter().flat_map(|logit| logit.to_le_bytes()).collect();
    let view = TensorView::new(Dtype::F32, vec![images, logits.len() / images], &bytes)?;
    let bytes = safetensors::serialize([("logits", view)], None)?;
    file::write_whole(path, &bytes).with_context(|| path.display().to_string())
}

/// A model's weights, in floats or in integers.
enum Loaded {
    Float(Box<Model>),
    Integer(Quantized),
}

impl Loaded {
    fn new(subject: &Subject, level: Level) -> Result<Self> {
        match &subject.kind {
            Kind::Float(design) => {
                let mut model = design.build(1, Team::new(1, level));
                checkpoint::load(&mut model, &subject.weights)?;
                Ok(Self::Float(Box::new(model)))
            }
            Kind::Quantized => Ok(Self::Integer(quantized_file::load(&subject.weights)?)),
        }
    }

    fn precision(&self) -> Precision {
        match self {
            Self::Float(_) => Precision::F32,
            Self::Integer(_) => Precision::Int8,
        }
    }

    fn fit(&self, subject: &Subject, data: &Dataset) -> Result<Canvas> {
        let (input, classes) = match self {
            Self::Float(model) => (model.input(), model.classes()),
            Self::Integer(model) => (model.input, model.classes()),
        };
        let input = ringstep_data::Shape::new(input.height, input.width, input.channels);
        Ok(fit::fit_sizes(&subject.name, input, classes, data)?)
    }

    /// What classifies with it, and the bytes that it takes.
    fn classifier(&self, batch: usize, team: Team) -> (Box<dyn Classifier>, usize) {
        match self {
            Self::Float(model) => {
                let frozen = model.freeze(batch, team.threads());
                let bytes = frozen.bytes();
                (Box::new(frozen), bytes)
            }
            Self::Integer(model) => {
                let engine = Engine::new(model, batch, team);
                let bytes = engine.bytes();
                (Box::new(engine), bytes)
            }
        }
    }
}

/// Judges all test images, with a bar for whoever waits.
fn judge_with_progress(model: &mut dyn Classifier, pictures: &Pictures) -> Result<Vec<Verdict>> {
    let style = ProgressStyle::with_template("{pos:>6} of {len} images {bar:30} {elapsed:>4}")?;
    let bar = ProgressBar::new(pictures.len() as u64).with_style(style);
    let verdicts = judge::judge(model, pictures, |done| bar.set_position(done as u64));
    bar.finish_and_clear();
    verdicts
}
