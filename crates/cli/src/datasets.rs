//! Data sets on this machine: finding them, loading them, getting more.

use std::env;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use indicatif::{ProgressBar, ProgressStyle};
use ringstep_data::fetch::{self, MNIST, Origin, SOURCES, Source};
use ringstep_data::{DataError, Dataset, mnist};

use crate::args::GetArgs;
use crate::names::lookup;
use crate::settings::Settings;
use crate::show;

/// The data set of this name.
pub fn named(name: &str) -> Result<&'static Source> {
    lookup("dataset", name, &SOURCES, |source| source.name)
}

/// Loads what completed settings ask for.
pub fn load(settings: &Settings) -> Result<Dataset> {
    let mut data = match &settings.data {
        Some(folder) => mnist::load(folder)?,
        None => mnist::sample(),
    };
    if let Some(samples) = settings.samples {
        let available = data.train.len();
        ensure!(samples <= available, "{samples} samples are more than the {available} training images that there are");
        data.train.truncate(samples);
    }
    Ok(data)
}

/// The folder where `data get` has put MNIST.
pub fn downloaded() -> Result<PathBuf> {
    let folder = place(&MNIST)?;
    if !fetch::is_there(&MNIST, &folder) {
        bail!(
            "all of mnist is not on this machine: run `ringstep data get mnist`, or give --data DIR, or train on up \
             to {} built-in images with --samples",
            mnist::SAMPLE_TRAIN
        );
    }
    Ok(folder)
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
    let source = named(&args.dataset)?;
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
    let mut lines =
        vec![format!("mnist  built in: the first 2,000 training and 1,000 test images ({})", MNIST.licence)];
    for source in SOURCES {
        lines.push(format!("{}  {}", source.name, state(source, &place(source)?)));
    }
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
