//! What goes through a model while it classifies images: a histogram of every activation.

use ringstep_nn::Frozen;

use crate::calibrate::{Histogram, Moments};
use crate::error::QuantError;
use crate::graph::Graph;

/// Histograms of the images and of what comes out of each node.
#[derive(Debug, Clone)]
pub struct Survey {
    /// One for each source: 0 is the images.
    pub histograms: Vec<Histogram>,
}

impl Survey {
    /// Runs images through the operators in floats, twice.
    pub fn of(graph: &Graph, frozen: &mut Frozen, images: &[f32]) -> Result<Self, QuantError> {
        let sources = graph.nodes.len() + 1;
        let mut moments = vec![Moments::default(); sources];
        pass(frozen, images, |source, numbers| moments[source].add(numbers));
        for (source, moments) in moments.iter().enumerate() {
            moments.check(source.checked_sub(1).map_or("input", |index| &graph.nodes[index].name))?;
        }
        let mut histograms: Vec<_> = moments.into_iter().map(Histogram::new).collect();
        pass(frozen, images, |source, numbers| histograms[source].add(numbers));
        Ok(Self { histograms })
    }
}

/// Shows the images and what comes out of each node, batch by batch.
fn pass(frozen: &mut Frozen, images: &[f32], mut see: impl FnMut(usize, &[f32])) {
    for images in images.chunks(frozen.batch() * frozen.input().len()) {
        see(0, images);
        frozen.logits_changing(images, |index, output| see(index + 1, output));
    }
}
