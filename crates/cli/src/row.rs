//! One row from its first step to its last, through whatever happens to its workers on the way.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::Result;
use ringstep_train::Job;
use ringstep_train::accounts::{Accounts, StepSummary, Total};
use ringstep_train::job::Leg;
use ringstep_train::records::{Epoch, Outcome, Report};
use ringstep_train::summary::{RankRecord, Restart, Summary, sum_up};
use ringstep_train::trace::Span;

use crate::checkpoints::{self, Found, RankSoFar, Vault};
use crate::launch::{self, Interrupted, Interrupts, Listener, Loss, Message, Next, Origin, Resume, Seat, Site, Task};
use crate::prediction;
use crate::run_dir::{RunDir, WEIGHTS};
use crate::settings::Run;
use crate::show::{Progress, RunProgress};
use crate::trace_file::TraceFile;

/// One row: what it was asked to do, and what it did.
pub struct Row {
    /// What it was asked to do.
    pub run: Run,
    /// What it did.
    pub summary: Summary,
    /// Step by step.
    pub steps: Vec<StepSummary>,
    /// Rank by rank, servers too.
    pub ranks: Vec<Total>,
    /// What went on when on each rank, in the steps that were traced.
    pub spans: Vec<Vec<Span>>,
}

/// What was done before, where a run is gone on with.
pub struct Before {
    /// The checkpoint.
    pub found: Found,
    /// The steps before it.
    pub steps: Vec<StepSummary>,
}

/// Where a row is run, on so many images.
pub struct Place<'a> {
    pub folder: &'a Path,
    pub images: usize,
    /// Whether it can be saved on the way.
    pub saves: bool,
}

/// What a rank has said so far.
#[derive(Default)]
struct Heard {
    epochs: Vec<Epoch>,
    spans: Vec<Span>,
    outcome: Option<Outcome>,
    /// Its last states in memory, by their steps: the epochs before each, and what was done of the next.
    points: BTreeMap<usize, (usize, Epoch)>,
}

/// States of which records are kept: at least as many as ranks keep themselves.
const POINTS: usize = 4;

/// Runs one row to its end, or until a signal ends it, perhaps before there is anything to sum up; its folder gets the weights and
/// the trace.
pub fn run_row(
    run: Run,
    place: Place<'_>,
    before: Option<Before>,
    dir: &mut RunDir,
    (site, interrupts): (&Site, &Interrupts),
    progress: &mut Progress,
) -> Result<(Option<Row>, Option<Interrupted>)> {
    let bar = progress.start(&run, place.images);
    let (mut records, resume) = Records::begin(run, place, before, dir, bar)?;
    let task = records.task(resume);
    let (ranks, workers) = (records.run.job.ranks(), records.run.workers.clone());
    let ended = launch::run(&task, ranks, &workers, site, interrupts, &mut records)?;
    records.finish(ended)
}

/// What is heard of a row, and where it is written.
struct Records<'a> {
    run: Run,
    folder: PathBuf,
    images: usize,
    dir: &'a mut RunDir,
    bar: RunProgress<'a>,
    vault: Option<Vault>,
    trace: TraceFile,
    accounts: Accounts,
    heard: Vec<Heard>,
    restarts: Vec<Restart>,
    /// Workers that were lost and have no successors: the rank of each, the step that the others went on from, and its epochs.
    departed: Vec<(usize, usize, Vec<Epoch>)>,
    /// When the failure was noticed after which no step has been done yet.
    noticed: Option<Instant>,
}

