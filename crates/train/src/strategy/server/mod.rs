//! Parameter servers (Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014): ranks that hold
//! the parameters, a shard each, and take the optimizer's steps.
//!
//! ```text
//! worker                                  server
//! Pull             ------------------->   may it read already? if not, Patience now and then
//!                  <-------------------   Values, and the shard
//! forward, backward
//! Push, a piece    ------------------->   once all pieces of a gradient have come: keeps or applies it
//! ...
//! Finish           ------------------->   once all workers have said so:
//!                  <-------------------   Values, and the shard as all end with it
//! ```
//!
//! The job ends when all workers together have done as many steps as in lockstep; the first server counts them, as it
//! answers pulls. Where workers may be ahead of each other, the fast ones do more of them.
//!
//! No two ranks wait for each other:
//!
//! - A server waits for any message of any worker; for the numbers of a push whose message it has, which that worker sends
//!   next; or to be rid of an answer to a worker that has asked.
//! - A worker that has asked does nothing but receive, from whichever server says something, until all have answered.
//! - A worker that pushes has asked nobody. Whom it pushes to is receiving from another worker, which is sending to it, or
//!   answering one, which is receiving: neither waits for the first.
//! - An answer that is held back waits for gradients of workers that are behind. Of those that have not finished, the last
//!   one is never held back.
//!
//! A worker that is slow is not dead: silence counts against it only while another waits for its gradient. A server that is
//! made to wait tells those that it makes wait.

mod client;
pub mod clocked;
pub mod free;
mod keeper;
mod messages;
pub mod shards;

use std::time::{Duration, Instant};

use ringstep_comm::Group;
use ringstep_data::Dataset;
use ringstep_nn::team::Team;

pub(crate) use self::client::Client;
use self::keeper::{Keeper, Read};
use self::messages::{Answer, LENGTH, Push, Request};
use self::shards::Cut;
use crate::Job;
use crate::error::WorkerError;
use crate::records::Outcome;
use crate::timebase::Timebase;
use crate::world::{CHIEF, World};

/// While a worker is made to wait it hears of its server this many times in the time after which silence is a fault.
const SIGNS_OF_LIFE: u32 = 4;

/// What a server does, from the first weights to the last: the server of this number.
pub(crate) fn run(job: &Job, data: &Dataset, group: &mut Group, number: usize) -> Result<Outcome, WorkerError> {
    let rank = group.rank();
    let level = job.instructions.level().map_err(|error| WorkerError::NoInstructions { rank, error })?;
    let mut team = Team::new(job.threads, level);
    let world = World::new(group, &job.roles())?;
    let parameters = job.model.network().parameters().expect("its layers are checked");
    let cut = Cut::new(&parameters, job.sync.servers(job.workers));
    let mut values = vec![0.0; cut.all()];
    world.all.broadcast(&mut values, CHIEF)?;
    let (optimizer, images) = (cut.optimizer(job.rule, number), data.train.len());
    let keeper = Keeper::new(job, images, values[cut.shards[number].clone()].to_vec(), optimizer);
    drop(values);
    let budget = (job.workers as u64).saturating_mul(job.steps(images) as u64);
    let mut server = Server::new(keeper, cut.shards[number].len(), job.workers, budget, world.all);
    let timebase = Timebase::agree(world.all)?;
    world.all.barrier()?;
    let (began, before) = (Instant::now(), world.all.traffic());
    server.serve(world.all, &mut team)?;
    let (seconds, traffic) = (began.elapsed().as_secs_f64(), world.all.traffic() - before);
    Ok(Outcome {
        instructions: level.name().to_owned(),
        steps: server.keeper.steps() as usize,
        seconds,
        bytes_sent: traffic.payload[0],
        bytes_received: Some(traffic.payload[1]),
        messages_sent: traffic.messages[0],
        staleness: server.observed,
        clock_error: timebase.error(&Timebase::agree(world.all)?),
        ..Outcome::default()
    })
}

/// A rank that serves.
struct Server {
    rank: usize,
    /// Silence that is a fault where something is owed.
    timeout: Duration,
    keeper: Keeper,
    /// Numbers in its shard.
    length: usize,
    workers: Vec<Worker>,
    /// Steps that workers have been sent to do, and how many there are to be.
    begun: u64,
    budget: u64,
    /// How often each staleness was seen.
    observed: Vec<u64>,
}

/// A worker as a server sees it.
struct Worker {
    /// Its gradient as far as it has come, and what it was said to be of.
    gradient: Vec<f32>,
    version: u64,
    /// Gradients that have come.
    steps: u64,
    /// When it last said something.
    heard: Instant,
    /// While it waits for an answer: since when, and when it was last told something.
    waits: Option<[Instant; 2]>,
    finished: bool,
}

impl Server {
    fn new(keeper: Keeper, length: usize, workers: usize, budget: u64, group: &Group) -> Self {
        let worker = |_| {
            let (gradient, heard) = (Vec::with_capacity(length), Instant::now());
            Worker { gradient, version: 0, steps: 0, heard, waits: None, finished: false }
        };
        let (rank, timeout, workers) = (group.rank(), group.timeout(), (0..workers).map(worker).collect());
        Self { rank, timeout, keeper, length, workers, begun: 0, budget, observed: Vec::new() }
    }

