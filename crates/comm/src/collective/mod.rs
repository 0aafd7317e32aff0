//! The algorithms, one a file. Each is a function over a [`Transport`](crate::transport::Transport) that every rank
//! calls with a slice of the same length. `docs/algorithms.md` compares their steps and bytes.

use std::ops::Range;

pub mod barrier;
pub mod broadcast;
pub mod gather_scatter;
pub mod ring;

/// How an all-reduce goes about it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Algorithm {
    /// Rank 0 collects, adds and hands back: [`gather_scatter`].
    GatherScatter,
    /// Everyone sends to the right and receives from the left: [`ring`].
    Ring,
}

impl Algorithm {
    /// All of them.
    pub const ALL: [Self; 2] = [Self::GatherScatter, Self::Ring];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::GatherScatter => "gather-scatter",
            Self::Ring => "ring",
        }
    }
}

/// Chunk `index` of `length` elements cut into `parts` whose sizes differ by at most one, larger ones first.
pub fn chunk(length: usize, parts: usize, index: usize) -> Range<usize> {
    let (size, larger) = (length / parts, length % parts);
    let start = index * size + index.min(larger);
    start..start + size + usize::from(index < larger)
}

/// Adds element by element.
pub(crate) fn add(sum: &mut [f32], other: &[f32]) {
    for (sum, other) in sum.iter_mut().zip(other) {
        *sum += other;
    }
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
