//! What the job would take on ten times the machines, by simulation.

use std::time::Duration;

use ringstep_comm::transport::Net;
use ringstep_sim::{Cluster, Unpredictable, predict};
use ringstep_train::Job;
use ringstep_train::profile::Profile;

use super::cells::Scaling;
use super::lab::{Cell, Lab};
use crate::report::svg::{Unit, number};
use crate::show::seconds;

/// How many machines like this there would be.
const MACHINES: usize = 10;
/// Between them, unless a network is named: 25 Gbit/s and 20 us.
const NETWORK: Net = Net { bytes_per_second: 25e9 / 8.0, latency: Duration::from_micros(20) };
/// Within one of them, beside the bandwidth that is measured.
const LATENCY: Duration = Duration::from_micros(1);

/// A sentence for each batch, from the most workers that have a core each. `job` makes the job of a cell.
pub fn forecast(
    lab: &Lab,
    net: Option<Net>,
    job: impl Fn(&Cell<'_>) -> anyhow::Result<Job>,
) -> anyhow::Result<Vec<String>> {
    let net = net.unwrap_or(NETWORK);
    let cells = lab.cells();
    let weak = || cells.iter().filter(|cell| cell.place.scaling == Scaling::Weak);
    let mut sentences: Vec<String> = Vec::new();
    for alone in weak().filter(|cell| cell.place.workers == 1) {
        let of_batch = weak().filter(|cell| cell.place.batch == alone.place.batch && !cell.is_crowded());
        let cell = of_batch.max_by_key(|cell| cell.place.workers).unwrap_or(alone);
        match simulated(&job(cell)?, cell, lab, net) {
            Ok(sentence) => sentences.push(sentence),
            // It is the same for all batches.
            Err(why) => return Ok(vec![format!("Not known: {why}.")]),
        }
    }
    Ok(sentences)
}

/// One machine has the workers of this cell, which compute as fast as one of them alone was measured to.
fn simulated(job: &Job, cell: &Cell<'_>, lab: &Lab, net: Net) -> Result<String, Unpredictable> {
    let per_machine = cell.place.workers;
    let workers = MACHINES * per_machine;
    let step = cell.alone.split.compute / cell.alone.steps as f64;
    let operations = Profile::of_operations(&job.model, job.batch, 1.0).alone();
    let profile = Profile::of_operations(&job.model, job.batch, operations / step);
    let inside = Net { bytes_per_second: cell.ceiling.unwrap_or(f64::INFINITY), latency: LATENCY };
    let cluster = Cluster {
        cores: Some(lab.about.cores),
        threads: lab.about.threads,
        ..Cluster::of_hosts(workers, per_machine, net, inside)
    };
    let times = predict(job, &profile, &cluster)?;
    let efficiency = step / times.step_seconds;
    Ok(format!(
        "{workers} workers of {} images on {MACHINES} machines with links of {} and {}: {} a step, {:.1} times as fast as one worker, \
         {:.0}% of ideal; {} of it is communication that nothing hides.",
        job.batch,
        number(Unit::BitsPerSecond, 8.0 * net.bytes_per_second),
        seconds(net.latency.as_secs_f64()),
        seconds(times.step_seconds),
        workers as f64 * efficiency,
        100.0 * efficiency,
        seconds(times.exposed_comm_seconds)
    ))
}

#[cfg(test)]
mod tests {
    use ringstep_train::strategy::Round;

    use ringstep_nn::Architecture;
    use ringstep_train::SyncMethod;
    use ringstep_train::job::{Design, Length};

    use super::super::lab::tests::hand_made;
    use super::*;

    fn said(sync: SyncMethod, net: Net) -> Vec<String> {
        let design = Design::new("resnet18", Architecture::ResNet18.network()).unwrap();
        let job = |cell: &Cell<'_>| {
            Ok(Job::new(design.clone(), sync, cell.place.workers, cell.place.batch, Length::Steps(1)))
        };
        forecast(&hand_made(), Some(net), job).unwrap()
    }

    /// Two workers have a core each; a step of theirs computes for half a second.
    #[test]
    fn a_network_that_takes_no_time_is_ideal_and_a_slow_one_is_not() {
        let instant = Net { bytes_per_second: f64::INFINITY, latency: Duration::ZERO };
        let ddp = SyncMethod::Ddp { algorithm: None, bucket: None };
        let [fast, _] = &said(SyncMethod::None, instant)[..] else { panic!("two batches") };
        assert!(
            fast.starts_with("20 workers of 32 images on 10 machines") && fast.contains("500 ms a step, 20.0 times"),
            "{fast}"
        );
        let slow = Net { bytes_per_second: 1e8, latency: Duration::ZERO };
        assert!(said(ddp, slow)[0].contains(" 800 Mbit/s and 0 us: ") && !said(ddp, slow)[0].contains("100% of ideal"));
    }

    #[test]
    fn a_way_that_cannot_be_simulated_is_told() {
        let round = Round::EveryEpoch;
        let said = said(SyncMethod::LocalSgd { round, algorithm: None }, NETWORK);
        assert!(said.len() == 1 && said[0].starts_with("Not known: local-sgd cannot be simulated"), "{said:?}");
    }
}
