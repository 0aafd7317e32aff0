//! An experiment that is trained and then quantized: a lab from the data set on.

use std::env;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use ringstep_quant::{Calibration, Granularity};
use serde::Deserialize;

use super::study::Study;
use super::subject::Subject;
use super::{finish, subject, writable};
use crate::args::{QuantizeArgs, SubjectArgs};
use crate::names::ByName;
use crate::run_dir;
use crate::settings::read_toml;

/// The part of an experiment that only `quantize` reads.
#[derive(Deserialize)]
struct Experiment {
    quantize: Option<Table>,
}

/// Flags of `quantize` without their dashes; those that are given go before them.
#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "kebab-case")]
struct Table {
    bits: Option<i64>,
    granularity: Option<ByName<Granularity>>,
    calibration: Option<ByName<Calibration>>,
    images: Option<usize>,
    /// A network that has biases where the experiment's has none: a path from the experiment's file.
    with_bias: Option<PathBuf>,
}

/// Trains what the file says, quantizes it, and answers.
pub fn run(args: &QuantizeArgs, file: &Path) -> Result<()> {
    let Experiment { quantize: table } = read_toml(file)?;
    let table = table.with_context(|| format!("{}: there is no table [quantize] in it", file.display()))?;
    if let Some(flag) = args.subject.given() {
        anyhow::bail!("{flag}: {} says what is trained on what", file.display());
    }
    // Training takes long: what would be refused after it is refused before.
    subject::bits(args.bits.or(table.bits))?;
    args.onnx.as_deref().map_or(Ok(()), writable)?;
    let out = match &args.out {
        Some(out) => out.clone(),
        None => run_dir::next_free(Path::new("runs"), "quantize")?,
    };
    fs::create_dir_all(&out).with_context(|| out.display().to_string())?;
    let study = |weights: PathBuf| {
        let args = QuantizeArgs {
            weights: Some(weights),
            bits: args.bits.or(table.bits),
            granularity: args.granularity.or(table.granularity),
            calibration: args.calibration.or(table.calibration),
            images: args.images.or(table.images),
            out: None,
            onnx: args.onnx.clone(),
            subject: SubjectArgs::default(),
            ..*args
        };
        let subject = Subject::find(&args)?;
        let study = Study::new(&subject)?;
        Ok::<_, anyhow::Error>((args, subject, study))
    };
    let (own, subject, found) = study(train(args, file, None, out.join("trained"))?)?;
    let with_bias = match &table.with_bias {
        Some(network) => {
            let network = file.parent().unwrap_or(Path::new("")).join(network);
            Some(study(train(args, file, Some(&network), out.join("trained-with-bias"))?)?.2)
        }
        None => None,
    };
    finish(&QuantizeArgs { json: args.json, ..own }, &out, &subject, &found, with_bias.as_ref())
}

/// Trains in a process of its own, as a user would, and returns the folder with the weights.
fn train(args: &QuantizeArgs, file: &Path, network: Option<&Path>, out: PathBuf) -> Result<PathBuf> {
    let mut command = Command::new(env::current_exe().context("where this program is")?);
    command.arg("train").arg(file).arg("--out").arg(&out);
    if let Some(network) = network {
        command.arg("--model").arg(network);
    }
    if args.json {
        command.stdout(Stdio::null());
    }
    let ended = command.status().context("training")?;
    ensure!(ended.success(), "{}: training it has failed", file.display());
    Ok(out)
}
