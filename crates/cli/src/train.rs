//! `ringstep compare` and `ringstep train`.

use std::path::PathBuf;

use anyhow::{Context, Result, ensure};
use ringstep_train::summary::Summary;
use ringstep_train::{Job, checkpoint, fit};
use serde::Serialize;

use crate::args::RunArgs;
use crate::checkpoints::{self, Found};
use crate::cluster::{self, Scheduled};
use crate::datasets::{self, Choice};
use crate::launch::{self, Interrupts};
use crate::learners;
use crate::memory;
use crate::mpi;
use crate::report;
use crate::row::Before;
pub use crate::row::{Place, Row, run_row};
use crate::run_dir::{self, CONFIG, RunDir, WEIGHTS};
use crate::settings::{Experiment, Mode, ModelName, ProcessTransport, Run, Settings, crowd};
use crate::show::{self, Progress};

/// What `--json` prints and summary.json holds.
#[derive(Serialize)]
struct Summaries<'a> {
    runs: &'a [Summary],
}

/// A job that a scheduler runs once more goes on with what it left at `--out`, or begins there anew if it had saved nothing. Says so.
fn go_on_if_requeued(scheduled: &Scheduled<'_>, args: &mut RunArgs) -> Option<String> {
    let folder =
        args.out.clone().filter(|folder| scheduled.restarts > 0 && run_dir::belongs_to(folder, scheduled.job))?;
    let what = if checkpoints::are_left(&folder) {
        // Options are those of before, and with the run.
        (args.resume, args.out, args.file, args.settings) = (Some(folder.clone()), None, None, Settings::default());
        "going on with"
    } else {
        args.overwrite = true;
        "nothing was saved, so beginning anew in"
    };
    let times = if scheduled.restarts == 1 { "once".to_owned() } else { format!("{} times", scheduled.restarts) };
    Some(format!("Slurm has requeued this job {times}: {what} {}", folder.display()))
}

