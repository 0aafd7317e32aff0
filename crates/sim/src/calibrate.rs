//! The numbers of a cluster, from times that a group took: those with which the same, simulated, takes as long.

use ringstep_comm::Algorithm;
use ringstep_comm::collective::lane::{Combine, Lane};
use ringstep_comm::collective::{self, barrier};
use ringstep_comm::cost::Tuning;
use ringstep_comm::tune::Timings;

use crate::cluster::Cluster;
use crate::lane::Simulated;
use crate::network::{Network, Running};

/// Halvings of the range in which a number is looked for.
const HALVINGS: usize = 40;

impl Cluster {
    /// The same cluster with what messages cost its workers, if a group on it took so long. Each number is found where those
    /// before it are known: what a message costs from messages that nobody waits for, what waiting costs from a ring that has
    /// next to nothing to send, and what a byte costs from rings that have.
    pub fn calibrated(self, times: &Timings) -> Self {
        let world = self.topology.world();
        let Timings { rings: [small, medium, large], message, reduce, .. } = *times;
        let bytes = Timings::SIZES;
        let mut found = Self { overhead: 0.0, wake: 0.0, touch: 0.0, touch_far: 0.0, reduce, ..self };
        if world > 1 {
            let with = |change: &dyn Fn(&mut Self)| {
                let mut cluster = found.clone();
                change(&mut cluster);
                cluster
            };
            let overhead = solve(message, message, |overhead| messages(&with(&|it| it.overhead = overhead)));
            found.overhead = overhead;
            let with = |change: &dyn Fn(&mut Self)| {
                let mut cluster = found.clone();
                change(&mut cluster);
                cluster
            };
            let wake = solve(small, small, |wake| ring(&with(&|it| it.wake = wake), bytes[0]));
            found.wake = wake;
            let touch = |cluster: &Self, seconds: f64, bytes: usize, far: bool| {
                let of = |touch: f64| Self {
                    touch: if far { cluster.touch } else { touch },
                    touch_far: touch,
                    ..cluster.clone()
                };
                solve(seconds, seconds / bytes as f64 * world as f64, |touch| ring(&of(touch), bytes))
            };
            found.touch = touch(&found, medium, bytes[1], false);
            found.touch_far = touch(&found, large, bytes[2], true);
        }
        let Tuning { turn, sync, copy, .. } = times.tuning(world, Tuning::typical(&found.topology));
        // These were taken while all ranks of a host wanted its cores.
        let share = found.cores.map_or(1.0, |cores| cores as f64 / found.topology.largest_host() as f64).min(1.0);
        Self { turn: share * turn, sync: share * sync, copy: share * copy, ..found }
    }
}

/// The number from 0 to `most` with which something takes so many seconds; it takes longer the greater the number is.
fn solve(target: f64, most: f64, seconds: impl Fn(f64) -> f64) -> f64 {
    let (mut low, mut high) = (0.0, most);
    for _ in 0..HALVINGS {
        let middle = 0.5 * (low + high);
        if seconds(middle) < target { low = middle } else { high = middle }
    }
    low
}

/// Seconds of a ring of so many bytes.
fn ring(cluster: &Cluster, bytes: usize) -> f64 {
    timed(cluster, bytes, async |network, rank| {
        let mut lane = Simulated::new(network, rank, bytes / size_of::<f32>(), size_of::<f32>());
        collective::all_reduce(Algorithm::Ring, &mut lane).await.expect("simulated messages get through");
    })
}

/// Seconds of a message to the next rank and one from the rank before, of some that all send before they receive.
fn messages(cluster: &Cluster) -> f64 {
    let (world, bytes) = (cluster.topology.world(), Timings::SIZES[0]);
    let all = timed(cluster, bytes, async |network, rank| {
        let mut lane = Simulated::new(network, rank, bytes, 1);
        for _ in 0..Timings::MESSAGES {
            lane.send((rank + 1) % world, 0..bytes).await.expect("simulated messages get through");
        }
        for _ in 0..Timings::MESSAGES {
            let from = (rank + world - 1) % world;
            lane.recv(from, 0..bytes, Combine::Copy).await.expect("simulated messages get through");
        }
    });
    all / Timings::MESSAGES as f64
}

/// Seconds of something about so many bytes, as [`Timings`] are taken: some in a row after ranks have computed, less what it takes
/// without.
fn timed(cluster: &Cluster, bytes: usize, work: impl AsyncFn(&Network<'_>, usize)) -> f64 {
    let (work, count) = (&work, Timings::in_a_row(bytes));
    let [without, with] = [0, count].map(|count| {
        let (network, world) = (Network::new(cluster), cluster.topology.world());
        let network = &network;
        let rank = |rank| {
            Box::pin(async move {
                network.compute(rank, 1, Timings::BURST).await;
                for _ in 0..count {
                    work(network, rank).await;
                }
                barrier::wait(&mut Simulated::new(network, rank, 0, 1)).await.expect("simulated messages get through");
            }) as Running<'_>
        };
        network.run((0..world).map(rank).collect()).expect("a schedule that is proved");
        (0..world).map(|rank| network.clock(rank)).fold(0.0, f64::max)
    });
    (with - without) / count as f64
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringstep_comm::Topology;
    use ringstep_comm::transport::Net;

    use super::*;

    /// What is simulated with some numbers leads back to these numbers, as nearly as the few bytes of a small message let them be
    /// told apart; and where ranks wait for cores, which hides what else they wait for, to numbers with which it takes as long.
    #[test]
    fn numbers_are_found_again() {
        let instant = Net { bytes_per_second: f64::INFINITY, latency: Duration::ZERO };
        for (world, cores) in [(2, 2), (2, 8), (4, 2), (5, 3)] {
            let cluster = Cluster {
                topology: Topology::new(vec![0; world], false),
                cores: Some(cores),
                overhead: 4e-6,
                wake: 9e-6,
                touch: 0.2e-9,
                touch_far: 0.4e-9,
                reduce: 0.05e-9,
                ..Cluster::flat(1, instant)
            };
            let [small, medium, large] = Timings::SIZES;
            let rings = [small, medium, large].map(|bytes| ring(&cluster, bytes));
            let times = Timings { rings, message: messages(&cluster), reduce: cluster.reduce, direct: None };
            let found = cluster.clone().calibrated(&times);
            let again = [small, medium, large].map(|bytes| ring(&found, bytes));
            for (again, expected) in again.into_iter().zip(rings) {
                assert!((again / expected - 1.0).abs() < 0.1, "{world} on {cores}: {again} s, not {expected}");
            }
            if world > cores {
                continue;
            }
            for (name, found, expected) in [
                ("overhead", found.overhead, cluster.overhead),
                ("wake", found.wake, cluster.wake),
                ("touch", found.touch, cluster.touch),
                ("touch_far", found.touch_far, cluster.touch_far),
            ] {
                assert!((found / expected - 1.0).abs() < 0.1, "{world} on {cores}: {name} is {found}, not {expected}");
            }
        }
    }
}
