//! Which server holds which parameters.

use std::ops::Range;

use ringstep_nn::Parameter;
use ringstep_nn::optim::{Optimizer, Rule};

/// Cuts a model's flat buffer into as many parts as there are servers, as equal as whole tensors can be: rules such as LARS need
/// the norm of a tensor. `ends` are where tensors end, in ascending order; there are at least as many as servers.
pub fn shards(ends: &[usize], servers: usize) -> Vec<Range<usize>> {
    assert!((1..=ends.len()).contains(&servers), "{servers} servers for {} tensors", ends.len());
    let all = ends[ends.len() - 1];
    let mut cuts = vec![0];
    let mut next = 0;
    for server in 1..servers {
        // Every server has a tensor at least: those that come later, too.
        let candidates = next..ends.len() - (servers - server);
        let goal = all * server / servers;
        let tensor = candidates.min_by_key(|&tensor| ends[tensor].abs_diff(goal)).expect("a tensor for each server");
        cuts.push(ends[tensor]);
        next = tensor + 1;
    }
    cuts.push(all);
    cuts.windows(2).map(|cut| cut[0]..cut[1]).collect()
}

/// The trained tensors of a model, in the order of its flat buffer, cut for so many servers.
pub struct Cut {
    tensors: Vec<Parameter>,
    /// What each server holds.
    pub shards: Vec<Range<usize>>,
}

impl Cut {
    /// For servers of which there are at most as many as tensors.
    pub fn new(parameters: &[Parameter], servers: usize) -> Self {
        let mut tensors: Vec<_> = parameters.iter().filter(|parameter| parameter.trained).cloned().collect();
        tensors.sort_by_key(|tensor| tensor.range().end);
        let ends: Vec<usize> = tensors.iter().map(|tensor| tensor.range().end).collect();
        Self { shards: shards(&ends, servers), tensors }
    }

    /// Numbers in all shards.
    pub fn all(&self) -> usize {
        self.shards.last().map_or(0, |shard| shard.end)
    }

    /// For what one server holds.
    pub fn optimizer(&self, rule: Rule, server: usize) -> Optimizer {
        let shard = &self.shards[server];
        let held = self.tensors.iter().filter(|tensor| shard.contains(&tensor.range().start));
        let within = |range: Range<usize>| range.start - shard.start..range.end - shard.start;
        let tensors = held.map(|tensor| (within(tensor.range()), tensor.shape.len() > 1)).collect();
        Optimizer::for_tensors(rule, shard.len(), tensors)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn all_parameters_are_held_once(lengths in prop::collection::vec(1usize..1000, 1..40), servers in 1usize..40) {
            let servers = servers.min(lengths.len());
            let ends: Vec<usize> = lengths.iter().scan(0, |end, length| { *end += length; Some(*end) }).collect();
            let shards = shards(&ends, servers);
            prop_assert_eq!(shards.len(), servers);
            prop_assert_eq!((shards[0].start, shards[servers - 1].end), (0, ends[ends.len() - 1]));
            prop_assert!(shards.windows(2).all(|pair| pair[0].end == pair[1].start));
            prop_assert!(shards.iter().all(|shard| !shard.is_empty() && ends.contains(&shard.end)));
            // No shard is larger than an equal part and the largest tensor, unless the last servers need tensors of their own.
            if servers * 4 <= lengths.len() {
                let largest = lengths.iter().max().unwrap();
                let equal = ends[ends.len() - 1] / servers;
                prop_assert!(shards.iter().all(|shard| shard.len() <= equal + 2 * largest));
            }
        }
    }
}
