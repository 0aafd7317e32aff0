//! Jobs for tests, with ranks as threads over each transport.

// Each test program uses what it needs of it.
#![allow(dead_code)]

use std::net::Ipv4Addr;
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use ringstep_comm::rendezvous::{Invitation, Meeting, Secret};
use ringstep_comm::transport::mem;
use ringstep_comm::transport::shm::Shm;
use ringstep_comm::{Algorithm, Group};
use ringstep_data::Dataset;
use ringstep_train::accounts::{Accounts, StepSummary};
use ringstep_train::records::{Report, Step};
use ringstep_train::summary::{RankRecord, Summary, sum_up};
use ringstep_train::trace::Span;
use ringstep_train::{Job, SyncMethod, worker};

/// The algorithm of most tests.
pub const RING: Option<Algorithm> = Some(Algorithm::Ring);

/// An all-reduce a parameter.
pub const ALL_REDUCE: SyncMethod = SyncMethod::AllReduce { algorithm: RING };

/// What ranks talk over.
#[derive(Clone, Copy, Debug)]
pub enum Over {
    Mem,
    Tcp,
    Shm,
}

/// Does `work` with a group on each of so many ranks, which make it on threads of their own.
pub fn on_ranks<T: Send>(over: Over, ranks: usize, work: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let timeout = Duration::from_secs(60);
    thread::scope(|scope| {
        let work = &work;
        let threads: Vec<_> = match over {
            Over::Mem => {
                mem::mesh(ranks).into_iter().map(|transport| scope.spawn(move || work(Group::new(transport)))).collect()
            }
            Over::Tcp | Over::Shm => {
                let (sender, receiver) = channel();
                scope.spawn(move || {
                    let mut meeting = Meeting::open((Ipv4Addr::LOCALHOST, 0).into(), Secret::of(b"test")).unwrap();
                    sender.send(meeting.address()).unwrap();
                    meeting.host(ranks, timeout).unwrap();
                });
                let address = receiver.recv().unwrap();
                let rank = |rank| {
                    scope.spawn(move || {
                        let invitation = Invitation::new(address, Secret::of(b"test"));
                        let tcp = invitation.join(rank, ranks, timeout).unwrap();
                        work(if let Over::Shm = over { Group::new(Shm::over(tcp).unwrap()) } else { Group::new(tcp) })
                    })
                };
                (0..ranks).map(rank).collect()
            }
        };
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

/// All that a rank said, and the weights that it ended with.
pub struct RankRun {
    pub record: RankRecord,
    pub steps: Vec<Step>,
    pub spans: Vec<Span>,
    pub weights: Vec<u8>,
}

/// Runs a job; returns what each rank said.
pub fn run_ranks(job: &Job, over: Over, data: &Dataset) -> Vec<RankRun> {
    job.validate(data.train.len()).unwrap();
    on_ranks(over, job.ranks(), |mut group| {
        let (mut epochs, mut steps, mut spans) = (Vec::new(), Vec::new(), Vec::new());
        let mut keep = |report| match report {
            Report::Epoch(epoch) => epochs.push(epoch),
            Report::Steps(more) => steps.extend(more),
            Report::Spans(more) => spans.extend(more),
            Report::Closing(_) | Report::Checkpoint(_) | Report::Point { .. } | Report::Saved(_) => {}
        };
        let (outcome, weights) = worker::run(job, data, &mut group, &mut keep).unwrap();
        RankRun { record: RankRecord { epochs, outcome }, steps, spans, weights }
    })
}

/// What all ranks together did, and rank 0's final weights.
pub struct Run {
    pub summary: Summary,
    pub steps: Vec<StepSummary>,
    pub weights: Vec<u8>,
}

/// Runs a job, and sums it up.
pub fn train(job: &Job, over: Over, data: &Dataset) -> Run {
    let mut ranks = run_ranks(job, over, data);
    let weights = std::mem::take(&mut ranks[0].weights);
    let (mut accounts, mut records) = (Accounts::new(job), Vec::new());
    for (rank, RankRun { record, steps, .. }) in ranks.into_iter().enumerate() {
        accounts.add(rank, steps);
        records.push(record);
    }
    accounts.finish();
    let summary = sum_up("test", job, &records, &accounts, &[], None).unwrap();
    Run { summary, steps: accounts.steps, weights }
}
