//! Random numbers without a generator: what stands at a place is a function of the place and a seed, so any thread, rank or
//! vector finds it without the ones before.

/// Mixes a place and a seed into 32 bits without a pattern: two rounds of the finisher of MurmurHash3, which vectorise.
#[inline(always)]
pub fn mix(place: u32, seed: u64) -> u32 {
    let mut bits = place.wrapping_mul(0x9e37_79b9) ^ seed as u32;
    for salt in [(seed >> 32) as u32, 0] {
        bits = (bits ^ (bits >> 16)).wrapping_mul(0x85eb_ca6b);
        bits = (bits ^ (bits >> 13)).wrapping_mul(0xc2b2_ae35);
        bits ^= (bits >> 16) ^ salt;
    }
    bits
}
