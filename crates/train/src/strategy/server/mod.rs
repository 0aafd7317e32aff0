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
//! Save             ------------------->   once all workers have said so: copies its state
//!                  <-------------------   Saved
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
//! What a server decides stands in [`service`], apart from who connects it with workers.
//!
//! A worker that is slow is not dead: silence counts against it only while another waits for its gradient. A server that is
//! made to wait tells those that it makes wait.

mod client;
pub mod clocked;
mod codes;
pub mod free;
mod keeper;
pub mod messages;
mod saving;
pub mod service;
pub mod shards;

use std::time::{Duration, Instant};

use ringstep_comm::Group;
use ringstep_comm::transport::Traffic;
use ringstep_data::Dataset;
use ringstep_nn::team::Team;

pub(crate) use self::client::Client;
use self::codes::Decoder;
use self::messages::{Answer, LENGTH, Push, Request};
use self::service::{Reply, Service};
use self::shards::Cut;
use crate::Job;
use crate::content::Content;
use crate::error::WorkerError;
use crate::recorder::{Recorder, Unreported};
use crate::records::{Compressed, Outcome, Report};
use crate::replica::Trained;
use crate::saving::Session;
use crate::saving::writer::Writer;
use crate::timebase::Timebase;
use crate::trace::Kind;
use crate::worker::Ended;
use crate::world::{CHIEF, World};

/// While a worker is made to wait it hears of its server this many times in the time after which silence is a fault.
const SIGNS_OF_LIFE: u32 = 4;

/// What a server does, from the first weights to the last: the server of this number.
pub(crate) fn run(
    job: &Job,
    data: &Dataset,
    group: &mut Group,
    number: usize,
    session: Session<'_>,
) -> Result<Ended, WorkerError> {
    let mut server = Server::get_ready(job, data, group, number)?;
    if let Some(saved) = session.from {
        server.restore(saved)?;
    }
    if server.serve(session)? { server.finish() } else { Ok(Ended::Left) }
}

/// A rank that serves.
struct Server<'a> {
    world: World<'a>,
    team: Team,
    recorder: Recorder,
    /// What had been sent and received before the first request.
    before: Traffic,
    /// What was sent and received by whoever served until then.
    earlier: Traffic,
    /// What exchanges are about: requests, gradients and parameters.
    labels: [u16; 3],
    /// Silence that is a fault where something is owed.
    timeout: Duration,
    /// When it began to serve.
    began: Instant,
    service: Service,
    /// If gradients come as codes.
    decoder: Option<Decoder>,
    /// Numbers in its shard.
    length: usize,
    workers: Vec<Worker>,
    /// How often each staleness was seen, and whose they were since the last answer.
    observed: Vec<u64>,
    recently: Vec<(usize, u64)>,
}

/// A worker as a server sees it.
struct Worker {
    /// Its gradient as far as it has come, and what it was said to be of.
    gradient: Vec<f32>,
    pieces: usize,
    version: u64,
    /// When it last said something.
    heard: Instant,
    /// While it waits for an answer: since when, and when it was last told something.
    waits: Option<[Instant; 2]>,
    /// If it waits to be saved, under this name.
    saves: Option<u64>,
    /// It has left before the end.
    left: bool,
}

impl<'a> Server<'a> {
    /// All that comes before the first request. Ends with a barrier, and starts the clock.
    fn get_ready(job: &Job, data: &Dataset, group: &'a mut Group, number: usize) -> Result<Self, WorkerError> {
        let (rank, timeout, images) = (group.rank(), group.timeout(), data.train.len());
        let level = job.instructions.level().map_err(|error| WorkerError::NoInstructions { rank, error })?;
        let mut world = World::new(group, &job.roles())?;
        let parameters = job.model.network().parameters().expect("its layers are checked");
        let cut = Cut::new(&parameters, job.sync.servers(job.workers));
        let mut values = vec![0.0; cut.all()];
        world.all.broadcast(&mut values, CHIEF)?;
        let rule = job.compress.map_or(job.rule, |compression| compression.rule(job.rule));
        let optimizer = cut.optimizer(rule, number);
        let service = Service::new(job, images, values[cut.shards[number].clone()].to_vec(), optimizer);
        let length = cut.shards[number].len();
        let worker = |_| {
            let (gradient, heard) = (Vec::with_capacity(length), Instant::now());
            Worker { gradient, pieces: 0, version: 0, heard, waits: None, saves: None, left: false }
        };
        let workers = (0..job.workers).map(worker).collect();
        let labels = [("request", Content::Control), ("push", Content::Gradients), ("pull", Content::Parameters)]
            .map(|(name, content)| world.label(name, content));
        let timebase = Timebase::agree(world.all)?;
        world.all.barrier()?;
        world.record();
        Ok(Self {
            team: Team::start(job.threads, level).map_err(WorkerError::no_thread(rank, "compute"))?,
            recorder: Recorder::start(timebase, job.trace_steps),
            before: world.traffic(),
            earlier: Traffic::default(),
            world,
            labels,
            timeout,
            began: Instant::now(),
            service,
            decoder: Decoder::new(job, images, level, number),
            length,
            workers,
            observed: Vec::new(),
            recently: Vec::new(),
        })
    }

