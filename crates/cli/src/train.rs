//! `ringstep compare` and `ringstep train`.

use std::path::PathBuf;

use anyhow::{Context, Result};
use ringstep_train::summary::{Summary, sum_up};
use ringstep_train::worker::{Epoch, Outcome, Report};
use ringstep_train::{Job, checkpoint, fit};
use serde::Serialize;

use crate::args::RunArgs;
use crate::datasets;
use crate::launch::{self, Interrupts, Message, Task};
use crate::report;
use crate::run_dir::RunDir;
use crate::settings::{Mode, Settings};
use crate::show::{self, Progress};

/// What `--json` prints and summary.json holds.
#[derive(Serialize)]
struct Summaries<'a> {
    runs: &'a [Summary],
}

/// One row: what it was asked to do, and what it did.
pub struct Row {
    /// What it was asked to do.
    pub job: Job,
    /// What it did.
    pub summary: Summary,
}

/// Validates everything, runs the rows one after the other, and reports.
pub fn run(mode: Mode, args: RunArgs) -> Result<()> {
    let file = args.file.as_deref().map(Settings::read).transpose()?.unwrap_or_default();
    let settings = args.settings.over(file).complete(mode)?;
    let rows = if mode == Mode::Compare { settings.rows() } else { vec![settings.clone()] };
    let jobs: Vec<Job> = rows.iter().map(Settings::job).collect::<Result<_>>()?;
    settings.launch()?;
    settings.transport()?;
    let data = datasets::load(&settings)?;
    fit::fit(&jobs[0].model, &data)?;
    // Most workers first: `single` fits whenever the others do, and a refusal should name what the user said.
    let mut by_workers: Vec<&Job> = jobs.iter().collect();
    by_workers.sort_by_key(|job| std::cmp::Reverse(job.workers));
    by_workers.iter().try_for_each(|job| job.validate(data.train.len()))?;
    if let Some(init) = &settings.init {
        checkpoint::load(&mut jobs[0].model.build(1, 1), init)?;
    }

    let config = toml::to_string(&settings).context("these settings cannot be written down")?;

    let interrupts = Interrupts::catch()?;
    let mut dir = RunDir::create(args.out, mode.name())?;
    dir.write("config.toml", &config)?;
    let model_file = |job: &Job| dir.model_file((mode == Mode::Compare).then_some(job.sync.name()));
    let model_files: Vec<PathBuf> = jobs.iter().map(model_file).collect::<Result<_>>()?;
    let mut progress = Progress::new(args.verbose, args.json);
    let mut finished: Vec<Row> = Vec::new();
    for ((settings, job), model_file) in rows.iter().zip(jobs).zip(model_files) {
        let way = job.sync.name();
        let mut bar = progress.start(&job, data.train.len());
        let mut ranks = vec![(Vec::new(), None); job.workers];
        let task = Task::Train { settings: Box::new(settings.clone()), model_file };
        launch::run(&task, job.workers, settings.launch()?, &interrupts, &mut |rank, message| {
            bar.observe(rank, &message);
            match message {
                Message::Report(Report::Epoch(epoch)) => {
                    dir.record(way, rank, &epoch)?;
                    ranks[rank].0.push(epoch);
                }
                Message::Done(outcome) => ranks[rank].1 = Some(outcome),
                _ => {}
            }
            Ok(())
        })?;
        let ranks: Vec<(Vec<Epoch>, Outcome)> =
            ranks.into_iter().map(|(epochs, outcome)| (epochs, outcome.expect("all ranks are done"))).collect();
        let summary = sum_up(&job, &ranks)?;
        bar.finish(&summary);
        finished.push(Row { job, summary });
    }

    let summaries: Vec<Summary> = finished.iter().map(|row| row.summary.clone()).collect();
    let json = serde_json::to_string_pretty(&Summaries { runs: &summaries })? + "\n";
    dir.write("summary.json", &json)?;
    dir.write("report.html", &report::page(&finished, &config, &data))?;
    if args.json {
        return show::print(format_args!("{}", json.trim_end()));
    }
    show::print(format_args!("{}", show::table(&finished)))?;
    show::print(format_args!("Report: {}", dir.file("report.html").display()))
}
