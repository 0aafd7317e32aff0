//! What ranks did with their time, and what they waited for: one formula for every way to stay in step.
//!
//! An exchange goes on from the moment when the last of those that take part has come to it; who came earlier waits until
//! then. So each moment of a step is one of these, the first that fits:
//!
//! | share | the rank |
//! | --- | --- |
//! | compute | computes; if an exchange goes on meanwhile, this is hidden, too |
//! | exposed | does nothing else while an exchange goes on |
//! | waiting | waits for others to come to an exchange |
//! | exposed, too | is through with its gradients and between exchanges, or its communication thread is not there yet |
//! | data | waits for a batch |
//! | other | does anything else |

use std::collections::{HashMap, VecDeque};

use serde::{Deserialize, Serialize};

use crate::records::{Exchange, Nanoseconds, Step};

/// Nanoseconds of a rank by what they went to. All but `hidden` add up to the whole.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Shares {
    /// Computing.
    pub compute: Nanoseconds,
    /// The part of it in which exchanges went on.
    pub hidden: Nanoseconds,
    /// Exchanges, and nothing else.
    pub exposed: Nanoseconds,
    /// Until others came to an exchange.
    pub waiting: Nanoseconds,
    /// Until a batch was there.
    pub data: Nanoseconds,
    /// Anything else.
    pub other: Nanoseconds,
}

/// Splits a rank's step. `going` says of an exchange since when it has gone on.
pub fn split(step: &Step, going: impl Fn(&Exchange) -> Nanoseconds) -> Shares {
    /// What may be true of a moment.
    #[derive(Clone, Copy)]
    enum What {
        Computing,
        Data,
        /// The rank has come to an exchange.
        Come,
        /// All have.
        Going,
        /// It is the computing thread that has come.
        Interrupted,
        Synchronising,
    }
    // Each beginning and each end.
    let mut edges: Vec<(Nanoseconds, What, i32)> = Vec::new();
    let mut add = |what, [began, ended]: [Nanoseconds; 2]| {
        let (began, ended) = (began.max(step.began), ended.min(step.ended));
        if began < ended {
            edges.extend([(began, what, 1), (ended, what, -1)]);
        }
    };
    step.computing.iter().for_each(|&span| add(What::Computing, span));
    step.data.iter().for_each(|&span| add(What::Data, span));
    step.synchronising.iter().for_each(|&span| add(What::Synchronising, span));
    for exchange in &step.exchanges {
        let Exchange { began, ended, beside, .. } = *exchange;
        add(What::Come, [began, ended]);
        add(What::Going, [going(exchange).max(began), ended]);
        if !beside {
            add(What::Interrupted, [began, ended]);
        }
    }
    edges.sort_by_key(|&(moment, ..)| moment);

    let (mut shares, mut open, mut since) = (Shares::default(), [0i32; 6], step.began);
    for (moment, what, change) in edges.into_iter().chain([(step.ended, What::Data, 0)]) {
        let [computing, data, come, going, interrupted, synchronising] = open.map(|count| count > 0);
        let length = moment - since;
        if computing && !interrupted {
            shares.compute += length;
            shares.hidden += if going { length } else { 0 };
        } else if going {
            shares.exposed += length;
        } else if come {
            shares.waiting += length;
        } else if synchronising {
            shares.exposed += length;
        } else if data {
            shares.data += length;
        } else {
            shares.other += length;
        }
        since = moment;
        open[what as usize] += change;
    }
    shares
}

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
    /// Time spent waiting for other ranks, mean over the ranks.
    pub waiting: f64,
    /// Communication that went on while the rank computed, mean over the ranks.
    pub hidden: f64,
}

/// Puts the steps of ranks that go in lockstep together, as they come in.
#[derive(Debug)]
pub struct Accounts {
    /// Steps of each rank that not all have reported.
    open: Vec<VecDeque<Step>>,
    /// Those that all have.
    pub steps: Vec<StepSummary>,
}

