//! What ranks did with their time, and what they waited for: [one formula](split) for every way to stay in step.

mod shares;

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use serde::{Deserialize, Serialize};

pub use self::shares::{Shares, split};
use crate::Job;
use crate::records::{Compressed, Exchange, Key, Nanoseconds, Step};

/// What all workers together did in a step, or where they are not in lockstep what one of them did. Times are in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct StepSummary {
    /// The worker, where each has steps of its own.
    pub rank: Option<usize>,
    /// From 0, since the beginning; a worker's own, where each has its own.
    pub step: usize,
    /// When the first of its ranks began it, on the clock of all ranks.
    pub began: f64,
    /// Images that it trained on.
    pub images: usize,
    /// Bytes of data that the busiest rank had sent by the step's end.
    pub bytes: u64,
    /// How many steps of others the parameters lacked that it was computed from, where that can be.
    pub staleness: Option<u64>,
    /// How much compression left out, relative to what there was to send, if there is one.
    pub error: Option<f64>,
    /// Time in encoding and decoding, mean over the ranks.
    pub encode: f64,
    /// Mean over its images.
    pub loss: f64,
    /// Mean over the ranks.
    pub seconds: f64,
    /// The rank that wrote its last gradient last.
    pub slowest: usize,
    /// How much later than the first.
    pub behind: f64,
    /// Time spent computing, mean over the ranks.
    pub compute: f64,
    /// Time in which nothing but communication went on, mean over the ranks.
    pub exposed: f64,
    /// Time spent waiting for other ranks, mean over the ranks.
    pub waiting: f64,
    /// Communication that went on while the rank computed, mean over the ranks.
    pub hidden: f64,
    /// Time spent waiting for a batch, mean over the ranks.
    pub data: f64,
}

/// What a rank did in all its steps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
pub struct Total {
    /// How many there were.
    pub steps: usize,
    /// How many of them were over when it joined those who did them.
    #[serde(default)]
    pub joined_after: usize,
    /// Images that it trained on.
    pub images: usize,
    /// What its time went to.
    pub shares: Shares,
    /// The sum over its steps of the squares of the seconds that it waited.
    waiting_squares: f64,
}

impl Total {
    /// Of a rank that has joined others after so many steps.
    pub fn joined(steps: usize) -> Self {
        Self { steps, joined_after: steps, ..Self::default() }
    }

    /// How many it did itself.
    pub fn own_steps(&self) -> usize {
        self.steps - self.joined_after
    }

    /// How long its steps took.
    pub fn seconds(&self) -> f64 {
        let Shares { compute, exposed, waiting, data, other, .. } = self.shares;
        seconds(compute + exposed + waiting + data + other)
    }

    /// Seconds that it waited in a step: the mean, and the standard deviation.
    pub fn waiting(&self) -> [f64; 2] {
        let steps = self.own_steps().max(1) as f64;
        let mean = seconds(self.shares.waiting) / steps;
        [mean, (self.waiting_squares / steps - mean * mean).max(0.0).sqrt()]
    }

    /// Adds a step whose time went to these shares.
    pub fn add(&mut self, step: &Step, shares: Shares) {
        self.steps += 1;
        self.waiting_squares += seconds(shares.waiting).powi(2);
        self.images += step.images;
        self.shares += shares;
    }
}

/// Puts together what ranks say of their steps, as it comes in.
///
/// Workers in lockstep have their steps in common. Otherwise each worker's step is summed up by itself, as is what a server
/// did from one answer to the next; but in all cases only once everybody has reported who took part in its exchanges, since
/// before that nobody knows who waited for whom.
#[derive(Debug)]
pub struct Accounts {
    workers: usize,
    lockstep: bool,
    /// Steps of each rank that are not summed up yet.
    open: Vec<VecDeque<Step>>,
    /// What ranks did after their last steps.
    closing: Vec<(usize, Step)>,
    /// The exchanges in them.
    met: HashMap<Key, Met>,
    /// Of each worker and each server, how stale the worker's next steps were, as the server saw it.
    staleness: Vec<Vec<VecDeque<u64>>>,
    /// Of each rank, what it had sent at the end of each step.
    sent: Vec<Vec<(Nanoseconds, u64)>>,
    /// The steps that are summed up; servers' steps are not among them.
    pub steps: Vec<StepSummary>,
    /// What each rank has done so far, servers too.
    pub ranks: Vec<Total>,
    /// What was asked to be remembered of each rank once it has done so many steps, by name.
    marks: Vec<VecDeque<(usize, usize)>>,
    marked: HashMap<(usize, usize), Total>,
    /// Seconds of the steps before the first that is added.
    earlier: f64,
}

