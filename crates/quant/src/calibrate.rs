//! From the numbers that an activation takes to the range that its integers cover.
//!
//! Images are looked at twice: once for range, mean and deviation, and once, with the range known, for a histogram.

use crate::entropy::least_divergence;
use crate::error::QuantError;

/// Bins of a histogram.
pub const BINS: usize = 2048;
/// The share of numbers that the percentile calibrator keeps.
const KEPT: f64 = 0.9999;
/// Ranges that the search for the least error tries.
const TRIALS: usize = 100;

/// How a range is chosen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Calibration {
    /// From the least number to the largest.
    MinMax,
    /// All but one number in 10,000.
    Percentile,
    /// Three standard deviations to either side of the mean, but no further than there are numbers.
    ThreeSigma,
    /// The range for which the distribution of the integers tells least from that of the numbers: the least Kullback-Leibler
    /// divergence, as [`crate::entropy`] has it.
    Entropy,
    /// The range with the least mean squared error, of rounding and of cutting off.
    Mse,
}

impl Calibration {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::MinMax, Self::Percentile, Self::ThreeSigma, Self::Entropy, Self::Mse];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::MinMax => "minmax",
            Self::Percentile => "percentile",
            Self::ThreeSigma => "3-sigma",
            Self::Entropy => "entropy",
            Self::Mse => "mse",
        }
    }
}

/// Range, mean and deviation of some numbers.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Moments {
    /// How many there are.
    pub count: usize,
    /// The least.
    pub low: f32,
    /// The largest.
    pub high: f32,
    sum: f64,
    squares: f64,
    finite: bool,
}

impl Default for Moments {
    fn default() -> Self {
        Self { count: 0, low: f32::INFINITY, high: f32::NEG_INFINITY, sum: 0.0, squares: 0.0, finite: true }
    }
}

impl Moments {
    /// Those of these numbers.
    pub fn of(numbers: &[f32]) -> Self {
        let mut moments = Self::default();
        moments.add(numbers);
        moments
    }

    /// Counts more numbers.
    pub fn add(&mut self, numbers: &[f32]) {
        self.count += numbers.len();
        for &number in numbers {
            self.finite &= number.is_finite();
            (self.low, self.high) = (self.low.min(number), self.high.max(number));
            self.sum += f64::from(number);
            self.squares += f64::from(number) * f64::from(number);
        }
    }

    /// The mean.
    pub fn mean(&self) -> f64 {
        self.sum / self.count as f64
    }

    /// The standard deviation.
    pub fn deviation(&self) -> f64 {
        (self.squares / self.count as f64 - self.mean() * self.mean()).max(0.0).sqrt()
    }

    /// Whether there are numbers, and all are finite; if not, an error that names where they come from.
    pub fn check(&self, name: &str) -> Result<(), QuantError> {
        match (self.count, self.finite) {
            (0, _) => Err(QuantError::NothingToCalibrateWith),
            (_, false) => Err(QuantError::NotFinite { name: name.to_owned() }),
            _ => Ok(()),
        }
    }

    /// Three deviations to either side of the mean, but no further than there are numbers.
    pub fn three_sigma(&self) -> [f32; 2] {
        let reach = 3.0 * self.deviation();
        [(self.mean() - reach) as f32, (self.mean() + reach) as f32].map(|end| end.clamp(self.low, self.high))
    }
}

/// How often numbers fall into each of equal parts of their range.
#[derive(Debug, Clone, PartialEq)]
pub struct Histogram {
    /// What it is a histogram of.
    pub moments: Moments,
    /// From the least number to the largest.
    pub counts: Vec<u64>,
}

impl Histogram {
    /// Of numbers with these moments, none of which has been counted yet.
    pub fn new(moments: Moments) -> Self {
        Self { moments, counts: vec![0; BINS] }
    }

    /// Of these numbers.
    pub fn of(numbers: &[f32]) -> Self {
        let mut histogram = Self::new(Moments::of(numbers));
        histogram.add(numbers);
        histogram
    }

