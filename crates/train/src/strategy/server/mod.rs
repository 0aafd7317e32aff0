//! Parameter servers (Li et al., "Scaling distributed machine learning with the parameter server", OSDI 2014): ranks that hold
//! the parameters, a shard each, and take the optimizer's steps.

pub mod clocked;
pub mod free;
pub mod shards;
