//! What zeros save: MACs that are not done, and bytes that need not go to DRAM.

use crate::layer::Layer;

/// MACs of a layer whose pixel is not zero; padding is zero. // input: N,C,H,W
pub fn effective_macs(layer: &Layer, input: &[i16]) -> u64 {
    let rows = uses(layer.height, layer.filter_height, layer.stride, layer.padding, layer.output_height());
    let columns = uses(layer.width, layer.filter_width, layer.stride, layer.padding, layer.output_width());
    let mut used = 0;
    for map in input.chunks_exact(layer.height * layer.width) {
        for (row, rows) in map.chunks_exact(layer.width).zip(&rows) {
            let in_row: u64 = row.iter().zip(&columns).filter(|(pixel, _)| **pixel != 0).map(|(_, uses)| uses).sum();
            used += rows * in_row;
        }
    }
    used * layer.group_filters() as u64
}

/// In how many windows each place of one dimension is.
fn uses(size: usize, filter: usize, stride: usize, padding: usize, outputs: usize) -> Vec<u64> {
    let mut uses = vec![0; size];
    for output in 0..outputs {
        for tap in 0..filter {
            if let Some(at) = (output * stride + tap).checked_sub(padding).filter(|&at| at < size) {
                uses[at] += 1;
            }
        }
    }
    uses
}

/// Zeros before a value, at most.
const LONGEST_RUN: u64 = 31;
/// Pairs of run and value in a word.
const PAIRS: usize = 3;
const RUN_BITS: usize = 5;
const VALUE_BITS: usize = 16;

/// Run-length codes values as the chip does (JSSC 2017): three pairs of a run of zeros (5 bits) and a value (16 bits) in
/// a word of 64 bits, whose lowest bit marks the last word. A run longer than 31 is cut by a value of zero.
pub fn encode(values: &[i16]) -> Vec<u64> {
    let mut pairs: Vec<(u64, i16)> = Vec::new();
    let mut run = 0;
    for &value in values {
        if value == 0 && run < LONGEST_RUN {
            run += 1;
        } else {
            pairs.push((run, value));
            run = 0;
        }
    }
    // The last zero of the end is a value, so that the end has one.
    if run > 0 {
        pairs.push((run - 1, 0));
    }
    let mut words: Vec<u64> = pairs
        .chunks(PAIRS)
        .map(|pairs| {
            let pair =
                |word, &(run, value): &(u64, i16)| (word << RUN_BITS | run) << VALUE_BITS | u64::from(value as u16);
            let missing = (PAIRS - pairs.len()) * (RUN_BITS + VALUE_BITS);
            (pairs.iter().fold(0, pair) << missing) << 1
        })
        .collect();
    if let Some(last) = words.last_mut() {
        *last |= 1;
    }
    words
}

/// The first `length` values of what was encoded.
pub fn decode(words: &[u64], length: usize) -> Vec<i16> {
    let mut values = Vec::with_capacity(length);
    for word in words {
        for pair in (0..PAIRS).rev() {
            let pair = word >> (1 + pair * (RUN_BITS + VALUE_BITS));
            values.extend(std::iter::repeat_n(0, (pair >> VALUE_BITS & LONGEST_RUN) as usize));
            values.push(pair as u16 as i16);
        }
    }
    values.truncate(length);
    values
}

/// Values as 16-bit fixed point, the largest magnitude at the end of the range.
pub fn fixed_point(values: &[f32]) -> Vec<i16> {
    let largest = values.iter().fold(0.0f32, |largest, value| largest.max(value.abs()));
    if largest == 0.0 {
        return vec![0; values.len()];
    }
    let scale = f32::from(i16::MAX) / largest;
    values.iter().map(|value| (value * scale).round() as i16).collect()
}