/// An exchange, as far as ranks have reported it.
#[derive(Debug)]
struct Met {
    /// When the last one came to it.
    last: Nanoseconds,
    /// How many have reported it, and how many of these steps are summed up.
    reported: usize,
    counted: usize,
}

impl Accounts {
    /// Of a job that nobody has begun.
    pub fn new(job: &Job) -> Self {
        Self::of(job.workers, job.ranks() - job.workers, !job.sync.lets_workers_differ())
    }

    fn of(workers: usize, servers: usize, lockstep: bool) -> Self {
        let ranks = workers + servers;
        Self {
            workers,
            lockstep,
            open: vec![VecDeque::new(); ranks],
            closing: Vec::new(),
            met: HashMap::new(),
            staleness: vec![vec![VecDeque::new(); servers]; workers],
            sent: vec![Vec::new(); ranks],
            steps: Vec::new(),
            ranks: vec![Total::default(); ranks],
            marks: vec![VecDeque::new(); ranks],
            marked: HashMap::new(),
            earlier: 0.0,
        }
    }

    /// Of a job that is gone on with: its steps so far and what its ranks had done in all. Steps that came after that are left
    /// out.
    pub fn resume(job: &Job, mut steps: Vec<StepSummary>, ranks: Vec<Total>) -> Self {
        steps.retain(|summary| ranks.get(summary.rank.unwrap_or(0)).is_some_and(|total| summary.step < total.steps));
        let earlier = steps.iter().map(|summary| summary.began + summary.seconds).fold(0.0, f64::max);
        Self { steps, ranks, earlier, ..Self::new(job) }
    }

    /// Seconds of the steps before those that were added, by which their moments are shifted.
    pub fn earlier(&self) -> f64 {
        self.earlier
    }

    /// Remembers under a name what a rank has done in all steps that it has reported so far.
    pub fn mark(&mut self, rank: usize, name: usize) {
        let reported = self.ranks[rank].steps + self.open[rank].len();
        self.marks[rank].push_back((reported, name));
        self.keep_marked(rank);
    }

    /// What all ranks had done when they were marked, once that is known.
    pub fn marked(&self, name: usize) -> Option<Vec<Total>> {
        (0..self.ranks.len()).map(|rank| self.marked_of(rank, name)).collect()
    }

    /// The same of one rank.
    pub fn marked_of(&self, rank: usize, name: usize) -> Option<Total> {
        self.marked.get(&(rank, name)).copied()
    }

    fn keep_marked(&mut self, rank: usize) {
        let total = self.ranks[rank];
        while let Some(&(_, name)) = self.marks[rank].front().filter(|(steps, _)| *steps == total.steps) {
            self.marks[rank].pop_front();
            self.marked.insert((rank, name), total);
        }
    }

    /// Bytes that the busiest rank had sent when rank 0 had done so many steps.
    pub fn bytes_after(&self, steps: usize) -> u64 {
        let of_rank_0 = |summary: &&StepSummary| summary.rank.is_none_or(|rank| rank == 0) && summary.step < steps;
        self.steps.iter().filter(of_rank_0).map(|summary| summary.bytes).max().unwrap_or(0)
    }

    /// A rank has reported steps; returns what can be summed up now.
    pub fn add(&mut self, rank: usize, steps: Vec<Step>) -> &[StepSummary] {
        for step in &steps {
            self.meet(step);
            if let Some(server) = rank.checked_sub(self.workers) {
                for &(worker, staleness) in &step.observed {
                    self.staleness[worker][server].push_back(staleness);
                }
            }
            self.sent[rank].push((step.ended, step.bytes_sent));
        }
        self.open[rank].extend(steps);
        self.settle(Self::is_reported)
    }

    /// A rank has reported what it did after its last step. That is no step, but it may have waited there for others.
    pub fn add_closing(&mut self, rank: usize, closing: Step) {
        self.meet(&closing);
        self.closing.push((rank, closing));
        self.settle(Self::is_reported);
    }

    /// Remembers when a rank came to the exchanges of a step.
    fn meet(&mut self, step: &Step) {
        for exchange in &step.exchanges {
            let new = Met { last: exchange.began, reported: 0, counted: 0 };
            let met = self.met.entry(exchange.key()).or_insert(new);
            met.last = met.last.max(exchange.began);
            met.reported += 1;
        }
    }

