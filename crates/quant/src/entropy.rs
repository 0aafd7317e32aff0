//! The range for which the distribution of the integers tells least from that of the numbers: the least Kullback-Leibler
//! divergence (Migacz, "8-bit inference with TensorRT", GTC 2017).
//!
//! As there, numbers beyond a range are counted in its last bin, and the bins of an integer that are not empty share its numbers
//! evenly. A histogram of a few thousand numbers is not the distribution, though, and three things keep it from passing for one:
//!
//! - Integers are those of the grid that the range would get, not those of magnitudes: images are not symmetric about zero.
//! - A bin that stands out, as zeros do behind a ReLU and black does in images, counts as its neighbours do (NVIDIA's
//!   pytorch-quantization does so for the bin of zero): its integer is as near to it in a wide range as anywhere else, whereas
//!   sharing its numbers with its neighbours would cost more than to cut off a tenth of all numbers.
//! - Counts vary by chance. Bins that are the same but for that diverge by `(bins - 1) / 2n` on the average (Miller, "Note on the
//!   bias of information estimates", 1955), and by less where most are empty, since only those with numbers are looked at. That is
//!   taken off; without it ever more would be cut off the fewer numbers there are.

use crate::calibrate::Histogram;

/// Ranges that are tried, down to the narrowest. Below that a histogram does not tell numbers apart.
const TRIALS: usize = 256;
const NARROWEST: usize = TRIALS / 16;
/// A bin with so many times the numbers of its neighbours stands out.
const STANDS_OUT: f64 = 4.0;

/// The range of least divergence; of equal ones the widest.
pub fn least_divergence(histogram: &Histogram, values: u32) -> [f32; 2] {
    let [low, high] = [histogram.moments.low, histogram.moments.high];
    let reach = low.abs().max(high.abs());
    let bins = bins(histogram);
    let ranges = (NARROWEST..=TRIALS).rev().map(|part| {
        let end = reach * (part as f32 / TRIALS as f32);
        [low.max(-end), high.min(end)]
    });
    // What lies wholly on one side of zero is not cut off altogether.
    let ranges = ranges.filter(|range| range[0] < range[1]).map(|range| (range, divergence(&bins, range, values)));
    ranges.reduce(|best, next| if next.1 < best.1 { next } else { best }).map_or([low, high], |(range, _)| range)
}

/// A bin that is not empty.
struct Bin {
    middle: f32,
    count: f64,
    /// The same, unless it stands out; then that of the larger of its neighbours.
    level: f64,
}

fn bins(histogram: &Histogram) -> Vec<Bin> {
    let bins: Vec<(f32, f64)> = histogram.bins().map(|(middle, count)| (middle, count as f64)).collect();
    let count = |index: Option<usize>| index.and_then(|index| bins.get(index)).map_or(0.0, |bin| bin.1);
    let neighbours = |index: usize| count(index.checked_sub(1)).max(count(Some(index + 1)));
    let bin = |(index, &(middle, count)): (usize, &(f32, f64))| {
        let around = neighbours(index);
        Bin { middle, count, level: if count > STANDS_OUT * around { around } else { count } }
    };
    bins.iter().enumerate().map(bin).collect()
}

/// How far what integers of a range stand for is from what the numbers are; not below zero.
fn divergence(bins: &[Bin], [low, high]: [f32; 2], values: u32) -> f64 {
    let first = bins.partition_point(|bin| bin.middle < low);
    let end = bins.partition_point(|bin| bin.middle <= high).max(first);
    let beyond = |bins: &[Bin]| bins.iter().map(|bin| bin.count).sum::<f64>();
    let (below, above, inside) = (beyond(&bins[..first]), beyond(&bins[end..]), &bins[first..end]);
    let kept: f64 = inside.iter().map(|bin| bin.level).sum();
    let total = kept + below + above;
    let step = (f64::from(high.max(0.0)) - f64::from(low.min(0.0))) / f64::from(values - 1);
    let integer = |bin: &Bin| (f64::from(bin.middle) / step).round();
    let (mut sum, mut shares) = (0.0, Vec::with_capacity(inside.len()));
    for same in inside.chunk_by(|a, b| integer(a) == integer(b)) {
        let (count, bins) = (same.iter().map(|bin| bin.level).sum::<f64>(), same.len() as f64);
        let each = count / bins / kept;
        sum += same.iter().map(|bin| relative(bin.level / total, each)).sum::<f64>();
        sum -= (bins - 1.0) * (1.0 - bins / count).max(0.0) / (2.0 * total);
        shares.resize(shares.len() + same.len(), each);
    }
    // The bins at the ends count what is beyond, too, of which integers know nothing. An empty one has half a number.
    let last = inside.last().map_or(0.0, |bin| bin.level);
    let first = inside.first().map_or(0.0, |bin| bin.level);
    for (beyond, own, share) in [(below, first, shares.first()), (above, last, shares.last())] {
        let share = share.copied().unwrap_or(0.0).max(0.5 / total);
        sum += relative((own + beyond) / total, share) - relative(own / total, share);
    }
    sum.max(0.0)
}

