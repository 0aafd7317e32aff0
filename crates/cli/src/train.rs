//! `ringstep compare` and `ringstep train`.

use std::sync::Arc;

use anyhow::Result;
use ringstep_train::summary::Summary;
use ringstep_train::worker::Report;
use ringstep_train::{Job, checkpoint};
use serde::Serialize;

use crate::args::RunArgs;
use crate::datasets;
use crate::launch::{Interrupts, Message, Run};
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
    let data = Arc::new(datasets::load(&settings)?);
    // Most workers first: `single` fits whenever the others do, and a refusal should name what the user said.
    let mut by_workers: Vec<&Job> = jobs.iter().collect();
    by_workers.sort_by_key(|job| std::cmp::Reverse(job.workers));
    by_workers.iter().try_for_each(|job| job.validate(data.train.len()))?;
    if let Some(init) = &settings.init {
        checkpoint::load(&mut jobs[0].model.build(1), init)?;
    }

    let interrupts = Interrupts::catch()?;
    let mut dir = RunDir::create(args.out, mode.name())?;
    let config = toml::to_string(&settings)?;
    dir.write("config.toml", &config)?;
    let mut progress = Progress::new(args.verbose, args.json);
    let mut finished: Vec<Row> = Vec::new();
    for (settings, job) in rows.iter().zip(jobs) {
        let way = job.sync.name();
        let run = Run { settings, data: &data, model_file: dir.model_file((mode == Mode::Compare).then_some(way))? };
        let mut bar = progress.start(&job, data.train.len());
        let mut unwritten = Ok(());
        let summary = run.execute(&interrupts, &mut |rank, message| {
            if let Message::Report(Report::Epoch(epoch)) = message
                && unwritten.is_ok()
            {
                unwritten = dir.record(way, rank, epoch);
            }
            bar.observe(rank, message);
        })?;
        unwritten?;
        bar.finish(&summary);
        finished.push(Row { job, summary });
    }

    let summaries: Vec<Summary> = finished.iter().map(|row| row.summary.clone()).collect();
    let json = serde_json::to_string_pretty(&Summaries { runs: &summaries })? + "\n";
    dir.write("summary.json", &json)?;
    dir.write("report.html", &report::page(&finished, &config, &data))?;
    if args.json {
        print!("{json}");
    } else {
        println!("{}", show::table(&finished));
        println!("Report: {}", dir.file("report.html").display());
    }
    Ok(())
}
