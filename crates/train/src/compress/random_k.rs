//! Numbers chosen at random, the same ones on all ranks.
//!
//! Stich et al., *Sparsified SGD with memory*, 2018. Since all ranks draw the same indices from the key, nobody sends them, and
//! sums of codes are codes: ranks can all-reduce the k numbers. Times n/k it is unbiased; with error feedback it is not scaled,
//! and what is left of x is (1 - k/n) |x|^2 on average.
//!
//! One index is drawn from each of k neighbouring ranges that are as long as each other, to one, of a circle of all n that is
//! turned by a random angle: no index comes twice, there is nothing to sort, and each comes with a probability of exactly k/n.

use ringstep_cpu::random::mix;

use super::{Codec, Key, Malformed, kept};

/// Sends a share of the numbers, chosen at random.
#[derive(Debug, Clone, Copy)]
pub struct RandomK {
    share: f64,
    unbiased: bool,
}

impl RandomK {
    /// Of n numbers it sends k = `share` n, rounded up; `unbiased` multiplies them by n/k.
    pub fn new(share: f64, unbiased: bool) -> Self {
        Self { share, unbiased }
    }

    /// How many of so many numbers are sent.
    pub fn count(&self, length: usize) -> usize {
        kept(self.share, length)
    }

    /// The numbers that are sent, in the order of [`RandomK::scatter`].
    pub fn gather<'a>(&self, key: Key, values: &'a [f32]) -> impl Iterator<Item = f32> + use<'a> {
        let count = self.count(values.len());
        let factor = if self.unbiased { values.len() as f32 / count as f32 } else { 1.0 };
        indices(key, values.len(), count).map(move |index| values[index] * factor)
    }

    /// Adds numbers at the places that they were gathered from.
    pub fn scatter(&self, key: Key, numbers: impl Iterator<Item = f32>, into: &mut [f32]) {
        for (index, number) in indices(key, into.len(), self.count(into.len())).zip(numbers) {
            into[index] += number;
        }
    }
}

/// `count` different indices below `length`.
fn indices(key: Key, length: usize, count: usize) -> impl Iterator<Item = usize> {
    let random = key.of_bucket().stream();
    // A part of a range that 32 or 64 random bits stand for.
    let turn = ((u128::from(random) * length as u128) >> 64) as usize;
    (0..count).map(move |range| {
        let (first, end) = (range * length / count, (range + 1) * length / count);
        let place = (u64::from(mix(range as u32, random)) * (end - first) as u64) >> 32;
        let index = first + place as usize + turn;
        if index < length { index } else { index - length }
    })
}

impl Codec for RandomK {
    fn encode(&mut self, key: Key, values: &[f32], out: &mut Vec<u8>) {
        out.clear();
        out.extend(self.gather(key, values).flat_map(f32::to_le_bytes));
    }

    fn add(&self, key: Key, code: &[u8], into: &mut [f32]) -> Result<(), Malformed> {
        let expected = self.limit(into.len());
        if code.len() != expected {
            return Err(Malformed::Length { found: code.len(), expected });
        }
        let (numbers, _) = code.as_chunks();
        self.scatter(key, numbers.iter().map(|&number| f32::from_le_bytes(number)), into);
        Ok(())
    }

    fn limit(&self, length: usize) -> usize {
        4 * self.count(length)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::check;
    use super::*;

    proptest! {
        #[test]
        fn indices_are_different_and_there(length in 0usize..3000, share in 0.0..=1.0, seed: u64) {
            let count = kept(share, length);
            let mut found: Vec<usize> = indices(Key { seed, ..Key::default() }, length, count).collect();
            prop_assert_eq!(found.len(), count);
            found.sort_unstable();
            found.dedup();
            prop_assert_eq!(found.len(), count);
            prop_assert!(found.iter().all(|&index| index < length));
        }
    }

    #[test]
    fn ranks_choose_alike_and_steps_and_buckets_do_not() {
        let of = |key: Key| indices(key, 1000, 10).collect::<Vec<_>>();
        let key = Key { seed: 4, step: 7, bucket: 1, rank: 2, part: 3 };
        assert_eq!(of(key), of(Key { rank: 0, part: 0, ..key }));
        assert_ne!(of(key), of(Key { step: 8, ..key }));
        assert_ne!(of(key), of(Key { bucket: 2, ..key }));
        assert_ne!(of(key), of(Key { seed: 5, ..key }));
    }

    #[test]
    fn the_mean_of_many_codes_is_the_number() {
        const KEYS: u32 = 4000;
        let values = check::noise(50, 1);
        // Also shares at which ranges are of two lengths.
        for share in [0.1, 0.3, 0.7] {
            let mut sums = vec![0.0f64; values.len()];
            for step in 0..KEYS {
                let key = Key { step: step.into(), ..Key::default() };
                let decoded = check::decoded(&mut RandomK::new(share, true), key, &values);
                sums.iter_mut().zip(decoded).for_each(|(sum, decoded)| *sum += f64::from(decoded));
            }
            let chance = kept(share, values.len()) as f64 / values.len() as f64;
            for (&value, sum) in values.iter().zip(sums) {
                let sigma = f64::from(value.abs()) * ((1.0 - chance) / chance / f64::from(KEYS)).sqrt();
                let mean = sum / f64::from(KEYS);
                assert!((mean - f64::from(value)).abs() <= 5.0 * sigma + 1e-7, "{share}: {mean} for {value}");
            }
        }
    }

    #[test]
    fn at_full_rate_all_numbers_are_sent_as_they_are() {
        for length in check::LENGTHS {
            let values = check::noise(length, 1);
            for unbiased in [false, true] {
                assert_eq!(check::decoded(&mut RandomK::new(1.0, unbiased), Key::default(), &values), values);
            }
        }
    }

    #[test]
    fn what_is_no_code_is_refused() {
        check::what_is_no_code_is_refused(|_| RandomK::new(0.1, true));
    }
}