fn relative(real: f64, stood_for: f64) -> f64 {
    if real > 0.0 { real * (real / stood_for).ln() } else { 0.0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calibrate::Calibration;
    use crate::calibrate::tests::{normal, uniform};

    fn ends(numbers: &[f32], values: u32) -> (Histogram, [f32; 2]) {
        let histogram = Histogram::of(numbers);
        let range = histogram.range(Calibration::Entropy, values);
        (histogram, range)
    }

    fn outside(numbers: &[f32], values: u32) -> f64 {
        let (histogram, range) = ends(numbers, values);
        histogram.outside(range)
    }

    /// With 256 values a tail can be kept; the fewer there are the more of it goes. That does not depend on how many numbers are
    /// counted.
    #[test]
    fn a_normal_distribution_keeps_nearly_all() {
        for count in [2_000, 20_000, 200_000] {
            let shares = [256, 64, 16, 4].map(|values| outside(&normal(count), values));
            let kept = shares.iter().zip([0.002, 0.005, 0.03, 0.2]).all(|(share, most)| *share < most);
            assert!(kept, "{count}: {shares:?}");
        }
    }

    /// What a ReLU makes of it has half of its numbers, or nine in ten, at zero.
    #[test]
    fn a_spike_at_zero_does_not_cut_off_the_rest() {
        for shift in [0.0, 1.2] {
            let numbers: Vec<f32> = normal(100_000).into_iter().map(|number| (number - shift).max(0.0)).collect();
            let shares = [256, 16].map(|values| outside(&numbers, values));
            assert!(shares[0] < 0.001 && shares[1] < 0.02, "{shift}: {shares:?}");
        }
    }

    /// Normalised pixels: most of them black, some of them white, the others anything between.
    #[test]
    fn all_of_an_image_is_kept() {
        for (mean, deviation, black) in [(0.1307, 0.3081, 0.8), (0.5, 0.5, 0.0), (0.0, 1.0, 0.3)] {
            let pixel = |part: f64| match part {
                _ if part < black => 0.0,
                _ if part > 0.97 => 255.0,
                _ => ((part - black) / (0.97 - black) * 255.0).floor(),
            };
            let numbers: Vec<f32> =
                uniform(100_000).map(|part| ((pixel(part) / 255.0 - mean) / deviation) as f32).collect();
            for values in [256, 64, 16] {
                let share = outside(&numbers, values);
                assert!(share < 0.001, "mean {mean}, {values} values: {share} is cut off");
            }
        }
    }

    #[test]
    fn a_few_different_numbers_are_all_kept() {
        let cases: [&[f32]; 5] = [&[0.0, 1.0], &[-1.0, 1.0], &[0.0, 0.1, 7.0], &[-3.0, -2.0], &[0.0, 0.0, 0.0, 5.0]];
        for numbers in cases {
            let many: Vec<f32> = numbers.iter().copied().cycle().take(1000 * numbers.len()).collect();
            let (histogram, range) = ends(&many, 256);
            assert_eq!(range, [histogram.moments.low, histogram.moments.high], "{numbers:?}");
        }
        for constant in [0.0, 2.5, -3.0] {
            assert_eq!(ends(&[constant; 50], 256).1, [constant; 2]);
        }
    }

    #[test]
    fn a_far_outlier_is_cut_off_and_all_else_is_not() {
        for far in [50.0, 200.0, 1000.0] {
            let mut numbers = normal(100_000);
            numbers.push(far);
            let (histogram, [low, high]) = ends(&numbers, 256);
            assert!(low < -3.8 && high > 3.8 && high < far / 4.0, "{far}: {low} to {high}");
            assert!(histogram.outside([low, high]) < 1e-4);
        }
    }

    /// Numbers too small to divide by.
    #[test]
    fn denormal_numbers_have_a_range_too() {
        let numbers: Vec<f32> = normal(1000).into_iter().map(|number| number * 1e-43).collect();
        let (histogram, [low, high]) = ends(&numbers, 256);
        assert!(histogram.moments.low <= low && low <= high && high <= histogram.moments.high);
    }
}
