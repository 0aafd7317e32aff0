//! Progress while runs go on: a bar for each, or lines where there is no terminal.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write, stderr, stdout};

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use ringstep_train::Job;
use ringstep_train::summary::Summary;
use ringstep_train::worker::{Epoch, Report};

use super::units::{percent, row_name, seconds};
use crate::launch::Message;

/// The bars of all runs.
pub struct Progress {
    bars: MultiProgress,
    verbose: bool,
    /// Standard output belongs to the JSON.
    json: bool,
}

impl Progress {
    /// Nothing is shown yet.
    pub fn new(verbose: bool, json: bool) -> Self {
        Self { bars: MultiProgress::new(), verbose, json }
    }

    /// A bar for the next run.
    pub fn start(&mut self, job: &Job, images: usize) -> RunProgress<'_> {
        let template = "{prefix:18} {bar:30.cyan/blue} {percent:>3}%  {elapsed:>4}  {msg}";
        let style = ProgressStyle::with_template(template).expect("the template is valid").progress_chars("━╸ ");
        let bar = self.bars.add(ProgressBar::new(job.steps(images) as u64).with_style(style));
        bar.set_prefix(row_name(job));
        bar.tick();
        RunProgress { bar, on: self, world: job.workers, epochs: BTreeMap::new() }
    }
}

/// One run's bar.
pub struct RunProgress<'a> {
    bar: ProgressBar,
    on: &'a Progress,
    world: usize,
    /// For each epoch that not all ranks have finished yet: how many have, and what they did in it.
    epochs: BTreeMap<usize, (usize, Epoch)>,
}

impl RunProgress<'_> {
    /// Moves with what a rank says.
    pub fn observe(&mut self, rank: usize, message: &Message) {
        match message {
            Message::Report(Report::Progress { steps }) if rank == 0 => self.bar.set_position(*steps as u64),
            Message::Report(Report::Epoch(epoch)) => {
                if epoch.images > 0 {
                    let per_image = |sum: f64| sum / epoch.images as f64;
                    self.say(&format!(
                        "Rank {rank}, Epoch {}, Loss: {:.4}, Accuracy: {}",
                        epoch.epoch,
                        per_image(epoch.loss_sum),
                        percent(per_image(epoch.correct as f64))
                    ));
                }
                self.add(epoch);
            }
            Message::Done(outcome) => {
                self.say(&format!("Rank {rank}, Training Time: {:.2} seconds", outcome.seconds));
            }
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
        if *ranks == self.world {
            let images = sums.images as f64;
            let (loss, accuracy) = (sums.loss_sum / images, sums.correct as f64 / images);
            self.bar.set_message(format!("epoch {}  loss {loss:.4}  accuracy {}", epoch.epoch, percent(accuracy)));
            self.epochs.remove(&epoch.epoch);
        }
    }

    /// Leaves the full bar, with the result.
    pub fn finish(self, summary: &Summary) {
        let result = format!(
            "loss {:.4}  accuracy {}  test {}",
            summary.train_loss,
            percent(summary.train_accuracy),
            percent(summary.test_accuracy)
        );
        self.bar.set_position(summary.steps as u64);
        self.bar.finish_with_message(result.clone());
        if !stderr().is_terminal() {
            let (name, steps) = (self.bar.prefix(), summary.steps);
            let _ = writeln!(stderr(), "{name}: {steps} steps in {}: {result}", seconds(summary.seconds));
        }
    }

    fn say(&self, line: &str) {
        match (self.on.verbose, self.on.json) {
            (false, _) => {}
            // Nobody may be reading any more; the run goes on.
            (true, false) => drop(self.on.bars.suspend(|| writeln!(stdout(), "{line}"))),
            (true, true) => drop(self.on.bars.suspend(|| writeln!(stderr(), "{line}"))),
        }
    }
}
