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
    match launch::run(&task, ranks, &workers, site, interrupts, &mut records) {
        Ok(ended) => records.finish(ended),
        // Asked to end at once, it may still be gone on with.
        Err(error) => Err(match error.downcast::<Interrupted>() {
            Ok(interrupted) => records.interrupted(interrupted.signal).into(),
            Err(error) => error,
        }),
    }
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
                (
                    trace,
                    Accounts::resume(job, steps, totals),
                    Some(Resume { step: manifest.step, from, joining: Vec::new() }),
                )
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

    /// A signal has ended it, perhaps after a checkpoint.
    fn interrupted(&self, signal: usize) -> Interrupted {
        let saved = self.vault.as_ref().and_then(|vault| vault.last);
        Interrupted { signal, saved: saved.map(|step| (self.dir.path().to_owned(), step)) }
    }

    /// All ranks are done, or were told to end by a signal.
    fn finish(mut self, ended: Option<usize>) -> Result<(Option<Row>, Option<Interrupted>)> {
        self.dir.record_steps(&self.run, self.accounts.finish())?;
        if let Some(vault) = &mut self.vault {
            vault.seal(&self.accounts);
        }
        let interrupted = ended.map(|signal| self.interrupted(signal));
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
        let ranks = || seats.iter().filter_map(|seat| seat.was());
        let is_known = |rank: usize, step: usize| {
            loss.points[rank].contains(&step)
                && self.heard[rank].points.contains_key(&step)
                && self.accounts.marked_of(rank, step).is_some()
        };
        let steps = loss.points[ranks().next()?].iter().copied();
        steps.filter(|&step| ranks().all(|rank| is_known(rank, step))).max()
    }

    /// What ranks had done at a point, and what each had done of the epoch that it was in.
    fn at_point(&self, step: usize) -> Vec<(RankSoFar, Option<Epoch>)> {
        let so_far =
            |(rank, heard): (usize, &Heard)| match (heard.points.get(&step), self.accounts.marked_of(rank, step)) {
                (Some((epochs, open)), Some(total)) => {
                    (RankSoFar { epochs: heard.epochs[..*epochs].to_vec(), total }, Some(open.clone()))
                }
                // One that had just joined the others, and is lost again.
                _ => (RankSoFar { total: Total::joined(step), ..RankSoFar::default() }, None),
            };
        self.heard.iter().enumerate().map(so_far).collect()
    }

    /// Who goes on: those that are left; unless fewer will do, new ones in the place of the others; and whoever else has come.
    fn seats(&self, loss: &Loss) -> Vec<Seat> {
        let ranks = self.run.job.ranks();
        let left = ranks - loss.lost.len();
        let (least, most) = self.run.faults.elastic.map_or((ranks, left), |elastic| (elastic.least, elastic.most));
        let more = loss.idle.iter().flat_map(|&(process, count)| std::iter::repeat_n(Seat::Added(process), count));
        let more: Vec<Seat> = more.take(most.saturating_sub(left)).collect();
        let mut missing = least.saturating_sub(left + more.len());
        let mut seats: Vec<Seat> = (0..ranks).map(Seat::Left).collect();
        for &lost in &loss.lost {
            if let Some(less) = missing.checked_sub(1) {
                (missing, seats[lost]) = (less, Seat::InPlaceOf(lost));
            }
        }
        seats.retain(|seat| !matches!(seat, Seat::Left(was) if loss.lost.contains(was)));
        seats.extend(more);
        seats
    }

    /// What those in these seats go on from: the last states that all have in memory, the last checkpoint, or nothing.
    fn origin(&self, loss: &Loss, seats: &[Seat]) -> (Option<Resume>, Base) {
        let joining = |states: &[Option<usize>]| (0..states.len()).filter(|&rank| states[rank].is_none()).collect();
        if let Some(step) = self.last_point(loss, seats) {
            let states: Vec<Option<usize>> = seats.iter().map(|seat| seat.was()).collect();
            let resume = Resume { step, from: Origin::Memory, joining: joining(&states) };
            return (Some(resume), Base { job: self.run.job.clone(), step, ranks: self.at_point(step), states });
        }
        match checkpoints::find(&self.folder, &self.run, self.images) {
            Ok(Found { folder: path, manifest }) => {
                let as_many = manifest.job.workers == self.run.job.workers;
                let state = |(rank, seat): (usize, &Seat)| {
                    if as_many { seat.was() } else { Some(rank).filter(|&rank| rank < manifest.job.workers) }
                };
                let states: Vec<Option<usize>> = seats.iter().enumerate().map(state).collect();
                // Whoever joins the others has the chief's.
                let files = states.iter().map(|state| state.unwrap_or(0)).collect();
                let ranks = manifest.ranks.into_iter().map(|rank| (rank, None)).collect();
                let (step, joining) = (manifest.step, joining(&states));
                let resume = Resume { step, from: Origin::Folder { path, files }, joining };
                (Some(resume), Base { job: manifest.job, step, ranks, states })
            }
            Err(_) => {
                let job = Job { leg: Leg::default(), ..self.run.job.clone() };
                let ranks = vec![(RankSoFar::default(), None); job.ranks()];
                let states = (0..seats.len()).map(|rank| Some(rank).filter(|&rank| rank < ranks.len())).collect();
                (None, Base { job, step: 0, ranks, states })
            }
        }
    }

    /// Goes back to what ranks had done at some time, with those in these seats.
    fn rewind(&mut self, Base { job, step, mut ranks, states }: Base, seats: &[Seat]) -> Result<()> {
        self.run.job = match seats.len() == job.ranks() {
            true => job,
            false => job.with_workers(seats.len(), step, self.images),
        };
        let job = &self.run.job;
        job.validate(self.images)?;
        let mut heard: Vec<Option<Heard>> = self.heard.drain(..).map(Some).collect();
        self.departed.retain(|&(_, left_at, _)| left_at <= step);
        for rank in (0..ranks.len()).filter(|&rank| !states.contains(&Some(rank))) {
            let (so_far, open) = std::mem::take(&mut ranks[rank]);
            self.departed.push((rank, step, so_far.epochs.into_iter().chain(open).collect()));
        }
        // Whoever joins the others has done as many steps as they have, and nothing in them.
        let joined = || RankSoFar { total: Total::joined(step), ..RankSoFar::default() };
        let so_far = states.iter().map(|state| state.map_or_else(joined, |rank| ranks[rank].0.clone()));
        let so_far: Vec<RankSoFar> = so_far.collect();
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
            let mut heard = seat.was().and_then(|was| heard[was].take()).unwrap_or_default();
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
    /// Of which of them each rank has the state that goes on; those that join the others have that of none.
    states: Vec<Option<usize>>,
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

    fn go_on(&mut self, loss: &Loss, restart: Option<[usize; 2]>) -> Result<Option<Next>> {
        let seats = self.seats(loss);
        let (resume, base) = self.origin(loss, &seats);
        let (step, servers) = (base.step, self.run.job.ranks() - self.run.job.workers);
        let workers = seats.len() - servers;
        let cause = format!("{:#}", loss.error);
        let count = restart.map(|[number, of]| format!(" (restart {number} of {of})")).unwrap_or_default();
        self.bar.tell(&format!("{cause}; going on from step {step} with {workers} workers{count}"));
        let (mut lost, steps_lost) = (loss.lost.clone(), loss.done.saturating_sub(step));
        lost.sort_unstable();
        self.restarts.push(Restart { cause, lost, workers, step, steps_lost, seconds: 0.0 });
        self.noticed = Some(loss.noticed);
        self.rewind(base, &seats)?;
        Ok(Some(Next { task: self.task(resume), seats }))
    }

    fn has_room(&self) -> bool {
        // Not before there is something that all can go back to.
        let known = |step: &usize| (0..self.heard.len()).all(|rank| self.accounts.marked_of(rank, *step).is_some());
        let can_go_back =
            self.heard[0].points.keys().any(known) || self.vault.as_ref().is_some_and(|it| it.last.is_some());
        can_go_back && self.run.faults.elastic.is_some_and(|elastic| self.run.job.workers < elastic.most)
    }
}