    /// All ranks have said all that they say; returns what could not be summed up before.
    pub fn finish(&mut self) -> &[StepSummary] {
        let before = self.steps.len();
        for (rank, closing) in std::mem::take(&mut self.closing) {
            self.ranks[rank].shares += split(&closing, |exchange| self.met[&exchange.key()].last);
        }
        self.settle(|_, _| true);
        // Steps that others never came to are not summed up: what is remembered is what was.
        for (rank, marks) in self.marks.iter_mut().enumerate() {
            let total = self.ranks[rank];
            self.marked.extend(marks.drain(..).map(|(_, name)| ((rank, name), total)));
        }
        &self.steps[before..]
    }

    /// Sums up the next steps of ranks that have some in common, as long as these may be.
    fn settle(&mut self, may: fn(&Self, &Step) -> bool) -> &[StepSummary] {
        let before = self.steps.len();
        let together = if self.lockstep { self.workers } else { 1 };
        let workers = (0..self.workers).step_by(together).map(|first| first..first + together);
        let servers = (self.workers..self.open.len()).map(|server| server..server + 1);
        for ranks in workers.chain(servers) {
            while self.open[ranks.clone()].iter().all(|steps| steps.front().is_some_and(|step| may(self, step))) {
                let next: Vec<Step> = self.open[ranks.clone()].iter_mut().filter_map(VecDeque::pop_front).collect();
                self.close(ranks.clone(), &next);
            }
        }
        &self.steps[before..]
    }

    /// Whether all that took part in the exchanges of a step have reported them.
    fn is_reported(&self, step: &Step) -> bool {
        step.exchanges.iter().all(|exchange| self.met[&exchange.key()].reported >= self.partners(exchange))
    }

    fn partners(&self, exchange: &Exchange) -> usize {
        if exchange.message.is_some() { 2 } else { self.workers }
    }

    /// Sums up a step of these ranks.
    fn close(&mut self, ranks: Range<usize>, steps: &[Step]) {
        let going = |exchange: &Exchange| self.met[&exchange.key()].last;
        let shares: Vec<Shares> = steps.iter().map(|step| split(step, going)).collect();
        for ((total, step), &shares) in self.ranks[ranks.clone()].iter_mut().zip(steps).zip(&shares) {
            total.add(step, shares);
        }
        ranks.clone().for_each(|rank| self.keep_marked(rank));
        for exchange in steps.iter().flat_map(|step| &step.exchanges) {
            let partners = self.partners(exchange);
            if let Entry::Occupied(mut met) = self.met.entry(exchange.key()) {
                met.get_mut().counted += 1;
                if met.get().counted >= partners {
                    met.remove();
                }
            }
        }
        if ranks.start >= self.workers {
            return;
        }
        let ended = steps.iter().map(|step| step.ended).max().expect("there are ranks");
        let staleness = self.staleness[ranks.clone()].iter_mut().flatten().filter_map(VecDeque::pop_front).max();
        let summary = sum_up(steps, &shares);
        self.steps.push(StepSummary {
            rank: (!self.lockstep).then_some(ranks.start),
            slowest: ranks.start + summary.slowest,
            bytes: self.busiest(ended),
            began: self.earlier + summary.began,
            staleness,
            ..summary
        });
    }

    /// Bytes that the busiest rank had sent by then.
    fn busiest(&self, moment: Nanoseconds) -> u64 {
        let by_then = |sent: &Vec<(Nanoseconds, u64)>| {
            let steps = sent.partition_point(|&(ended, _)| ended <= moment);
            sent[..steps].last().map_or(0, |&(_, bytes)| bytes)
        };
        self.sent.iter().map(by_then).max().unwrap_or(0)
    }
}

fn seconds(nanoseconds: Nanoseconds) -> f64 {
    nanoseconds as f64 / 1e9
}

