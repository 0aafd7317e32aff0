//! The best algorithm and size of buckets at a scale: by simulating each candidate, except for those that cannot be the best.

use anyhow::Result;
use ringstep_comm::Algorithm;
use ringstep_comm::transport::Net;
use ringstep_sim::{Cluster, Simulation, Slice, Slowness, Sync, Workload, simulate, workload};
use ringstep_train::strategy::{Buckets, Exchange, best_size, in_order};
use ringstep_train::{Job, SyncMethod};

use super::study::Study;

/// Sizes of buckets to try, in bytes, beside what the cost model thinks best; the last is everything at once.
const BUCKETS: [usize; 4] = [1 << 20, 4 << 20, 16 << 20, usize::MAX];
/// Steps that show how workers differ.
const SEVERAL: usize = 16;
/// Beyond so many workers a ring takes seconds to simulate: of the buckets that promise most, or as good as that, only the
/// fewest are tried.
const LONG_RING: usize = 512;
const NEAR: f64 = 1.02;
/// Workers that tell what they did.
const TRACED: usize = 4;

/// What was found.
pub struct Best {
    /// As it was simulated.
    pub job: Job,
    pub simulation: Simulation,
    /// Seconds of a step by each algorithm that was simulated, with its best buckets.
    pub by_algorithm: Vec<(Algorithm, f64)>,
}

impl Best {
    /// The algorithm, if there is one: that of the largest exchange.
    pub fn algorithm(&self) -> Option<Algorithm> {
        self.simulation.algorithms.iter().flatten().next_back().copied()
    }

    /// Bytes of a bucket, if there are buckets.
    pub fn bucket(&self) -> Option<usize> {
        let SyncMethod::Ddp { bucket, .. } = self.job.sync else { return None };
        bucket
    }
}

/// The same way by another algorithm, or by whichever is best.
pub fn with_algorithm(sync: SyncMethod, chosen: Option<Algorithm>) -> SyncMethod {
    let mut sync = sync;
    match &mut sync {
        SyncMethod::AllReduce { algorithm }
        | SyncMethod::Ddp { algorithm, .. }
        | SyncMethod::LocalSgd { algorithm, .. }
        | SyncMethod::PostLocalSgd { algorithm, .. }
        | SyncMethod::DiLoCo { algorithm, .. }
        | SyncMethod::Sma { algorithm, .. } => *algorithm = chosen,
        _ => {}
    }
    sync
}

/// Finds what is left open, for so many workers.
pub fn best(study: &Study, workers: usize) -> Result<Best> {
    let cluster = study.cluster(workers);
    let algorithms = match study.open {
        true => candidates(&cluster).into_iter().map(Some).collect(),
        false => vec![study.job.sync.algorithm().flatten()],
    };
    let mut best: Option<Best> = None;
    let mut by_algorithm = Vec::new();
    for algorithm in algorithms {
        let sync = with_algorithm(study.job.sync, algorithm);
        let mut fastest: Option<f64> = None;
        let jobs = with_buckets(&Job { sync, ..study.job.clone() }, &cluster).into_iter();
        let prepared = jobs.map(|job| prepare(study, &job, &cluster).map(|workload| (job, workload)));
        let mut tried: Vec<(Job, Workload)> = prepared.collect::<Result<_>>()?;
        tried.sort_by(|a, b| at_least(&a.1, &cluster).total_cmp(&at_least(&b.1, &cluster)));
        if algorithm == Some(Algorithm::Ring) && workers > LONG_RING {
            let near = NEAR * at_least(&tried[0].1, &cluster);
            tried.retain(|(_, workload)| at_least(workload, &cluster) <= near);
            tried.sort_by_key(|(_, workload)| workload.slices.len());
            tried.truncate(1);
        }
        for (job, workload) in tried {
            let least = at_least(&workload, &cluster);
            if best.as_ref().is_some_and(|best| least >= best.simulation.times.step_seconds) {
                continue;
            }
            let simulation = simulate(&cluster, &workload)?;
            let seconds = simulation.times.step_seconds;
            fastest = Some(fastest.map_or(seconds, |fastest| fastest.min(seconds)));
            if best.as_ref().is_none_or(|best| seconds < best.simulation.times.step_seconds) {
                best = Some(Best { job, simulation, by_algorithm: Vec::new() });
            }
        }
        by_algorithm.extend(algorithm.zip(fastest));
    }
    let best = best.expect("the first candidate is always simulated");
    Ok(Best { by_algorithm, ..best })
}

/// The algorithms that a cluster can run: first those of few steps, which are simulated soonest and leave the others little to
/// win.
fn candidates(cluster: &Cluster) -> Vec<Algorithm> {
    let topology = &cluster.topology;
    let mut candidates = vec![Algorithm::HalvingDoubling, Algorithm::RecursiveDoubling, Algorithm::Tree];
    if topology.largest_host() > 1 && !topology.is_one_host() {
        candidates.push(Algorithm::Hierarchical);
    }
    candidates.extend([Algorithm::Ring, Algorithm::GatherScatter]);
    candidates
}

