//! `ringstep quantize`: a trained model becomes one of integers, with a report that shows what each step cost.
//!
//! | look for | in |
//! | --- | --- |
//! | which model, which data, which way | [`subject`] |
//! | an experiment that is trained first | [`lab`] |
//! | what is found out | [`study`] |
//! | the result in the terminal, as JSON and as a page | [`text`], [`json`], [`page`], [`plot`] |

mod json;
mod lab;
mod page;
mod plot;
mod study;
mod subject;
mod text;

use std::fs::{self, OpenOptions};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use ringstep_data::file;
use ringstep_quant::file as quantized_file;
use ringstep_quant::onnx;
use ringstep_quant::{Bits, Calibration, Granularity, Graph};
use ringstep_train::{checkpoint, fit};

use self::study::Study;
use self::subject::Subject;
use crate::args::{ExportArgs, QuantizeArgs};
use crate::datasets;
use crate::eval::subject::{self as evaluated, Kind};
use crate::names::Named;
use crate::run_dir::{self, CONFIG, MODEL, QUANTIZED};
use crate::settings::{Experiment, ModelName};
use crate::show;

/// The page's name.
const REPORT: &str = "quantization.html";

impl Named for Calibration {
    const KIND: &'static str = "calibration";

    fn all() -> Vec<Self> {
        Self::ALL.to_vec()
    }

    fn spelling(self) -> &'static str {
        self.name()
    }
}

impl Named for Granularity {
    const KIND: &'static str = "granularity";

    fn all() -> Vec<Self> {
        Self::ALL.to_vec()
    }

    fn spelling(self) -> &'static str {
        self.name()
    }
}

/// Quantizes and shows.
pub fn run(args: &QuantizeArgs) -> Result<()> {
    match &args.weights {
        Some(path) if path.extension().is_some_and(|extension| extension == "toml") => lab::run(args, path),
        _ => {
            let subject = Subject::find(args)?;
            args.onnx.as_deref().map_or(Ok(()), writable)?;
            let folder = folder(args, &subject)?;
            fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
            finish(args, &folder, &subject, &Study::new(&subject)?, None)
        }
    }
}

/// Writes and shows what was found out; a network with biases may answer for one without. The folder gets the settings of the model
/// and its data, too, so that `eval` can try it wherever it lies.
fn finish(
    args: &QuantizeArgs,
    folder: &Path,
    subject: &Subject,
    study: &Study,
    with_bias: Option<&Study>,
) -> Result<()> {
    let write = |path: &Path, bytes: &[u8]| file::write_whole(path, bytes).with_context(|| path.display().to_string());
    write(&folder.join(QUANTIZED), &quantized_file::to_bytes(&study.model))?;
    // A run that is there has its own.
    if !run_dir::is_run(folder) {
        let mut common = subject.settings.clone();
        if let Some(ModelName::File(path)) = &mut common.model.model {
            let network = fs::read(&*path).with_context(|| path.display().to_string())?;
            write(&folder.join(MODEL), &network)?;
            *path = PathBuf::from(MODEL);
        }
        write(&folder.join(CONFIG), Experiment { common, rows: Vec::new() }.to_toml()?.as_bytes())?;
    }
    let page = folder.join(REPORT);
    write(&page, page::page(subject, study, with_bias)?.as_bytes())?;
    if let Some(path) = &args.onnx {
        let normalisation = &subject.data.normalisation;
        write(path, &onnx::quantized(&study.graph, &study.model, normalisation))?;
        write(&float_beside(path), &onnx::float(&study.graph, normalisation))?;
    }
    if args.json {
        return show::print(format_args!("{}", json::json(study)?));
    }
    show::print(format_args!("{}", text::text(subject, study)))?;
    if let Some(study) = with_bias {
        show::print(format_args!("{}", text::with_bias(study)))?;
    }
    show::print(format_args!("Model: {}", folder.join(QUANTIZED).display()))?;
    show::print(format_args!("Page: {}", page.display()))?;
    if let Some(path) = &args.onnx {
        show::print(format_args!("ONNX: {}, in floats {}", path.display(), float_beside(path).display()))?;
        if study.model.bits != Bits::EIGHT {
            show::print(format_args!(
                "Other runtimes round once where this rounds twice, as TFLite does: with {} bits some of their answers differ.",
                study.model.bits.count()
            ))?;
        }
    }
    Ok(())
}

/// Whether both files can be written there, before there is anything to write. Files that were not there are not left behind.
fn writable(path: &Path) -> Result<()> {
    for path in [path, &float_beside(path)] {
        let is_new = !path.exists();
        let opened = OpenOptions::new().create(true).append(true).open(path);
        opened.with_context(|| format!("--onnx {}", path.display()))?;
        if is_new {
            fs::remove_file(path).with_context(|| format!("--onnx {}", path.display()))?;
        }
    }
    Ok(())
}

/// The name of the float model's file beside the quantized one's.
fn float_beside(path: &Path) -> PathBuf {
    let stem = path.file_stem().map_or_else(String::new, |stem| stem.to_string_lossy().into_owned());
    path.with_file_name(format!("{stem}-float.onnx"))
}

/// `ringstep export`: the float model of a run in ONNX.
pub fn export(args: &ExportArgs) -> Result<()> {
    let subject = evaluated::Subject::find(&args.weights, &args.subject)?;
    let Kind::Float(design) = &subject.kind else {
        bail!("{}: it is quantized already; `ringstep quantize --onnx` writes such models", subject.weights.display());
    };
    let mut model = design.build_small();
    checkpoint::load(&mut model, &subject.weights)?;
    let data = datasets::load(&subject.data)?;
    fit::fit(design, &data)?;
    let bytes = onnx::float(&Graph::of(&model), &data.normalisation);
    file::write_whole(&args.onnx, &bytes).with_context(|| args.onnx.display().to_string())?;
    show::print(format_args!("{} is in {}", subject.name, args.onnx.display()))
}

/// Where the results go.
fn folder(args: &QuantizeArgs, subject: &Subject) -> Result<PathBuf> {
    match (&args.out, &subject.folder) {
        (Some(out), _) => {
            ensure!(!out.is_file(), "--out {}: that is a file", out.display());
            Ok(out.clone())
        }
        (None, Some(run)) => Ok(run.join("quantized")),
        (None, None) => run_dir::next_free(Path::new("runs"), "quantize"),
    }
}
