//! What an all-reduce costs, as code: bytes to the byte, and time by the alpha-beta-gamma model (Hockney 1994; Thakur,
//! Rabenseifner and Gropp 2005).
//!
//! A step costs alpha, a byte on the wire beta, a byte that is reduced gamma. In shared memory a flat segment costs
//! `turn`, a chunked one two `sync`, and a byte that a rank copies in, out or reduces `copy`.

use crate::collective::{Algorithm, chunk, chunks, direct, on_one_host};
use crate::transport::{Net, Shared};

/// Bytes that a rank sends in an all-reduce of `elements` elements of `size` bytes, or lays out in shared memory.
/// `hosts` has the host of each rank; `shared` says whether ranks of one host share memory.
pub fn bytes_sent(
    algorithm: Algorithm,
    rank: usize,
    hosts: &[usize],
    shared: bool,
    elements: usize,
    size: usize,
) -> usize {
    let world = hosts.len();
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
            let leaders: Vec<usize> = (0..world).filter(|&rank| first_of_host(hosts, rank) == rank).collect();
            let neighbours = hosts.iter().filter(|&&host| host == hosts[rank]).count();
            let place = hosts[..rank].iter().filter(|&&host| host == hosts[rank]).count();
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
    }
}

fn first_of_host(hosts: &[usize], rank: usize) -> usize {
    hosts.iter().position(|&host| host == hosts[rank]).expect("its own is among them")
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
#[derive(Debug, Clone, Copy, PartialEq)]
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
    /// Typical numbers for messages through shared memory or over TCP; [`crate::tune`] measures real ones.
    pub fn typical(shared: bool) -> Self {
        let (alpha, beta) = if shared { (2e-6, 0.25e-9) } else { (25e-6, 0.7e-9) };
        Self { alpha, beta, gamma: 0.1e-9, turn: 1e-6, sync: 1e-6, copy: 0.1e-9 }
    }

    /// The numbers of messages over links like these, which need not be measured. Nothing is faster than what carries it.
    pub fn of_wire(net: Net) -> Self {
        let typical = Self::typical(false);
        let (alpha, beta) = (net.latency.as_secs_f64(), 1.0 / net.bytes_per_second);
        Self { alpha: alpha.max(typical.alpha), beta: beta.max(typical.beta), ..typical }
    }

    /// Seconds that an all-reduce of so many bytes takes.
    pub fn predict(&self, algorithm: Algorithm, hosts: &[usize], shared: bool, bytes: usize) -> f64 {
        let world = hosts.len();
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
                let hosts_count = (0..world).filter(|&rank| first_of_host(hosts, rank) == rank).count();
                let largest = hosts.iter().map(|host| hosts.iter().filter(|other| *other == host).count()).max();
                let neighbours = largest.unwrap_or(1);
                let others = neighbours as f64 - 1.0;
                let up = match shared {
                    true => self.predict_direct(neighbours, bytes),
                    false => others * (alpha + n * beta + n * gamma),
                };
                let down = if hosts_count > 1 || !shared { others * (alpha + n * beta) } else { 0.0 };
                up + ring(hosts_count as f64) + down
            }
        }
    }

    pub(crate) fn predict_direct(&self, members: usize, bytes: usize) -> f64 {
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
    pub fn choose(&self, world: usize, hosts: &[usize], shared: bool, bytes: usize) -> Algorithm {
        let one_host = on_one_host(hosts);
        let possible = |algorithm: &Algorithm| match algorithm {
            Algorithm::Direct => shared && one_host,
            Algorithm::Hierarchical => !one_host,
            _ => true,
        };
        debug_assert_eq!(world, hosts.len());
        let time = |algorithm: Algorithm| self.predict(algorithm, hosts, shared, bytes);
        Algorithm::ALL
            .into_iter()
            .filter(possible)
            .min_by(|&a, &b| time(a).total_cmp(&time(b)))
            .expect("most are always possible")
    }
}
