//! Workers that compute and exchange on simulated clocks, and what becomes of their times.

use std::cell::RefCell;

use ringstep_comm::Algorithm;
use ringstep_comm::collective::{self, all_to_all, barrier, ring};
use ringstep_train::strategy::Exchange;

use crate::cluster::Cluster;
use crate::lane::Simulated;
use crate::network::{Network, Running};
use crate::served;
use crate::workload::{Invalid, Slice, Sync, Workload};

/// Where a step's time goes: means over all steps and workers, in seconds.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct StepTimes {
    /// From one step to the next, until the last worker is through.
    pub step_seconds: f64,
    /// Computing, as long as it takes on these cores.
    pub compute_seconds: f64,
    /// Nothing but communication, while all workers take part.
    pub exposed_comm_seconds: f64,
    /// Nothing but waiting for a worker that has not come to a collective yet.
    pub waiting_seconds: f64,
    /// A step of one worker alone, as a part of this one: the efficiency of weak scaling.
    pub efficiency: f64,
}

/// What workers did, and how long that took.
#[derive(Debug, Clone, PartialEq)]
pub struct Simulation {
    /// Where a step's time goes.
    pub times: StepTimes,
    /// How each slice was all-reduced, if it was.
    pub algorithms: Vec<Option<Algorithm>>,
    /// What the [traced](Workload::traced) workers did when.
    pub spans: Vec<Span>,
}

/// Something that a worker did.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Span {
    /// Who.
    pub rank: usize,
    /// In which step, from 0.
    pub step: usize,
    /// What.
    pub what: What,
    /// Seconds from the beginning of the first step.
    pub began: f64,
    /// And until it was over.
    pub ended: f64,
}

/// What a worker can do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum What {
    /// Its forward pass.
    Forward,
    /// Its backward pass.
    Backward,
    /// Its optimizer's step.
    Update,
    /// Its part in summing this slice, or in sending it to servers.
    Sum(usize),
    /// Asking servers for parameters, and waiting for them.
    Pull,
}

