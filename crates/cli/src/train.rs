//! `ringstep compare` and `ringstep train`.

use std::path::{Path, PathBuf};

use anyhow::Result;
use ringstep_train::accounts::{Accounts, StepSummary};
use ringstep_train::records::{Epoch, Outcome, Report};
use ringstep_train::summary::{RankRecord, Summary, sum_up};
use ringstep_train::trace::Span;
use ringstep_train::{checkpoint, fit};
use serde::Serialize;

use crate::args::RunArgs;
use crate::datasets;
use crate::launch::{self, Interrupts, Message, Task};
use crate::memory;
use crate::report;
use crate::run_dir::{RunDir, WEIGHTS};
use crate::settings::{Experiment, Mode, Run, crowd};
use crate::show::{self, Progress};
use crate::trace_file::TraceFile;

/// What `--json` prints and summary.json holds.
#[derive(Serialize)]
struct Summaries<'a> {
    runs: &'a [Summary],
}

/// One row: what it was asked to do, and what it did.
pub struct Row {
    /// What it was asked to do.
    pub run: Run,
    /// What it did.
    pub summary: Summary,
    /// Step by step.
    pub steps: Vec<StepSummary>,
    /// What went on when on each rank, in the steps that were traced.
    pub spans: Vec<Vec<Span>>,
}

/// Validates everything, runs the rows one after the other, and reports.
pub fn run(mode: Mode, args: RunArgs) -> Result<()> {
    let file = args.file.as_deref().map(Experiment::read).transpose()?.unwrap_or_default();
    let experiment = file.under(&args.settings)?;
    let asked = experiment.says_how_many();
    let (experiment, runs) = experiment.resolve(mode)?;
    let data = datasets::load(&runs[0].data)?;
    fit::fit(&runs[0].job.model, &data)?;
    // Most workers first: `single` fits whenever the others do, and a refusal should name what the user said.
    let mut by_workers: Vec<&Run> = runs.iter().collect();
    by_workers.sort_by_key(|run| std::cmp::Reverse(run.job.workers));
    by_workers.iter().try_for_each(|run| run.job.validate(data.train.len()))?;
    // Workers that are started by another command may be anywhere, but each is on a machine.
    let here = |run: &Run| if run.workers.are_elsewhere() { 1 } else { run.job.workers };
    let need = |run: &Run| run.job.need(data.train.len());
    by_workers.iter().try_for_each(|run| memory::check(&run.job.model, need(run), here(run)))?;
    // Who asked for so many is warned at once; who did not is told with the results, which it explains.
    let crowd = by_workers.first().and_then(|run| crowd(here(run), run.job.threads));
    let warned = crowd.as_deref().filter(|_| asked || args.json).map(show::warn).is_some();
    for run in &runs {
        if let Some(init) = &run.job.init {
            checkpoint::load(&mut run.job.model.build_small(), init)?;
        }
    }

    let config = experiment.to_toml()?;
    let predicts = runs[0].job.predict;
    let interrupts = Interrupts::catch()?;
    let mut dir = RunDir::create(args.out, mode.name())?;
    dir.write("config.toml", &config)?;
    let folder = |run: &Run| dir.row_folder((mode == Mode::Compare).then_some(&run.name));
    let folders: Vec<PathBuf> = runs.iter().map(folder).collect::<Result<_>>()?;
    let mut progress = Progress::new(args.verbose, args.json, experiment.common.records.log_every);
    let mut finished: Vec<Row> = Vec::new();
    for (run, folder) in runs.into_iter().zip(folders) {
        finished.push(run_row(run, &folder, &mut dir, &interrupts, &mut progress, data.train.len())?);
    }

    let summaries: Vec<Summary> = finished.iter().map(|row| row.summary.clone()).collect();
    let json = serde_json::to_string_pretty(&Summaries { runs: &summaries })? + "\n";
    dir.write("summary.json", &json)?;
    let bounds = show::bounds(&finished, crowd.as_deref());
    dir.write("report.html", &report::page(&finished, &bounds, &config, &data))?;
    if args.json {
        return show::print(format_args!("{}", json.trim_end()));
    }
    show::print(format_args!("{}", show::table(&finished)))?;
    if mode == Mode::Compare || predicts {
        show::print(format_args!("\nWhere a step's time goes:\n{}", show::step_table(&finished)))?;
    }
    for sentence in if warned { &bounds[..finished.len()] } else { &bounds } {
        show::print(format_args!("{sentence}"))?;
    }
    show::print(format_args!("Report: {}", dir.file("report.html").display()))
}

/// What a rank has said so far.
#[derive(Default)]
struct Heard {
    epochs: Vec<Epoch>,
    spans: Vec<Span>,
    outcome: Option<Outcome>,
}

/// Runs one row to its end; its folder gets the weights and the trace.
fn run_row(
    run: Run,
    folder: &Path,
    dir: &mut RunDir,
    interrupts: &Interrupts,
    progress: &mut Progress,
    images: usize,
) -> Result<Row> {
    let job = &run.job;
    let mut bar = progress.start(&run, images);
    let mut trace = TraceFile::create(&folder.join("trace.json"), job.ranks())?;
    let mut accounts = Accounts::new(job.workers);
    let mut heard: Vec<Heard> = (0..job.ranks()).map(|_| Heard::default()).collect();
    let task = Task::Train { run: Box::new(run.clone()), model_file: folder.join(WEIGHTS) };
    launch::run(&task, job.ranks(), &run.workers, interrupts, &mut |rank, message| {
        bar.observe(rank, &message);
        match message {
            Message::Report(Report::Epoch(epoch)) => {
                dir.record(&run, rank, &epoch)?;
                heard[rank].epochs.push(epoch);
            }
            Message::Report(Report::Steps(steps)) => dir.record_steps(&run, accounts.add(rank, steps))?,
            Message::Report(Report::Spans(spans)) => {
                trace.add(rank, &spans)?;
                heard[rank].spans.extend(spans);
            }
            Message::Done(outcome) => heard[rank].outcome = Some(*outcome),
            _ => {}
        }
        Ok(())
    })?;
    let (mut ranks, mut spans) = (Vec::new(), Vec::new());
    for Heard { epochs, spans: of_rank, outcome } in heard {
        ranks.push(RankRecord { epochs, outcome: outcome.expect("all ranks are done") });
        spans.push(of_rank);
    }
    let summary = sum_up(job, &ranks, &accounts.steps)?;
    bar.finish(&summary);
    Ok(Row { run, summary, steps: accounts.steps, spans })
}