/// Validates everything, runs the rows one after the other, and reports.
pub fn run(mode: Mode, mut args: RunArgs) -> Result<()> {
    let environment = cluster::environment();
    let scheduled = Scheduled::find(&environment);
    let requeued = match (mode, &scheduled) {
        (Mode::Train, Some(scheduled)) => go_on_if_requeued(scheduled, &mut args),
        _ => None,
    };
    if args.resume.is_some() && args.settings.sync.leaves_learners_open() {
        // As many as were found then.
        args.settings.sync.learners = None;
    }
    ensure!(mode == Mode::Train || args.resume.is_none(), "--resume is for train: a comparison is not gone on with");
    let config = args.resume.as_ref().map(|folder| folder.join(CONFIG));
    let file = config.as_deref().or(args.file.as_deref()).map(Experiment::read).transpose()?.unwrap_or_default();
    let mut experiment = file.under(&args.settings)?;
    let asked = experiment.says_how_many();
    let mut arrangement = args.cluster.arrange(&environment)?;
    let timeout = experiment.common.network.timeout()?;
    if experiment.common.network.tls == Some(true) {
        arrangement.encrypt();
    }
    if experiment.uses(ProcessTransport::Mpi) {
        mpi::start(&arrangement)?;
    }
    if let Some(part) = arrangement.member() {
        return launch::member::serve(part, timeout);
    }
    if let Some(requeued) = requeued {
        show::tell(&requeued);
    }
    if args.resume.is_some() {
        arrangement.share_out(&mut experiment.common, &args.settings);
    }
    arrangement.claim(&mut experiment.common)?;
    let either = experiment.common.data.dataset;
    let either = either.is_some_and(|it| matches!(it, Choice::MnistOrSample | Choice::Cifar10OrSynthetic));
    let (mut experiment, mut runs) = experiment.resolve(mode)?;
    arrangement.check(&runs)?;
    let are_elsewhere = |run: &Run| arrangement.is_elsewhere() || run.workers.are_elsewhere();
    let data = datasets::load(&runs[0].data)?;
    fit::fit(&runs[0].job.model, &data)?;
    let images = data.train.len();
    // Most ranks first: `single` fits whenever the others do, and a refusal should name what the user said.
    let mut by_ranks: Vec<&Run> = runs.iter().collect();
    by_ranks.sort_by_key(|run| std::cmp::Reverse(run.job.ranks()));
    by_ranks.iter().try_for_each(|run| run.job.validate(images))?;
    // Workers that are started by another command may be anywhere, but each is on a machine.
    by_ranks.iter().try_for_each(|run| memory::check_run(run, images, are_elsewhere(run)))?;
    // Who asked for so many is warned at once; who did not is told with the results, which it explains.
    let crowd = by_ranks.first().and_then(|run| match are_elsewhere(run) {
        true => crowd(1, 0, run.job.threads),
        false => crowd(run.job.workers, run.job.ranks() - run.job.workers, run.job.threads),
    });
    let warned = crowd.as_deref().filter(|_| asked || args.json).map(show::warn).is_some();
    for run in &runs {
        if let Some(init) = &run.job.init {
            checkpoint::load(&mut run.job.model.build_small(), init)?;
        }
    }

    if either {
        datasets::tell_which(&runs[0].data);
    }
    let predicts = runs[0].job.predict;
    let found = args.resume.as_ref().map(|folder| checkpoints::find(folder, &runs[0], images)).transpose()?;
    let interrupts = Interrupts::catch()?;
    let site = arrangement.site(timeout)?;
    let (mut dir, before) = match (args.resume, &found) {
        (Some(folder), Some(Found { manifest, .. })) => {
            // It may be called by the name of its copy here.
            let Job { model, workers, leg, .. } = manifest.job.clone();
            runs[0].job = Job { model, workers, leg, ..runs[0].job.clone() };
            RunDir::reopen(folder, &runs[0], &manifest.ranks)?
        }
        _ => (RunDir::create(args.out, args.overwrite, mode.name())?, Vec::new()),
    };
    dir.assign_to(scheduled.map(|scheduled| scheduled.job))?;
    let mut before = found.map(|found| Before { found, steps: before });
    if experiment.leaves_learners_open() {
        let find = |run: &Run| learners::find(run, images, &dir.file(WEIGHTS), &site, &interrupts);
        (experiment, runs) = experiment.with_learners(mode, &find)?;
    }
    if let Some(ModelName::File(path)) = &mut experiment.common.model.model {
        *path = dir.keep_model(path)?;
    }
    let config = experiment.to_toml()?;
    dir.write(CONFIG, &config)?;
    let folder = |run: &Run| dir.row_folder((mode == Mode::Compare).then_some(&run.name));
    let folders: Vec<PathBuf> = runs.iter().map(folder).collect::<Result<_>>()?;
    let mut progress = Progress::new(args.verbose, args.json, experiment.common.records.log_every);
    let (mut finished, mut interrupted): (Vec<Row>, _) = (Vec::new(), None);
    for (run, folder) in runs.into_iter().zip(folders) {
        let place = Place { folder: &folder, images, saves: mode == Mode::Train };
        let (row, ended) = run_row(run, place, before.take(), &mut dir, (&site, &interrupts), &mut progress)?;
        finished.extend(row);
        if ended.is_some() {
            interrupted = ended;
            break;
        }
    }
    site.dismiss();
    if finished.is_empty() {
        return Err(interrupted.context("no row was run")?.into());
    }

    let summaries: Vec<Summary> = finished.iter().map(|row| row.summary.clone()).collect();
    let json = serde_json::to_string_pretty(&Summaries { runs: &summaries })? + "\n";
    dir.write("summary.json", &json)?;
    let cut = show::interruptions(&finished, images);
    let sentences = |crowd| [cut.clone(), show::bounds(&finished, crowd), show::comparisons(&finished)].concat();
    dir.write("report.html", &report::page(&finished, &sentences(crowd.as_deref()), &config, &data))?;
    let ending = interrupted.map_or(Ok(()), |interrupted| Err(interrupted.into()));
    if args.json {
        return show::print(format_args!("{}", json.trim_end())).and(ending);
    }
    show::print(format_args!("{}", show::table(&finished, &show::columns(&finished))))?;
    if let Some(show::LargeBatches { headings, rows, sentences }) = show::large_batches(&finished) {
        let said = sentences.join("\n");
        show::print(format_args!("\nLarge batches:\n{}\n{said}", show::table_of(&headings, rows)))?;
    }
    // What there is to say about each of many rows is in the report.
    let few = finished.len() <= show::FEW;
    if (mode == Mode::Compare || predicts) && few {
        show::print(format_args!("\nWhere a step's time goes:\n{}", show::table(&finished, &show::STEP_COLUMNS)))?;
    }
    let told = if few { sentences(crowd.as_deref().filter(|_| !warned)) } else { show::comparisons(&finished) };
    for sentence in told {
        show::print(format_args!("{sentence}"))?;
    }
    show::print(format_args!("Report: {}", dir.file("report.html").display())).and(ending)
}
