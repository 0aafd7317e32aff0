//! Which numbers have the largest magnitudes, exactly and in linear time.
//!
//! Magnitudes of floats are ordered as their bits are. So the magnitude of the k-th largest is found digit by digit, highest
//! first, as in a radix sort: count how many numbers there are of each value of the digit, walk down from the largest value
//! until k are passed, and look only at numbers with that digit from there on. The first digit is the exponent and three bits
//! of the fraction; few numbers share it with the k-th, so that the passes for the other two digits are but comparisons.

/// Bits below each digit, and bits of it.
const DIGITS: [(u32, u32); 3] = [(20, 11), (10, 10), (0, 10)];

/// Values of the longest digit.
const VALUES: usize = 1 << 11;

/// Numbers that are compared at once, before any of them is looked at alone.
const CHUNK: usize = 16;

/// Tables of counts. Neighbours are counted in different ones, since many numbers have the same digit, and an addition to a
/// count must wait for the one before.
const TABLES: usize = 4;

/// Which numbers are kept: those of larger magnitude, and so many, from the first, of those that have just this one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Cut {
    /// The bits of the magnitude.
    magnitude: u32,
    /// Numbers of this magnitude that are kept at most.
    ties: usize,
}

impl Cut {
    /// Keeps numbers of at least this magnitude.
    pub fn at(threshold: f32) -> Self {
        Self { magnitude: magnitude(threshold), ties: usize::MAX }
    }

    /// Keeps the `count` numbers of largest magnitude, where magnitudes are equal the first ones. What is not a number is
    /// larger than anything that is one.
    pub fn to_largest(values: &[f32], count: usize) -> Self {
        if count == 0 {
            return Self { magnitude: u32::MAX, ties: 0 };
        }
        if count >= values.len() {
            return Self { magnitude: 0, ties: usize::MAX };
        }
        let (mut known, mut left) = (0, count);
        for (shift, width) in DIGITS {
            let counts = count_digits(values, known, shift, width);
            let mut digit = (1 << width) - 1;
            while (counts[digit] as usize) < left {
                left -= counts[digit] as usize;
                digit -= 1;
            }
            known = known << width | digit as u32;
        }
        Self { magnitude: known, ties: left }
    }

    /// Makes `indices` those of the numbers that are kept, ascending.
    pub fn apply(self, values: &[f32], indices: &mut Vec<u32>) {
        indices.clear();
        let Self { magnitude: least, mut ties } = self;
        let mut first = 0;
        for chunk in values.chunks(CHUNK) {
            if chunk.iter().fold(false, |any, &value| any | (magnitude(value) >= least)) {
                for (index, &value) in (first..).zip(chunk) {
                    let found = magnitude(value);
                    let tie = found == least && ties > 0;
                    ties -= usize::from(tie);
                    if found > least || tie {
                        indices.push(index);
                    }
                }
            }
            first += CHUNK as u32;
        }
    }
}

fn magnitude(number: f32) -> u32 {
    number.to_bits() & 0x7fff_ffff
}

/// How many numbers have each value of a digit, of those whose higher digits are the ones that are known.
fn count_digits(values: &[f32], known: u32, shift: u32, width: u32) -> [u32; VALUES] {
    let higher = shift + width;
    let mut tables = [[0u32; VALUES]; TABLES];
    for chunk in values.chunks(CHUNK) {
        if chunk.iter().fold(false, |any, &value| any | (magnitude(value) >> higher == known)) {
            for (at, &value) in chunk.iter().enumerate() {
                let bits = magnitude(value);
                if bits >> higher == known {
                    tables[at % TABLES][(bits >> shift) as usize & ((1 << width) - 1)] += 1;
                }
            }
        }
    }
    let [mut counts, others @ ..] = tables;
    for table in &others {
        counts.iter_mut().zip(table).for_each(|(count, other)| *count += other);
    }
    counts
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::check;
    use super::*;

    fn kept(values: &[f32], cut: Cut) -> Vec<u32> {
        let mut indices = vec![7];
        cut.apply(values, &mut indices);
        indices
    }

    /// By sorting: a stable sort leaves equal magnitudes in order.
    fn largest_by_sorting(values: &[f32], count: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..values.len() as u32).collect();
        order.sort_by_key(|&index| std::cmp::Reverse(magnitude(values[index as usize])));
        order.truncate(count);
        order.sort_unstable();
        order
    }

    proptest! {
        #[test]
        fn the_largest_are_those_that_sorting_finds(length in 0usize..3000, seed: u64, share in 0.0..=1.0, coarse: bool) {
            let mut values = check::noise(length, seed);
            if coarse {
                // Many ties.
                values.iter_mut().for_each(|value| *value = (*value * 20.0).round());
            }
            let count = (share * length as f64) as usize;
            prop_assert_eq!(kept(&values, Cut::to_largest(&values, count)), largest_by_sorting(&values, count));
        }

        #[test]
        fn any_bits_are_ordered(bits in prop::collection::vec(any::<u32>(), 0..200), share in 0.0..=1.0) {
            let values: Vec<f32> = bits.into_iter().map(f32::from_bits).collect();
            let count = (share * values.len() as f64) as usize;
            prop_assert_eq!(kept(&values, Cut::to_largest(&values, count)), largest_by_sorting(&values, count));
        }
    }

    #[test]
    fn a_threshold_keeps_what_reaches_it() {
        let values = [0.5, -0.5, 0.499, f32::NAN, 0.0, -2.0];
        assert_eq!(kept(&values, Cut::at(0.5)), [0, 1, 3, 5]);
        assert_eq!(kept(&values, Cut::at(0.0)), [0, 1, 2, 3, 4, 5]);
    }
}
