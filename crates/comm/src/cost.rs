//! What an all-reduce costs, as code: bytes to the byte, and time by the alpha-beta-gamma model (Hockney 1994; Thakur,
//! Rabenseifner and Gropp 2005).
//!
//! A step costs alpha, a byte on the wire beta, a byte that is reduced gamma. In shared memory a flat segment costs
//! `turn`, a chunked one two `sync`, and a byte that a rank copies in, out or reduces `copy`.

use serde::{Deserialize, Serialize};

use crate::collective::{Algorithm, chunk, chunks, direct};
use crate::topology::Topology;
use crate::transport::{Net, Shared};

/// Bytes that a rank sends in an all-reduce of `elements` elements of `size` bytes, or lays out in shared memory.
pub fn bytes_sent(algorithm: Algorithm, rank: usize, topology: &Topology, elements: usize, size: usize) -> usize {
    let world = topology.world();
    if world == 1 {
        return 0;
    }
    match algorithm {
        Algorithm::GatherScatter => size * elements * if rank == 0 { world - 1 } else { 1 },
        Algorithm::Tree => {
            // Up once, unless it is the root; down to each child.
            let up = usize::from(rank > 0);
            let below = if rank == 0 { world.next_power_of_two() } else { 1 << rank.trailing_zeros() };
            let children = (0..below.ilog2()).filter(|bit| rank + (1 << bit) < world).count();
            size * elements * (up + children)
        }
        Algorithm::Ring => size * ring(elements, rank, world),
        Algorithm::RecursiveDoubling => {
            let (count, number, pre) = power_of_two(rank, world);
            let core = number.map_or(0, |_| count.ilog2() as usize);
            size * elements * (pre + core)
        }
        Algorithm::HalvingDoubling => {
            let (count, number, pre) = power_of_two(rank, world);
            let core = number.map_or(0, |number| {
                let window = |size: usize| {
                    let start = number / size * size;
                    chunks(elements, count, start..start + size).len()
                };
                // Halving sends all but the own chunk; doubling sends each window before it grows.
                let sizes = (0..count.ilog2()).map(|bit| 1 << bit);
                elements - window(1) + sizes.map(window).sum::<usize>()
            });
            size * (pre * elements + core)
        }
        Algorithm::Direct => within_host(rank, world, elements, size),
        Algorithm::Hierarchical => {
            let (leaders, shared) = (topology.leaders(), topology.shares_memory_within_hosts());
            let neighbours = topology.neighbours(rank).count();
            let place = topology.neighbours(rank).take_while(|&other| other < rank).count();
            let leads = place == 0;
            let up = match shared {
                true if neighbours == 1 => 0,
                true => within_host(place, neighbours, elements, size),
                false => usize::from(!leads) * size * elements,
            };
            let between = match leaders.iter().position(|&leader| leader == rank) {
                Some(place) if leaders.len() > 1 => size * ring(elements, place, leaders.len()),
                _ => 0,
            };
            let down = if leads && (leaders.len() > 1 || !shared) { neighbours - 1 } else { 0 };
            up + between + down * size * elements
        }
        #[cfg(feature = "mpi")]
        Algorithm::Mpi => least_sent(elements, world) * size,
    }
}

/// Elements that a rank must send at least in an all-reduce: all but its share, twice.
#[cfg(feature = "mpi")]
pub fn least_sent(elements: usize, world: usize) -> usize {
    2 * (elements - elements / world)
}

/// All but one chunk in each phase.
fn ring(elements: usize, rank: usize, world: usize) -> usize {
    let left_out = |index: usize| chunk(elements, world, index % world).len();
    2 * elements - left_out(rank + 1) - left_out(rank + 2)
}

/// The power of two that does the work, this rank's number in it, and how often it sends all to or for its partner.
fn power_of_two(rank: usize, world: usize) -> (usize, Option<usize>, usize) {
    let count = 1 << world.ilog2();
    let extra = world - count;
    match rank {
        _ if rank >= 2 * extra => (count, Some(rank - extra), 0),
        _ if rank.is_multiple_of(2) => (count, None, 1),
        _ => (count, Some(rank / 2), 1),
    }
}

/// What a rank lays out in shared memory: its slice, and its chunks of the result if there is one.
fn within_host(index: usize, members: usize, elements: usize, size: usize) -> usize {
    if direct::is_flat(elements * size, members) {
        return elements * size;
    }
    let segment = Shared::stage_size() / size;
    let starts = (0..elements).step_by(segment);
    let result: usize = starts.map(|start| chunk(segment.min(elements - start), members, index).len()).sum();
    size * (elements + result)
}

/// The numbers of a machine that the choice of algorithms rests on, in seconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Tuning {
    /// A step: a message there and one back, as small as can be.
    pub alpha: f64,
    /// A byte on the wire.
    pub beta: f64,
    /// A byte that is reduced.
    pub gamma: f64,
    /// A turn of a flat all-reduce in shared memory, with its one synchronisation.
    pub turn: f64,
    /// One of the two synchronisations of a chunked one.
    pub sync: f64,
    /// A byte that is copied into, out of or reduced from shared memory.
    pub copy: f64,
}

impl Tuning {
    /// Typical numbers: messages go through shared memory if all ranks share it, else over TCP. [`crate::tune`] measures
    /// real ones.
    pub fn typical(topology: &Topology) -> Self {
        if topology.all_share_memory() { Self::of_messages(2e-6, 0.25e-9) } else { Self::typical_wire() }
    }