impl<'a> Records<'a> {
    /// Of a row that begins, or goes on from what was before. Returns what its ranks go on from.
    fn begin(
        run: Run,
        Place { folder, images, saves }: Place<'_>,
        before: Option<Before>,
        dir: &'a mut RunDir,
        bar: RunProgress<'a>,
    ) -> Result<(Self, Option<Resume>)> {
        let job = &run.job;
        let vault = saves.then(|| Vault::new(&run, images, folder)).transpose()?;
        let trace_file = trace_file(folder);
        let mut heard: Vec<Heard> = (0..job.ranks()).map(|_| Heard::default()).collect();
        let (trace, accounts, resume) = match before {
            None => (TraceFile::create(&trace_file, job.workers, job.ranks() - job.workers)?, Accounts::new(job), None),
            Some(Before { found: Found { folder, manifest }, steps }) => {
                let done: Vec<usize> = manifest.ranks.iter().map(|rank| rank.total.steps).collect();
                let (trace, spans) = TraceFile::resume(&trace_file, job.workers, &done)?;
                let mut totals = Vec::new();
                for ((heard, spans), RankSoFar { epochs, total }) in heard.iter_mut().zip(spans).zip(manifest.ranks) {
                    (heard.spans, heard.epochs) = (spans, epochs);
                    totals.push(total);
                }
                let from = Origin::Folder { path: folder, files: (0..job.ranks()).collect() };
                (trace, Accounts::resume(job, steps, totals), Some(Resume { step: manifest.step, from }))
            }
        };
        let records = Self {
            run,
            folder: folder.to_owned(),
            images,
            dir,
            bar,
            vault,
            trace,
            accounts,
            heard,
            restarts: Vec::new(),
            departed: Vec::new(),
            noticed: None,
        };
        Ok((records, resume))
    }

    /// What ranks are to do.
    fn task(&self, resume: Option<Resume>) -> Task {
        Task::Train {
            run: Box::new(self.run.clone()),
            // Rank 0 may have been started in another folder.
            model_file: std::path::absolute(self.folder.join(WEIGHTS)).unwrap_or_else(|_| self.folder.join(WEIGHTS)),
            checkpoints: self.vault.as_ref().map(|vault| vault.checkpoints.clone()),
            resume,
        }
    }

    /// All ranks are done, or were told to end by a signal.
    fn finish(mut self, ended: Option<usize>) -> Result<(Option<Row>, Option<Interrupted>)> {
        self.dir.record_steps(&self.run, self.accounts.finish())?;
        if let Some(vault) = &mut self.vault {
            vault.seal(&self.accounts);
        }
        let interrupted = ended.map(|signal| {
            let saved = self.vault.as_ref().and_then(|vault| vault.last);
            Interrupted { signal, saved: saved.map(|step| (self.dir.path().to_owned(), step)) }
        });
        if self.heard.iter().any(|heard| heard.outcome.is_none()) {
            return Ok((None, interrupted));
        }
        let (mut ranks, mut spans) = (Vec::new(), Vec::new());
        for Heard { epochs, spans: of_rank, outcome, .. } in self.heard {
            ranks.push(RankRecord { epochs, outcome: outcome.expect("all ranks are done") });
            spans.push(of_rank);
        }
        let Self { run, accounts, restarts, departed, .. } = self;
        let departed: Vec<Epoch> = departed.into_iter().flat_map(|(.., epochs)| epochs).collect();
        let summary = sum_up(&run.name, &run.job, &ranks, &accounts, &departed, run.target)?;
        let repeatable = summary.repeatable && !run.learners_found;
        let basis = ranks[0].outcome.basis.as_deref();
        let predicted_seconds_per_step = basis.and_then(|basis| prediction::step_seconds(&run.job, basis));
        let summary = Summary { restarts, repeatable, predicted_seconds_per_step, ..summary };
        self.bar.finish(&summary);
        Ok((Some(Row { run, summary, steps: accounts.steps, ranks: accounts.ranks, spans }), interrupted))
    }

    /// The last step after which all in these seats have their states in memory, and of which all records are here.
    fn last_point(&self, loss: &Loss, seats: &[Seat]) -> Option<usize> {
        let known = |step: usize| {
            self.heard.iter().all(|heard| heard.points.contains_key(&step)) && self.accounts.marked(step).is_some()
        };
        let steps = loss.points[seats[0].was].iter().copied();
        steps.filter(|&step| seats.iter().all(|seat| loss.points[seat.was].contains(&step)) && known(step)).max()
    }

