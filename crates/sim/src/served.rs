//! Ranks that hold the parameters, and workers that ask them: the decisions are those of `train`'s own servers, which here have
//! no numbers to keep.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::ops::Range;
use std::time::Duration;

use ringstep_comm::collective::lane::{Combine, Lane};
use ringstep_cpu::Level;
use ringstep_nn::Parameter;
use ringstep_nn::optim::Optimizer;
use ringstep_nn::team::Team;
use ringstep_train::Job;
use ringstep_train::profile::Profile;
use ringstep_train::strategy::Buckets;
use ringstep_train::strategy::server::messages::{Answer, LENGTH, Push};
use ringstep_train::strategy::server::service::{Service, pieces};
use ringstep_train::strategy::server::shards::Cut;

use crate::cluster::Cluster;
use crate::lane::Simulated;
use crate::network::{Network, Running};
use crate::simulation::{Simulation, Span, StepTimes, What};
use crate::workload::{Invalid, Workload};

/// What servers hold, and what workers send them.
#[derive(Debug, Clone, PartialEq)]
pub struct Served {
    /// The job, of as many workers and steps as are simulated.
    pub job: Job,
    /// What each server holds of the flat buffer.
    pub shards: Vec<Range<usize>>,
    /// Where buckets of gradients stand in it, and how many seconds after the beginning of backward each is ready.
    pub buckets: Vec<(Range<usize>, f64)>,
    /// Seconds of a core for a step of the optimizer on all parameters.
    pub update: f64,
}

impl Served {
    /// For a job whose gradients leave in these buckets, of workers that compute as long as this.
    pub fn new(job: Job, parameters: &[Parameter], buckets: &Buckets, profile: &Profile) -> Self {
        let shards = Cut::new(parameters, job.sync.servers(job.workers)).shards;
        let ready = |end| profile.ready(end).min(profile.backward_seconds());
        let buckets = buckets.ranges().map(|range| (range.clone(), ready(range.end))).collect();
        Self { job, shards, buckets, update: profile.update }
    }
}

/// Workers that are simulated at least, few of them several times: who is lucky on shared links decides how long they get in each
/// other's way, and evens out among many.
const AT_LEAST: usize = 32;

/// Simulates the steps of all workers, and their servers. What workers do when is told of the first time.
pub(crate) fn simulate(cluster: &Cluster, workload: &Workload, served: &Served) -> Result<Simulation, Invalid> {
    let cluster = cluster.with_servers(served.job.sync);
    let Records { mut workers, spans } = simulate_once(&cluster, workload, served, workload.seed)?;
    for time in 1..AT_LEAST / served.job.workers {
        let seed = workload.seed.wrapping_add((time as u64) << 32);
        workers.extend(simulate_once(&cluster, workload, served, seed)?.workers);
    }
    Ok(Simulation { times: sum_up(&workers, workload), algorithms: Vec::new(), spans })
}

