//! Who trains on what: the images of an epoch in one order for all, and each rank's part of it.
//!
//! By default rank r of p takes every p-th image of the epoch's order, beginning with the r-th, as PyTorch's
//! DistributedSampler does. So the batches that p ranks of b images take in step k are together what one rank of p*b
//! images takes in step k, and both follow the same curve. Other than there, no image is taken twice to make the shards
//! equal.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use serde::{Deserialize, Serialize};

/// How an epoch's images are dealt out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Deal {
    /// Every p-th image, as PyTorch's DistributedSampler deals.
    #[default]
    Strided,
    /// One piece a rank, as `numpy.array_split` cuts.
    Contiguous,
}

impl Deal {
    /// Both.
    pub const ALL: [Self; 2] = [Self::Strided, Self::Contiguous];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Strided => "strided",
            Self::Contiguous => "contiguous",
        }
    }
}

/// One rank's part of the images.
#[derive(Debug, Clone)]
pub struct Shard {
    /// Images of all ranks.
    pub images: usize,
    /// This rank.
    pub rank: usize,
    /// All ranks.
    pub world: usize,
    /// Images that a rank takes in a step.
    pub batch: usize,
    /// Shuffle anew in each epoch with this seed, or keep the order of the files.
    pub shuffle: Option<u64>,
    /// How that order is dealt out.
    pub deal: Deal,
    /// The epoch with which these ranks begin, and how many images of its order others have had before.
    pub taken: (usize, usize),
}

impl Shard {
    /// Steps in an epoch, the same on all ranks.
    pub fn steps(&self) -> usize {
        self.images.div_ceil(self.world * self.batch)
    }

    /// Steps in this epoch, of which some may have been done by others.
    pub fn steps_in(&self, epoch: usize) -> usize {
        self.left(epoch).div_ceil(self.world * self.batch)
    }

    /// The epoch of a step, counted from where these ranks began, and the step's number in it.
    pub fn place(&self, step: usize) -> (usize, usize) {
        let (first, began) = (self.taken.0, self.steps_in(self.taken.0));
        match step.checked_sub(began) {
            None => (first, step),
            Some(after) => (first + 1 + after / self.steps(), after % self.steps()),
        }
    }

    /// Images of an epoch that these ranks take.
    fn left(&self, epoch: usize) -> usize {
        self.images - if epoch == self.taken.0 { self.taken.1 } else { 0 }
    }

    /// Images that all ranks together take in a step of an epoch; fewer in its last one.
    pub fn step_images(&self, epoch: usize, step: usize) -> usize {
        let whole = self.world * self.batch;
        whole.min(self.left(epoch) - step * whole)
    }

    /// Images that this rank alone takes in a step of an epoch: none, if it has run out.
    pub fn own_images(&self, epoch: usize, step: usize) -> usize {
        self.mine(epoch).saturating_sub(step * self.batch).min(self.batch)
    }

    /// Images that this rank takes in an epoch. However they are dealt out, the first ranks have one more where it does
    /// not come out even.
    fn mine(&self, epoch: usize) -> usize {
        self.left(epoch).saturating_sub(self.rank).div_ceil(self.world)
    }

    /// This rank's images of an epoch, in the order in which it trains on them.
    pub fn epoch(&self, epoch: usize) -> Vec<usize> {
        let mut order = Vec::new();
        self.epoch_into(epoch, &mut order);
        order
    }

    /// The same in place of what `order` held. From the second time on that allocates nothing.
    pub fn epoch_into(&self, epoch: usize, order: &mut Vec<usize>) {
        order.clear();
        order.extend(0..self.images);
        self.shuffle(epoch, order);
        let (mine, taken) = (self.mine(epoch), self.images - self.left(epoch));
        let (first, stride) = match self.deal {
            Deal::Strided => (taken + self.rank, self.world),
            Deal::Contiguous => (self.rank * (self.images / self.world) + self.rank.min(self.images % self.world), 1),
        };
        for at in 0..mine {
            order[at] = order[first + at * stride];
        }
        order.truncate(mine);
    }

    /// Brings all images into the epoch's order. It depends on seed and epoch alone, so all ranks agree on it.
    fn shuffle(&self, epoch: usize, order: &mut [usize]) {
        let Some(seed) = self.shuffle else { return };
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        random.set_stream(epoch as u64);
        // Fisher and Yates; a 64-bit draw makes the bias of the remainder negligible.
        for last in (1..order.len()).rev() {
            order.swap(last, (random.next_u64() % (last as u64 + 1)) as usize);
        }
    }
}

