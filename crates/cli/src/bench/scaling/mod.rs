//! `ringstep bench scaling`: speed-up, computation against communication, and bandwidth, over batch sizes and numbers of
//! workers. Every number comes from a training like any other.
//!
//! | look for | in |
//! | --- | --- |
//! | which trainings there are | [`cells`] |
//! | what one of them says | [`measure`] |
//! | the formulas | [`formulas`] |
//! | what they make of all trainings, as JSON and CSV | [`lab`] |
//! | ten times the machines | [`forecast`] |
//! | tables, sentences, plots | [`tables`], [`sentences`], [`page`] |
//! | when it will end | [`outlook`] |

mod cells;
mod forecast;
mod formulas;
mod lab;
mod measure;
mod outlook;
mod page;
mod sentences;
mod tables;

use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use ringstep_cpu::cores;
use ringstep_data::Dataset;
use ringstep_train::fit;

use self::cells::Size;
use self::lab::{About, Lab};
use self::measure::{EPOCHS, Measured, gradient_bytes};
use self::outlook::Outlook;
use self::tables::{Table, tables};
use super::collectives;
use crate::args::ScalingArgs;
use crate::datasets::{self, Choice};
use crate::launch::{Interrupts, Site};
use crate::memory;
use crate::names::Bytes;
use crate::run_dir::{CELLS, RunDir};
use crate::settings::{
    DataFlags, Experiment, Link, Mode, ModelFlags, NetworkFlags, ProcessTransport, RecordFlags, Run, Settings,
    SyncFlags, TrainingFlags, WorkerFlags,
};
use crate::show::{self, Progress};
use crate::train::{self, Place};

/// Test images that each training ends with: nobody looks at the accuracy.
const TESTS: usize = 100;
/// The page.
const REPORT: &str = "report.html";
/// Red, green and blue.
const CIFAR10_CHANNELS: usize = 3;
/// The largest slice whose all-reduce is timed as a ceiling.
const LARGEST: usize = 64 << 20;

/// Plans, measures, and reports. What is measured is written at once, so that it is there however this ends.
pub fn scaling(args: &ScalingArgs) -> Result<()> {
    ensure!(args.samples > 0, "--samples 0: at least 1 image is needed");
    let by_mpi = args.transport.is_some_and(|transport| transport.0 == ProcessTransport::Mpi);
    ensure!(!by_mpi, "--transport mpi: workers of one number after the other are not what mpirun has started");
    let asked = Asked { args, dataset: dataset(args)? };
    let one = asked.run(Size { workers: 1, batch: 1 })?;
    let data = datasets::load(&one.data)?;
    fit::fit(&one.job.model, &data)?;
    let plan = cells::plan(args.batches.as_deref(), &args.workers, data.train.len(), &|size| asked.too_much(size))?;
    let interrupts = Interrupts::catch()?;
    let mut dir = RunDir::create(args.out.clone(), args.overwrite, "scaling")?;
    let about = about(&one, &data, args.threads);
    let mut lab = Lab { about, plan, measured: Vec::new(), ceilings: BTreeMap::new(), forecast: Vec::new() };
    measure_all(&mut lab, &asked, &mut dir, &interrupts).with_context(|| {
        let (done, all) = (lab.measured.len(), lab.plan.sizes.len());
        format!("{done} of {all} trainings are measured, and in {}", dir.file(REPORT).display())
    })?;
    if args.json {
        return show::print(format_args!("{}", lab.json()?.trim_end()));
    }
    print(&lab)?;
    show::print(format_args!("Report: {}", dir.file(REPORT).display()))
}

/// What the user wants to know about.
struct Asked<'a> {
    args: &'a ScalingArgs,
    dataset: Choice,
}

impl Asked<'_> {
    /// The training of one cell.
    fn run(&self, size: Size) -> Result<Run> {
        let ScalingArgs { model, data, samples, sync, algorithm, bucket, threads, transport, net, .. } = self.args;
        let settings = Settings {
            model: ModelFlags { model: Some(model.clone()), ..ModelFlags::default() },
            data: DataFlags {
                dataset: Some(self.dataset),
                data: data.clone(),
                samples: Some(*samples),
                ..DataFlags::default()
            },
            training: TrainingFlags { batch: Some(size.batch), epochs: Some(EPOCHS), ..TrainingFlags::default() },
            sync: SyncFlags { sync: vec![*sync], algorithm: *algorithm, bucket: *bucket, ..SyncFlags::default() },
            workers: WorkerFlags { workers: Some(size.workers), threads: Some(*threads), ..WorkerFlags::default() },
            network: NetworkFlags { transport: *transport, net: net.clone(), ..NetworkFlags::default() },
            records: RecordFlags { trace: Some(0), predict: Some(true), ..RecordFlags::default() },
            ..Settings::default()
        };
        let (_, mut runs) = Experiment { common: settings, rows: Vec::new() }.resolve(Mode::Train)?;
        let mut run = runs.remove(0);
        run.data.tests = Some(TESTS);
        Ok(run)
    }

    /// Why this machine, or what it may take of it, has no room for a cell, if it has none.
    fn too_much(&self, size: Size) -> Result<Option<String>> {
        let Run { job, .. } = self.run(size)?;
        job.validate(self.args.samples)?;
        let room = match self.args.memory {
            Some(Bytes(limit)) => memory::check_job_within(&job, self.args.samples, limit as u64),
            None => memory::check_job(&job, self.args.samples, false),
        };
        Ok(room.err().map(|refusal| refusal.to_string()))
    }
}