/// The job with each size of buckets that is worth trying, of which no two make the same buckets.
fn with_buckets(job: &Job, cluster: &Cluster) -> Vec<Job> {
    let SyncMethod::Ddp { algorithm, bucket: None } = job.sync else { return vec![job.clone()] };
    let parameters = job.model.network().parameters().expect("its layers are checked");
    let all = size_of::<f32>() * in_order(&parameters).map(|range| range.len()).sum::<usize>();
    let usual = best_size(&parameters, &cluster.topology, &cluster.tuning(), algorithm);
    let mut seen: Vec<Buckets> = Vec::new();
    let mut jobs = Vec::new();
    for size in [usual].into_iter().chain(BUCKETS) {
        let buckets = Buckets::new(&parameters, size);
        if !seen.contains(&buckets) {
            seen.push(buckets);
            jobs.push(Job { sync: SyncMethod::Ddp { algorithm, bucket: Some(size.min(all)) }, ..job.clone() });
        }
    }
    // Nobody waits for buckets of one worker.
    jobs.truncate(if cluster.topology.world() == 1 { 1 } else { jobs.len() });
    jobs
}

/// What the workers do, for as many steps as it takes.
fn prepare(study: &Study, job: &Job, cluster: &Cluster) -> Result<Workload> {
    let workload = workload(job, &study.profile, cluster)?;
    let several = if study.slow == Slowness::None { 1 } else { SEVERAL };
    let steps = study.steps.unwrap_or_else(|| several.next_multiple_of(workload.steps));
    Ok(Workload { slow: study.slow.clone(), steps, traced: TRACED, ..workload })
}

/// Seconds that a step takes at least: a candidate for which that is too long need not be simulated. Of a ring's chunks each
/// goes twice over all links of the ring but one, one after the other; everything goes over the root's link under
/// gather-scatter, there and back. Nothing is known of others. Ranks that are through early begin with the next bucket before the
/// others have ended theirs, which saves less than a hundredth.
fn at_least(workload: &Workload, cluster: &Cluster) -> f64 {
    let (workers, hosts) = (cluster.topology.world() as f64, cluster.topology.leaders().len() as f64);
    let [near, far] = [cluster.inside, cluster.uplink];
    let exchange = |slice: &Slice| match (slice.exchange, slice.algorithm) {
        (Exchange::AllReduce { elements, size }, Some(Algorithm::Ring)) => {
            let chunk = (elements * size) as f64 / workers;
            let hop = |net: Net| net.latency.as_secs_f64() + 2.0 * cluster.overhead + chunk / net.bytes_per_second;
            2.0 * ((hosts - 1.0) * hop(far) + (workers - hosts) * hop(near))
        }
        (Exchange::AllReduce { elements, size }, Some(Algorithm::GatherScatter)) => {
            let elsewhere = workers - cluster.topology.largest_host() as f64;
            2.0 * elsewhere * (elements * size) as f64 / far.bytes_per_second
        }
        _ => 0.0,
    };
    let mut free = 0.0;
    for slice in &workload.slices {
        free = f64::max(free, slice.ready) + exchange(slice);
    }
    let exposed = match workload.sync {
        Sync::DuringBackward => (free - workload.backward).max(0.0),
        Sync::AfterBackward => workload.slices.iter().map(exchange).sum(),
        Sync::EverySteps(steps) => workload.slices.iter().map(exchange).sum::<f64>() / steps as f64,
    };
    0.99 * (workload.alone() + exposed)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Whatever the cluster is like, no simulation takes less.
    #[test]
    fn a_step_takes_at_least_what_it_is_said_to() {
        let net = |gigabytes: f64, latency| Net {
            bytes_per_second: gigabytes * 1e9,
            latency: Duration::from_micros(latency),
        };
        for (workers, per_host, latency) in [(4, 1, 0), (16, 1, 20), (12, 4, 5), (7, 3, 0)] {
            let cluster = Cluster::of_hosts(workers, per_host, net(1.0, latency), net(20.0, 1));
            for algorithm in candidates(&cluster) {
                for sync in [Sync::DuringBackward, Sync::AfterBackward, Sync::EverySteps(2)] {
                    let slices =
                        vec![Slice::of_f32(250_000, 0.003).by(algorithm), Slice::of_f32(999, 0.01).by(algorithm)];
                    let workload = Workload { steps: 2, ..Workload::new(0.005, 0.01, 0.001, slices, sync) };
                    let simulated = simulate(&cluster, &workload).unwrap().times.step_seconds;
                    let least = at_least(&workload, &cluster);
                    assert!(
                        least <= simulated * (1.0 + 1e-9),
                        "{algorithm:?}, {sync:?}: {simulated}, at least {least}"
                    );
                }
            }
        }
    }
}
