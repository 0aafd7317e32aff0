//! Machines, and what connects them.

use std::time::Duration;

use ringstep_comm::call::HEADER;
use ringstep_comm::cost::Tuning;
use ringstep_comm::transport::Net;
use ringstep_comm::{Algorithm, Topology};
use ringstep_train::SyncMethod;
use ringstep_train::strategy::Servers;

/// Hosts with workers, and the links between them. A message to another host takes its sender's host's link out, and its
/// receiver's host's link in; one within a host takes links of the two workers' own, as
/// [`Shaped`](ringstep_comm::transport::Shaped) has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Cluster {
    /// Which workers are on which host.
    pub topology: Topology,
    /// A host's link out, and its link in.
    pub uplink: Net,
    /// The same for each worker, to others of its host.
    pub inside: Net,
    /// Bytes that a link passes at once after a pause, as a token bucket does.
    pub burst: f64,
    /// Seconds of a worker's core for each message that it sends, and for each that it receives.
    pub overhead: f64,
    /// Seconds until a worker goes on that has had to wait for a message.
    pub wake: f64,
    /// Seconds of a worker's core for each byte that it sends or receives, while the links pass it on.
    pub touch: f64,
    /// The same for what a message has beyond [`NEAR`] bytes, which no cache near the core holds.
    pub touch_far: f64,
    /// Bytes that a worker need not wait for to leave before it goes on.
    pub buffer: f64,
    /// Bytes of a message besides its data.
    pub header: usize,
    /// Seconds to reduce a byte, likewise.
    pub reduce: f64,
    /// Seconds of a turn of a flat all-reduce in shared memory; see [`Tuning`].
    pub turn: f64,
    /// Seconds of a synchronisation of a chunked one.
    pub sync: f64,
    /// Seconds to copy a byte into or out of shared memory.
    pub copy: f64,
    /// Cores of each host, if they are fewer than its workers may want.
    pub cores: Option<usize>,
    /// Threads of each worker that compute.
    pub threads: usize,
    /// The numbers that choices rest on, where these were not measured on the cluster itself.
    pub choosing: Option<Tuning>,
    /// How many times as long computing takes on one core when all cores of the host are busy: they share caches and memory.
    pub contention: f64,
}

/// Bytes of a message that a cache near the core holds.
pub const NEAR: usize = 64 << 10;

impl Cluster {
    /// Workers on a host each, with links like these and no other costs.
    pub fn flat(workers: usize, net: Net) -> Self {
        let instant = Net { bytes_per_second: f64::INFINITY, latency: Duration::ZERO };
        Self {
            topology: Topology::new((0..workers).collect(), false),
            uplink: net,
            inside: instant,
            burst: 0.0,
            overhead: 0.0,
            wake: 0.0,
            touch: 0.0,
            touch_far: 0.0,
            buffer: 0.0,
            header: HEADER,
            reduce: 0.0,
            turn: 0.0,
            sync: 0.0,
            copy: 0.0,
            cores: None,
            threads: 1,
            choosing: None,
            contention: 1.0,
        }
    }

    /// Hosts of `per_host` workers, the last perhaps of fewer, with links like these inside; they share their host's uplink.
    pub fn of_hosts(workers: usize, per_host: usize, uplink: Net, inside: Net) -> Self {
        let topology = Topology::new((0..workers).map(|rank| rank / per_host).collect(), false);
        Self { topology, inside, ..Self::flat(workers, uplink) }
    }

    /// Workers that are where they are, with the numbers that a group has measured that had cores enough. Nothing but its
    /// own work takes a worker's time: there is no wire within a machine.
    pub fn measured(topology: Topology, tuning: Tuning) -> Self {
        let instant = Net { bytes_per_second: f64::INFINITY, latency: Duration::ZERO };
        let Tuning { alpha, beta, gamma, turn, sync, copy } = tuning;
        // In a step of a ring a worker sends a message and receives one.
        let (overhead, touch, reduce) = (alpha / 2.0, beta / 2.0, gamma);
        Self { topology, overhead, touch, touch_far: touch, reduce, turn, sync, copy, ..Self::flat(1, instant) }
    }

    /// The numbers of the cost model, as a group on this cluster would measure them.
    pub fn tuning(&self) -> Tuning {
        let net = if self.topology.is_one_host() { self.inside } else { self.uplink };
        Tuning {
            alpha: 2.0 * self.overhead + self.wake + net.latency.as_secs_f64(),
            beta: (1.0 / net.bytes_per_second).max(2.0 * self.touch_far),
            gamma: self.reduce,
            turn: self.turn,
            sync: self.sync,
            copy: self.copy,
        }
    }

    /// Seconds of a worker's core for so many bytes of a message.
    pub(crate) fn touching(&self, bytes: usize) -> f64 {
        bytes.min(NEAR) as f64 * self.touch + bytes.saturating_sub(NEAR) as f64 * self.touch_far
    }

    /// The same cluster with the ranks that hold this way's parameters: beside the workers if they are colocated or if all are
    /// on one host anyway, else on hosts of their own.
    pub(crate) fn with_servers(&self, sync: SyncMethod) -> Self {
        let (servers, colocated) = (sync.servers(self.topology.world()), sync.held_by() == Some(Servers::Colocated));
        let hosts = self.topology.hosts();
        let next = hosts.iter().max().map_or(0, |last| last + 1);
        let host = |server: usize| match (colocated, self.topology.is_one_host()) {
            (true, _) => hosts[server % hosts.len()],
            (false, true) if hosts.len() > 1 || self.cores.is_some() => hosts[0],
            (false, _) => next + server,
        };
        let all = hosts.iter().copied().chain((0..servers).map(host)).collect();
        let topology = Topology::new(all, self.topology.shares_memory_within_hosts());
        Self { topology, ..self.clone() }
    }

    /// The algorithm that a group on this cluster takes if it is not told.
    pub fn choice(&self, bytes: usize) -> Algorithm {
        self.choosing().choose(&self.topology, bytes)
    }

    /// The numbers that the choice of algorithms and buckets rests on.
    pub fn choosing(&self) -> Tuning {
        self.choosing.unwrap_or_else(|| self.tuning())
    }

    /// Whether a host may have more threads that want a core than cores: those that compute, and one a worker that
    /// communicates.
    pub fn is_crowded(&self) -> bool {
        self.cores.is_some_and(|cores| self.topology.largest_host() * (self.threads + 1) > cores)
    }

    /// Whether hosts have fewer cores than workers.
    pub fn has_more_workers_than_cores(&self) -> bool {
        self.cores.is_some_and(|cores| self.topology.largest_host() > cores)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_measured_is_what_choices_rest_on() {
        let tuning = Tuning { alpha: 3e-6, beta: 0.5e-9, gamma: 1e-10, turn: 1e-6, sync: 2e-6, copy: 3e-10 };
        for topology in [Topology::new(vec![0; 4], true), Topology::new(vec![0, 0, 1, 1], true)] {
            assert_eq!(Cluster::measured(topology, tuning).tuning(), tuning);
        }
    }
}