/// What is trained on unless told otherwise: CIFAR-10 if it is on this machine and fits the model, synthetic images if not.
fn dataset(args: &ScalingArgs) -> Result<Choice> {
    Ok(match (args.dataset, args.model.design()?.input().channels) {
        (Some(dataset), _) => dataset,
        (None, CIFAR10_CHANNELS) => Choice::Cifar10OrSynthetic,
        (None, _) => Choice::Synthetic(None),
    })
}

fn about(run: &Run, data: &Dataset, threads: usize) -> About {
    About {
        model: run.job.model.name.clone(),
        dataset: data.name.to_owned(),
        licence: data.licence.to_owned(),
        way: run.title.clone(),
        threads,
        cores: cores::allowed(),
        samples: data.train.len(),
        gradients: gradient_bytes(run.job.model.network()),
    }
}

/// Measures cell by cell. The files say what is known after each.
fn measure_all(lab: &mut Lab, asked: &Asked<'_>, dir: &mut RunDir, interrupts: &Interrupts) -> Result<()> {
    let outlook = Outlook::new(&lab.plan.sizes, lab.about.threads, lab.about.cores);
    for (done, size) in (1..).zip(lab.plan.sizes.clone()) {
        let mut run = asked.run(size)?;
        (run.name, run.title) = (format!("{}x{}", size.workers, size.batch), size.to_string());
        if size.workers > 1 && !lab.ceilings.contains_key(&size.workers) {
            lab.ceilings.insert(size.workers, ceiling(&run, lab.about.gradients, interrupts)?);
        }
        lab.measured.push(measure(run, size, lab.about.samples, dir, interrupts)?);
        dir.write("summary.json", &lab.json()?)?;
        dir.write(CELLS, &lab.csv())?;
        dir.write(REPORT, &page::page(lab))?;
        show::tell(&outlook.line(done));
    }
    let net = asked.args.net.as_ref().map(Link::net);
    lab.forecast = forecast::forecast(lab, net, |cell| Ok(asked.run(cell.at.size)?.job))?;
    dir.write(REPORT, &page::page(lab))
}

/// Bytes a second of all-reduces of so many bytes by the workers of a training that do nothing else.
fn ceiling(run: &Run, bytes: usize, interrupts: &Interrupts) -> Result<f64> {
    let algorithm = run.job.sync.algorithm().flatten();
    let gigabytes =
        collectives::bus_bandwidth(algorithm, bytes.min(LARGEST), run.job.workers, &run.workers, interrupts)?;
    Ok(1e9 * gigabytes)
}

/// Trains one cell; of its weights nobody wants to know.
fn measure(run: Run, size: Size, images: usize, dir: &mut RunDir, interrupts: &Interrupts) -> Result<Measured> {
    let folder = dir.row_folder(Some(&run.name))?;
    let place = Place { folder: &folder, images, saves: false };
    let at = (&Site::Here, interrupts);
    let ended = train::run_row(run, place, None, dir, at, &mut Progress::new(false, true, None));
    let removed = fs::remove_dir_all(&folder).with_context(|| folder.display().to_string());
    let (row, interrupted) = ended?;
    if let Some(interrupted) = interrupted {
        return Err(interrupted.into());
    }
    let measured = Measured::of(&row.context("the cell was not run")?, size, images);
    removed.map(|()| measured)
}

/// The tables, with what there is to say about each.
fn print(lab: &Lab) -> Result<()> {
    let said = [
        [sentences::scalings(lab), sentences::step_times(lab), sentences::stopped(lab).into_iter().collect()].concat(),
        sentences::splits(lab),
        sentences::bandwidths(lab),
        sentences::network(lab),
    ];
    for (Table { title, headings, rows, note }, sentences) in tables(lab).into_iter().zip(said) {
        show::print(format_args!("{title}\n{}\n{note}", show::table_of(&headings, rows)))?;
        for sentence in sentences {
            show::print(format_args!("- {sentence}"))?;
        }
        show::print(format_args!(""))?;
    }
    show::print(format_args!("Ten times the machines, simulated"))?;
    lab.forecast.iter().try_for_each(|sentence| show::print(format_args!("- {sentence}")))
}
