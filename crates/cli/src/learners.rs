//! How many learners a worker of sma has room for, by trying, as CROSSBOW does (Koliousis et al., 2019): one more as long as
//! images a second grow.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use ringstep_train::job::Length;
use ringstep_train::{Job, SyncMethod};

use crate::launch::{self, Interrupted, Interrupts, Message, Site, Task};
use crate::memory;
use crate::settings::{Faults, Run};
use crate::show;

/// Steps of a trial.
const STEPS: usize = 30;
/// How many times as fast one learner more must be.
const WORTH: f64 = 1.05;

/// The number of learners for a run on so many images. Trials leave their weights in a file that is removed afterwards.
pub fn find(run: &Run, images: usize, weights: &Path, site: &Site, interrupts: &Interrupts) -> Result<usize> {
    let mut speeds: Vec<f64> = Vec::new();
    let learners = loop {
        let learners = speeds.len() + 1;
        let trial = Run { job: trial(&run.job, learners), ..run.clone() };
        let fits = trial.job.validate(images).is_ok()
            && memory::check_job(&trial.job, images, trial.workers.are_elsewhere() || site.is_elsewhere()).is_ok();
        if !fits {
            break speeds.len();
        }
        let speed = images_a_second(&trial, weights, site, interrupts)?;
        let grows = speeds.last().is_none_or(|before| speed > WORTH * before);
        speeds.push(speed);
        if !grows {
            break learners - 1;
        }
    };
    fs::remove_file(weights).with_context(|| weights.display().to_string())?;
    let list = speeds.iter().enumerate().map(|(at, speed)| format!("{speed:.0} with {}", at + 1));
    let list = list.collect::<Vec<_>>().join(", ");
    show::tell(&format!("{}: {learners} learners a worker, by images a second: {list}", run.title));
    Ok(learners)
}

/// A few steps of a job with so many learners, of which nothing is recorded.
fn trial(job: &Job, number: usize) -> Job {
    let mut job = Job {
        length: Length::Steps(STEPS),
        test_every: None,
        verify_every: None,
        trace_steps: 0,
        predict: false,
        ..job.clone()
    };
    if let SyncMethod::Sma { learners, .. } = &mut job.sync {
        *learners = number;
    }
    job
}

/// Images that all learners of a run take in a second, by the median of its steps.
fn images_a_second(run: &Run, weights: &Path, site: &Site, interrupts: &Interrupts) -> Result<f64> {
    let job = &run.job;
    let model_file = std::path::absolute(weights)?;
    let trial = Box::new(Run { faults: Faults::default(), ..run.clone() });
    let task = Task::Train { run: trial, model_file, checkpoints: None, resume: None };
    let mut slowest: f64 = 0.0;
    let ended = launch::run(&task, job.ranks(), &run.workers, site, interrupts, &mut |_: usize, message| {
        if let Message::Done(outcome) = message {
            slowest = slowest.max(outcome.seconds_per_step);
        }
        Ok(())
    })?;
    if let Some(signal) = ended {
        return Err(Interrupted { signal, saved: None }.into());
    }
    Ok((job.workers * job.sync.learners() * job.batch * job.accumulate) as f64 / slowest)
}
