//! What a simulated worker runs the collectives' own code on: lengths, and moments.

use std::ops::Range;

use ringstep_comm::Topology;
use ringstep_comm::collective::lane::{Combine, Lane, Received, Reducing, Sent};
use ringstep_comm::transport::TransportError;

use crate::network::Network;

/// A worker's lane through a simulated collective: how many elements there are, and nothing in them.
pub struct Simulated<'a> {
    network: &'a Network<'a>,
    rank: usize,
    elements: usize,
    size: usize,
}

impl<'a> Simulated<'a> {
    /// For a collective of so many elements of so many bytes.
    pub fn new(network: &'a Network<'a>, rank: usize, elements: usize, size: usize) -> Self {
        Self { network, rank, elements, size }
    }
}

impl Lane for Simulated<'_> {
    fn rank(&self) -> usize {
        self.rank
    }

    fn topology(&self) -> &Topology {
        &self.network.cluster.topology
    }

    fn len(&self) -> usize {
        self.elements
    }

    fn element_size(&self) -> usize {
        self.size
    }

    /// What a worker computes for a message goes on while it leaves and arrives. Who has to wait for one sleeps, and takes
    /// some time to wake.
    async fn transfer(&mut self, sent: Option<Sent>, received: Option<Received>) -> Result<(), TransportError> {
        let Self { network, rank, size, .. } = *self;
        let cluster = network.cluster;
        let mut begin = match sent {
            Some(_) => network.compute(rank, 1, cluster.overhead).await,
            None => network.clock(rank),
        };
        let (mut end, mut work) = (begin, 0.0);
        let shared = sent.as_ref().map(|(to, _)| *to).filter(|&to| network.shares_links(rank, to));
        if let Some((to, part)) = sent {
            if shared.is_some() {
                network.turn(rank, begin).await;
                network.send_shared(rank, to, part.len() * size);
            } else {
                end = end.max(network.send(rank, to, part.len() * size));
            }
            work += cluster.touching(part.len() * size);
        }
        if let Some((from, part, combine)) = received {
            let message = network.message(rank, from).await;
            debug_assert_eq!(message.bytes, part.len() * size + cluster.header);
            let (arrives, arrived) = network.receive(rank, message);
            let wake = if arrives >= begin { cluster.wake } else { 0.0 };
            (end, begin) = (end.max(arrived + wake), begin.max(arrives + wake));
            let reduce = if combine == Combine::Reduce { cluster.reduce } else { 0.0 };
            let bytes = part.len() * size;
            work += cluster.overhead + cluster.touching(bytes) + bytes as f64 * reduce;
        }
        if work > 0.0 {
            network.wait_until(rank, begin);
            end = end.max(network.compute(rank, 1, work).await);
        }
        if let Some(to) = shared {
            end = end.max(network.drained(rank, to).await);
        }
        network.wait_until(rank, end);
        Ok(())
    }
}