impl Accounts {
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
    // When the last of those that take part came to each exchange.
    let mut all_there = HashMap::new();
    for exchange in ranks.iter().flat_map(|step| &step.exchanges) {
        let last = all_there.entry(exchange.key()).or_insert(exchange.began);
        *last = exchange.began.max(*last);
    }
    let going = |exchange: &Exchange| all_there[&exchange.key()];
    let shares: Vec<Shares> = ranks.iter().map(|step| split(step, going)).collect();
    let seconds = |nanoseconds: Nanoseconds| nanoseconds as f64 / 1e9;
    let mean = |of: fn(&Shares) -> Nanoseconds| seconds(shares.iter().map(of).sum()) / ranks.len() as f64;
    let images: usize = ranks.iter().map(|step| step.images).sum();
    let ready = || ranks.iter().map(|step| step.ready);
    let (slowest, last) = ready().enumerate().max_by_key(|&(_, ready)| ready).expect("there are ranks");
    StepSummary {
        loss: ranks.iter().map(|step| step.loss_sum).sum::<f64>() / images as f64,
        seconds: seconds(ranks.iter().map(Step::length).sum()) / ranks.len() as f64,
        slowest,
        behind: seconds(last - ready().min().expect("there are ranks")),
        waiting: mean(|shares| shares.waiting),
        hidden: mean(|shares| shares.hidden),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn exchange(sequence: u32, [began, ended]: [Nanoseconds; 2], beside: bool) -> Exchange {
        Exchange { group: 0, message: None, sequence, began, ended, beside }
    }

    /// A step from 0 that computes until `ready`, with exchanges beside or after it.
    fn step(ready: Nanoseconds, ended: Nanoseconds, exchanges: &[[Nanoseconds; 2]]) -> Step {
        let exchanges = (0..).zip(exchanges).map(|(sequence, &span)| exchange(sequence, span, true)).collect();
        Step { images: 2, loss_sum: 3.0, ready, ended, computing: vec![[0, ready]], exchanges, ..Step::default() }
    }

    const SECOND: f64 = 1e9;

    /// Two buckets. Rank 0 comes to the first at 1, rank 1 at 3, so it goes on from 3; rank 0 is ready at 5, rank 1 at 7,
    /// which then comes to the second bucket.
    #[test]
    fn a_collective_goes_on_when_the_last_rank_has_come_to_it() {
        let sum = sum_up(&[step(5, 8, &[[1, 4], [5, 8]]), step(7, 8, &[[3, 4], [7, 8]])]);
        // From 3 to 4 on both.
        assert_eq!(sum.hidden * SECOND, 1.0);
        // Rank 0 from 5 to 7; then both communicate until 8.
        assert_eq!(sum.waiting * SECOND, (2.0 + 0.0) / 2.0);
        assert_eq!((sum.slowest, sum.behind * SECOND, sum.loss), (1, 2.0, 1.5));
    }

    #[test]
    fn after_backward_everybody_waits_for_the_slowest() {
        let sum = sum_up(&[step(1, 5, &[[1, 5]]), step(4, 5, &[[4, 5]])]);
        assert_eq!((sum.waiting * SECOND, sum.hidden), ((3.0 + 0.0) / 2.0, 0.0));
        // Alone there is nothing to wait for.
        assert_eq!(sum_up(&[step(1, 1, &[])]).waiting, 0.0);
    }

    /// The same before forward: rank 1 is at another step's end until 3.
    #[test]
    fn a_broadcast_before_forward_is_waited_for() {
        let broadcast = |began| Step {
            exchanges: vec![exchange(0, [began, 4], false)],
            computing: vec![[4, 9]],
            ..step(9, 9, &[])
        };
        assert_eq!(sum_up(&[broadcast(1), broadcast(3)]).waiting * SECOND, (2.0 + 0.0) / 2.0);
    }

    /// Batch norm's sums are made by the thread that computes, in the middle of a pass.
    #[test]
    fn what_interrupts_computation_is_no_part_of_it() {
        let interrupted = Step { exchanges: vec![exchange(0, [2, 5], false)], ..step(10, 12, &[]) };
        let shares = split(&interrupted, |_| 4);
        assert_eq!(shares, Shares { compute: 7, waiting: 2, exposed: 1, other: 2, ..Shares::default() });
    }

    /// Messages between two ranks are counted by themselves, whatever the others do.
    #[test]
    fn a_receiver_waits_for_its_sender() {
        let message = |from, to, began, ended| Step {
            exchanges: vec![Exchange { message: Some([from, to]), ..exchange(0, [began, ended], false) }],
            ..step(0, 9, &[])
        };
        let ranks = [message(1, 0, 1, 6), message(1, 0, 5, 6), message(1, 2, 2, 8)];
        assert_eq!(sum_up(&ranks).waiting * SECOND * 3.0, 4.0);
    }

    #[test]
    fn a_step_is_summed_up_once_all_ranks_have_reported_it() {
        let mut accounts = Accounts::new(2);
        let some = |count| vec![step(1, 2, &[]); count];
        assert_eq!(accounts.add(0, some(3)).len(), 0);
        assert_eq!(accounts.add(1, some(2)).len(), 2);
        assert_eq!(accounts.add(1, some(2)).len(), 1);
        assert_eq!(accounts.steps.len(), 3);
    }

    fn span() -> impl Strategy<Value = [Nanoseconds; 2]> {
        (0..100i64, 0..30i64).prop_map(|(began, length)| [began, began + length])
    }

    proptest! {
        /// Whatever ranks do, every moment goes to one share, as one finds by asking moment by moment.
        #[test]
        fn shares_add_up_to_the_whole(
            computing in prop::collection::vec(span(), 0..6),
            data in prop::collection::vec(span(), 0..4),
            synchronising in prop::collection::vec(span(), 0..3),
            exchanges in prop::collection::vec((span(), any::<bool>(), 0..40i64), 0..8),
        ) {
            let placed: Vec<Exchange> =
                (0..).zip(&exchanges).map(|(number, &(span, beside, _))| exchange(number, span, beside)).collect();
            let since = |exchange: &Exchange| exchange.began + exchanges[exchange.sequence as usize].2;
            let exchanged = Step { exchanges: placed, ..Step::default() };
            let step = Step { began: 10, ended: 90, computing, data, synchronising, ..exchanged };
            let mut expected = Shares::default();
            for moment in 10..90 {
                let within = |&[began, ended]: &[Nanoseconds; 2]| (began..ended).contains(&moment);
                let open = || step.exchanges.iter().filter(|exchange| within(&[exchange.began, exchange.ended]));
                let going = open().any(|exchange| moment >= since(exchange));
                let computing = step.computing.iter().any(within) && !open().any(|exchange| !exchange.beside);
                let [synchronising, data] = [&step.synchronising, &step.data].map(|spans| spans.iter().any(within));
                let share = match (computing, going, open().count() > 0, synchronising, data) {
                    (true, ..) => &mut expected.compute,
                    (_, true, ..) | (_, _, false, true, _) => &mut expected.exposed,
                    (_, _, true, ..) => &mut expected.waiting,
                    (.., true) => &mut expected.data,
                    _ => &mut expected.other,
                };
                *share += 1;
                expected.hidden += i64::from(computing && going);
            }
            prop_assert_eq!(split(&step, since), expected);
        }
    }
}
