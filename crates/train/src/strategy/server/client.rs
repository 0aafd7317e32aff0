//! A worker whose parameters servers hold: it gets them before a step, and sends its gradients while backward goes on, as they
//! are or [as codes](super::codes).

use std::io;
use std::ops::Range;
use std::time::Instant;

use ringstep_comm::{CollectiveError, Group};
use ringstep_nn::Model;
use ringstep_nn::optim::Rule;
use ringstep_nn::state::State;

use super::codes::Encoder;
use super::messages::{Answer, LENGTH, Push, Request};
use super::service::pieces;
use super::shards::Cut;
use crate::Job;
use crate::content::Content;
use crate::error::WorkerError;
use crate::records::Compressed;
use crate::replica::Replica;
use crate::strategy::{Buckets, Next, Progress, Strategy, Weighting};
use crate::world::World;

/// The servers as a worker sees them.
pub(crate) struct Client {
    servers: Vec<Server>,
    /// What each holds of the flat buffer.
    shards: Vec<Range<usize>>,
    weighting: Weighting,
    buckets: Buckets,
    /// Of the exchanges of each bucket, and of those that bring parameters.
    labels: Vec<u16>,
    pull: u16,
    /// If less is sent than the gradients.
    encoder: Option<Encoder>,
}

/// A server as a worker sees it.
struct Server {
    rank: usize,
    /// What it said with the parameters that it sent last.
    version: u64,
}

impl Client {
    /// The servers are the ranks after those of the workers.
    pub fn new(
        (job, images): (&Job, usize),
        model: &Model,
        buckets: Buckets,
        weighting: Weighting,
        world: &mut World<'_>,
    ) -> Self {
        let ranks = world.workers().world()..world.all.world();
        let shards = Cut::new(model.parameters(), ranks.len()).shards;
        let servers = ranks.map(|rank| Server { rank, version: 0 }).collect();
        let labels =
            (0..buckets.ends.len()).map(|bucket| world.label(format!("bucket {bucket}"), Content::Gradients)).collect();
        let encoder = Encoder::new(job, images, model.level());
        Self { servers, shards, weighting, buckets, labels, pull: world.label("pull", Content::Control), encoder }
    }

    /// Asks all servers for something, and waits for their answers. Returns what the first one says about parameters.
    fn ask(&mut self, request: Request, world: &mut World<'_>, model: &mut Model) -> Result<Next, WorkerError> {
        let (rank, timeout, group) = (world.rank(), world.all.timeout(), &mut *world.all);
        group.label(self.pull);
        for server in &self.servers {
            group.send_varied(&request.encode(), LENGTH, server.rank)?;
        }
        let saves = matches!(request, Request::Save(_));
        if let Some(encoder) = self.encoder.as_mut().filter(|_| !saves) {
            encoder.record.bytes_dense += (self.servers.len() * LENGTH) as u64;
        }
        let (mut next, mut message) = (Next::End, Vec::with_capacity(LENGTH));
        // Who has not answered, and when each has last said something.
        let mut open: Vec<(usize, Instant)> = self.servers.iter().map(|server| (server.rank, Instant::now())).collect();
        while let Some(&(silent, heard)) = open.iter().min_by_key(|(_, heard)| *heard) {
            let ranks: Vec<usize> = open.iter().map(|(rank, _)| *rank).collect();
            let Some(from) = group.recv_any(&ranks, LENGTH, &mut message, Some(heard + timeout))? else {
                return Err(WorkerError::Silent { rank, silent, time: timeout, waiting: rank });
            };
            let malformed = || WorkerError::Malformed { rank, from, problem: "it means nothing" };
            match Answer::decode(&message).ok_or_else(malformed)? {
                Answer::Saved => open.retain(|(rank, _)| *rank != from),
                Answer::Patience => {
                    open.iter_mut().filter(|(rank, _)| *rank == from).for_each(|(_, heard)| *heard = Instant::now());
                }
                Answer::Values { version, step, end } => {
                    open.retain(|(rank, _)| *rank != from);
                    let number = from - self.servers[0].rank;
                    let server = &mut self.servers[number];
                    server.version = version;
                    group.recv(&mut model.values_mut()[self.shards[number].clone()], from)?;
                    if number == 0 && !end {
                        next = Next::Step(step as usize);
                    }
                }
            }
        }
        Ok(next)
    }
}