/// Simulates all steps of all workers.
pub fn simulate(cluster: &Cluster, workload: &Workload) -> Result<Simulation, Invalid> {
    workload.check(cluster)?;
    if let Some(served) = &workload.served {
        return served::simulate(cluster, workload, served);
    }
    let world = cluster.topology.world();
    let algorithm = |slice: &Slice| match slice.exchange {
        Exchange::AllReduce { elements, size } => {
            Some(slice.algorithm.unwrap_or_else(|| cluster.choice(elements * size)))
        }
        Exchange::AllGather { .. } | Exchange::InHalves { .. } | Exchange::Meet => None,
    };
    let algorithms: Vec<Option<Algorithm>> = workload.slices.iter().map(algorithm).collect();
    let network = Network::new(cluster);
    let workers = vec![vec![Step::default(); workload.steps]; world];
    let records = RefCell::new(Records { workers, spans: Vec::new() });
    let job = Job { cluster, workload, algorithms: &algorithms, network: &network, records: &records };
    let communication = (0..world).map(|rank| Box::pin(job.communicate(rank)) as Running<'_>);
    let computation = (0..world).map(|rank| Box::pin(job.compute(rank)) as Running<'_>);
    network.run(communication.chain(computation).collect())?;
    let end = (0..world).map(|rank| network.clock(world + rank)).fold(0.0, f64::max);
    let Records { workers, spans } = records.into_inner();
    Ok(Simulation { times: sum_up(&workers, end, workload), algorithms, spans })
}

/// What all workers are to do, and with what.
struct Job<'a> {
    cluster: &'a Cluster,
    workload: &'a Workload,
    algorithms: &'a [Option<Algorithm>],
    network: &'a Network<'a>,
    records: &'a RefCell<Records>,
}

struct Records {
    /// The steps of each worker.
    workers: Vec<Vec<Step>>,
    spans: Vec<Span>,
}

/// A step of a worker.
#[derive(Debug, Clone, Default)]
struct Step {
    /// Seconds that it computed.
    computing: f64,
    /// From this moment on it did nothing but synchronise, until it was through with the last exchange.
    idle: f64,
    /// When it came to each exchange, and when it was through.
    exchanges: Vec<(f64, f64)>,
}

impl Job<'_> {
    /// All steps of a worker's computation. It tells its communication when a slice is ready, and hears when all are summed.
    async fn compute(&self, rank: usize) {
        let Self { cluster, workload, network, .. } = self;
        let me = cluster.topology.world() + rank;
        for step in 0..workload.steps {
            let factor = workload.slow.factor(workload.seed, rank, step);
            let run = async |seconds: f64| network.compute(me, cluster.threads, factor * seconds).await;
            let update = async || {
                let began = network.clock(me);
                let ended = run(workload.update).await;
                self.note(rank, step, What::Update, began, ended);
                ended - began
            };
            let began = network.clock(me);
            let middle = run(workload.forward).await;
            let mut done = 0.0;
            if workload.sync == Sync::DuringBackward {
                for slice in &workload.slices {
                    run((slice.ready - done).max(0.0)).await;
                    done = slice.ready.max(done);
                    network.tell(me);
                }
            }
            let computed = run(workload.backward - done).await;
            self.note(rank, step, What::Forward, began, middle);
            self.note(rank, step, What::Backward, middle, computed);
            let mut computing = computed - began;
            if let Sync::EverySteps(_) = workload.sync {
                computing += update().await;
            }
            let idle = network.clock(me);
            if workload.sums_in(step) {
                if workload.sync != Sync::DuringBackward {
                    network.tell(me);
                }
                self.hear(me).await;
            }
            if !matches!(workload.sync, Sync::EverySteps(_)) {
                computing += update().await;
            }
            let step = &mut self.records.borrow_mut().workers[rank][step];
            (step.computing, step.idle) = (computing, idle);
        }
    }

    /// All steps of a worker's communication.
    async fn communicate(&self, rank: usize) {
        let Self { workload, network, .. } = self;
        for step in (0..workload.steps).filter(|&step| workload.sums_in(step)) {
            for at in 0..workload.slices.len() {
                if at == 0 || workload.sync == Sync::DuringBackward {
                    self.hear(rank).await;
                }
                let (came, through) = self.sum(rank, at).await;
                self.records.borrow_mut().workers[rank][step].exchanges.push((came, through));
                self.note(rank, step, What::Sum(at), came, through);
            }
            network.tell(rank);
        }
    }

    /// Waits for the worker's other process. Where it is another thread, it takes some time to wake.
    async fn hear(&self, process: usize) {
        let came = self.network.clock(process);
        let told = self.network.hear(process).await;
        if self.workload.sync == Sync::DuringBackward && told > came {
            self.network.wait_until(process, told + self.cluster.wake);
            self.network.settle(process);
        }
    }

    /// Remembers what a traced worker did.
    fn note(&self, rank: usize, step: usize, what: What, began: f64, ended: f64) {
        if rank < self.workload.traced {
            self.records.borrow_mut().spans.push(Span { rank, step, what, began, ended });
        }
    }

    /// Takes part in summing a slice, and says when it came and was through.
    async fn sum(&self, rank: usize, at: usize) -> (f64, f64) {
        let (network, world) = (self.network, self.cluster.topology.world());
        let came = network.clock(rank);
        let lane = |elements, size| Simulated::new(network, rank, elements, size);
        let done = match self.workload.slices[at].exchange {
            Exchange::AllReduce { elements, size } => {
                let algorithm = self.algorithms[at].expect("an all-reduce has one");
                collective::all_reduce(algorithm, &mut lane(elements, size)).await
            }
            Exchange::AllGather { bytes } => ring::all_gather(&mut lane(world * bytes, 1)).await,
            Exchange::InHalves { bytes } => {
                // Parts are as long as each other, but for a byte.
                let bytes = bytes.next_multiple_of(world);
                let exchanged = all_to_all::exchange(&mut lane(bytes, 1)).await;
                exchanged.and(ring::all_gather(&mut lane(bytes, 1)).await)
            }
            Exchange::Meet => barrier::wait(&mut lane(0, 1)).await,
        };
        done.expect("simulated messages get through");
        (came, network.clock(rank))
    }
}

