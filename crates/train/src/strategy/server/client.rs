//! A worker whose parameters servers hold: it gets them before a step, and sends its gradients while backward goes on.

use std::ops::Range;
use std::time::Instant;

use ringstep_comm::{CollectiveError, Group};
use ringstep_nn::Model;
use ringstep_nn::optim::Rule;

use super::messages::{Answer, LENGTH, Push, Request};
use super::shards::Cut;
use crate::error::WorkerError;
use crate::replica::Replica;
use crate::strategy::{Buckets, CostInputs, Next, Progress, Strategy, Weighting};
use crate::world::World;

/// The servers as a worker sees them.
pub(crate) struct Client {
    servers: Vec<Server>,
    weighting: Weighting,
    buckets: Buckets,
    /// Of the exchanges of each bucket, and of those that bring parameters.
    labels: Vec<u16>,
    pull: u16,
}

/// A server as a worker sees it.
struct Server {
    rank: usize,
    /// What it holds of the flat buffer.
    shard: Range<usize>,
    /// What it said with the parameters that it sent last.
    version: u64,
}

impl Client {
    /// The servers are the ranks after those of the workers.
    pub fn new(model: &Model, buckets: Buckets, weighting: Weighting, world: &mut World<'_>) -> Self {
        let ranks = world.workers().world()..world.all.world();
        let shards = Cut::new(model.parameters(), ranks.len()).shards;
        let servers = ranks.zip(shards).map(|(rank, shard)| Server { rank, shard, version: 0 }).collect();
        let labels = (0..buckets.ends.len()).map(|bucket| world.label(format!("bucket {bucket}"))).collect();
        Self { servers, weighting, buckets, labels, pull: world.label("pull") }
    }

    /// Asks all servers for their parameters, and waits for them. Returns what the first one says about them.
    fn ask(&mut self, request: Request, world: &mut World<'_>, model: &mut Model) -> Result<Next, WorkerError> {
        let (rank, timeout, group) = (world.rank(), world.all.timeout(), &mut *world.all);
        group.label(self.pull);
        for server in &self.servers {
            group.send_varied(&request.encode(), LENGTH, server.rank)?;
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
                Answer::Patience => {
                    open.iter_mut().filter(|(rank, _)| *rank == from).for_each(|(_, heard)| *heard = Instant::now());
                }
                Answer::Values { version, step, end } => {
                    open.retain(|(rank, _)| *rank != from);
                    let number = from - self.servers[0].rank;
                    let server = &mut self.servers[number];
                    server.version = version;
                    group.recv(&mut model.values_mut()[server.shard.clone()], from)?;
                    if number == 0 && !end {
                        next = Next::Step(step as usize);
                    }
                }
            }
        }
        Ok(next)
    }
}

/// Sends numbers that begin there in the flat buffer to the servers that hold them.
fn push(
    group: &mut Group,
    servers: &[Server],
    start: usize,
    gradients: &[f32],
    images: usize,
) -> Result<(), CollectiveError> {
    for Server { rank, shard, version } in servers {
        let piece = shard.start.max(start)..shard.end.min(start + gradients.len());
        if !piece.is_empty() {
            let (version, images, length) = (*version, images as u64, piece.len() as u64);
            let push = Push { version, images, start: (piece.start - shard.start) as u64, length };
            group.send_varied(&Request::Push(push).encode(), LENGTH, *rank)?;
            group.send(&gradients[piece.start - start..piece.end - start], *rank)?;
        }
    }
    Ok(())
}

impl Strategy for Client {
    fn before(
        &mut self,
        world: &mut World<'_>,
        replicas: &mut [Replica<'_>],
        _: &Progress,
    ) -> Result<Next, WorkerError> {
        self.ask(Request::Pull, world, &mut replicas[0].model)
    }

    fn backward(&mut self, world: &mut World<'_>, replica: &mut Replica<'_>, scale: f32) -> Result<(), WorkerError> {
        let Self { servers, buckets, labels, .. } = self;
        let images = replica.images;
        let push = |group: &mut Group, (bucket, gradients): (usize, &mut [f32])| {
            group.label(labels[bucket]);
            push(group, servers, buckets.ends[bucket] - gradients.len(), gradients, images)
        };
        world.all.while_doing(push, |queue| {
            replica.backward_in_buckets(scale, &buckets.ends, |bucket, gradients| queue.push((bucket, gradients)));
        })?;
        Ok(())
    }

    fn finish(&mut self, world: &mut World<'_>, replicas: &mut [Replica<'_>]) -> Result<(), WorkerError> {
        self.ask(Request::Finish, world, &mut replicas[0].model).map(|_| ())
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

    fn predict(&self, _: &CostInputs, _: &Model) -> Option<f64> {
        None
    }
}
