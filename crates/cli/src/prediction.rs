//! What a step of a run should take, by simulation: what its workers compute and exchange, on cores that they share.

use std::time::Duration;

use ringstep_comm::transport::Net;
use ringstep_sim::{Cluster, predict};
use ringstep_train::Job;
use ringstep_train::profile::Basis;

/// Seconds of a step, if the way to stay in step can be simulated. Over a network that is slowed down, messages were timed with
/// what that takes of them.
pub fn step_seconds(job: &Job, basis: &Basis) -> Option<f64> {
    let Basis { profile, timings, topology, cores, tuning } = basis;
    let instant = Net { bytes_per_second: f64::INFINITY, latency: Duration::ZERO };
    let cluster = Cluster {
        topology: topology.clone(),
        cores: Some(*cores),
        threads: job.threads,
        choosing: Some(*tuning),
        ..Cluster::flat(1, instant)
    };
    Some(predict(job, profile, &cluster.calibrated(timings)).ok()?.step_seconds)
}
