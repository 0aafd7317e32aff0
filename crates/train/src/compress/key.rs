//! What random numbers depend on.

/// Names one code of a job. Random numbers are functions of it: there is no generator whose state would have to be saved or
/// agreed on, and whoever knows the key can repeat what was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Key {
    /// That of the job.
    pub seed: u64,
    /// The step of the job.
    pub step: u64,
    /// Which slice of the gradients it is.
    pub bucket: u32,
    /// Who encodes.
    pub rank: u32,
    /// Which of several codes that a rank makes of one bucket in one step.
    pub part: u32,
}

impl Key {
    /// The same for all ranks and parts, for what they must choose alike.
    pub fn of_bucket(self) -> Self {
        Self { rank: 0, part: 0, ..self }
    }

    /// The seed of this code's own random numbers ([`ringstep_cpu::random::mix`]).
    pub fn stream(self) -> u64 {
        let place = u64::from(self.bucket) << 32 | u64::from(self.rank);
        [self.seed, self.step, place, u64::from(self.part)].into_iter().fold(0, |bits, next| scramble(bits ^ next))
    }
}

/// A step of SplitMix64 (Steele, Lea and Flood, *Fast splittable pseudorandom number generators*, 2014).
fn scramble(bits: u64) -> u64 {
    let bits = bits.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let bits = (bits ^ (bits >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    bits ^ (bits >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn every_field_counts() {
        let mut streams = HashSet::new();
        for at in 0..4u32.pow(5) {
            let digit = |place: u32| at / 4u32.pow(place) % 4;
            let key =
                Key { seed: digit(0).into(), step: digit(1).into(), bucket: digit(2), rank: digit(3), part: digit(4) };
            assert!(streams.insert(key.stream()), "{key:?}");
            assert_eq!(key.of_bucket(), Key { rank: 3, part: 2, ..key }.of_bucket());
        }
    }
}