impl Reducing for Simulated<'_> {
    fn finish(&mut self, _: Range<usize>) {}

    /// All are through as long after the last has come as the cost model says.
    async fn reduce_in_host(&mut self) -> Result<(), TransportError> {
        let (network, rank) = (self.network, self.rank);
        let members = network.meet(rank).await;
        let seconds = network.cluster.tuning().predict_direct(members, self.elements * self.size);
        network.compute(rank, 1, seconds).await;
        Ok(())
    }

    async fn exchange_aside(
        &mut self,
        to: usize,
        outgoing: Range<usize>,
        from: usize,
        mine: Range<usize>,
    ) -> Result<(), TransportError> {
        self.exchange(to, outgoing, from, mine, Combine::Copy).await
    }

    /// Nothing of it hides behind the wire.
    fn reduce_aside(&mut self, mine: Range<usize>) {
        let (network, bytes) = (self.network, (self.world() - 1) * mine.len() * self.size);
        network.wait_until(self.rank, network.clock(self.rank) + bytes as f64 * network.cluster.reduce);
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use ringstep_comm::collective::{self, all_to_all, barrier, rooted};
    use ringstep_comm::transport::Net;
    use ringstep_comm::{Algorithm, cost};

    use super::*;
    use crate::cluster::Cluster;
    use crate::network::Running;
    use crate::workload::Invalid;

    const BANDWIDTH: f64 = 1e9;
    const NUMBER: usize = 4;

    fn net(latency: u64) -> Net {
        Net { bytes_per_second: BANDWIDTH, latency: Duration::from_micros(latency) }
    }

    /// Without headers, so that closed forms hold to rounding.
    fn flat(workers: usize, latency: u64) -> Cluster {
        Cluster { header: 0, ..Cluster::flat(workers, net(latency)) }
    }

    /// When each worker is through with an all-reduce that it comes to at its own moment, and what it has sent.
    fn all_reduce(
        network: &Network<'_>,
        algorithm: Algorithm,
        elements: usize,
        came: impl Fn(usize) -> f64,
    ) -> (Vec<f64>, Vec<u64>) {
        let world = network.cluster.topology.world();
        let workers = (0..world).map(|rank| {
            let came = came(rank);
            Box::pin(async move {
                network.wait_until(rank, came);
                let mut lane = Simulated::new(network, rank, elements, NUMBER);
                collective::all_reduce(algorithm, &mut lane).await.expect("simulated messages get through");
            }) as Running<'_>
        });
        network.run(workers.collect()).unwrap();
        (0..world).map(|rank| (network.clock(rank), network.sent(rank))).unzip()
    }

    /// When the last of the workers is through that all come at once.
    fn seconds(cluster: &Cluster, algorithm: Algorithm, elements: usize) -> f64 {
        let (ends, _) = all_reduce(&Network::new(cluster), algorithm, elements, |_| 0.0);
        ends.into_iter().fold(0.0, f64::max)
    }

    fn assert_close(seconds: f64, expected: f64) {
        assert!((seconds - expected).abs() <= 1e-9 * expected, "{seconds}, not {expected}");
    }

    /// Patarasuk and Yuan 2009: 2(p-1)/p of the bytes; and a latency for each of 2(p-1) steps.
    #[test]
    fn a_ring_takes_its_closed_form() {
        for world in [2, 3, 4, 7, 16, 64] {
            let (p, elements) = (world as f64, 1000 * world);
            let bytes = (elements * NUMBER) as f64;
            let wire = 2.0 * (p - 1.0) / p * bytes / BANDWIDTH;
            assert_close(seconds(&flat(world, 0), Algorithm::Ring, elements), wire);
            assert_close(seconds(&flat(world, 20), Algorithm::Ring, elements), wire + 2.0 * (p - 1.0) * 20e-6);
        }
    }

    #[test]
    fn a_tree_takes_its_depth_twice() {
        let bytes = 4e6;
        for world in [2usize, 3, 4, 5, 8, 9, 31, 64] {
            let depth = (world as f64).log2().ceil();
            assert_close(seconds(&flat(world, 0), Algorithm::Tree, 1_000_000), 2.0 * depth * bytes / BANDWIDTH);
            if world.is_power_of_two() {
                let step = bytes / BANDWIDTH + 20e-6;
                assert_close(seconds(&flat(world, 20), Algorithm::Tree, 1_000_000), 2.0 * depth * step);
            }
        }
    }

    /// Thakur, Rabenseifner and Gropp 2005, for powers of two; and all slices through the links of rank 0, there and back.
    #[test]
    fn others_take_theirs() {
        let (elements, step) = (1 << 20, (4 << 20) as f64 / BANDWIDTH);
        for world in [2usize, 4, 8, 64] {
            let (p, log) = (world as f64, f64::from(world.ilog2()));
            let latency = 20e-6;
            let of = |algorithm| seconds(&flat(world, 20), algorithm, elements);
            assert_close(of(Algorithm::RecursiveDoubling), log * (latency + step));
            assert_close(of(Algorithm::HalvingDoubling), 2.0 * log * latency + 2.0 * (p - 1.0) / p * step);
            assert_close(of(Algorithm::GatherScatter), 2.0 * latency + 2.0 * (p - 1.0) * step);
        }
    }

    /// To reduce goes on while the rest arrives, and lasts longer if it is slower than the link.
    #[test]
    fn reducing_hides_behind_the_link() {
        let elements = 4000;
        let with = |reduce| seconds(&Cluster { reduce, ..flat(4, 0) }, Algorithm::Ring, elements);
        let wire = 1.5 * (elements * NUMBER) as f64 / BANDWIDTH;
        assert_close(with(0.5 / BANDWIDTH), wire);
        assert_close(with(2.0 / BANDWIDTH), 1.5 * wire);
    }

    /// All workers of a host send over its one uplink, while each has its own links inside.
    #[test]
    fn workers_of_a_host_share_its_uplink() {
        let inside = Net { bytes_per_second: f64::INFINITY, latency: Duration::ZERO };
        let cluster = Cluster { header: 0, ..Cluster::of_hosts(8, 4, net(0), inside) };
        let step = 4e6 / BANDWIDTH;
        // In the last of three steps four workers of each host send everything to the other.
        assert_close(seconds(&cluster, Algorithm::RecursiveDoubling, 1_000_000), 4.0 * step);
        // A ring leaves each host over one edge: every step sends one chunk out of it.
        assert_close(seconds(&cluster, Algorithm::Ring, 1_000_000), 14.0 / 8.0 * step);
        // One ring of two leaders.
        assert_close(seconds(&cluster, Algorithm::Hierarchical, 1_000_000), step);
    }

    #[test]
    fn workers_that_share_memory_reduce_when_the_last_has_come() {
        let topology = Topology::new(vec![0; 4], true);
        let cluster = Cluster { topology, sync: 1e-6, copy: 1e-10, ..flat(4, 0) };
        let elements = 100_000;
        let (ends, _) = all_reduce(&Network::new(&cluster), Algorithm::Direct, elements, |rank| rank as f64);
        let expected = 3.0 + cluster.tuning().predict(Algorithm::Direct, &cluster.topology, elements * NUMBER);
        ends.into_iter().for_each(|end| assert_close(end, expected));
    }

    /// Where no link ever has two messages at once, it makes no difference whether they could share it: in a ring, whenever workers
    /// come, and elsewhere if they come at once.
    #[test]
    fn who_has_a_link_to_itself_shares_nothing() {
        for world in [1, 2, 4, 8, 32] {
            let cluster = Cluster { overhead: 3e-6, reduce: 2e-10, ..Cluster::flat(world, net(7)) };
            for algorithm in [Algorithm::Ring, Algorithm::RecursiveDoubling, Algorithm::HalvingDoubling] {
                let late = if algorithm == Algorithm::Ring { 1e-13 } else { 0.0 };
                let came = |rank: usize| f64::from(ringstep_cpu::random::mix(rank as u32, 5)) * late;
                let run = |shares| {
                    let mut network = Network::new(&cluster);
                    network.shares_uplinks = shares;
                    all_reduce(&network, algorithm, 1009, came)
                };
                let ((alone, sent), (shared, sent_too)) = (run(false), run(true));
                assert_eq!(sent, sent_too);
                alone.into_iter().zip(shared).for_each(|(alone, shared)| assert_close(shared, alone));
            }
        }
    }

    /// What is simulated is what runs: to the byte.
    #[test]
    fn workers_send_the_bytes_of_the_cost_model() {
        for cluster in [flat(7, 0), Cluster::of_hosts(10, 4, net(1), net(0))] {
            for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| !algorithm.needs_shared_memory()) {
                let (_, sent) = all_reduce(&Network::new(&cluster), algorithm, 1009, |_| 0.0);
                for (rank, sent) in sent.into_iter().enumerate() {
                    assert_eq!(sent, cost::bytes_sent(algorithm, rank, &cluster.topology, 1009, NUMBER) as u64);
                }
            }
        }
    }

    /// Other collectives run on the same lane: a latency for each step of a barrier, a part for each worker at the root's
    /// link, and p-1 parts over each link.
    #[test]
    fn other_collectives_take_their_closed_forms() {
        let (world, elements) = (8, 8000);
        let end = |latency, work: &dyn for<'a> Fn(&'a Network<'a>, usize) -> Running<'a>| {
            let cluster = flat(world, latency);
            let network = Network::new(&cluster);
            network.run((0..world).map(|rank| work(&network, rank)).collect()).unwrap();
            (0..world).map(|rank| network.clock(rank)).fold(0.0, f64::max)
        };
        assert_close(
            end(20, &|network, rank| {
                Box::pin(async move { barrier::wait(&mut Simulated::new(network, rank, 0, 1)).await.unwrap() })
            }),
            3.0 * 20e-6,
        );
        let part = (elements * NUMBER) as f64 / BANDWIDTH;
        assert_close(
            end(0, &|network, rank| {
                Box::pin(async move {
                    rooted::gather(&mut Simulated::new(network, rank, elements, NUMBER), 2).await.unwrap()
                })
            }),
            7.0 * part,
        );
        assert_close(
            end(0, &|network, rank| {
                Box::pin(async move {
                    all_to_all::exchange(&mut Simulated::new(network, rank, elements, NUMBER)).await.unwrap()
                })
            }),
            7.0 / 8.0 * part,
        );
    }

    /// Three send two messages each, all at once: whoever hears anybody hears them in turn, beginning after rank 0.
    #[test]
    fn who_hears_anybody_hears_them_in_turn() {
        let (cluster, heard) = (flat(4, 0), std::cell::RefCell::new(Vec::new()));
        let network = Network::new(&cluster);
        let (network, heard) = (&network, &heard);
        let worker = |rank| {
            Box::pin(async move {
                let mut lane = Simulated::new(network, rank, 1000, NUMBER);
                for _ in 0..2 {
                    lane.send(3, 0..1000).await.unwrap();
                }
            }) as Running<'_>
        };
        let server = Box::pin(async move {
            for _ in 0..6 {
                let from = network.any_sender(3).await;
                heard.borrow_mut().push(from);
                Simulated::new(network, 3, 1000, NUMBER).recv(from, 0..1000, Combine::Copy).await.unwrap();
            }
        });
        network.run((0..3).map(worker).chain([server as Running<'_>]).collect()).unwrap();
        assert_eq!(*heard.borrow(), [1, 2, 0, 1, 2, 0]);
    }

    #[test]
    fn who_waits_for_ever_is_an_error() {
        let cluster = flat(2, 0);
        let network = Network::new(&cluster);
        let network = &network;
        let workers = (0..2).map(|rank| {
            Box::pin(async move {
                let mut lane = Simulated::new(network, rank, 1, NUMBER);
                lane.recv(1 - rank, 0..1, Combine::Copy).await.unwrap();
            }) as Running<'_>
        });
        assert_eq!(network.run(workers.collect()), Err(Invalid::Deadlock));
    }
}