/// The same once. The cluster has the servers, and the seed says who is lucky.
fn simulate_once(cluster: &Cluster, workload: &Workload, served: &Served, seed: u64) -> Result<Records, Invalid> {
    let workers = served.job.workers;
    let network = Network::new(cluster).with_servers(seed);
    let servers = Servers::new(&network, served);
    let records = RefCell::new(Records { workers: vec![Done::default(); workers], spans: Vec::new() });
    let job = Crew { workload, served, network: &network, servers: &servers, records: &records };
    let communication = (0..workers).map(|worker| Box::pin(job.communicate(worker)) as Running<'_>);
    let serving = (0..served.shards.len()).map(|server| Box::pin(servers.serve(server)) as Running<'_>);
    let computation = (0..workers).map(|worker| Box::pin(job.compute(worker)) as Running<'_>);
    network.run(communication.chain(serving).chain(computation).collect())?;
    Ok(records.into_inner())
}

/// Workers and servers of a simulated job.
struct Crew<'a> {
    workload: &'a Workload,
    served: &'a Served,
    network: &'a Network<'a>,
    servers: &'a Servers<'a>,
    records: &'a RefCell<Records>,
}

struct Records {
    workers: Vec<Done>,
    spans: Vec<Span>,
}

/// What a worker has done.
#[derive(Debug, Clone, Default)]
struct Done {
    /// When each of its steps ended.
    ends: Vec<f64>,
    /// Seconds that it computed.
    computing: f64,
    /// There is no step left.
    over: bool,
}

impl Crew<'_> {
    /// All steps of a worker's communication: parameters come, and gradients go while backward goes on.
    async fn communicate(&self, worker: usize) {
        let Self { served, network, servers, .. } = self;
        for step in 0.. {
            let asked = network.clock(worker);
            let versions = servers.ask(worker, false).await;
            self.note(worker, step, What::Pull, [asked, network.clock(worker)]);
            self.records.borrow_mut().workers[worker].over = versions.is_none();
            network.tell(worker);
            let Some(versions) = versions else { break };
            for bucket in 0..served.buckets.len() {
                network.hear(worker).await;
                let came = network.clock(worker);
                servers.push(worker, bucket, &versions).await;
                self.note(worker, step, What::Sum(bucket), [came, network.clock(worker)]);
            }
            network.tell(worker);
            // The next parameters are asked for when the step is over.
            network.hear(worker).await;
        }
        servers.ask(worker, true).await;
    }

    /// All steps of a worker's computation.
    async fn compute(&self, worker: usize) {
        let Self { workload, served, network, .. } = self;
        let me = network.cluster.topology.world() + worker;
        for step in 0.. {
            network.hear(me).await;
            if self.records.borrow().workers[worker].over {
                return;
            }
            let factor = workload.slow.factor(workload.seed, worker, step);
            let run = async |seconds: f64| network.compute(me, network.cluster.threads, factor * seconds).await;
            let began = network.clock(me);
            let middle = run(workload.forward).await;
            let mut done = 0.0;
            for (_, ready) in &served.buckets {
                run((ready - done).max(0.0)).await;
                done = ready.max(done);
                network.tell(me);
            }
            let computed = run(workload.backward - done).await;
            network.hear(me).await;
            self.note(worker, step, What::Forward, [began, middle]);
            self.note(worker, step, What::Backward, [middle, computed]);
            let done = &mut self.records.borrow_mut().workers[worker];
            done.ends.push(network.clock(me));
            done.computing += computed - began;
            network.tell(me);
        }
    }

    fn note(&self, rank: usize, step: usize, what: What, [began, ended]: [f64; 2]) {
        if rank < self.workload.traced {
            self.records.borrow_mut().spans.push(Span { rank, step, what, began, ended });
        }
    }
}

/// Means over the workers, each of which has taken steps of its own. The first of them, for which nobody has sent anything yet,
/// does not count.
fn sum_up(workers: &[Done], workload: &Workload) -> StepTimes {
    let mean = |of: &dyn Fn(&Done) -> f64| workers.iter().map(of).sum::<f64>() / workers.len() as f64;
    let step_seconds = mean(&|done| match &done.ends[..] {
        [first, .., last] => (last - first) / (done.ends.len() - 1) as f64,
        ends => ends.iter().sum(),
    });
    let compute_seconds = mean(&|done| done.computing / done.ends.len().max(1) as f64);
    StepTimes {
        step_seconds,
        compute_seconds,
        exposed_comm_seconds: (step_seconds - compute_seconds).max(0.0),
        waiting_seconds: 0.0,
        efficiency: if step_seconds > 0.0 { workload.alone() / step_seconds } else { 1.0 },
    }
}

/// What a worker has said to a server, in the order in which it did: what a message means travels beside it.
enum Said {
    Pull,
    Finish,
    /// A piece of so many numbers, and whether it is the last of a gradient, computed from parameters of this version.
    Push {
        length: usize,
        last: bool,
        version: u64,
    },
}

/// The servers, as workers and they themselves see them.
pub(crate) struct Servers<'a> {
    network: &'a Network<'a>,
    served: &'a Served,
    /// Of each worker, what it has said to each server that has not been heard yet; and what each has answered.
    said: RefCell<Vec<Vec<VecDeque<Said>>>>,
    answers: RefCell<Vec<Vec<Option<Answer>>>>,
}

impl<'a> Servers<'a> {
    pub fn new(network: &'a Network<'a>, served: &'a Served) -> Self {
        let (workers, servers) = (served.job.workers, served.shards.len());
        let said = (0..workers).map(|_| (0..servers).map(|_| Default::default()).collect()).collect();
        let answers = (0..workers).map(|_| vec![None; servers]).collect();
        Self { network, served, said: RefCell::new(said), answers: RefCell::new(answers) }
    }

    fn rank_of(&self, server: usize) -> usize {
        self.served.job.workers + server
    }

    /// Sends so many bytes.
    async fn send(&self, from: usize, to: usize, bytes: usize) {
        let mut lane = Simulated::new(self.network, from, bytes, 1);
        lane.send(to, 0..bytes).await.expect("simulated messages get through");
    }

