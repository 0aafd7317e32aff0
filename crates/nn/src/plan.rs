//! Who lives where in memory: buffers that are not needed at the same time share their place.

use std::ops::Range;

/// A buffer's size, and the first and the last moment at which it is needed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Need {
    /// Numbers.
    pub size: usize,
    /// The moments, both included.
    pub from: usize,
    /// See `from`.
    pub until: usize,
}

/// A place for each buffer, and the size of the whole. Large ones are placed first, each as low as it can be; that is
/// not always the best, but never far from it.
pub fn plan(needs: &[Need]) -> (Vec<Range<usize>>, usize) {
    let mut order: Vec<usize> = (0..needs.len()).collect();
    order.sort_by_key(|&index| std::cmp::Reverse(needs[index].size));
    let mut places: Vec<Range<usize>> = vec![0..0; needs.len()];
    let mut placed: Vec<usize> = Vec::new();
    for index in order {
        let need = &needs[index];
        let at_once = |other: usize| needs[other].from <= need.until && need.from <= needs[other].until;
        let mut neighbours: Vec<_> =
            placed.iter().filter(|&&other| at_once(other)).map(|&other| places[other].clone()).collect();
        neighbours.sort_by_key(|place| place.start);
        let start = neighbours
            .iter()
            .fold(0, |start: usize, place| if start + need.size <= place.start { start } else { start.max(place.end) });
        places[index] = start..start + need.size;
        placed.push(index);
    }
    let size = places.iter().map(|place| place.end).max().unwrap_or(0);
    (places, size)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_needed_at_once_does_not_overlap(needs in prop::collection::vec((0usize..50, 0usize..20, 0usize..9), 0..40)) {
            let needs: Vec<_> =
                needs.into_iter().map(|(size, from, length)| Need { size, from, until: from + length }).collect();
            let (places, size) = plan(&needs);
            for (a, first) in needs.iter().enumerate() {
                prop_assert_eq!(places[a].len(), first.size);
                prop_assert!(places[a].end <= size);
                for (b, second) in needs.iter().enumerate().skip(a + 1) {
                    let at_once = first.from <= second.until && second.from <= first.until;
                    let apart = places[a].end <= places[b].start || places[b].end <= places[a].start;
                    prop_assert!(!at_once || apart || first.size == 0 || second.size == 0);
                }
            }
            // No plan can do with less than is needed at the busiest moment.
            let busiest = (0..30).map(|moment| {
                needs.iter().filter(|need| (need.from..=need.until).contains(&moment)).map(|need| need.size).sum()
            }).max().unwrap_or(0);
            prop_assert!(size >= busiest);
        }
    }

    #[test]
    fn a_chain_takes_two_places() {
        let needs: Vec<_> = (0..10).map(|step| Need { size: 5, from: step, until: step + 1 }).collect();
        assert_eq!(plan(&needs).1, 10);
    }
}