/// The images of one of an epoch's steps out of [`Shard::epoch`]: none, if this rank has run out.
pub fn batch_of(epoch: &[usize], step: usize, batch: usize) -> &[usize] {
    let end = epoch.len().min((step + 1) * batch);
    &epoch[end.min(step * batch)..end]
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    fn shard(images: usize, rank: usize, world: usize, batch: usize, shuffle: Option<u64>) -> Shard {
        Shard { images, rank, world, batch, shuffle, deal: Deal::Strided, taken: (0, 0) }
    }

    #[test]
    fn shards_are_disjoint_cover_all_and_differ_by_one_at_most() {
        for images in [1, 7, 100, 1009] {
            for world in 1..=7 {
                for (shuffle, deal) in [(None, Deal::Strided), (Some(3), Deal::Strided), (Some(3), Deal::Contiguous)] {
                    let of = |rank| Shard { deal, ..shard(images, rank, world, 5, shuffle) };
                    let shards: Vec<_> = (0..world).map(|rank| of(rank).epoch(2)).collect();
                    assert!(shards[0].len() - shards[world - 1].len() <= 1);
                    for step in 0..of(0).steps() {
                        let together: usize = shards.iter().map(|shard| batch_of(shard, step, 5).len()).sum();
                        assert_eq!(together, of(0).step_images(2, step));
                    }
                    let mut all = shards.concat();
                    all.sort_unstable();
                    assert_eq!(all, (0..images).collect::<Vec<_>>());
                }
            }
        }
    }

    #[test]
    fn p_ranks_of_b_take_what_one_rank_of_p_times_b_takes() {
        for (images, world, batch) in [(100, 4, 5), (101, 4, 5), (103, 3, 7), (10, 4, 2)] {
            let single = shard(images, 0, 1, world * batch, Some(9));
            for step in 0..single.steps() {
                let together: BTreeSet<usize> = (0..world)
                    .flat_map(|rank| {
                        let rank = shard(images, rank, world, batch, Some(9));
                        assert_eq!(rank.steps(), single.steps());
                        let own = batch_of(&rank.epoch(4), step, batch).to_vec();
                        assert_eq!(rank.own_images(4, step), own.len());
                        own
                    })
                    .collect();
                let alone: BTreeSet<usize> = batch_of(&single.epoch(4), step, world * batch).iter().copied().collect();
                assert_eq!(together, alone);
                assert_eq!(together.len(), single.step_images(4, step));
            }
        }
    }

    /// Four ranks take two steps of an epoch, and three take the rest: no image is missing, and none comes twice.
    #[test]
    fn what_is_left_of_an_epoch_is_shared_out_anew() {
        let four = |rank| shard(50, rank, 4, 3, Some(1));
        let three = |rank| Shard { taken: (5, 24), ..shard(50, rank, 3, 3, Some(1)) };
        assert_eq!((three(0).steps_in(5), three(0).steps_in(6)), (3, 6));
        assert_eq!([0, 2, 3, 8, 9].map(|step| three(0).place(step)), [(5, 0), (5, 2), (6, 0), (6, 5), (7, 0)]);
        let mut all: Vec<usize> = (0..4).flat_map(|rank| four(rank).epoch(5)[..6].to_vec()).collect();
        for rank in 0..3 {
            let own = three(rank).epoch(5);
            for step in 0..3 {
                assert_eq!(three(rank).own_images(5, step), batch_of(&own, step, 3).len());
            }
            all.extend(own);
            assert_eq!(three(rank).epoch(6), shard(50, rank, 3, 3, Some(1)).epoch(6));
        }
        all.sort_unstable();
        assert_eq!(all, (0..50).collect::<Vec<_>>());
    }

    /// `numpy.array_split(numpy.arange(10), 4)` is [0 1 2], [3 4 5], [6 7], [8 9].
    #[test]
    fn contiguous_shards_are_those_of_array_split() {
        let of = |rank| Shard { deal: Deal::Contiguous, ..shard(10, rank, 4, 5, None) }.epoch(0);
        assert_eq!([of(0), of(1), of(2), of(3)], [vec![0, 1, 2], vec![3, 4, 5], vec![6, 7], vec![8, 9]]);
    }

    /// Whoever forgets to tell the sampler the epoch gets the first epoch's order for ever: a rank then never sees any
    /// image but those of its first shard.
    #[test]
    fn without_the_epoch_a_rank_sees_the_same_images_for_ever() {
        let rank = shard(1000, 1, 4, 10, Some(7));
        let seen = |epoch_of: fn(usize) -> usize| -> BTreeSet<usize> {
            (0..20).flat_map(|epoch| rank.epoch(epoch_of(epoch))).collect()
        };
        assert_eq!(seen(|_| 0).len(), 250);
        assert!(seen(|epoch| epoch).len() > 980, "20 draws of a quarter leave out 0.3%");
    }

    #[test]
    fn each_epoch_has_its_own_order_and_each_seed_too() {
        let order = |seed, epoch| shard(1000, 0, 1, 10, Some(seed)).epoch(epoch);
        assert_ne!(order(1, 0), order(1, 1));
        assert_ne!(order(1, 0), order(2, 0));
        assert_eq!(order(1, 5), order(1, 5));
    }
}
