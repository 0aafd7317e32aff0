//! All-reduce over rank 0: it gathers everyone's slice, reduces them and hands the result back.
//!
//! Steps: 2(p-1), all of them through rank 0, which receives and sends p-1 slices; every other rank sends one. What
//! courses start with, and what the [ring](super::ring) is there to beat. Rank 0 reduces in the order of the ranks.

use super::{Combine, Reducing};
use crate::transport::TransportError;

/// Replaces the slice by its reduction over all ranks.
pub async fn all_reduce(lane: &mut impl Reducing) -> Result<(), TransportError> {
    let all = 0..lane.len();
    if lane.rank() > 0 {
        lane.send(0, all.clone()).await?;
        return lane.recv(0, all, Combine::Copy).await;
    }
    for worker in 1..lane.world() {
        lane.recv(worker, all.clone(), Combine::Reduce).await?;
    }
    lane.finish(all.clone());
    for worker in 1..lane.world() {
        lane.send(worker, all.clone()).await?;
    }
    Ok(())
}