/// Splits what is no computing into waiting for those that have not come, and communication.
fn sum_up(workers: &[Vec<Step>], end: f64, workload: &Workload) -> StepTimes {
    let (mut computing, mut idle, mut waiting) = (0.0, 0.0, 0.0);
    for step in 0..workload.steps {
        let of_step = || workers.iter().map(|steps| &steps[step]);
        let last_came: Vec<f64> = (0..workers[0][step].exchanges.len())
            .map(|at| of_step().map(|step| step.exchanges[at].0).fold(0.0, f64::max))
            .collect();
        for step in of_step() {
            computing += step.computing;
            idle += step.exchanges.last().map_or(0.0, |(_, through)| (through - step.idle).max(0.0));
            let waits = step.exchanges.iter().zip(&last_came);
            waiting +=
                waits.map(|((came, through), last)| (last.min(*through) - came.max(step.idle)).max(0.0)).sum::<f64>();
        }
    }
    let mean = |seconds: f64| seconds / (workers.len() * workload.steps) as f64;
    let step_seconds = end / workload.steps as f64;
    StepTimes {
        step_seconds,
        compute_seconds: mean(computing),
        exposed_comm_seconds: mean(idle - waiting),
        waiting_seconds: mean(waiting),
        efficiency: if step_seconds > 0.0 { workload.alone() / step_seconds } else { 1.0 },
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringstep_comm::Topology;
    use ringstep_comm::transport::Net;
    use ringstep_train::slow::Slow;

    use super::*;
    use crate::slow::Slowness;
    use crate::workload::Slice;

    const ELEMENTS: usize = 4 * 250_000;
    /// What a ring of four takes for that many: 2(p-1)/p of 4 MB at 1 GB/s.
    const SUM: f64 = 6e-3;

    fn four() -> Cluster {
        let net = Net { bytes_per_second: 1e9, latency: Duration::ZERO };
        Cluster { header: 0, ..Cluster::flat(4, net) }
    }

    fn workload(sync: Sync, ready: &[f64]) -> Workload {
        by(Algorithm::Ring, sync, ready)
    }

    fn by(algorithm: Algorithm, sync: Sync, ready: &[f64]) -> Workload {
        let slices = ready.iter().map(|&ready| Slice::of_f32(ELEMENTS, ready).by(algorithm)).collect();
        Workload::new(0.010, 0.020, 0.001, slices, sync)
    }

    fn times(cluster: &Cluster, workload: &Workload) -> StepTimes {
        simulate(cluster, workload).unwrap().times
    }

    fn assert_close(seconds: f64, expected: f64) {
        assert!((seconds - expected).abs() < 1e-9, "{seconds}, not {expected}");
    }

    /// Three sums of 6 ms from 5 ms of 20 on: the third begins at its own moment, 19 ms, and ends 5 ms after backward.
    #[test]
    fn ddp_hides_what_backward_leaves_room_for() {
        let found = times(&four(), &workload(Sync::DuringBackward, &[0.005, 0.010, 0.019]));
        assert_close(found.exposed_comm_seconds, 0.005);
        assert_close(found.step_seconds, 0.031 + 0.005);
        assert_close(found.compute_seconds, 0.031);
        assert_close(found.waiting_seconds, 0.0);
        assert_close(found.efficiency, 0.031 / 0.036);
    }

    #[test]
    fn after_backward_nothing_is_hidden() {
        let found = times(&four(), &workload(Sync::AfterBackward, &[0.005, 0.010, 0.019]));
        assert_close(found.exposed_comm_seconds, 3.0 * SUM);
        assert_close(found.step_seconds, 0.031 + 3.0 * SUM);
        let gathered = by(Algorithm::GatherScatter, Sync::AfterBackward, &[0.0]);
        assert_close(times(&four(), &gathered).step_seconds, 0.031 + 2.0 * 3.0 * 4e-3);
    }

    #[test]
    fn local_sgd_communicates_every_so_many_steps() {
        let local = Workload { steps: 12, ..workload(Sync::EverySteps(4), &[0.02]) };
        assert_close(times(&four(), &local).step_seconds, 0.031 + SUM / 4.0);
        assert_close(times(&four(), &local).exposed_comm_seconds, SUM / 4.0);
    }

    /// Halves of floats halve the ring; codes of 1 MB go p-1 times over each link, or all but one part of them twice.
    #[test]
    fn codes_travel_as_their_reducers_send_them() {
        let step = |exchange| {
            let slices = vec![Slice { exchange, algorithm: Some(Algorithm::Ring), ready: 0.0 }];
            let workload = Workload { slices, ..workload(Sync::AfterBackward, &[]) };
            times(&four(), &workload).exposed_comm_seconds
        };
        assert_close(step(Exchange::AllReduce { elements: ELEMENTS, size: 2 }), SUM / 2.0);
        assert_close(step(Exchange::AllGather { bytes: 1_000_000 }), 3e-3);
        assert_close(step(Exchange::InHalves { bytes: 1_000_000 }), 2.0 * 0.75e-3);
    }

    /// Who is slow determines the step, and the others wait for it; if they need not meet, a step of the slow one's own.
    #[test]
    fn all_wait_for_who_is_slow() {
        let slow = Slowness::Some(vec![Slow { rank: 2, factor: 2.0, probability: 1.0 }]);
        let ddp = Workload { slow: slow.clone(), steps: 3, ..workload(Sync::AfterBackward, &[0.02]) };
        let found = times(&four(), &ddp);
        assert_close(found.step_seconds, 0.062 + SUM);
        // Three of four: those that are fast wait for 30 ms of passes; the optimizer's millisecond is waited for in the
        // next step, so once less than there are steps.
        assert_close(found.waiting_seconds, 0.75 * (0.030 + 0.001 * 2.0 / 3.0));
    }

    #[test]
    fn workers_that_share_cores_slow_each_other_down() {
        let net = Net { bytes_per_second: f64::INFINITY, latency: Duration::ZERO };
        let crowded = Cluster { cores: Some(2), ..Cluster::of_hosts(8, 4, net, net) };
        let found = times(&crowded, &workload(Sync::AfterBackward, &[0.02]));
        assert_close(found.step_seconds, 2.0 * 0.031);
        assert_close(found.efficiency, 0.5);
        let roomy = Cluster { cores: Some(8), threads: 2, ..crowded };
        assert_close(times(&roomy, &workload(Sync::AfterBackward, &[0.02])).step_seconds, 0.031);
    }

    /// What two workers of one thread do for messages hides behind backward if there are four cores; on two cores it takes
    /// them from it, second for second.
    #[test]
    fn communication_takes_cores_from_computation() {
        let topology = Topology::new(vec![0; 2], false);
        let cluster = Cluster { topology, touch: 1e-9, touch_far: 1e-9, ..four() };
        let workload = workload(Sync::DuringBackward, &[0.0]);
        // Each sends half of 4 MB twice, and receives as much.
        let touching = 2.0 * 4e6 * 1e-9;
        for (cores, more) in [(4, 0.0), (2, touching)] {
            let cluster = Cluster { cores: Some(cores), ..cluster.clone() };
            assert_close(times(&cluster, &workload).step_seconds, workload.alone() + more);
        }
    }

    /// Whatever is shared, and whoever is slow: no core does more than it can, and no worker is in two places at once.
    #[test]
    fn time_is_spent_once() {
        let net =
            |gigabytes, latency| Net { bytes_per_second: gigabytes * 1e9, latency: Duration::from_micros(latency) };
        let hosts = Cluster::of_hosts(10, 4, net(1.0, 20), net(10.0, 1));
        let crowded = Cluster { cores: Some(2), overhead: 5e-6, touch: 2e-10, reduce: 1e-10, ..hosts };
        for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| !algorithm.needs_shared_memory()) {
            for sync in [Sync::DuringBackward, Sync::AfterBackward, Sync::EverySteps(2)] {
                let slow = Slowness::LogNormal { sigma: 0.3 };
                let workload = by(algorithm, sync, &[0.005, 0.010, 0.019]);
                let workload = Workload { slow, steps: 4, ..workload };
                let found = times(&crowded, &workload);
                let spent = found.compute_seconds + found.exposed_comm_seconds + found.waiting_seconds;
                assert!(spent <= found.step_seconds * (1.0 + 1e-9), "{algorithm:?}, {sync:?}: {found:?}");
                let work = |rank: usize| -> f64 {
                    (0..4).map(|step| workload.slow.factor(workload.seed, rank, step) * workload.alone()).sum()
                };
                let first_host: f64 = (0..4).map(work).sum();
                assert!(4.0 * found.step_seconds >= first_host / 2.0, "{algorithm:?}, {sync:?}: {found:?}");
            }
        }
    }

    #[test]
    fn one_worker_has_nobody_to_talk_to() {
        let net = Net { bytes_per_second: 1e9, latency: Duration::from_millis(1) };
        let alone = times(&Cluster::flat(1, net), &workload(Sync::DuringBackward, &[0.02]));
        assert_close(alone.step_seconds, 0.031);
        assert_close(alone.efficiency, 1.0);
    }

    #[test]
    fn traced_workers_tell_all_they_did() {
        let traced = Workload { traced: 2, steps: 2, ..workload(Sync::DuringBackward, &[0.005, 0.019]) };
        let spans = simulate(&four(), &traced).unwrap().spans;
        assert_eq!(spans.len(), 2 * 2 * 5);
        assert!(spans.iter().all(|span| span.rank < 2 && span.began <= span.ended));
        let last = spans.iter().rfind(|span| span.what == What::Update).unwrap();
        assert_close(last.ended, 2.0 * (0.031 + 0.005));
    }

    /// Without being told, each slice takes the algorithm that a group would choose.
    #[test]
    fn each_slice_takes_what_is_best_for_it() {
        let net = Net { bytes_per_second: 1e9, latency: Duration::from_micros(50) };
        let slices = vec![Slice::of_f32(10, 0.0), Slice::of_f32(10_000_000, 0.0)];
        let workload = Workload::new(0.0, 0.0, 0.0, slices, Sync::AfterBackward);
        let algorithms = simulate(&Cluster::flat(16, net), &workload).unwrap().algorithms;
        assert_eq!(algorithms, [Some(Algorithm::RecursiveDoubling), Some(Algorithm::HalvingDoubling)]);
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let good = workload(Sync::DuringBackward, &[0.01]);
        let refusal = |workload: &Workload| simulate(&four(), workload).unwrap_err().to_string();
        assert_eq!(refusal(&Workload { steps: 0, ..good.clone() }), "there is at least one step");
        assert_eq!(
            refusal(&Workload { forward: -1.0, ..good.clone() }),
            "forward takes -1 seconds: it must be a number from 0 on"
        );
        assert_eq!(
            refusal(&workload(Sync::DuringBackward, &[0.03])),
            "slice 0 is ready after 0.03 seconds, and backward goes from 0 to 0.02"
        );
        let direct = by(Algorithm::Direct, Sync::DuringBackward, &[0.01]);
        assert_eq!(refusal(&direct), "direct needs memory that all workers share");
        let slow = Slowness::Some(vec![Slow { rank: 4, factor: 2.0, probability: 1.0 }]);
        assert_eq!(refusal(&Workload { slow, ..good.clone() }), "worker 4 cannot be slow: there are 4");
        let mut broken = four();
        broken.uplink.bytes_per_second = 0.0;
        assert_eq!(simulate(&broken, &good), Err(Invalid::Bandwidth(0.0)));
    }
}