/// A step of some ranks whose times went to these shares; what takes more than their own reports is left open.
fn sum_up(ranks: &[Step], shares: &[Shares]) -> StepSummary {
    let mean = |of: fn(&Shares) -> Nanoseconds| seconds(shares.iter().map(of).sum()) / ranks.len() as f64;
    let images: usize = ranks.iter().map(|step| step.images).sum();
    let ready = || ranks.iter().map(|step| step.ready);
    let (slowest, last) = ready().enumerate().max_by_key(|&(_, ready)| ready).expect("there are ranks");
    let compressed: Option<Compressed> = ranks.iter().map(|step| step.compressed).sum();
    StepSummary {
        rank: None,
        step: ranks[0].step,
        began: seconds(ranks.iter().map(|step| step.began).min().expect("there are ranks")),
        images,
        bytes: 0,
        staleness: None,
        error: compressed.map(|compressed| compressed.error()),
        encode: compressed.map_or(0.0, |compressed| compressed.encode_seconds) / ranks.len() as f64,
        loss: ranks.iter().map(|step| step.loss_sum).sum::<f64>() / images.max(1) as f64,
        seconds: seconds(ranks.iter().map(Step::length).sum()) / ranks.len() as f64,
        slowest,
        behind: seconds(last - ready().min().expect("there are ranks")),
        compute: mean(|shares| shares.compute),
        exposed: mean(|shares| shares.exposed),
        waiting: mean(|shares| shares.waiting),
        hidden: mean(|shares| shares.hidden),
        data: mean(|shares| shares.data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn exchange(sequence: u32, [began, ended]: [Nanoseconds; 2], beside: bool) -> Exchange {
        Exchange { group: 0, message: None, sequence, began, ended, beside }
    }

    /// A step from 0 that computes until `ready`, with exchanges beside or after it.
    pub(super) fn step(ready: Nanoseconds, ended: Nanoseconds, exchanges: &[[Nanoseconds; 2]]) -> Step {
        let exchanges = (0..).zip(exchanges).map(|(sequence, &span)| exchange(sequence, span, true)).collect();
        Step { images: 2, loss_sum: 3.0, ready, ended, computing: vec![[0, ready]], exchanges, ..Step::default() }
    }

    /// A step of workers in lockstep.
    fn summed(ranks: &[Step]) -> StepSummary {
        let mut accounts = Accounts::of(ranks.len(), 0, true);
        for (rank, step) in ranks.iter().enumerate() {
            accounts.add(rank, vec![step.clone()]);
        }
        accounts.finish();
        accounts.steps[0]
    }

    const SECOND: f64 = 1e9;

    /// Two buckets. Rank 0 comes to the first at 1, rank 1 at 3, so it goes on from 3; rank 0 is ready at 5, rank 1 at 7,
    /// which then comes to the second bucket.
    #[test]
    fn a_collective_goes_on_when_the_last_rank_has_come_to_it() {
        let sum = summed(&[step(5, 8, &[[1, 4], [5, 8]]), step(7, 8, &[[3, 4], [7, 8]])]);
        // From 3 to 4 on both.
        assert_eq!(sum.hidden * SECOND, 1.0);
        // Rank 0 from 5 to 7; then both communicate until 8.
        assert_eq!(sum.waiting * SECOND, (2.0 + 0.0) / 2.0);
        assert_eq!((sum.slowest, sum.behind * SECOND, sum.loss), (1, 2.0, 1.5));
    }

    #[test]
    fn after_backward_everybody_waits_for_the_slowest() {
        let sum = summed(&[step(1, 5, &[[1, 5]]), step(4, 5, &[[4, 5]])]);
        assert_eq!((sum.waiting * SECOND, sum.hidden), ((3.0 + 0.0) / 2.0, 0.0));
        // Alone there is nothing to wait for.
        assert_eq!(summed(&[step(1, 1, &[])]).waiting, 0.0);
    }

    /// The same before forward: rank 1 is at another step's end until 3.
    #[test]
    fn a_broadcast_before_forward_is_waited_for() {
        let broadcast = |began| Step {
            exchanges: vec![exchange(0, [began, 4], false)],
            computing: vec![[4, 9]],
            ..step(9, 9, &[])
        };
        assert_eq!(summed(&[broadcast(1), broadcast(3)]).waiting * SECOND, (2.0 + 0.0) / 2.0);
    }

    /// Messages between two ranks are counted by themselves, whatever the others do.
    #[test]
    fn a_receiver_waits_for_its_sender() {
        let message = |from, to, began, ended| Step {
            exchanges: vec![Exchange { message: Some([from, to]), ..exchange(0, [began, ended], false) }],
            ..step(0, 9, &[])
        };
        let ranks = [message(1, 0, 1, 6), message(1, 0, 5, 6), message(1, 2, 2, 8)];
        assert_eq!(summed(&ranks).waiting * SECOND * 3.0, 4.0);
    }

    /// Workers that step alone meet for the final model: who has been waiting there is in no step's sum, but in its rank's.
    #[test]
    fn who_waits_in_the_end_waits() {
        let mut accounts = Accounts::of(2, 0, true);
        let closing = |began| Step { began, exchanges: vec![exchange(0, [began, 9], false)], ..step(0, 10, &[]) };
        for (rank, ended) in [3, 8].into_iter().enumerate() {
            accounts.add(rank, vec![step(ended, ended, &[])]);
            accounts.add_closing(rank, closing(ended));
        }
        accounts.finish();
        assert_eq!((accounts.steps.len(), accounts.steps[0].waiting), (1, 0.0));
        let totals = |total: &Total| (total.steps, total.shares.waiting, total.shares.exposed);
        assert_eq!(accounts.ranks.iter().map(totals).collect::<Vec<_>>(), [(1, 5, 1), (1, 0, 1)]);
    }

    #[test]
    fn a_step_is_summed_up_once_all_ranks_have_reported_it() {
        let mut accounts = Accounts::of(2, 0, true);
        let some = |count| vec![step(1, 2, &[]); count];
        assert_eq!(accounts.add(0, some(3)).len(), 0);
        assert_eq!(accounts.add(1, some(2)).len(), 2);
        assert_eq!(accounts.add(1, some(2)).len(), 1);
        assert_eq!(accounts.steps.len(), 3);
    }

    /// Worker 0 asks at 1 for what the server can only give at 6, when worker 1 has pushed; the answer takes until 8.
    #[test]
    fn who_waits_for_a_server_that_waits_for_others_waits() {
        let message =
            |from, to, began, ended| Exchange { message: Some([from, to]), ..exchange(0, [began, ended], false) };
        let with = |exchanges, bytes_sent| Step { exchanges, bytes_sent, ..step(0, 9, &[]) };
        let mut accounts = Accounts::of(2, 1, false);
        assert_eq!(accounts.add(0, vec![with(vec![message(2, 0, 1, 8)], 10)]), []);
        assert_eq!(accounts.add(1, vec![with(vec![message(1, 2, 5, 6)], 20)]), []);
        let observed = vec![(0, 3), (1, 1)];
        let server = Step { observed, ..with(vec![message(1, 2, 0, 6), message(2, 0, 6, 8)], 400) };
        let summed = accounts.add(2, vec![server]);
        let told: Vec<_> =
            summed.iter().map(|step| (step.rank, step.waiting * SECOND, step.staleness, step.bytes)).collect();
        assert_eq!(told, [(Some(0), 5.0, Some(3), 400), (Some(1), 0.0, Some(1), 400)]);
        let wait: Vec<_> = accounts.ranks.iter().map(|total| (total.shares.waiting, total.shares.exposed)).collect();
        // The server waits for worker 1 until 5.
        assert_eq!(wait, [(5, 2), (0, 1), (5, 3)]);
        assert_eq!(accounts.finish(), []);
        assert!(accounts.met.is_empty());
    }

    /// The last answers are heard after a worker's last step, of which it says nothing.
    #[test]
    fn what_only_one_side_reports_is_summed_up_in_the_end() {
        let answer = Exchange { message: Some([1, 0]), ..exchange(0, [2, 6], false) };
        let mut accounts = Accounts::of(1, 1, false);
        accounts.add(0, vec![step(3, 4, &[])]);
        accounts.add(1, vec![Step { exchanges: vec![answer], ..step(0, 9, &[]) }]);
        assert_eq!(accounts.ranks[1].steps, 0);
        assert_eq!(accounts.finish(), []);
        assert_eq!((accounts.steps.len(), accounts.ranks[1].shares.exposed), (1, 4));
    }

    #[test]
    fn workers_out_of_lockstep_have_lines_of_their_own() {
        let mut accounts = Accounts::of(2, 0, false);
        let numbered = |step_number| Step { step: step_number, ..step(1, 2, &[]) };
        accounts.add(1, (0..3).map(numbered).collect());
        accounts.add(0, vec![numbered(0)]);
        let lines: Vec<_> = accounts.steps.iter().map(|step| (step.rank, step.step, step.slowest)).collect();
        assert_eq!(lines, [(Some(1), 0, 1), (Some(1), 1, 1), (Some(1), 2, 1), (Some(0), 0, 0)]);
    }
}
