//! How good a model is on the test images.

use std::sync::Arc;

use ringstep_comm::Group;
use ringstep_data::Dataset;
use ringstep_data::augment::Augment;
use ringstep_data::canvas::Canvas;
use ringstep_data::loader::Plan;
use ringstep_data::shard::{Deal, Shard};
use ringstep_nn::Model;
use ringstep_nn::kernels::cross_entropy;

use crate::error::WorkerError;
use crate::feed::start_loader;

/// Images that are tested at once; nothing depends on that but speed.
pub(crate) const BATCH: usize = 100;

/// Classifies this rank's part of the test images: how many there were, and how many it got right. Batch norm's running
/// statistics differ from rank to rank; from here on all have those of rank 0.
pub(crate) fn test(
    model: &mut Model,
    data: &Dataset,
    canvas: &Canvas,
    group: &mut Group,
) -> Result<(usize, usize), WorkerError> {
    group.broadcast(model.statistics_mut(), 0)?;
    let images = Arc::clone(&data.test);
    let (rank, world, batch) = (group.rank(), group.world(), BATCH);
    let shard = Shard { images: images.len(), rank, world, batch, shuffle: None, deal: Deal::Strided, taken: (0, 0) };
    let steps = shard.steps();
    let mut loader = start_loader(Plan {
        images,
        shard,
        steps,
        skip: 0,
        canvas: canvas.clone(),
        augment: Augment::default(),
        seed: 0,
    })?;
    let mut frozen = model.freeze(BATCH, model.threads());
    let (mut count, mut correct) = (0, 0);
    while let Some(batch) = loader.next() {
        let classes = frozen.classes();
        let logits = frozen.logits(&batch.images).chunks_exact(classes);
        let right = |&(logits, &label): &(&[f32], &u8)| cross_entropy::forward(logits, label.into(), 0.0).correct;
        count += batch.len();
        correct += logits.zip(&batch.labels).filter(right).count();
    }
    Ok((count, correct))
}
