//! Some of the numbers, with their indices: those of largest magnitude, or from a threshold on.
//!
//! Strom, *Scalable distributed DNN training using commodity GPU cloud computing*, 2015, sends what exceeds a threshold;
//! Aji and Heafield, *Sparse communication for distributed gradient descent*, 2017, and Stich et al., *Sparsified SGD with
//! memory*, 2018, the k largest: what is left of x is then at most (1 - k/n) |x|^2. All keep what they do not send for later,
//! by [error feedback](super::error_feedback).
//!
//! The code is the count, ascending indices, and the numbers, 4 bytes each.

use super::select::Cut;
use super::{Codec, Key, Malformed, kept};

/// Sends a share of the numbers: those of largest magnitude.
#[derive(Debug, Clone)]
pub struct TopK {
    share: f64,
    indices: Vec<u32>,
}

impl TopK {
    /// Of n numbers it sends `share` n, rounded up.
    pub fn new(share: f64) -> Self {
        Self { share, indices: Vec::new() }
    }
}

impl Codec for TopK {
    fn encode(&mut self, _: Key, values: &[f32], out: &mut Vec<u8>) {
        Cut::to_largest(values, kept(self.share, values.len())).apply(values, &mut self.indices);
        write(values, &self.indices, out);
    }

    fn add(&self, _: Key, code: &[u8], into: &mut [f32]) -> Result<(), Malformed> {
        add(code, kept(self.share, into.len()), into)
    }

    fn limit(&self, length: usize) -> usize {
        bytes(kept(self.share, length))
    }
}

/// Sends the numbers whose magnitude reaches a threshold.
#[derive(Debug, Clone)]
pub struct Threshold {
    threshold: f32,
    indices: Vec<u32>,
}

impl Threshold {
    /// A threshold of 0 sends all.
    pub fn new(threshold: f32) -> Self {
        Self { threshold, indices: Vec::new() }
    }
}

impl Codec for Threshold {
    fn encode(&mut self, _: Key, values: &[f32], out: &mut Vec<u8>) {
        Cut::at(self.threshold).apply(values, &mut self.indices);
        write(values, &self.indices, out);
    }

    fn add(&self, _: Key, code: &[u8], into: &mut [f32]) -> Result<(), Malformed> {
        add(code, into.len(), into)
    }

    fn limit(&self, length: usize) -> usize {
        bytes(length)
    }
}

/// Bytes of the code of so many numbers.
pub fn bytes(count: usize) -> usize {
    4 + 8 * count
}

/// Makes `out` the code of the numbers at some ascending indices.
pub fn write(values: &[f32], indices: &[u32], out: &mut Vec<u8>) {
    out.clear();
    out.reserve(bytes(indices.len()));
    out.extend_from_slice(&(indices.len() as u32).to_le_bytes());
    out.extend(indices.iter().flat_map(|index| index.to_le_bytes()));
    out.extend(indices.iter().flat_map(|&index| values[index as usize].to_le_bytes()));
}

/// Adds the numbers of a code, of which there may be so many.
pub fn add(code: &[u8], most: usize, into: &mut [f32]) -> Result<(), Malformed> {
    let (words, rest) = code.as_chunks::<4>();
    let Some((&count, words)) = words.split_first() else {
        return Err(Malformed::Length { found: code.len(), expected: bytes(0) });
    };
    let count = u32::from_le_bytes(count);
    if !rest.is_empty() || words.len() as u64 != 2 * u64::from(count) {
        return Err(Malformed::Count { found: code.len(), count });
    }
    if count as usize > most {
        return Err(Malformed::Many { count, most });
    }
    let (indices, numbers) = words.split_at(words.len() / 2);
    let indices = || indices.iter().map(|&index| u32::from_le_bytes(index));
    if let Some((before, index)) = indices().zip(indices().skip(1)).find(|(before, index)| before >= index) {
        return Err(Malformed::Order { index, before });
    }
    if let Some(index) = indices().next_back().filter(|&index| index as usize >= into.len()) {
        return Err(Malformed::Index { index, length: into.len() });
    }
    for (index, &number) in indices().zip(numbers) {
        into[index as usize] += f32::from_le_bytes(number);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::check;
    use super::*;

    fn square(numbers: impl Iterator<Item = f32>) -> f64 {
        numbers.map(|number| f64::from(number) * f64::from(number)).sum()
    }

    proptest! {
        #[test]
        fn what_top_k_leaves_is_at_most_its_share(length in 0usize..3000, seed: u64, share in 0.001..=1.0) {
            let values = check::noise(length, seed);
            let decoded = check::decoded(&mut TopK::new(share), Key::default(), &values);
            let count = kept(share, length);
            prop_assert!(decoded.iter().filter(|&&number| number != 0.0).count() <= count);
            let left = square(values.iter().zip(&decoded).map(|(value, decoded)| value - decoded));
            let most = (1.0 - count as f64 / length.max(1) as f64) * square(values.iter().copied());
            prop_assert!(left <= most * (1.0 + 1e-12), "{left} of {most}");
        }
    }

    #[test]
    fn at_full_rate_all_numbers_are_sent_as_they_are() {
        for length in check::LENGTHS {
            let values = check::noise(length, 1);
            assert_eq!(check::decoded(&mut TopK::new(1.0), Key::default(), &values), values);
            assert_eq!(check::decoded(&mut Threshold::new(0.0), Key::default(), &values), values);
        }
    }

    #[test]
    fn a_threshold_sends_what_reaches_it() {
        let values = [0.5, -0.5, 0.25, 2.0];
        assert_eq!(check::decoded(&mut Threshold::new(0.5), Key::default(), &values), [0.5, -0.5, 0.0, 2.0]);
    }

    #[test]
    fn what_is_wrong_is_said() {
        let code = |words: &[u32]| words.iter().flat_map(|word| word.to_le_bytes()).collect::<Vec<_>>();
        let refused = |words: &[u32]| add(&code(words), 2, &mut [0.0; 10]).unwrap_err().to_string();
        assert_eq!(refused(&[]), "0 bytes instead of 4");
        assert_eq!(refused(&[1, 5]), "8 bytes for 1 numbers");
        assert_eq!(refused(&[u32::MAX, 5, 0]), "12 bytes for 4294967295 numbers");
        assert_eq!(refused(&[1, 10, 0]), "index 10 of 10");
        assert_eq!(refused(&[2, 4, 4, 0, 0]), "index 4 after index 4");
        assert_eq!(refused(&[2, 5, 4, 0, 0]), "index 4 after index 5");
        assert_eq!(refused(&[3, 4, 5, 6, 0, 0, 0]), "3 numbers instead of 2 at most");
        assert_eq!(add(&code(&[2, 4, 9, 0, 0]), 2, &mut [0.0; 10]), Ok(()));
    }

    #[test]
    fn what_is_no_code_is_refused() {
        for share in [0.05, 0.5, 1.0] {
            check::what_is_no_code_is_refused(|_| TopK::new(share));
        }
        check::what_is_no_code_is_refused(|_| Threshold::new(0.1));
    }
}