    async fn receive(&self, rank: usize, from: usize, bytes: usize) {
        let mut lane = Simulated::new(self.network, rank, bytes, 1);
        lane.recv(from, 0..bytes, Combine::Copy).await.expect("simulated messages get through");
    }

    /// A worker asks all servers, and waits for their parameters. Says of which versions they are, or that there is no step left.
    pub async fn ask(&self, worker: usize, finish: bool) -> Option<Vec<u64>> {
        let servers = 0..self.served.shards.len();
        for server in servers.clone() {
            let said = if finish { Said::Finish } else { Said::Pull };
            self.said.borrow_mut()[worker][server].push_back(said);
            self.send(worker, self.rank_of(server), LENGTH).await;
        }
        let (mut versions, mut over) = (Vec::new(), false);
        for server in servers {
            self.receive(worker, self.rank_of(server), LENGTH).await;
            let answer = self.answers.borrow_mut()[worker][server].take();
            let Some(Answer::Values { version, end, .. }) = answer else {
                unreachable!("an answer comes with its message")
            };
            self.receive(worker, self.rank_of(server), self.shard_bytes(server)).await;
            versions.push(version);
            over |= end && server == 0;
        }
        (!over).then_some(versions)
    }

    /// A worker sends a bucket of its gradients, which are of parameters of these versions.
    pub async fn push(&self, worker: usize, bucket: usize, versions: &[u64]) {
        let Served { shards, buckets, .. } = self.served;
        for (server, piece) in pieces(shards, buckets[bucket].0.clone()) {
            let last = piece.end == shards[server].end;
            let said = Said::Push { length: piece.len(), last, version: versions[server] };
            self.said.borrow_mut()[worker][server].push_back(said);
            self.send(worker, self.rank_of(server), LENGTH).await;
            self.send(worker, self.rank_of(server), piece.len() * size_of::<f32>()).await;
        }
    }

    /// What a server does until all workers have what they end with.
    pub async fn serve(&self, server: usize) {
        let Served { job, shards, update, .. } = self.served;
        let (network, rank, images) = (self.network, self.rank_of(server), job.workers * job.batch);
        let mut team = Team::new(1, Level::best());
        let optimizer = Optimizer::for_tensors(job.rule, 0, Vec::new());
        let mut service = Service::new(job, images, Vec::new(), optimizer);
        let all = shards.last().map_or(1, |last| last.end) as f64;
        let step_seconds = update * shards[server].len() as f64 / all;
        while !service.all_finished() {
            let from = network.any_sender(rank).await;
            self.receive(rank, from, LENGTH).await;
            let said = self.said.borrow_mut()[from][server].pop_front();
            let before = service.steps();
            match said.expect("a message says something") {
                Said::Pull => service.pull(from),
                Said::Finish => service.finish(&mut team, from),
                Said::Push { length, last, version } => {
                    self.receive(rank, from, length * size_of::<f32>()).await;
                    if last {
                        let push = Push { version, images: job.batch as u64, start: 0, length: 0 };
                        let pushed = service.push(&mut team, from, &push, Vec::new());
                        pushed.expect("workers push one gradient after the other");
                    }
                }
            }
            let now = Duration::from_secs_f64(network.clock(rank));
            if service.due().is_some_and(|due| due <= now) {
                service.apply_in_time(&mut team, now);
            }
            network.compute(rank, 1, (service.steps() - before) as f64 * step_seconds).await;
            for to in 0..job.workers {
                let Some(reply) = service.reply(&mut team, to) else { continue };
                let (answer, ahead) = (reply.answer, reply.staleness.is_some_and(|staleness| staleness > 0));
                // Who is ahead sees what has come so far: the optimizer takes these steps on a copy.
                network.compute(rank, 1, if ahead { step_seconds } else { 0.0 }).await;
                self.answer(server, to, answer).await;
            }
        }
        for to in 0..job.workers {
            self.answer(server, to, Answer::Values { version: 0, step: 0, end: true }).await;
        }
    }

    async fn answer(&self, server: usize, to: usize, answer: Answer) {
        let rank = self.rank_of(server);
        self.answers.borrow_mut()[to][server] = Some(answer);
        self.send(rank, to, LENGTH).await;
        self.send(rank, to, self.shard_bytes(server)).await;
    }

    fn shard_bytes(&self, server: usize) -> usize {
        self.served.shards[server].len() * size_of::<f32>()
    }
}