    /// Until all workers have what they end with, or have left. Says whether there is something to finish.
    fn serve(&mut self, session: Session<'_>) -> Result<bool, WorkerError> {
        let Session { report, checkpoints, .. } = session;
        let mut writer = checkpoints.map(|checkpoints| Writer::new(checkpoints, self.world.rank()));
        let mut ranks: Vec<usize> = (0..self.workers.len()).collect();
        let (mut message, mut steps) = (Vec::with_capacity(LENGTH), Unreported::new());
        while !self.service.all_finished() {
            let until = self.next_moment();
            // What those that have left say next is for all ranks.
            ranks.retain(|&rank| !self.workers[rank].left);
            match self.about(Label::Request).recv_any(&ranks, LENGTH, &mut message, until)? {
                Some(from) => self.hear(from, &message)?,
                None => self.blame_the_silent()?,
            }
            let now = self.began.elapsed();
            let Self { service, team, recorder, .. } = self;
            if service.due().is_some_and(|due| due <= now) {
                recorder.timed(Kind::Optimizer, "optimizer", || service.apply_in_time(team, now));
            }
            if self.answer()? {
                self.end_step(&mut steps, report);
            }
            if let Some(name) = self.name_to_save() {
                self.end_step(&mut steps, report);
                steps.report(report);
                self.save(name, writer.as_mut(), report)?;
            }
            if let Some(writer) = &mut writer {
                writer.report(report);
            }
            self.ask_for_patience()?;
        }
        let finishes = !self.workers.iter().any(|worker| worker.left);
        if finishes {
            self.hand_out_the_last()?;
        } else {
            // Nobody closes its connections while another still reads from them.
            self.world.all.meet()?;
        }
        self.end_step(&mut steps, report);
        steps.report(report);
        if let Some(writer) = writer {
            writer.finish(report);
        }
        Ok(finishes)
    }

    /// What all workers end with.
    fn hand_out_the_last(&mut self) -> Result<(), WorkerError> {
        let values = self.service.last(&mut self.team).to_vec();
        for to in 0..self.workers.len() {
            let answer = Answer::Values { version: 0, step: 0, end: true };
            self.about(Label::Pull).send_varied(&answer.encode(), LENGTH, to)?;
            self.world.all.send(&values, to)?;
        }
        Ok(())
    }

    /// Everybody, for exchanges that are about this.
    fn about(&mut self, label: Label) -> &mut Group {
        self.world.all.label(self.labels[label as usize]);
        self.world.all
    }

    /// What it did since the last answer goes into the records.
    fn end_step(&mut self, steps: &mut Unreported, report: &mut dyn FnMut(Report)) {
        let mut step = self.recorder.end_step(&mut self.world, &[], Trained::default());
        step.bytes_sent = self.traffic().payload[0];
        step.observed = std::mem::take(&mut self.recently);
        steps.add(step, report);
        if let Some(spans) = self.recorder.take_spans() {
            self.recorder.clock.pausing(|| report(Report::Spans(spans)));
        }
        // The steps of workers that it serves are those of the job.
        self.recorder.is_in_step((self.service.begun().saturating_sub(1) / self.workers.len() as u64) as usize);
    }

    /// What this rank has sent and received to serve.
    fn traffic(&self) -> Traffic {
        self.earlier + (self.world.traffic() - self.before)
    }

    /// Sums up.
    fn finish(self) -> Result<Ended, WorkerError> {
        let (seconds, traffic) = (self.recorder.clock.seconds(), self.traffic());
        let outcome = Outcome {
            instructions: self.team.level().name().to_owned(),
            steps: self.service.steps() as usize,
            seconds,
            parts: self.recorder.parts,
            sent: self.recorder.sent,
            bytes_sent: traffic.payload[0],
            bytes_received: traffic.payload[1],
            wire_bytes: traffic.wire,
            messages_sent: traffic.messages[0],
            staleness: self.observed,
            // It answers with parameters as they are.
            compressed: self.decoder.map(|decoder| Compressed {
                bytes_dense: traffic.payload[0],
                encode_seconds: decoder.seconds,
                ..Compressed::default()
            }),
            clock_error: self.recorder.clock_error(&Timebase::agree(self.world.all)?),
            ..Outcome::default()
        };
        Ok(Ended::Done(Box::new(outcome), Vec::new()))
    }

