//! Progress while runs go on: a bar for each, or lines where there is no terminal.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write, stderr, stdout};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use ringstep_train::records::{Epoch, Report, Step};
use ringstep_train::summary::Summary;

use super::units::{percent, seconds};
use crate::launch::Message;
use crate::settings::Run;

/// The bars of all runs.
pub struct Progress {
    bars: MultiProgress,
    verbose: bool,
    /// Standard output belongs to the JSON.
    json: bool,
    /// Each rank's loss is shown after so many steps.
    log_every: Option<usize>,
}

impl Progress {
    /// Nothing is shown yet.
    pub fn new(verbose: bool, json: bool, log_every: Option<usize>) -> Self {
        Self { bars: MultiProgress::new(), verbose, json, log_every }
    }

    /// A bar for the next run.
    pub fn start(&mut self, run: &Run, images: usize) -> RunProgress<'_> {
        let template = "{prefix:18} {bar:30.cyan/blue} {percent:>3}%  {elapsed:>4}  {msg}";
        let style = ProgressStyle::with_template(template).expect("the template is valid").progress_chars("━╸ ");
        let steps = run.job.workers.saturating_mul(run.job.steps(images));
        let bar = self.bars.add(ProgressBar::new(steps as u64).with_style(style));
        bar.set_prefix(run.title.clone());
        bar.tick();
        RunProgress { bar, on: self, workers: run.job.workers, epochs: BTreeMap::new() }
    }
}

/// One run's bar: it follows the steps of all workers, who may share them as they like.
pub struct RunProgress<'a> {
    bar: ProgressBar,
    on: &'a Progress,
    workers: usize,
    /// For each epoch that not all ranks have finished yet: how many have, and what they did in it.
    epochs: BTreeMap<usize, (usize, Epoch)>,
}

impl RunProgress<'_> {
    /// Moves with what a rank says.
    pub fn observe(&mut self, rank: usize, message: &Message) {
        match message {
            Message::Report(Report::Steps(steps)) => {
                self.log(rank, steps);
                if rank < self.workers {
                    self.bar.inc(steps.len() as u64);
                }
            }
            Message::Report(Report::Epoch(epoch)) => {
                if epoch.images > 0 {
                    let per_image = |sum: f64| sum / epoch.images as f64;
                    self.say_if_verbose(&format!(
                        "Rank {rank}, Epoch {}, Loss: {:.4}, Accuracy: {}",
                        epoch.epoch,
                        per_image(epoch.loss_sum),
                        percent(per_image(epoch.correct as f64))
                    ));
                }
                self.add(epoch);
            }
            Message::Done(outcome) => {
                self.say_if_verbose(&format!("Rank {rank}, Training Time: {:.2} seconds", outcome.seconds));
            }
            Message::Noticed(line) => drop(self.on.bars.suspend(|| writeln!(stderr(), "waiting: {line}"))),
            _ => {}
        }
    }

    /// Shows an epoch's loss and accuracy once all ranks have finished it.
    fn add(&mut self, epoch: &Epoch) {
        let (ranks, sums) = self.epochs.entry(epoch.epoch).or_default();
        *ranks += 1;
        sums.images += epoch.images;
        sums.loss_sum += epoch.loss_sum;
        sums.correct += epoch.correct;
        if *ranks == self.workers {
            let images = sums.images as f64;
            let (loss, accuracy) = (sums.loss_sum / images, sums.correct as f64 / images);
            self.bar.set_message(format!("epoch {}  loss {loss:.4}  accuracy {}", epoch.epoch, percent(accuracy)));
            self.epochs.remove(&epoch.epoch);
        }
    }

    /// Goes back to where so many workers have done so many steps together.
    pub fn rewind(&mut self, workers: usize, steps: usize) {
        self.workers = workers;
        self.epochs.clear();
        self.bar.set_position(steps as u64);
    }

    /// Tells something that nobody has asked for.
    pub fn tell(&self, line: &str) {
        self.on.bars.suspend(|| super::tell(line));
    }

    /// Leaves the full bar, with the result.
    pub fn finish(self, summary: &Summary) {
        let result = format!(
            "loss {:.4}  accuracy {}  test {}",
            summary.train_loss,
            percent(summary.train_accuracy),
            percent(summary.test_accuracy)
        );
        self.bar.finish_with_message(result.clone());
        if !stderr().is_terminal() {
            let (name, steps) = (self.bar.prefix(), summary.steps);
            let _ = writeln!(stderr(), "{name}: {steps} steps in {}: {result}", seconds(summary.seconds));
        }
    }

    /// Shows the losses that are due.
    fn log(&self, rank: usize, steps: &[Step]) {
        let Some(every) = self.on.log_every else { return };
        for step in steps.iter().filter(|step| (step.step + 1).is_multiple_of(every) && step.images > 0) {
            let (number, loss) = (step.step + 1, step.loss_sum / step.images as f64);
            self.say(&format!("{}: Rank {rank}, Step {number}, Loss: {loss:.4}", self.bar.prefix()));
        }
    }

    fn say_if_verbose(&self, line: &str) {
        if self.on.verbose {
            self.say(line);
        }
    }

    fn say(&self, line: &str) {
        // Nobody may be reading any more; the run goes on.
        match self.on.json {
            false => drop(self.on.bars.suspend(|| writeln!(stdout(), "{line}"))),
            true => drop(self.on.bars.suspend(|| writeln!(stderr(), "{line}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_follows_the_steps_of_all_workers_and_not_those_of_servers() {
        let progress = Progress::new(false, false, None);
        let mut run = RunProgress { bar: ProgressBar::hidden(), on: &progress, workers: 2, epochs: BTreeMap::new() };
        run.bar.set_length(10);
        for (rank, steps, position) in [(0, 1, 1), (1, 6, 7), (2, 5, 7), (0, 3, 10)] {
            run.observe(rank, &Message::Report(Report::Steps(vec![Step::default(); steps])));
            assert_eq!(run.bar.position(), position);
        }
    }
}
