//! Where a replica's batches come from: its own loader, or a rank that deals its batches out to all.

use std::sync::Arc;

use ringstep_comm::CollectiveError;
use ringstep_data::Dataset;
use ringstep_data::canvas::Canvas;
use ringstep_data::loader::{Batch, Loader, Plan};
use ringstep_data::shard::Shard;

use crate::Job;
use crate::content::Content;
use crate::error::WorkerError;
use crate::recorder::Recorder;
use crate::trace::Kind;
use crate::world::World;

/// Who loads what a rank trains on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// Each rank loads its own.
    Own,
    /// This rank loads for all.
    DealtBy(usize),
}

/// A replica's batches, one after the other.
pub(crate) enum Feed {
    /// Each rank loads its own.
    Own(Loader),
    /// One rank loads for all, and deals each batch out in equal parts; the last ones may be smaller.
    Dealt {
        dealer: usize,
        /// On the dealer.
        loader: Option<Loader>,
        /// What the dealer loaded, filled up so that all parts are as long.
        whole: Batch,
        /// This rank's part.
        part: Batch,
        /// Numbers in an image.
        length: usize,
        /// Of the exchange.
        label: u16,
    },
}

impl Feed {
    /// Begins to load what this rank trains on.
    pub fn start(
        source: Source,
        job: &Job,
        data: &Dataset,
        canvas: &Canvas,
        shard: &Shard,
        world: &mut World<'_>,
    ) -> Result<Self, WorkerError> {
        let start = |shard| {
            start_loader(Plan {
                images: Arc::clone(&data.train),
                shard,
                steps: job.batches_in_all(data.train.len()),
                skip: 0,
                canvas: canvas.clone(),
                augment: job.augment,
                seed: job.seed,
            })
        };
        let Source::DealtBy(dealer) = source else { return Ok(Self::Own(start(shard.clone())?)) };
        let whole = Shard { rank: 0, world: 1, batch: shard.world * shard.batch, ..shard.clone() };
        let loader = (world.rank() == dealer).then(|| start(whole)).transpose()?;
        let (whole, part, length) = (Batch::default(), Batch::default(), canvas.len());
        Ok(Self::Dealt { dealer, loader, whole, part, length, label: world.label("scatter", Content::Images) })
    }

    /// Goes on behind so many batches, wherever it is.
    pub fn seek(&mut self, rank: usize, batches: usize) -> Result<(), WorkerError> {
        let (Self::Own(loader) | Self::Dealt { loader: Some(loader), .. }) = self else { return Ok(()) };
        loader.seek(batches).map_err(WorkerError::no_thread(rank, "load images"))
    }

    /// Gets the next batch, this rank's part of the `global_batch` images that all ranks take.
    pub fn next(
        &mut self,
        world: &mut World<'_>,
        recorder: &mut Recorder,
        global_batch: usize,
    ) -> Result<(), CollectiveError> {
        const ENOUGH: &str = "there is a batch for each step";
        match self {
            Self::Own(loader) => {
                recorder.timed(Kind::Data, "data", || loader.next().expect(ENOUGH));
            }
            Self::Dealt { dealer, loader, whole, part, length, label } => {
                let (rank, ranks) = (world.rank(), world.workers().world());
                let each = global_batch.div_ceil(ranks);
                if let Some(loader) = loader {
                    let batch = recorder.timed(Kind::Data, "data", || loader.next().expect(ENOUGH));
                    whole.images.clone_from(&batch.images);
                    whole.labels.clone_from(&batch.labels);
                    whole.images.resize(each * ranks * *length, 0.0);
                    whole.labels.resize(each * ranks, 0);
                }
                part.images.resize(each * *length, 0.0);
                part.labels.resize(each, 0);
                let workers = world.workers_for(*label);
                workers.scatter(&whole.images, &mut part.images, *dealer)?;
                workers.scatter(&whole.labels, &mut part.labels, *dealer)?;
                let mine = global_batch.saturating_sub(rank * each).min(each);
                part.images.truncate(mine * *length);
                part.labels.truncate(mine);
            }
        }
        Ok(())
    }

    /// The batch that [`Feed::next`] got last.
    pub fn current(&self) -> &Batch {
        match self {
            Self::Own(loader) => loader.current(),
            Self::Dealt { part, .. } => part,
        }
    }
}

/// Begins to load batches, or says that there is no thread for it.
pub(crate) fn start_loader(plan: Plan) -> Result<Loader, WorkerError> {
    let rank = plan.shard.rank;
    Loader::start(plan).map_err(WorkerError::no_thread(rank, "load images"))
}