    /// Counts more numbers.
    pub fn add(&mut self, numbers: &[f32]) {
        let (low, width) = (f64::from(self.moments.low), self.width());
        for &number in numbers {
            let bin = if width > 0.0 { ((f64::from(number) - low) / width) as usize } else { 0 };
            self.counts[bin.min(BINS - 1)] += 1;
        }
    }

    /// In 64 bits there is neither a range of the least floats whose part is zero nor one of the largest that is infinite.
    fn width(&self) -> f64 {
        (f64::from(self.moments.high) - f64::from(self.moments.low)) / BINS as f64
    }

    /// The middle of each bin that is not empty, with its count.
    pub fn bins(&self) -> impl Iterator<Item = (f32, u64)> {
        let (low, width) = (f64::from(self.moments.low), self.width());
        let bins = self.counts.iter().enumerate().filter(|&(_, &count)| count > 0);
        bins.map(move |(bin, &count)| ((low + (bin as f64 + 0.5) * width) as f32, count))
    }

    /// The share of the numbers outside a range.
    pub fn outside(&self, [low, high]: [f32; 2]) -> f64 {
        let outside = self.bins().filter(|(number, _)| !(low..=high).contains(number)).map(|(_, count)| count);
        outside.sum::<u64>() as f64 / self.moments.count as f64
    }

    /// The range that integers with so many values cover.
    pub fn range(&self, calibration: Calibration, values: u32) -> [f32; 2] {
        let Moments { low, high, .. } = self.moments;
        if low >= high {
            return [low, high];
        }
        match calibration {
            Calibration::MinMax => [low, high],
            Calibration::Percentile => self.percentile(),
            Calibration::ThreeSigma => self.moments.three_sigma(),
            Calibration::Entropy => least_divergence(self, values),
            Calibration::Mse => self.least_error(values),
        }
    }

    /// The range without the rarest ends; where nothing is below zero there is one end only.
    fn percentile(&self) -> [f32; 2] {
        let Moments { low, high, count, .. } = self.moments;
        let rare = (1.0 - KEPT) * count as f64;
        let end = |bins: &mut dyn Iterator<Item = &u64>, rare: f64| {
            let mut passed = 0.0;
            let bins = bins.take_while(|&&count| {
                passed += count as f64;
                passed <= rare
            });
            (bins.count() as f64 * self.width()) as f32
        };
        if low >= 0.0 {
            return [low, high - end(&mut self.counts.iter().rev(), rare)];
        }
        [low + end(&mut self.counts.iter(), rare / 2.0), high - end(&mut self.counts.iter().rev(), rare / 2.0)]
    }

    fn least_error(&self, values: u32) -> [f32; 2] {
        let bins: Vec<_> = self.bins().collect();
        let error = |[low, high]: [f32; 2]| -> f64 {
            let (low, high) = (f64::from(low.min(0.0)), f64::from(high.max(0.0)));
            let step = (high - low) / f64::from(values - 1);
            if step == 0.0 {
                // Every number becomes zero.
                return bins.iter().map(|&(number, count)| f64::from(number).powi(2) * count as f64).sum();
            }
            let least = (low / step).round();
            let squared = |&(number, count): &(f32, u64)| {
                let nearest = (f64::from(number) / step).round().clamp(least, least + f64::from(values - 1));
                (f64::from(number) - nearest * step).powi(2) * count as f64
            };
            bins.iter().map(squared).sum()
        };
        let Moments { low, high, .. } = self.moments;
        let ranges = (1..=TRIALS).rev().map(|part| [low, high].map(|end| end * (part as f32 / TRIALS as f32)));
        // Of equal ones the widest.
        let errors = ranges.map(|range| (range, error(range)));
        errors.reduce(|best, next| if next.1 < best.1 { next } else { best }).map_or([low, high], |(range, _)| range)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Numbers spread as evenly as can be, by the golden ratio.
    pub(crate) fn uniform(count: usize) -> impl Iterator<Item = f64> {
        (0..count).map(|index| (index as f64 * 0.618_033_988_749_894_9).fract())
    }

    /// The sum of twelve uniform numbers less six is nearly a standard normal one.
    pub(crate) fn normal(count: usize) -> Vec<f32> {
        let all: Vec<f64> = uniform(count * 12).collect();
        let mut state = 1u64;
        let mut next = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize
        };
        (0..count).map(|_| ((0..12).map(|_| all[next() % all.len()]).sum::<f64>() - 6.0) as f32).collect()
    }