    fn typical_wire() -> Self {
        Self::of_messages(25e-6, 0.7e-9)
    }

    fn of_messages(alpha: f64, beta: f64) -> Self {
        Self { alpha, beta, gamma: 0.1e-9, turn: 1e-6, sync: 1e-6, copy: 0.1e-9 }
    }

    /// The numbers of messages over links like these, which need not be measured. Nothing is faster than what carries it.
    pub fn of_wire(net: Net) -> Self {
        let typical = Self::typical_wire();
        let (alpha, beta) = (net.latency.as_secs_f64(), 1.0 / net.bytes_per_second);
        Self { alpha: alpha.max(typical.alpha), beta: beta.max(typical.beta), ..typical }
    }

    /// Seconds that an all-reduce of so many bytes takes.
    pub fn predict(&self, algorithm: Algorithm, topology: &Topology, bytes: usize) -> f64 {
        let world = topology.world();
        if world == 1 {
            return 0.0;
        }
        let (p, n) = (world as f64, bytes as f64);
        let log = p.log2().ceil();
        let Self { alpha, beta, gamma, .. } = *self;
        // Ranks beyond a power of two hand their slice over and get it back.
        let extra = if world.is_power_of_two() { 0.0 } else { 2.0 * (alpha + n * beta) + n * gamma };
        let ring = |p: f64| 2.0 * (p - 1.0) * alpha + 2.0 * (p - 1.0) / p * n * beta + (p - 1.0) / p * n * gamma;
        match algorithm {
            Algorithm::GatherScatter => (p - 1.0) * (2.0 * alpha + 2.0 * n * beta + n * gamma),
            Algorithm::Tree => log * (2.0 * alpha + 2.0 * n * beta + n * gamma),
            Algorithm::Ring => ring(p),
            Algorithm::RecursiveDoubling => p.log2().floor() * (alpha + n * beta + n * gamma) + extra,
            Algorithm::HalvingDoubling => {
                let count = 2f64.powf(p.log2().floor());
                let share = (count - 1.0) / count;
                2.0 * count.log2() * alpha + 2.0 * share * n * beta + share * n * gamma + extra
            }
            Algorithm::Direct => self.predict_direct(world, bytes),
            Algorithm::Hierarchical => {
                let (hosts, shared) = (topology.leaders().len(), topology.shares_memory_within_hosts());
                let neighbours = topology.largest_host();
                let others = neighbours as f64 - 1.0;
                let up = match shared {
                    true => self.predict_direct(neighbours, bytes),
                    false => others * (alpha + n * beta + n * gamma),
                };
                let down = if hosts > 1 || !shared { others * (alpha + n * beta) } else { 0.0 };
                up + ring(hosts as f64) + down
            }
            // It has the same choice.
            #[cfg(feature = "mpi")]
            Algorithm::Mpi => self.predict(self.choose(topology, bytes), topology, bytes),
        }
    }

    /// Seconds that one in shared memory takes, of so many ranks.
    pub fn predict_direct(&self, members: usize, bytes: usize) -> f64 {
        let n = bytes as f64;
        let per_segment = |size: usize| bytes.div_ceil(size).max(1) as f64;
        match members {
            1 => 0.0,
            _ if direct::is_flat(bytes, members) => {
                // In, and each input once; two ranks have their own already.
                let copies = if members == 2 { 2.0 } else { 1.0 + members as f64 };
                per_segment(Shared::slot_size()) * self.turn + n * copies * self.copy
            }
            // In, one read of each input's share, and out.
            _ => 2.0 * per_segment(Shared::stage_size()) * self.sync + 3.0 * n * self.copy,
        }
    }

    /// The algorithm that is predicted to be the fastest.
    pub fn choose(&self, topology: &Topology, bytes: usize) -> Algorithm {
        let possible = |algorithm: &Algorithm| match algorithm {
            Algorithm::Direct => topology.all_share_memory(),
            Algorithm::Hierarchical => !topology.is_one_host(),
            _ => true,
        };
        let time = |algorithm: Algorithm| self.predict(algorithm, topology, bytes);
        Algorithm::ALL
            .into_iter()
            .filter(possible)
            .min_by(|&a, &b| time(a).total_cmp(&time(b)))
            .expect("most are always possible")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two hosts of four that share memory each: messages go between hosts, so they cost what they do over TCP, and
    /// within a host nothing is sent before the ring.
    #[test]
    fn hosts_that_share_memory_inside_are_no_single_host() {
        let apart = Topology::new(vec![0, 0, 0, 0, 1, 1, 1, 1], true);
        let tuning = Tuning::typical(&apart);
        assert_eq!(tuning, Tuning::typical(&Topology::new((0..8).collect(), false)));
        let (n, others) = (1e6, 3.0);
        let between = 2.0 * tuning.alpha + n * tuning.beta + 0.5 * n * tuning.gamma;
        let within = tuning.predict_direct(4, 1_000_000) + others * (tuning.alpha + n * tuning.beta);
        let predicted = tuning.predict(Algorithm::Hierarchical, &apart, 1_000_000);
        assert!((predicted / (between + within) - 1.0).abs() < 1e-12);
        assert_ne!(tuning.choose(&apart, 1_000_000), Algorithm::Direct);
    }
}
