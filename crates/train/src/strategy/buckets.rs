//! Which gradients travel together. Buckets are filled in the order in which backward finishes gradients, so the first
//! can leave while the others are still being computed.

use std::ops::Range;

use ringstep_comm::cost::Tuning;
use ringstep_comm::{Algorithm, Topology};
use ringstep_nn::Parameter;

use super::in_order;

/// The first bucket is this much smaller, so that communication begins early.
const FIRST: usize = 8;
const NUMBER: usize = size_of::<f32>();

/// The buckets of a model's gradients.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Buckets {
    /// Where each ends in the flat buffer of the gradients.
    pub ends: Vec<usize>,
}

impl Buckets {
    /// A bucket is closed with the parameter that brings it to `bytes`; the first one far earlier.
    pub fn new(parameters: &[Parameter], bytes: usize) -> Self {
        // In the flat buffer the last layer comes first.
        let mut ends: Vec<usize> = in_order(parameters).map(|range| range.end).collect();
        ends.sort_unstable();
        let all = ends.last().copied();
        let (mut start, mut size) = (0, bytes / FIRST);
        ends.retain(|&end| {
            let full = Some(end) == all || (end - start) * NUMBER >= size;
            if full {
                (start, size) = (end, bytes);
            }
            full
        });
        Self { ends }
    }

    /// Where each stands in the flat buffer.
    pub fn ranges(&self) -> impl Iterator<Item = Range<usize>> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, &end)| start..end)
    }
}

/// The size of buckets that leaves the least communication exposed. With `a` seconds for a collective and `b` for each of
/// its bytes, G bytes in buckets of s cost `a G / s` to begin, and the last bucket's `b s` cannot hide behind anything:
/// the sum is least at `s = sqrt(a G / b)`.
///
/// Rests on a group's numbers as they are, so that a run that measures nothing repeats.
pub fn best_size(
    parameters: &[Parameter],
    topology: &Topology,
    tuning: &Tuning,
    algorithm: Option<Algorithm>,
) -> usize {
    let all: usize = in_order(parameters).map(|range| range.len()).sum();
    let seconds = |bytes: usize| {
        let algorithm = algorithm.unwrap_or_else(|| tuning.choose(topology, bytes));
        tuning.predict(algorithm, topology, bytes)
    };
    const LARGE: usize = 64 << 20;
    let fixed = seconds(NUMBER);
    let per_byte = (seconds(LARGE) - fixed) / LARGE as f64;
    let best = (fixed * (all * NUMBER) as f64 / per_byte).sqrt();
    // Alone, nothing is sent, and any size will do.
    if best.is_finite() { (best as usize).max(NUMBER) } else { all * NUMBER }
}

#[cfg(test)]
mod tests {
    use ringstep_nn::Architecture;

    use super::*;

    fn vgg11() -> Vec<Parameter> {
        Architecture::Vgg11.network().parameters().unwrap()
    }

    fn lengths(buckets: &Buckets) -> impl Iterator<Item = usize> {
        buckets.ranges().map(|range| range.len())
    }

    #[test]
    fn buckets_cover_all_gradients_at_the_ends_of_parameters() {
        let model = vgg11();
        let parameters: Vec<usize> = model.iter().map(|parameter| parameter.range().end).collect();
        for bytes in [1, 1000, 1 << 20, 25 << 20, usize::MAX] {
            let buckets = Buckets::new(&model, bytes);
            assert!(buckets.ends.iter().all(|end| parameters.contains(end)));
            assert!(lengths(&buckets).all(|length| length > 0));
            assert_eq!(lengths(&buckets).sum::<usize>(), in_order(&model).map(|range| range.len()).sum::<usize>());
            let full = lengths(&buckets).skip(1).take(buckets.ends.len().saturating_sub(2));
            assert!(full.into_iter().all(|length| length * NUMBER >= bytes));
        }
        assert_eq!(Buckets::new(&model, 1).ends.len(), in_order(&model).count());
        assert_eq!(Buckets::new(&model, usize::MAX).ends.len(), 1);
    }

    /// Against the sum itself, for buckets a tenth smaller and larger.
    #[test]
    fn the_best_size_is_better_than_its_neighbours() {
        let topology = Topology::new(vec![0; 4], true);
        let tuning = Tuning::typical(&topology);
        let model = vgg11();
        let best = best_size(&model, &topology, &tuning, Some(Algorithm::Ring)) as f64;
        let seconds = |bytes: f64| tuning.predict(Algorithm::Ring, &topology, bytes as usize);
        let all = 4.0 * lengths(&Buckets::new(&model, usize::MAX)).sum::<usize>() as f64;
        let cost = |size: f64| seconds(size) + (all / size) * seconds(4.0);
        assert!(cost(best) < cost(0.9 * best) && cost(best) < cost(1.1 * best));
    }
}
