//! Gather and scatter: one rank has all parts, the others one each.
//!
//! Steps: p-1, all of them at the root. Bytes: to scatter, the root sends every other rank its part; to gather, every
//! other rank sends its own. A part is as long as the lane, and the root has p of them, in the order of the ranks.

use super::{Combine, Lane};
use crate::transport::TransportError;

/// The root receives everyone's part.
pub async fn gather(lane: &mut impl Lane, root: usize) -> Result<(), TransportError> {
    let part = lane.len();
    if lane.rank() != root {
        return lane.send(root, 0..part).await;
    }
    for sender in (0..lane.world()).filter(|&sender| sender != root) {
        lane.recv(sender, sender * part..(sender + 1) * part, Combine::Copy).await?;
    }
    Ok(())
}

/// The root sends everyone its part.
pub async fn scatter(lane: &mut impl Lane, root: usize) -> Result<(), TransportError> {
    let part = lane.len();
    if lane.rank() != root {
        return lane.recv(root, 0..part, Combine::Copy).await;
    }
    for receiver in (0..lane.world()).filter(|&receiver| receiver != root) {
        lane.send(receiver, receiver * part..(receiver + 1) * part).await?;
    }
    Ok(())
}
