//! The algorithms, one a file. Each is written in terms of a [`Lane`]: ranks send parts of a slice to each other, and
//! copy or reduce what arrives. Lanes of [real numbers](live) carry it out, [proofs](crate::proof) and simulations follow
//! it. `docs/algorithms.md` compares their steps and bytes, [`crate::cost`] counts them.

use std::ops::Range;

use serde::{Deserialize, Serialize};

use crate::transport::TransportError;

pub mod all_to_all;
pub mod barrier;
pub mod deterministic;
pub mod direct;
pub mod gather_scatter;
pub mod halving_doubling;
pub mod hierarchical;
pub mod lane;
pub mod live;
pub mod recursive_doubling;
pub mod ring;
pub mod rooted;
pub mod tree;

pub use lane::{Combine, Lane, Reducing, at_once};

/// How an all-reduce goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
#[repr(u8)]
pub enum Algorithm {
    /// Rank 0 collects, reduces and hands back: [`gather_scatter`].
    GatherScatter,
    /// A binomial tree to rank 0 and back: [`tree`].
    Tree,
    /// Everyone sends to the right and receives from the left: [`ring`].
    Ring,
    /// Everyone exchanges everything with a partner twice as far in each step: [`recursive_doubling`].
    RecursiveDoubling,
    /// Half as much with a partner in each step, then back: [`halving_doubling`].
    HalvingDoubling,
    /// Ranks read straight out of each other's shared memory: [`direct`].
    Direct,
    /// Direct within each host, a ring between hosts: [`hierarchical`].
    Hierarchical,
    /// Whatever MPI thinks best. It is no schedule of this crate's, so [`Algorithm::ALL`] does not have it.
    #[cfg(feature = "mpi")]
    Mpi,
}

impl Algorithm {
    /// All that are schedules.
    pub const ALL: [Self; 7] = [
        Self::GatherScatter,
        Self::Tree,
        Self::Ring,
        Self::RecursiveDoubling,
        Self::HalvingDoubling,
        Self::Direct,
        Self::Hierarchical,
    ];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::GatherScatter => "gather-scatter",
            Self::Tree => "tree",
            Self::Ring => "ring",
            Self::RecursiveDoubling => "recursive-doubling",
            Self::HalvingDoubling => "halving-doubling",
            Self::Direct => "direct",
            Self::Hierarchical => "hierarchical",
            #[cfg(feature = "mpi")]
            Self::Mpi => "mpi",
        }
    }

    /// Whether it needs memory that all ranks share.
    pub fn needs_shared_memory(self) -> bool {
        self == Self::Direct
    }
}

/// Replaces the lane's data by its reduction over all ranks.
pub async fn all_reduce(algorithm: Algorithm, lane: &mut impl Reducing) -> Result<(), TransportError> {
    match algorithm {
        Algorithm::GatherScatter => gather_scatter::all_reduce(lane).await,
        Algorithm::Tree => tree::all_reduce(lane).await,
        Algorithm::Ring => ring::all_reduce(lane).await,
        Algorithm::RecursiveDoubling => recursive_doubling::all_reduce(lane).await,
        Algorithm::HalvingDoubling => halving_doubling::all_reduce(lane).await,
        Algorithm::Direct => direct::all_reduce(lane).await,
        Algorithm::Hierarchical => hierarchical::all_reduce(lane).await,
        #[cfg(feature = "mpi")]
        Algorithm::Mpi => {
            let problem =
                std::io::Error::other("MPI's own all-reduce needs MPI, and each rank in a process of its own");
            Err(TransportError::among_all(lane.world(), problem))
        }
    }
}

/// Chunk `index` of `length` elements cut into `parts` whose sizes differ by at most one, larger ones first.
pub fn chunk(length: usize, parts: usize, index: usize) -> Range<usize> {
    chunks(length, parts, index..index + 1)
}

/// Neighbouring chunks, as one range.
pub fn chunks(length: usize, parts: usize, indices: Range<usize>) -> Range<usize> {
    let (size, larger) = (length / parts, length % parts);
    let start = |index: usize| index * size + index.min(larger);
    start(indices.start)..start(indices.end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_cover_everything_once_and_differ_by_one_at_most() {
        for length in [0, 1, 3, 7, 100, 1009] {
            for parts in 1..=9 {
                let chunks: Vec<_> = (0..parts).map(|index| chunk(length, parts, index)).collect();
                assert_eq!(chunks[0].start, 0);
                assert_eq!(chunks[parts - 1].end, length);
                assert!(chunks.windows(2).all(|pair| pair[0].end == pair[1].start));
                assert!(chunks.windows(2).all(|pair| pair[0].len() - pair[1].len() <= 1));
                assert!(chunks[0].len() - chunks[parts - 1].len() <= 1);
            }
        }
    }
}