    /// What ranks had done at a point, and what each had done of the epoch that it was in.
    fn at_point(&self, step: usize) -> Vec<(RankSoFar, Option<Epoch>)> {
        let totals = self.accounts.marked(step).unwrap_or_default();
        let so_far = |(heard, total): (&Heard, Total)| {
            let (epochs, open) = &heard.points[&step];
            (RankSoFar { epochs: heard.epochs[..*epochs].to_vec(), total }, Some(open.clone()))
        };
        self.heard.iter().zip(totals).map(so_far).collect()
    }

    /// Who goes on: those that are left and, unless fewer will do, new ones in the place of the others.
    fn seats(&self, loss: &Loss) -> Vec<Seat> {
        let seat = |was| Seat { was, alive: !loss.lost.contains(&was) };
        let mut seats: Vec<Seat> = (0..self.run.job.ranks()).map(seat).collect();
        if let Some(elastic) = self.run.faults.elastic {
            let left = seats.iter().filter(|seat| seat.alive).count();
            let mut missing = elastic.least.saturating_sub(left);
            seats.retain(|seat| seat.alive || missing.checked_sub(1).map(|less| missing = less).is_some());
        }
        seats
    }

    /// What those in these seats go on from: the last states that all have in memory, the last checkpoint, or nothing.
    fn origin(&self, loss: &Loss, seats: &[Seat]) -> (Option<Resume>, Base) {
        if let Some(step) = self.last_point(loss, seats) {
            let base = Base { job: self.run.job.clone(), step, ranks: self.at_point(step) };
            return (Some(Resume { step, from: Origin::Memory }), base);
        }
        match checkpoints::find(&self.folder, &self.run, self.images) {
            Ok(Found { folder: path, manifest }) => {
                let as_many = manifest.job.workers == self.run.job.workers;
                let files = (0..).zip(seats).map(|(rank, seat)| if as_many { seat.was } else { rank }).collect();
                let ranks = manifest.ranks.into_iter().map(|rank| (rank, None)).collect();
                let step = manifest.step;
                (Some(Resume { step, from: Origin::Folder { path, files } }), Base { job: manifest.job, step, ranks })
            }
            Err(_) => {
                let job = Job { leg: Leg::default(), ..self.run.job.clone() };
                let ranks = vec![(RankSoFar::default(), None); job.ranks()];
                (None, Base { job, step: 0, ranks })
            }
        }
    }

    /// Goes back to what ranks had done at some time, with those in these seats, of which each has the state of one of them.
    fn rewind(&mut self, Base { job, step, mut ranks }: Base, seats: &[Seat], states: &[usize]) -> Result<()> {
        self.run.job = match seats.len() == job.ranks() {
            true => job,
            false => job.with_workers(seats.len(), step, self.images),
        };
        let job = &self.run.job;
        job.validate(self.images)?;
        let mut heard: Vec<Option<Heard>> = self.heard.drain(..).map(Some).collect();
        self.departed.retain(|&(_, left_at, _)| left_at <= step);
        for rank in (0..ranks.len()).filter(|rank| !states.contains(rank)) {
            let (so_far, open) = std::mem::take(&mut ranks[rank]);
            self.departed.push((rank, step, so_far.epochs.into_iter().chain(open).collect()));
        }
        let so_far: Vec<RankSoFar> = states.iter().map(|&rank| ranks[rank].0.clone()).collect();
        let totals: Vec<Total> = so_far.iter().map(|rank| rank.total).collect();
        self.accounts = Accounts::resume(job, std::mem::take(&mut self.accounts.steps), totals);
        self.dir.rewind(&self.run, &so_far, &self.accounts.steps)?;
        for (rank, _, epochs) in &self.departed {
            epochs.iter().try_for_each(|epoch| self.dir.record(&self.run, *rank, epoch))?;
        }
        self.trace = TraceFile::create(&trace_file(&self.folder), job.workers, job.ranks() - job.workers)?;
        let steps = so_far[..job.workers].iter().map(|rank| rank.total.steps).sum();
        self.bar.rewind(job.workers, steps);
        for (rank, (seat, RankSoFar { epochs, total })) in seats.iter().zip(so_far).enumerate() {
            let mut heard = heard[seat.was].take().unwrap_or_default();
            heard.spans.retain(|span| span.step < total.steps);
            self.trace.add(rank, &heard.spans)?;
            (heard.epochs, heard.outcome) = (epochs, None);
            heard.points.retain(|&point, _| point == step);
            // It may have to go back to the same step again.
            heard.points.keys().for_each(|&step| self.accounts.mark(rank, step));
            self.heard.push(heard);
        }
        if let Some(vault) = &mut self.vault {
            vault.go_on(&self.run);
        }
        Ok(())
    }
}

