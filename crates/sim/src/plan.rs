//! What a job's workers compute and exchange, by the job's own rules: the buckets, parameters and codes of `train`.

use ringstep_comm::Algorithm;
use ringstep_comm::cost::Tuning;
use ringstep_nn::Parameter;
use ringstep_train::job::Length;
use ringstep_train::profile::Profile;
use ringstep_train::strategy::{Exchange, Round, exchanges, in_order};
use ringstep_train::{Job, SyncMethod};

use crate::cluster::Cluster;
use crate::served::Served;
use crate::simulation::{StepTimes, simulate};
use crate::slow::Slowness;
use crate::workload::{Invalid, Slice, Sync, Workload};

/// Steps of a worker that servers serve, the first of which does not count.
const SERVED_STEPS: usize = 33;

/// Steps of all workers together, where they have too few cores.
const CROWDED_STEPS: usize = 64;

/// What is not known before it happens, or cannot be.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum Unpredictable {
    /// A way that no simulation follows.
    #[error("{way} cannot be simulated: {why}")]
    Way {
        /// Its name.
        way: &'static str,
        /// What stands in between.
        why: &'static str,
    },
    /// How much is sent depends on numbers.
    #[error("threshold cannot be simulated: how much it sends depends on the gradients")]
    Threshold,
    /// The numbers make no sense.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// Where the time of a job's steps would go on a cluster, which says how many workers there are, of workers that compute as
/// long as this.
pub fn predict(job: &Job, profile: &Profile, cluster: &Cluster) -> Result<StepTimes, Unpredictable> {
    Ok(simulate(cluster, &workload(job, profile, cluster)?)?.times)
}

/// What a job's workers do in as many steps as it takes to see what a step takes.
pub fn workload(job: &Job, profile: &Profile, cluster: &Cluster) -> Result<Workload, Unpredictable> {
    let parameters = job.model.network().parameters().expect("its layers are checked");
    let (workers, backward) = (cluster.topology.world(), profile.backward_seconds());
    let all: usize = in_order(&parameters).map(|range| range.len()).sum();
    // What it takes to sum a slice that is ready then.
    let sum = |slice: std::ops::Range<usize>, ready: f64, algorithm| {
        let exchanges = exchanges(job.compress, &parameters, slice, workers).ok_or(Unpredictable::Threshold)?;
        Ok(exchanges.into_iter().map(move |exchange| Slice { exchange, algorithm, ready }).collect::<Vec<_>>())
    };
    let algorithm = job.sync.algorithm().flatten();
    let after_backward = |algorithm| -> Result<Vec<Slice>, Unpredictable> {
        let slices: Result<Vec<_>, _> = in_order(&parameters).map(|range| sum(range, backward, algorithm)).collect();
        Ok(slices?.concat())
    };
    let unpredictable = |why| Unpredictable::Way { way: job.sync.name(), why };
    if algorithm.is_some_and(|algorithm| !Algorithm::ALL.contains(&algorithm)) {
        return Err(unpredictable("what MPI's own all-reduce does only MPI knows"));
    }
    let (slices, sync) = match job.sync {
        SyncMethod::Single | SyncMethod::None => (Vec::new(), Sync::AfterBackward),
        SyncMethod::GatherScatter => (after_backward(Some(Algorithm::GatherScatter))?, Sync::AfterBackward),
        SyncMethod::AllReduce { .. } => (after_backward(algorithm)?, Sync::AfterBackward),
        SyncMethod::Ddp { .. } => {
            let compresses = job.compress.is_some();
            let buckets = job.sync.buckets(&parameters, &cluster.topology, &cluster.choosing(), compresses);
            let ready = |end| profile.ready(end).min(backward);
            let slices: Result<Vec<_>, Unpredictable> =
                buckets.ranges().map(|range| sum(range.clone(), ready(range.end), algorithm)).collect();
            (slices?.concat(), Sync::DuringBackward)
        }
        SyncMethod::LocalSgd { round, .. } | SyncMethod::DiLoCo { round, .. } => {
            let Round::Every(steps) = round else {
                return Err(unpredictable("when models are averaged is not said in steps"));
            };
            let statistics: usize = parameters.iter().filter(|tensor| !tensor.trained).map(|t| t.range().len()).sum();
            let of = |exchange, algorithm| Slice { exchange, algorithm, ready: backward };
            // Who is late is waited for; then come the number of images and each worker's of steps, and what is averaged.
            let counts = Exchange::AllReduce { elements: 1 + workers, size: 8 };
            let mut slices = vec![of(Exchange::Meet, None), of(counts, None)];
            if statistics > 0 {
                slices.push(of(Exchange::of_f32s(statistics), algorithm));
            }
            slices.extend(sum(0..all, backward, algorithm)?);
            (slices, Sync::EverySteps(steps))
        }
        SyncMethod::Sma { .. } => (sum(0..all, 0.0, algorithm)?, Sync::DuringBackward),
        SyncMethod::PostLocalSgd { .. } => {
            return Err(unpredictable("it is ddp at first and local-sgd later; these can be"));
        }
        // Gradients go up a tree, and parameters come down for the next step. The images that rank 0 deals out are left out.
        SyncMethod::DataParallel => {
            (vec![Slice { ready: backward, ..Slice::of_f32(all, 0.0).by(Algorithm::Tree) }], Sync::AfterBackward)
        }
        SyncMethod::ParameterServer { .. } | SyncMethod::Stale { .. } | SyncMethod::Async { .. } => {
            return served(job, &parameters, profile, cluster);
        }
    };
    // Of several replicas of a worker the first one's backward hides the exchange.
    let learners = job.sync.learners() as f64;
    // Where cores are scarce, those that load images have them at the cost of those that compute.
    let load = if cluster.is_crowded() { profile.load } else { 0.0 };
    let before = learners * (profile.forward + load) + (learners - 1.0) * backward;
    let update = learners * profile.update;
    let steps = match sync {
        Sync::EverySteps(steps) => steps,
        // Who waits for which core is left to chance.
        _ if cluster.has_more_workers_than_cores() => (CROWDED_STEPS / workers).max(1),
        _ => 1,
    };
    Ok(Workload { slow: slowness(job), seed: job.seed, steps, ..Workload::new(before, backward, update, slices, sync) })
}

