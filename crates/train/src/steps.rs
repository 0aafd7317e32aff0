//! What all ranks together did in each step, and what they waited for.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};

use crate::records::Step;

/// What all ranks together did in a step. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepSummary {
    /// Mean over its images.
    pub loss: f64,
    /// Mean over the ranks.
    pub seconds: f64,
    /// The rank that wrote its last gradient last.
    pub slowest: usize,
    /// How much later than the first.
    pub behind: f64,
    /// Of the time between a rank's last gradient and the last result, what was spent waiting for other ranks; mean over
    /// the ranks.
    pub waiting: f64,
    /// Communication that went on while the rank computed, mean over the ranks.
    pub hidden: f64,
}

/// Puts the ranks' steps together, as they come in.
#[derive(Debug)]
pub struct StepBook {
    /// Steps of each rank that not all have reported.
    open: Vec<VecDeque<Step>>,
    /// Those that all have.
    pub steps: Vec<StepSummary>,
}

impl StepBook {
    /// For so many ranks.
    pub fn new(ranks: usize) -> Self {
        Self { open: (0..ranks).map(|_| VecDeque::new()).collect(), steps: Vec::new() }
    }

    /// A rank has reported steps; returns those that all ranks have reported now.
    pub fn add(&mut self, rank: usize, steps: Vec<Step>) -> &[StepSummary] {
        self.open[rank].extend(steps);
        let before = self.steps.len();
        while self.open.iter().all(|steps| !steps.is_empty()) {
            let step: Vec<Step> = self.open.iter_mut().filter_map(VecDeque::pop_front).collect();
            self.steps.push(sum_up(&step));
        }
        &self.steps[before..]
    }
}

/// A step, over all ranks.
fn sum_up(ranks: &[Step]) -> StepSummary {
    let mean = |of: &dyn Fn(&Step) -> f64| ranks.iter().map(of).sum::<f64>() / ranks.len() as f64;
    let images: usize = ranks.iter().map(|step| step.images).sum();
    let ready = || ranks.iter().map(|step| step.ready);
    let (slowest, last) = ready().enumerate().max_by(|a, b| a.1.total_cmp(&b.1)).expect("there are ranks");
    // A collective goes on from the moment when the last rank has come to it; who came earlier has waited until then.
    let count = ranks.iter().map(|step| step.overlapping.len()).max().unwrap_or(0);
    let come = |at: usize| ranks.iter().filter_map(move |step| step.overlapping.get(at)).map(|times| times[0]);
    let going: Vec<f64> = (0..count).map(|at| come(at).fold(f64::NEG_INFINITY, f64::max)).collect();
    let during = |step: &Step, from: f64, until: f64| -> f64 {
        let part = |(going, [_, ended]): (&f64, &[f64; 2])| (ended.min(until) - going.max(from)).max(0.0);
        // Not `sum`, whose nothing is -0.
        going.iter().zip(&step.overlapping).map(part).fold(0.0, |sum, part| sum + part)
    };
    let waiting = |step: &Step| match step.overlapping.is_empty() {
        // All collectives came after the last gradient: none could end before the slowest rank's.
        true => (last - step.ready).min(step.synced - step.ready),
        false => step.synced - step.ready - during(step, step.ready, step.synced),
    };
    StepSummary {
        loss: ranks.iter().map(|step| step.loss_sum).sum::<f64>() / images as f64,
        seconds: mean(&|step| step.seconds),
        slowest,
        behind: last - ready().fold(f64::INFINITY, f64::min),
        waiting: mean(&|step| waiting(step).max(0.0)),
        hidden: mean(&|step| during(step, f64::NEG_INFINITY, step.ready)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn step(ready: f64, synced: f64, overlapping: &[[f64; 2]]) -> Step {
        Step {
            images: 2,
            loss_sum: 3.0,
            seconds: 1.0,
            ready,
            synced,
            overlapping: overlapping.to_vec(),
            ..Step::default()
        }
    }

    /// Two buckets. Rank 0 comes to the first at 1, rank 1 at 3, so it goes on from 3; rank 0 is ready at 5, rank 1 at 7,
    /// which then comes to the second bucket.
    #[test]
    fn a_collective_goes_on_when_the_last_rank_has_come_to_it() {
        let ranks = [step(5.0, 8.0, &[[1.0, 4.0], [5.0, 8.0]]), step(7.0, 8.0, &[[3.0, 4.0], [7.0, 8.0]])];
        let sum = sum_up(&ranks);
        // From 3 to 4 on both.
        assert_eq!(sum.hidden, 1.0);
        // Rank 0 from 5 to 7; then both communicate until 8.
        assert_eq!(sum.waiting, (2.0 + 0.0) / 2.0);
        assert_eq!((sum.slowest, sum.behind, sum.loss), (1, 2.0, 1.5));
    }

    #[test]
    fn after_backward_everybody_waits_for_the_slowest() {
        let sum = sum_up(&[step(1.0, 5.0, &[]), step(4.0, 5.0, &[])]);
        assert_eq!((sum.waiting, sum.hidden), ((3.0 + 0.0) / 2.0, 0.0));
        // Alone there is nothing to wait for.
        assert_eq!(sum_up(&[step(1.0, 1.0, &[])]).waiting, 0.0);
    }

    #[test]
    fn a_step_is_summed_up_once_all_ranks_have_reported_it() {
        let mut book = StepBook::new(2);
        let some = |count| vec![step(1.0, 2.0, &[]); count];
        assert_eq!(book.add(0, some(3)).len(), 0);
        assert_eq!(book.add(1, some(2)).len(), 2);
        assert_eq!(book.add(1, some(2)).len(), 1);
        assert_eq!(book.steps.len(), 3);
    }
}
