//! Who is where: the host of each rank, and whether ranks of one host share memory.

use serde::{Deserialize, Serialize};

use crate::transport::Transport;

/// The hosts of a group's ranks. It is the same on all of them, so what is decided by it is decided alike.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Topology {
    hosts: Vec<usize>,
    shares_memory: bool,
}

impl Topology {
    /// The host of each rank, as small numbers; and whether ranks of one host share memory.
    pub fn new(hosts: Vec<usize>, shares_memory: bool) -> Self {
        assert!(!hosts.is_empty(), "there is at least one rank");
        Self { hosts, shares_memory }
    }

    /// That of the ranks that a transport connects.
    pub fn of(transport: &mut dyn Transport) -> Self {
        let shares_memory = transport.shared().is_some();
        Self::new(transport.hosts().to_vec(), shares_memory)
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.hosts.len()
    }

    /// The host of each rank.
    pub fn hosts(&self) -> &[usize] {
        &self.hosts
    }

    /// Whether two ranks are on one host.
    pub fn are_near(&self, one: usize, other: usize) -> bool {
        self.hosts[one] == self.hosts[other]
    }

    /// The ranks of a rank's host, itself among them, in order.
    pub fn neighbours(&self, rank: usize) -> impl Iterator<Item = usize> + '_ {
        (0..self.world()).filter(move |&other| self.are_near(rank, other))
    }

    /// The first rank of each host, in order.
    pub fn leaders(&self) -> Vec<usize> {
        let mut seen = vec![false; self.hosts.iter().max().map_or(0, |last| last + 1)];
        (0..self.world()).filter(|&rank| !std::mem::replace(&mut seen[self.hosts[rank]], true)).collect()
    }

    /// How many ranks the host has that has most.
    pub fn largest_host(&self) -> usize {
        let mut ranks = vec![0; self.hosts.iter().max().map_or(0, |last| last + 1)];
        self.hosts.iter().for_each(|&host| ranks[host] += 1);
        ranks.into_iter().max().unwrap_or(0)
    }

    /// Whether all ranks are on one host.
    pub fn is_one_host(&self) -> bool {
        self.hosts.iter().all(|host| *host == self.hosts[0])
    }

    /// Whether each rank shares memory with those of its own host.
    pub fn shares_memory_within_hosts(&self) -> bool {
        self.shares_memory
    }

    /// Whether each rank shares memory with all others.
    pub fn all_share_memory(&self) -> bool {
        self.shares_memory && self.is_one_host()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_know_their_neighbours_and_leaders() {
        let topology = Topology::new(vec![1, 0, 1, 2, 0, 1], true);
        assert_eq!(topology.leaders(), [0, 1, 3]);
        assert_eq!(topology.neighbours(2).collect::<Vec<_>>(), [0, 2, 5]);
        assert_eq!(topology.largest_host(), 3);
        assert!(topology.are_near(1, 4) && !topology.are_near(0, 1));
    }

    #[test]
    fn memory_is_shared_within_hosts_or_among_all() {
        let of = |hosts: &[usize], shares_memory| {
            let topology = Topology::new(hosts.to_vec(), shares_memory);
            (topology.shares_memory_within_hosts(), topology.all_share_memory())
        };
        assert_eq!(of(&[0, 0], true), (true, true));
        assert_eq!(of(&[0, 0], false), (false, false));
        assert_eq!(of(&[0, 1], true), (true, false));
    }
}