/// What ranks had done at some time, and of what job: all that there were then, whoever is left.
struct Base {
    job: Job,
    step: usize,
    /// Each with what it had done of the epoch that it was in, if that is known.
    ranks: Vec<(RankSoFar, Option<Epoch>)>,
}

fn trace_file(folder: &Path) -> PathBuf {
    folder.join("trace.json")
}

impl Listener for Records<'_> {
    fn hear(&mut self, rank: usize, message: Message) -> Result<()> {
        self.bar.observe(rank, &message);
        let (run, heard) = (&self.run, &mut self.heard[rank]);
        match message {
            Message::Report(Report::Epoch(epoch)) => {
                self.dir.record(run, rank, &epoch)?;
                heard.epochs.push(epoch);
            }
            Message::Report(Report::Steps(steps)) => {
                if let Some(noticed) = self.noticed.take_if(|_| !steps.is_empty())
                    && let Some(restart) = self.restarts.last_mut()
                {
                    restart.seconds = noticed.elapsed().as_secs_f64();
                }
                self.dir.record_steps(run, self.accounts.add(rank, steps))?;
            }
            Message::Report(Report::Closing(closing)) => self.accounts.add_closing(rank, *closing),
            Message::Report(Report::Spans(mut spans)) => {
                spans.iter_mut().for_each(|span| span.began += self.accounts.earlier());
                self.trace.add(rank, &spans)?;
                heard.spans.extend(spans);
            }
            Message::Report(Report::Point { step, epoch }) => {
                self.accounts.mark(rank, step);
                heard.points.insert(step, (heard.epochs.len(), epoch));
                while heard.points.len() > POINTS {
                    heard.points.pop_first();
                }
            }
            Message::Report(Report::Checkpoint(name)) => {
                self.accounts.mark(rank, name);
                self.vault.iter_mut().for_each(|vault| vault.copied(name, rank, &heard.epochs));
            }
            Message::Report(Report::Saved(saved)) => {
                self.vault.iter_mut().for_each(|vault| vault.saved(rank, saved.clone()))
            }
            Message::Done(outcome) => heard.outcome = Some(*outcome),
            _ => {}
        }
        self.vault.iter_mut().for_each(|vault| vault.seal(&self.accounts));
        Ok(())
    }

    fn go_on(&mut self, loss: &Loss, [number, of]: [usize; 2]) -> Result<Option<Next>> {
        let seats = self.seats(loss);
        let (resume, base) = self.origin(loss, &seats);
        let (step, servers) = (base.step, self.run.job.ranks() - self.run.job.workers);
        let workers = seats.len() - servers;
        let cause = format!("{:#}", loss.error);
        self.bar.tell(&format!("{cause}; going on from step {step} with {workers} workers (restart {number} of {of})"));
        let (lost, steps_lost) = (loss.lost.clone(), loss.done.saturating_sub(step));
        self.restarts.push(Restart { cause, lost, workers, step, steps_lost, seconds: 0.0 });
        self.noticed = Some(loss.noticed);
        let states = match &resume {
            Some(Resume { from: Origin::Folder { files, .. }, .. }) => files.clone(),
            Some(Resume { from: Origin::Memory, .. }) => seats.iter().map(|seat| seat.was).collect(),
            None => (0..seats.len()).collect(),
        };
        self.rewind(base, &seats, &states)?;
        Ok(Some(Next { task: self.task(resume), seats }))
    }
}
