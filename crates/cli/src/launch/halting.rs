//! Halting the workers of a run between two steps, for a checkpoint or for good: when, and by which [orders](ringstep_train::halt).

use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use ringstep_train::halt::{Halt, Held, Order, Then};
use ringstep_train::records::Report;
use signal_hook::consts::SIGINT;

use super::{Crew, Message};
use crate::settings::{Every, Run};

/// What is asked of the workers of a run.
pub struct Halting {
    /// Whether all are halted after as many moments, or each where it is.
    together: bool,
    /// Steps that were done before these workers began.
    start: usize,
    /// Whether there is a place for checkpoints.
    saves: bool,
    rhythm: Option<Rhythm>,
    /// How long an answer may take.
    timeout: Duration,
    stage: Stage,
    /// The signal that asked for the end, and what it asks for.
    end: Option<(usize, Then)>,
    workers: usize,
}

/// When the next checkpoint is due that workers do not know of themselves.
enum Rhythm {
    Time { period: Duration, due: Option<Instant> },
    Steps { every: usize, due: usize, done: usize },
}

enum Stage {
    /// Workers go on.
    Going,
    /// They are asked where they are.
    Asking { since: Instant, answers: Vec<Option<Held>>, then: Then },
    /// They are told where to halt, and these have not been there yet. To ask them again would let them forget it, while others
    /// stand there and wait for them.
    Halting { name: usize, ahead: Vec<usize> },
    /// They are told to end.
    Ending,
}

impl Halting {
    /// For a run whose workers go on from a step; `saves` if there is a place for checkpoints.
    pub fn new(run: &Run, start: usize, saves: bool) -> Self {
        let differ = run.job.sync.lets_workers_differ();
        let rhythm = match run.checkpoint_every {
            Some(Every::Time(period)) if saves => Some(Rhythm::Time { period, due: None }),
            Some(Every::Steps(every)) if saves && differ => {
                Some(Rhythm::Steps { every, due: start + every, done: start })
            }
            _ => None,
        };
        Self {
            together: run.job.sync.keeps_workers_together(),
            start,
            saves,
            rhythm,
            timeout: run.workers.timeout,
            stage: Stage::Going,
            end: None,
            workers: run.job.workers,
        }
    }

    /// A signal asks for the end. Says whether that is for these workers: the second one, or one that asks for a checkpoint that
    /// there is no place for, is not.
    pub fn end(&mut self, signal: usize) -> bool {
        let then = if signal == SIGINT as usize { Then::Finish } else { Then::Leave };
        let takes = self.end.is_none() && (then == Then::Finish || self.saves);
        if takes {
            self.end = Some((signal, then));
        }
        takes
    }

    /// The signal for which workers were told to end.
    pub fn ended_by(&self) -> Option<usize> {
        self.end.filter(|_| matches!(self.stage, Stage::Ending)).map(|(signal, _)| signal)
    }

    /// Whether a signal has asked for the end.
    pub fn is_to_end(&self) -> bool {
        self.end.is_some()
    }

    /// Asks workers where they are, if there is a reason to.
    pub fn look(&mut self, crew: &mut dyn Crew) -> Result<()> {
        match &self.stage {
            Stage::Going => {
                let then = self.end.map(|(_, then)| then).or_else(|| self.is_due().then_some(Then::GoOn));
                if let Some(then) = then {
                    let answers = (0..self.workers).map(|rank| crew.order(rank, Order::Hold)).collect();
                    self.stage = Stage::Asking { since: Instant::now(), answers, then };
                    self.decide(crew);
                }
            }
            Stage::Asking { since, answers, .. } if since.elapsed() > self.timeout => {
                let silent = answers.iter().position(Option::is_none).unwrap_or(0);
                bail!("rank {silent} does not answer any more (it was told to hold {:?} ago)", self.timeout);
            }
            _ => {}
        }
        Ok(())
    }

    /// Follows what workers say.
    pub fn hear(&mut self, rank: usize, message: &Message, crew: &mut dyn Crew) {
        match (message, &mut self.stage) {
            (Message::Held(held), Stage::Asking { answers, .. }) => {
                answers[rank] = Some(*held);
                self.decide(crew);
            }
            (Message::Report(Report::Checkpoint(passed)), Stage::Halting { name, ahead }) if passed == name => {
                ahead.retain(|&other| other != rank);
            }
            (message, Stage::Halting { ahead, .. }) if message.is_last() => ahead.retain(|&other| other != rank),
            (Message::Report(Report::Steps(steps)), _) => match &mut self.rhythm {
                Some(Rhythm::Time { period, due }) => drop(due.get_or_insert(Instant::now() + *period)),
                Some(Rhythm::Steps { done, .. }) if rank == 0 => {
                    *done = steps.last().map_or(*done, |step| step.step + 1);
                }
                _ => {}
            },
            _ => {}
        }
        if matches!(&self.stage, Stage::Halting { ahead, .. } if ahead.is_empty()) {
            self.stage = Stage::Going;
        }
    }

    /// Tells workers where to halt, if all have said where they are.
    fn decide(&mut self, crew: &mut dyn Crew) {
        let Stage::Asking { answers, then, .. } = &self.stage else { return };
        let (then, answers) = (*then, answers.iter().copied().collect::<Option<Vec<Held>>>());
        let Some(held) = answers else { return };
        // Who has nothing left to do cannot be halted, and the others will not be long.
        let over = held.iter().any(|held| held.over);
        let last = held.iter().map(|held| held.passed).max().unwrap_or(0);
        let after = |held: &Held| if self.together { last } else { held.passed };
        // Where workers are in step that is how many they have done then; elsewhere it is about that.
        let done = |held: &Held| match held.passed {
            0 => self.start + after(held),
            passed => held.done + after(held) + 1 - passed,
        };
        let name = done(&held[0]);
        // What was never trained has nothing to be finished.
        let nothing = then == Then::Finish && held.iter().all(|held| done(held) == 0);
        let then = if nothing { Then::Leave } else { then };
        for (rank, held) in held.iter().enumerate() {
            let halt = Halt { after: after(held), save: self.saves.then_some(name), then };
            let _ = crew.order(rank, if over { Order::Release } else { Order::Until(halt) });
        }
        self.stage = match then {
            Then::GoOn if !over && self.saves => Stage::Halting { name, ahead: (0..self.workers).collect() },
            Then::GoOn if !over => Stage::Going,
            _ => Stage::Ending,
        };
        // What was reported until now is behind where they are.
        if let Some(Rhythm::Steps { every, due, .. }) = &mut self.rhythm {
            *due = (*due).max((name / *every + 1) * *every);
        }
        if over {
            self.end = None;
        }
    }

    /// Whether a checkpoint is due; the next one then is, too.
    fn is_due(&mut self) -> bool {
        match &mut self.rhythm {
            Some(Rhythm::Time { period, due: Some(due) }) if Instant::now() >= *due => {
                *due = Instant::now() + *period;
                true
            }
            Some(Rhythm::Steps { every, due, done }) if *done >= *due => {
                *due = (*done / *every + 1) * *every;
                true
            }
            _ => false,
        }
    }
}