    /// Does what a worker wants, as far as that can be done at once.
    fn hear(&mut self, from: usize, message: &[u8]) -> Result<(), WorkerError> {
        let rank = self.world.rank();
        let malformed = |problem| WorkerError::Malformed { rank, from, problem };
        let request = Request::decode(message).ok_or(malformed("it means nothing"))?;
        let worker = &mut self.workers[from];
        worker.heard = Instant::now();
        if worker.waits.is_some() {
            return Err(malformed("it comes before the answer to the last"));
        }
        let (team, service, recorder) = (&mut self.team, &mut self.service, &mut self.recorder);
        if let Request::Push(push) = request {
            self.world.all.label(self.labels[Label::Push as usize]);
            let piece = Incoming { from, step: service.steps_of(from), push: &push, length: self.length };
            if worker.receive(self.world.all, piece, self.decoder.as_mut(), recorder)? {
                let gradient = std::mem::replace(&mut worker.gradient, Vec::with_capacity(self.length));
                let take = || service.push(team, from, &push, gradient);
                let staleness = recorder.timed(Kind::Optimizer, "optimizer", take).map_err(malformed)?;
                self.observe(from, staleness);
            }
            return Ok(());
        }
        if !worker.gradient.is_empty() {
            return Err(malformed("it comes in the middle of a gradient"));
        }
        if let Request::Leave = request {
            worker.left = true;
            service.leave(from);
            return Ok(());
        }
        worker.waits = Some([worker.heard; 2]);
        match request {
            Request::Save(name) => worker.saves = Some(name),
            Request::Finish => service.finish(team, from),
            _ => service.pull(from),
        }
        Ok(())
    }

    /// Gives their parameters to those that may have them. Says whether somebody got some.
    fn answer(&mut self) -> Result<bool, WorkerError> {
        let mut answered = false;
        self.world.all.label(self.labels[Label::Pull as usize]);
        for to in 0..self.workers.len() {
            let Some(Reply { answer, values, staleness }) = self.service.reply(&mut self.team, to) else { continue };
            self.world.all.send_varied(&answer.encode(), LENGTH, to)?;
            self.world.all.send(values, to)?;
            self.workers[to].waits = None;
            self.workers[to].heard = Instant::now();
            answered = true;
            self.observe(to, staleness);
        }
        Ok(answered)
    }

    /// Tells those that wait, every now and then, that it is not this server that they wait for.
    fn ask_for_patience(&mut self) -> Result<(), WorkerError> {
        for (to, worker) in self.workers.iter_mut().enumerate() {
            if let Some([_, told]) = &mut worker.waits
                && told.elapsed() >= self.timeout / SIGNS_OF_LIFE
            {
                self.world.all.send_varied(&Answer::Patience.encode(), LENGTH, to)?;
                *told = Instant::now();
            }
        }
        Ok(())
    }

    /// When there is something to do even if nobody says anything.
    fn next_moment(&self) -> Option<Instant> {
        let patience = self.workers.iter().filter_map(|worker| worker.waits);
        let patience = patience.map(|[_, told]| told + self.timeout / SIGNS_OF_LIFE);
        patience.chain(self.service.due().map(|due| self.began + due)).min()
    }

    /// Fails if a worker has said nothing for too long while others waited for it.
    fn blame_the_silent(&self) -> Result<(), WorkerError> {
        let waiting = self.workers.iter().enumerate().filter_map(|(rank, worker)| Some((worker.waits?[0], rank)));
        let Some((since, waiting)) = waiting.min() else { return Ok(()) };
        let finishing = self.service.any_finished() || self.workers.iter().any(|worker| worker.saves.is_some());
        for (silent, worker) in self.workers.iter().enumerate() {
            let owes = worker.waits.is_none() && !worker.left && (finishing || self.service.waits_for(silent));
            if owes && worker.heard.max(since).elapsed() >= self.timeout {
                let (rank, time) = (self.world.rank(), self.timeout);
                return Err(WorkerError::Silent { rank, silent, time, waiting });
            }
        }
        Ok(())
    }

    fn observe(&mut self, worker: usize, staleness: Option<u64>) {
        if let Some(staleness) = staleness {
            self.recently.push((worker, staleness));
            let staleness = staleness as usize;
            if self.observed.len() <= staleness {
                self.observed.resize(staleness + 1, 0);
            }
            self.observed[staleness] += 1;
        }
    }
}

/// What an exchange is about.
#[derive(Clone, Copy)]
enum Label {
    Request,
    Push,
    Pull,
}

/// A piece of a gradient that comes next.
struct Incoming<'a> {
    from: usize,
    /// Of that worker.
    step: u64,
    push: &'a Push,
    /// Numbers of the whole gradient.
    length: usize,
}

impl Worker {
    /// Receives a piece of its gradient, as it is or as a code. Says whether it is the last one.
    fn receive(
        &mut self,
        group: &mut Group,
        Incoming { from, step, push, length }: Incoming<'_>,
        decoder: Option<&mut Decoder>,
        recorder: &mut Recorder,
    ) -> Result<bool, WorkerError> {
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
        let piece = &mut self.gradient[start..];
        match decoder {
            None => group.recv(piece, from)?,
            Some(decoder) => {
                decoder.receive(group, recorder, [from, step as usize, self.pieces], (start, piece))?;
            }
        }
        let complete = self.gradient.len() == length;
        self.pieces = if complete { 0 } else { self.pieces + 1 };
        Ok(complete)
    }
}
