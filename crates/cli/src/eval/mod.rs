//! `ringstep eval`: how good a trained model is on test images, where it errs, and how fast it is.
//!
//! | look for | in |
//! | --- | --- |
//! | which weights, which model, which data | [`subject`] |
//! | the test images as a model takes them | [`pictures`] |
//! | what it says about each image, and how often each class is taken for each | [`judge`] |
//! | latency and images a second | [`measure`] |
//! | the result in the terminal and as a page | [`text`], [`page`], [`png`] |

mod judge;
mod measure;
mod page;
mod pictures;
mod png;
mod subject;
mod text;

use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use ringstep_data::file;
use ringstep_nn::Frozen;
use ringstep_nn::team::Team;
use ringstep_train::job::MAX_THREADS;
use ringstep_train::{checkpoint, fit};
use serde::Serialize;

use self::judge::{Confusion, Verdict};
use self::measure::Latency;
use self::pictures::Pictures;
use self::subject::Subject;
use crate::args::EvalArgs;
use crate::{datasets, peak_memory, show};

/// Images at once, unless told otherwise.
const BATCH: usize = 64;
/// Of the images that the model is most wrong about, so many are told.
const MOST_WRONG: usize = 48;

/// What the weights are stored in.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum Precision {
    F32,
}

impl Precision {
    fn name(self) -> &'static str {
        match self {
            Self::F32 => "f32",
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
    ensure!(args.threads > 0, "0 threads: at least 1 is needed");
    ensure!(args.threads <= MAX_THREADS, "{} threads: at most {MAX_THREADS} are possible", args.threads);
    let level = args.instructions.0.level()?;
    let subject = Subject::find(args)?;
    let design = &subject.design;
    // The weights first: they are soon read, a data set may take a while.
    let mut model = design.build(1, Team::new(1, level));
    checkpoint::load(&mut model, &subject.weights)?;
    let mut data = datasets::load(&subject.data)?;
    let canvas = fit::fit(design, &data)?;
    let pictures = Pictures::new(&data, canvas);
    let there = pictures.len();
    let batch = args.batch.unwrap_or(BATCH.min(there));
    ensure!(batch <= there, "--batch {batch}: there are {there} test images");

    let (mut single, mut frozen) = (model.freeze(1, args.threads), model.freeze(batch, args.threads));
    // What only loading has needed is no part of the memory that the evaluation takes.
    drop(model);
    Arc::make_mut(&mut data.train).clear();
    peak_memory::forget_peak();
    let verdicts = judge_with_progress(&mut frozen, &pictures)?;
    let latency = measure::latency(&mut single, &pictures);
    let images_per_second = measure::throughput(&mut frozen, &pictures);

    let correct = verdicts.iter().filter(|verdict| verdict.is_right()).count();
    let confusion = Confusion::new(data.classes, &verdicts);
    let evaluation = Evaluation {
        weights: subject.weights.display().to_string(),
        model: design.name.clone(),
        dataset: data.name,
        precision: Precision::F32,
        threads: args.threads,
        instructions: level.name(),
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
            model_bytes_single: single.bytes(),
            model_bytes_batch: frozen.bytes(),
            peak_bytes: peak_memory::peak_bytes(),
        },
        most_wrong: judge::most_wrong(&verdicts, MOST_WRONG),
    };
    if let Some(path) = &subject.page {
        let page = page::page(&evaluation, &data)?;
        file::write_whole(path, page.as_bytes()).with_context(|| path.display().to_string())?;
    }
    if args.json {
        return show::print(format_args!("{}", serde_json::to_string(&evaluation)?));
    }
    show::print(format_args!("{}", text::text(&evaluation)))?;
    match &subject.page {
        Some(path) => show::print(format_args!("Page: {}", path.display())),
        None => Ok(()),
    }
}

/// Judges all test images, with a bar for whoever waits.
fn judge_with_progress(model: &mut Frozen, pictures: &Pictures) -> Result<Vec<Verdict>> {
    let style = ProgressStyle::with_template("{pos:>6} of {len} images {bar:30} {elapsed:>4}")?;
    let bar = ProgressBar::new(pictures.len() as u64).with_style(style);
    let verdicts = judge::judge(model, pictures, |done| bar.set_position(done as u64));
    bar.finish_and_clear();
    verdicts
}