/// A bucket of gradients on its way to servers.
struct Bucket<'a> {
    label: u16,
    /// Where it begins in the flat buffer.
    start: usize,
    gradients: &'a mut [f32],
    /// Images that it is about, and whether it counts without any.
    images: usize,
    counts: bool,
}

/// Sends a bucket to the servers that hold its parameters, of which `shards` says what each has.
fn push(
    group: &mut Group,
    (servers, shards): (&[Server], &[Range<usize>]),
    encoder: &mut Option<Encoder>,
    Bucket { label, start, gradients, images, counts }: Bucket<'_>,
) -> Result<(), CollectiveError> {
    group.label(label);
    for (number, piece) in pieces(shards, start..start + gradients.len()) {
        let Server { rank, version } = servers[number];
        let (images, length) = (images as u64, piece.len() as u64);
        let within = piece.start - shards[number].start..piece.end - shards[number].start;
        let push = Push { version, images, start: within.start as u64, length };
        group.send_varied(&Request::Push(push).encode(), LENGTH, rank)?;
        let numbers = &mut gradients[piece.start - start..piece.end - start];
        match encoder {
            None => group.send(numbers, rank)?,
            Some(encoder) => {
                encoder.encode(group.rank(), (number, within), numbers, counts, label);
                group.send_varied(&encoder.code, encoder.codes.limit(numbers.len()), rank)?;
                encoder.record.bytes_dense += (LENGTH + size_of_val(numbers)) as u64;
            }
        }
    }
    Ok(())
}

impl Strategy for Client {
    fn prepare(&self, world: &mut World<'_>) -> io::Result<()> {
        world.all.start_thread()
    }

    fn before(
        &mut self,
        world: &mut World<'_>,
        replicas: &mut [Replica<'_>],
        _: &Progress,
    ) -> Result<Next, WorkerError> {
        self.ask(Request::Pull, world, &mut replicas[0].model)
    }

    fn backward(&mut self, world: &mut World<'_>, replica: &mut Replica<'_>, scale: f32) -> Result<(), WorkerError> {
        let Self { servers, shards, buckets, labels, encoder, weighting, .. } = self;
        let images = replica.images;
        let counts = images > 0 || *weighting == Weighting::WholeStep;
        let push = |group: &mut Group, (bucket, gradients): (usize, &mut [f32])| {
            let start = buckets.ends[bucket] - gradients.len();
            push(group, (servers, shards), encoder, Bucket { label: labels[bucket], start, gradients, images, counts })
        };
        world.all.while_doing(push, |queue| {
            replica.backward_in_buckets(scale, &buckets.ends, |bucket, gradients| queue.push((bucket, gradients)));
        })?;
        if let Some(encoder) = encoder {
            encoder.step += 1;
            encoder.pieces.fill(0);
        }
        Ok(())
    }

    fn finish(&mut self, world: &mut World<'_>, replicas: &mut [Replica<'_>]) -> Result<(), WorkerError> {
        self.ask(Request::Finish, world, &mut replicas[0].model).map(|_| ())
    }

    fn state(&mut self, state: &mut State<'_>) {
        if let Some(encoder) = &mut self.encoder {
            state.within("encoder", |state| encoder.state(state));
        }
    }

    /// Servers save what they hold once all workers want it: nobody pulls or pushes before all are saved.
    fn before_saving(
        &mut self,
        world: &mut World<'_>,
        replicas: &mut [Replica<'_>],
        name: usize,
    ) -> Result<(), WorkerError> {
        self.ask(Request::Save(name as u64), world, &mut replicas[0].model).map(|_| ())
    }

    fn leave(&mut self, world: &mut World<'_>) -> Result<(), WorkerError> {
        for server in &self.servers {
            world.all.send_varied(&Request::Leave.encode(), LENGTH, server.rank)?;
        }
        Ok(())
    }

    fn compressed(&self) -> Option<Compressed> {
        self.encoder.as_ref().map(|encoder| encoder.record)
    }

    fn take_encoding(&mut self) -> Vec<(u16, [Instant; 2])> {
        self.encoder.as_mut().map_or_else(Vec::new, |encoder| std::mem::take(&mut encoder.encoding))
    }

    fn weighting(&self, _: usize) -> Weighting {
        self.weighting
    }

    /// It is servers that take the steps.
    fn rule(&self, _: Rule, _: usize) -> Option<Rule> {
        None
    }

    /// Each has the parameters of its own last pull.
    fn replicas_equal(&self) -> bool {
        false
    }
}