/// What the zeros of a layer's real data come to.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Zeros {
    /// Share of zeros in the input.
    pub input: f64,
    /// Share of zeros in the filters.
    pub filters: f64,
    /// Share of MACs that are not done, padding included.
    pub gated: f64,
    /// Coded size of the input, as a share of its plain size.
    pub input_coded: f64,
    /// Coded size of the output, as a share of its plain size.
    pub output_coded: f64,
}

impl Zeros {
    /// Counts them. // input: N,C,H,W; output, as it goes to DRAM: N,M,E,F
    pub fn count(layer: &Layer, input: &[f32], filters: &[f32], output: &[f32]) -> Self {
        let (input, filters, output) = (fixed_point(input), fixed_point(filters), fixed_point(output));
        let share = |values: &[i16]| values.iter().filter(|value| **value == 0).count() as f64 / values.len() as f64;
        let coded = |values: &[i16]| (8 * encode(values).len()) as f64 / size_of_val(values) as f64;
        let batch = input.len() / (layer.channels * layer.height * layer.width);
        Self {
            input: share(&input),
            filters: share(&filters),
            gated: 1.0 - effective_macs(layer, &input) as f64 / layer.macs(batch) as f64,
            input_coded: coded(&input),
            output_coded: coded(&output),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::reference::convolution;

    fn sparse() -> impl Strategy<Value = Vec<i16>> {
        prop::collection::vec(prop_oneof![4 => Just(0i16), 1 => any::<i16>()], 0..300)
    }

    proptest! {
        #[test]
        fn what_is_encoded_is_decoded(values in sparse()) {
            let words = encode(&values);
            prop_assert_eq!(decode(&words, values.len()), values);
            prop_assert_eq!(words.iter().filter(|word| *word & 1 == 1).count(), words.len().min(1));
        }
    }

    #[test]
    fn words_are_as_in_the_paper() {
        // Runs of 1, 0 and 2 zeros before 5, 6 and 7.
        assert_eq!(encode(&[0, 5, 6, 0, 0, 7]), [((1 << 16 | 5) << 42 | 6 << 21 | (2 << 16 | 7)) << 1 | 1]);
        // 64 zeros are two pairs, 32 times less than three words' worth of plain values.
        assert_eq!(encode(&[0; 64]).len(), 1);
        assert_eq!(encode(&[1; 6]).len(), 2);
        assert_eq!(encode(&[]), [0u64; 0]);
    }

    /// With ones for weights and for pixels that are not zero, the output counts the MACs.
    #[test]
    fn effective_macs_are_those_of_a_convolution_of_ones() {
        for (stride, padding, groups) in [(1, 0, 1), (2, 1, 2), (3, 2, 1), (1, 2, 2)] {
            let layer = Layer::convolution("conv", 4, 7, 6, 3, padding).stride(stride).groups(groups);
            let input: Vec<i16> = (0..2 * 4 * 49).map(|at| i16::from(at * 31 % 7 < 3) * 9).collect();
            let ones: Vec<i64> = input.iter().map(|&pixel| i64::from(pixel != 0)).collect();
            let counted: i64 = convolution(&layer, &ones, &vec![1; layer.filter_words()]).iter().sum();
            assert_eq!(effective_macs(&layer, &input), counted as u64);
        }
    }

    #[test]
    fn small_values_become_zero_and_large_ones_fill_the_range() {
        assert_eq!(fixed_point(&[1.0, -1.0, 0.5, 1e-6, 0.0]), [32767, -32767, 16384, 0, 0]);
        assert_eq!(fixed_point(&[0.0; 3]), [0; 3]);
        let layer = Layer::convolution("conv", 1, 2, 1, 1, 0);
        let zeros = Zeros::count(&layer, &[1.0, 0.0, 0.0, 0.0], &[0.5], &[0.5, 0.0, 0.0, 0.0]);
        assert_eq!((zeros.input, zeros.filters, zeros.gated, zeros.input_coded), (0.75, 0.0, 0.75, 1.0));
    }
}
