//! Where a rank's batches come from: its own loader, or rank 0, which deals its batches out.

use std::sync::Arc;
use std::time::Instant;

use ringstep_comm::{CollectiveError, Group};
use ringstep_data::Dataset;
use ringstep_data::canvas::Canvas;
use ringstep_data::loader::{Batch, Loader, Plan};
use ringstep_data::shard::Shard;

use crate::clock::Clock;
use crate::error::WorkerError;
use crate::{Job, Sync};

/// A rank's batches, one after the other.
pub(crate) enum Feed {
    /// Each rank loads its own.
    Own(Loader),
    /// Rank 0 loads for all, and deals each batch out in equal parts; the last ones may be smaller.
    Dealt {
        /// On rank 0.
        loader: Option<Loader>,
        /// What rank 0 loaded, filled up so that all parts are as long.
        whole: Batch,
        /// This rank's part.
        part: Batch,
    },
}

impl Feed {
    /// Begins to load what this rank trains on.
    pub fn start(job: &Job, data: &Dataset, canvas: &Canvas, rank: usize) -> Result<Self, WorkerError> {
        let images = data.train.len();
        let start = |shard| {
            start_loader(Plan {
                images: Arc::clone(&data.train),
                shard,
                steps: job.batches_in_all(images),
                canvas: canvas.clone(),
                augment: job.augment,
                seed: job.seed,
            })
        };
        if job.sync != Sync::DataParallel {
            return Ok(Self::Own(start(job.shard(rank, images))?));
        }
        let whole = Shard { world: 1, batch: job.workers * job.batch, ..job.shard(0, images) };
        let loader = (rank == 0).then(|| start(whole)).transpose()?;
        Ok(Self::Dealt { loader, whole: Batch::default(), part: Batch::default() })
    }

    /// The next batch, which is this rank's part of a batch of `together` images of `length` numbers each, and the moment
    /// when it was loaded; what follows is dealing it out.
    pub fn next(
        &mut self,
        clock: &mut Clock,
        group: &mut Group,
        together: usize,
        length: usize,
    ) -> Result<(&Batch, Instant), CollectiveError> {
        const ENOUGH: &str = "there is a batch for each step";
        match self {
            Self::Own(loader) => {
                let batch = clock.loading(|| loader.next()).expect(ENOUGH);
                Ok((batch, Instant::now()))
            }
            Self::Dealt { loader, whole, part } => {
                let each = together.div_ceil(group.world());
                if let Some(loader) = loader {
                    let batch = clock.loading(|| loader.next()).expect(ENOUGH);
                    whole.images.clone_from(&batch.images);
                    whole.labels.clone_from(&batch.labels);
                    whole.images.resize(each * group.world() * length, 0.0);
                    whole.labels.resize(each * group.world(), 0);
                }
                part.images.resize(each * length, 0.0);
                part.labels.resize(each, 0);
                let loaded = Instant::now();
                clock.communicating(|| {
                    group.scatter(&whole.images, &mut part.images, 0)?;
                    group.scatter(&whole.labels, &mut part.labels, 0)
                })?;
                let mine = together.saturating_sub(group.rank() * each).min(each);
                part.images.truncate(mine * length);
                part.labels.truncate(mine);
                Ok((part, loaded))
            }
        }
    }

    /// The batch that [`Feed::next`] has returned last.
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
    Loader::start(plan).map_err(|error| WorkerError::NoLoader { rank, error })
}