    #[test]
    fn three_sigma_of_a_normal_distribution_is_three() {
        let histogram = Histogram::of(&normal(100_000));
        let [low, high] = histogram.range(Calibration::ThreeSigma, 256);
        assert!((low + 3.0).abs() < 0.05 && (high - 3.0).abs() < 0.05, "{low} to {high}");
        assert!((histogram.outside([low, high]) - 0.0027).abs() < 0.001);
        assert!(histogram.moments.mean().abs() < 0.02 && (histogram.moments.deviation() - 1.0).abs() < 0.02);
    }

    #[test]
    fn a_uniform_distribution_is_covered_by_all() {
        let numbers: Vec<f32> = uniform(200_000).map(|number| 4.0 * number as f32).collect();
        let histogram = Histogram::of(&numbers);
        for calibration in Calibration::ALL {
            let [low, high] = histogram.range(calibration, 256);
            // Three deviations of a uniform distribution reach beyond its ends.
            assert!(low.abs() < 0.01 && (high - 4.0).abs() < 0.05, "{}: {low} to {high}", calibration.name());
        }
    }

    /// The best range for 16 values of a standard normal number reaches to 2.68 deviations: that of a uniform quantizer with 16
    /// levels, whose step is 0.3352 (Max, "Quantizing for minimum distortion", 1960, table II).
    #[test]
    fn the_least_error_of_a_normal_distribution_is_max_s() {
        let [low, high] = Histogram::of(&normal(200_000)).range(Calibration::Mse, 16);
        let step = (high - low) / 15.0;
        assert!((step - 0.3352).abs() < 0.02, "a step of {step} from {low} to {high}");
    }

    #[test]
    fn one_outlier_takes_the_range_of_minmax_alone() {
        let mut numbers = normal(100_000);
        numbers.push(1000.0);
        let histogram = Histogram::of(&numbers);
        let high = |calibration| histogram.range(calibration, 256)[1];
        assert_eq!(high(Calibration::MinMax), 1000.0);
        assert!(high(Calibration::Percentile) < 10.0);
        assert!(high(Calibration::ThreeSigma) < 15.0);
        assert!(high(Calibration::Entropy) < 130.0, "{}", high(Calibration::Entropy));
        assert!(high(Calibration::Mse) <= 1000.0);
    }

    #[test]
    fn what_does_not_vary_has_a_range_of_one_number() {
        for constant in [0.0, 2.5, -3.0] {
            let histogram = Histogram::of(&[constant; 50]);
            for calibration in Calibration::ALL {
                assert_eq!(histogram.range(calibration, 256), [constant; 2]);
            }
        }
    }

    /// Numbers so small that a 256th of them is zero, and so large that their range is not finite.
    #[test]
    fn ranges_of_the_smallest_and_largest_numbers_are_sound() {
        for factor in [1e-45, 1e-43, 1e-38, 1e37, 8e37] {
            let numbers: Vec<f32> = normal(1000).into_iter().map(|number| number * factor).collect();
            let histogram = Histogram::of(&numbers);
            let Moments { low, high, .. } = histogram.moments;
            for calibration in Calibration::ALL {
                for values in [2, 4, 128, 256] {
                    let [first, last] = histogram.range(calibration, values);
                    let sound = low <= first && first <= last && last <= high;
                    assert!(sound, "{} of {factor}: {first} to {last}", calibration.name());
                }
            }
        }
    }

    #[test]
    fn what_is_not_finite_and_what_is_not_there_is_told() {
        let refusal = |numbers: &[f32]| Moments::of(numbers).check("conv1").unwrap_err().to_string();
        assert_eq!(refusal(&[]), "there are no images to calibrate with");
        for number in [f32::NAN, f32::INFINITY] {
            assert_eq!(refusal(&[1.0, number]), "layer conv1: not all of its numbers are finite");
        }
        assert!(Moments::of(&[1.0]).check("conv1").is_ok());
    }
}