/// What workers do whose parameters servers hold, in enough steps for the first not to matter.
fn served(
    job: &Job,
    parameters: &[Parameter],
    profile: &Profile,
    cluster: &Cluster,
) -> Result<Workload, Unpredictable> {
    let workers = cluster.topology.world();
    // As in training: servers are among the ranks that count, and where nothing was measured, typical numbers decide.
    let topology = cluster.with_servers(job.sync).topology;
    let tuning = cluster.choosing.unwrap_or_else(|| Tuning::typical(&topology));
    let buckets = job.sync.buckets(parameters, &topology, &tuning, job.compress.is_some());
    let why = match job.sync {
        _ if job.compress.is_some() => Some("codes to servers are not followed"),
        SyncMethod::Async { period, .. } if period > 0.0 => Some("its servers step by the clock"),
        _ if job.sync.servers(workers) > in_order(parameters).count() => Some("it has more servers than tensors"),
        _ => None,
    };
    if let Some(why) = why {
        return Err(Unpredictable::Way { way: job.sync.name(), why });
    }
    let job = Job { workers, length: Length::Steps(SERVED_STEPS), ..job.clone() };
    let (seed, slow) = (job.seed, slowness(&job));
    let served = Some(Served::new(job, parameters, &buckets, profile));
    let load = if cluster.is_crowded() { profile.load } else { 0.0 };
    let base = Workload::new(profile.forward + load, profile.backward_seconds(), 0.0, Vec::new(), Sync::DuringBackward);
    Ok(Workload { served, slow, seed, steps: SERVED_STEPS, ..base })
}