    /// Until all workers have what they end with.
    fn serve(&mut self, group: &mut Group, team: &mut Team) -> Result<(), WorkerError> {
        let ranks: Vec<usize> = (0..self.workers.len()).collect();
        let mut message = Vec::with_capacity(LENGTH);
        while !self.workers.iter().all(|worker| worker.finished) {
            match group.recv_any(&ranks, LENGTH, &mut message, self.next_moment())? {
                Some(from) => self.hear(group, team, from, &message)?,
                None => self.blame_the_silent()?,
            }
            self.keeper.apply_in_time(team);
            self.answer(group, team)?;
            self.ask_for_patience(group)?;
        }
        let values = self.keeper.last(team);
        for to in ranks {
            let answer = Answer::Values { version: 0, step: 0, end: true };
            group.send_varied(&answer.encode(), LENGTH, to)?;
            group.send(values, to)?;
        }
        Ok(())
    }

    /// Does what a worker wants, as far as that can be done at once.
    fn hear(&mut self, group: &mut Group, team: &mut Team, from: usize, message: &[u8]) -> Result<(), WorkerError> {
        let rank = self.rank;
        let malformed = |problem| WorkerError::Malformed { rank, from, problem };
        let request = Request::decode(message).ok_or(malformed("it means nothing"))?;
        let worker = &mut self.workers[from];
        worker.heard = Instant::now();
        if worker.waits.is_some() {
            return Err(malformed("it comes before the answer to the last"));
        }
        if let Request::Push(push) = request {
            if worker.receive(group, from, &push, self.length)? {
                let gradient = std::mem::replace(&mut worker.gradient, Vec::with_capacity(self.length));
                worker.steps += 1;
                let staleness = self.keeper.push(team, from, &push, gradient).map_err(malformed)?;
                self.observe(staleness);
            }
            return Ok(());
        }
        if !worker.gradient.is_empty() {
            return Err(malformed("it comes in the middle of a gradient"));
        }
        worker.waits = Some([worker.heard; 2]);
        if request == Request::Finish {
            worker.finished = true;
            self.keeper.leave(team, from);
        }
        Ok(())
    }

    /// Gives their parameters to those that may have them.
    fn answer(&mut self, group: &mut Group, team: &mut Team) -> Result<(), WorkerError> {
        let workers = self.workers.len() as u64;
        for to in 0..self.workers.len() {
            let worker = &mut self.workers[to];
            if worker.waits.is_none() || worker.finished {
                continue;
            }
            let Some(Read { values, version, staleness }) = self.keeper.read(team, worker.steps) else { continue };
            let (step, end) = (self.begun / workers, self.begun >= self.budget);
            group.send_varied(&Answer::Values { version, step, end }.encode(), LENGTH, to)?;
            group.send(values, to)?;
            worker.waits = None;
            worker.heard = Instant::now();
            if !end {
                self.begun += 1;
                self.observe(staleness);
            }
        }
        Ok(())
    }

    /// Tells those that wait, every now and then, that it is not this server that they wait for.
    fn ask_for_patience(&mut self, group: &mut Group) -> Result<(), WorkerError> {
        for (to, worker) in self.workers.iter_mut().enumerate() {
            if let Some([_, told]) = &mut worker.waits
                && told.elapsed() >= self.timeout / SIGNS_OF_LIFE
            {
                group.send_varied(&Answer::Patience.encode(), LENGTH, to)?;
                *told = Instant::now();
            }
        }
        Ok(())
    }

    /// When there is something to do even if nobody says anything.
    fn next_moment(&self) -> Option<Instant> {
        let patience = self.workers.iter().filter_map(|worker| worker.waits);
        let patience = patience.map(|[_, told]| told + self.timeout / SIGNS_OF_LIFE);
        patience.chain(self.keeper.due()).min()
    }

    /// Fails if a worker has said nothing for too long while others waited for it.
    fn blame_the_silent(&self) -> Result<(), WorkerError> {
        let waiting = self.workers.iter().enumerate().filter_map(|(rank, worker)| Some((worker.waits?[0], rank)));
        let Some((since, waiting)) = waiting.min() else { return Ok(()) };
        let finishing = self.workers.iter().any(|worker| worker.finished);
        for (silent, worker) in self.workers.iter().enumerate() {
            let owes = worker.waits.is_none() && (finishing || self.keeper.waits_for(silent));
            if owes && worker.heard.max(since).elapsed() >= self.timeout {
                let (rank, time) = (self.rank, self.timeout);
                return Err(WorkerError::Silent { rank, silent, time, waiting });
            }
        }
        Ok(())
    }

    fn observe(&mut self, staleness: Option<u64>) {
        if let Some(staleness) = staleness.map(|staleness| staleness as usize) {
            if self.observed.len() <= staleness {
                self.observed.resize(staleness + 1, 0);
            }
            self.observed[staleness] += 1;
        }
    }
}

impl Worker {
    /// Receives a piece of its gradient, which is to have so many numbers. Says whether it is the last one.
    fn receive(&mut self, group: &mut Group, from: usize, push: &Push, length: usize) -> Result<bool, WorkerError> {
        let (rank, start) = (group.rank(), self.gradient.len());
        let malformed = |problem| Err(WorkerError::Malformed { rank, from, problem });
        if push.start != start as u64 || (start > 0 && push.version != self.version) {
            return malformed("it does not go on where the gradient before it ended");
        }
        if push.length == 0 || push.length > (length - start) as u64 {
            return malformed("it is no piece of a gradient of the shard");
        }
        self.version = push.version;
        self.gradient.resize(start + push.length as usize, 0.0);
        group.recv(&mut self.gradient[start..], from)?;
        Ok(self.gradient.len() == length)
    }
}