fn slowness(job: &Job) -> Slowness {
    if job.slow.is_empty() { Slowness::None } else { Slowness::Some(job.slow.clone()) }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringstep_comm::Topology;
    use ringstep_comm::transport::Net;
    use ringstep_nn::Architecture;
    use ringstep_train::compress::{Compression, Method};
    use ringstep_train::job::Design;
    use ringstep_train::strategy::Servers;

    use super::*;

    const RING: Option<Algorithm> = Some(Algorithm::Ring);

    fn job(sync: SyncMethod) -> Job {
        let vgg11 = Design::new("vgg11", Architecture::Vgg11.network()).unwrap();
        Job::new(vgg11, sync, 4, 64, Length::Steps(1))
    }

    fn profile() -> Profile {
        Profile::of_operations(&job(SyncMethod::None).model, 64, 50e9)
    }

    fn cluster(workers: usize) -> Cluster {
        Cluster::flat(workers, Net { bytes_per_second: 125e6, latency: Duration::from_micros(20) })
    }

    fn sums(workload: &Workload) -> usize {
        let elements = |slice: &Slice| match slice.exchange {
            Exchange::AllReduce { elements, size: 4 } => elements,
            _ => 0,
        };
        workload.slices.iter().map(elements).sum()
    }

    /// All gradients are summed once, bucket by bucket or parameter by parameter; ddp's last bucket is ready in the end.
    #[test]
    fn every_way_sums_all_gradients() {
        const ALL: usize = 9_231_114;
        let of = |sync| workload(&job(sync), &profile(), &cluster(4)).unwrap();
        let ddp = of(SyncMethod::Ddp { algorithm: RING, bucket: Some(4 << 20) });
        assert_eq!(ddp.sync, Sync::DuringBackward);
        assert!(ddp.slices.len() > 3 && ddp.slices.is_sorted_by_key(|slice| slice.ready));
        assert!((ddp.slices.last().unwrap().ready - profile().backward_seconds()).abs() < 1e-9);
        let by_parameter = of(SyncMethod::AllReduce { algorithm: RING });
        assert_eq!((by_parameter.sync, by_parameter.slices.len()), (Sync::AfterBackward, 34));
        let local = of(SyncMethod::LocalSgd { round: Round::Every(8), algorithm: RING });
        assert_eq!((local.sync, local.steps), (Sync::EverySteps(8), 8));
        for workload in
            [ddp, by_parameter, of(SyncMethod::Sma { learners: 2, pull: None, momentum: 0.9, algorithm: RING })]
        {
            assert_eq!(sums(&workload), ALL);
        }
        assert_eq!(sums(&of(SyncMethod::None)), 0);
    }

    /// On a slow network whoever hides communication, leaves it out or sends less has the shorter step, in this order.
    #[test]
    fn ways_are_as_fast_as_they_should_be() {
        let step = |sync, compress| {
            let job = Job { compress, ..job(sync) };
            predict(&job, &profile(), &cluster(8)).unwrap().step_seconds
        };
        let ddp = SyncMethod::Ddp { algorithm: RING, bucket: None };
        let steps = [
            step(SyncMethod::GatherScatter, None),
            step(SyncMethod::AllReduce { algorithm: RING }, None),
            step(ddp, None),
            step(ddp, Some(Compression::new(Method::Fp16))),
            step(ddp, Some(Compression::new(Method::TopK { keep: 0.001 }))),
            step(SyncMethod::None, None),
        ];
        assert!(steps.is_sorted_by(|a, b| a > b), "{steps:?}");
        assert!((steps[5] - profile().alone()).abs() < 1e-9);
    }

    /// Gradients to servers are cut as a training of as many ranks cuts them, which knows nothing of its network.
    #[test]
    fn servers_get_the_buckets_of_a_training() {
        let sync = SyncMethod::Stale { servers: Servers::Apart(2), staleness: 1 };
        let all = Topology::new((0..6).collect(), false);
        let parameters = job(sync).model.network().parameters().unwrap();
        let cut = sync.buckets(&parameters, &all, &Tuning::typical(&all), false);
        let served = workload(&job(sync), &profile(), &cluster(4)).unwrap().served.unwrap();
        assert!(served.buckets.into_iter().map(|(range, _)| range).eq(cut.ranges()));
    }

    /// Two workers' gradients and parameters pass a server's link: both directions at once where they have parted, and one after
    /// the other where they have not. A seed says which, and says the same again.
    #[test]
    fn steps_are_within_what_a_servers_link_allows() {
        let sync = SyncMethod::Stale { servers: Servers::Apart(1), staleness: 1 };
        let step = |seed| predict(&Job { seed, ..job(sync) }, &profile(), &cluster(2)).unwrap().step_seconds;
        let wire = 9_231_114.0 * 4.0 / 125e6;
        let steps = [0, 1, 2].map(step);
        for step in steps {
            assert!(step > 2.0 * wire && step < 4.0 * wire + profile().alone(), "{step} s, {wire} s a message");
        }
        assert!(steps[0] != steps[1] && steps == [0, 1, 2].map(step));
    }

    #[test]
    fn what_nobody_knows_before_is_refused() {
        let refused = |sync, compress| {
            let job = Job { compress, ..job(sync) };
            predict(&job, &profile(), &cluster(2)).unwrap_err().to_string()
        };
        let ddp = SyncMethod::Ddp { algorithm: RING, bucket: None };
        let threshold = Some(Compression::new(Method::Threshold { threshold: 0.1 }));
        assert!(refused(ddp, threshold).starts_with("threshold cannot be simulated"));
        let epoch = SyncMethod::LocalSgd { round: Round::EveryEpoch, algorithm: RING };
        assert!(refused(epoch, None).starts_with("local-sgd cannot be simulated"));
    }
}
