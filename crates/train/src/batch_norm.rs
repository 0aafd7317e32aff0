//! Batch norm across workers.

use std::sync::{Arc, Mutex};

use ringstep_comm::log::Exchange;
use ringstep_comm::transport::Traffic;
use ringstep_comm::{CollectiveError, How, Op};
use ringstep_nn::Model;
use serde::{Deserialize, Serialize};

use crate::content::Content;
use crate::world::{CHIEF, World};

/// What workers share of batch norm's statistics. Tests use rank 0's running statistics in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum BatchNorm {
    /// Each normalises over its own images, and keeps running statistics of them.
    #[default]
    Local,
    /// The same, and each step begins with rank 0's running statistics.
    Broadcast,
    /// All normalise over the images of all, as one worker with the whole batch does.
    Sync,
}

impl BatchNorm {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Local, Self::Broadcast, Self::Sync];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Broadcast => "broadcast",
            Self::Sync => "sync",
        }
    }
}

/// The chief's running statistics for everybody.
pub(crate) struct Broadcast {
    label: u16,
}

impl Broadcast {
    pub fn new(world: &mut World<'_>) -> Self {
        Self { label: world.label("statistics", Content::Statistics) }
    }

    /// Before a step.
    pub fn before(&self, world: &mut World<'_>, model: &mut Model) -> Result<(), CollectiveError> {
        match model.has_statistics() {
            true => world.workers_for(self.label).broadcast(model.statistics_mut(), CHIEF),
            false => Ok(()),
        }
    }
}

/// Ranks that normalise together. They have connections of their own, since gradients may be on their way at the same
/// time.
pub(crate) struct SyncBatchNorm {
    shared: Arc<Mutex<Shared>>,
}

/// What a layer has nobody to tell of: whoever ran the pass asks for it.
#[derive(Default)]
struct Shared {
    error: Option<CollectiveError>,
    exchanges: Vec<Exchange>,
    traffic: Traffic,
}

const NOBODY_PANICS: &str = "nobody panics with it";

impl SyncBatchNorm {
    /// From now on the model's batch norm normalises over all workers.
    pub fn begin(model: &mut Model, world: &mut World<'_>) -> Result<Self, CollectiveError> {
        let (key, label) = (world.rank() as i64, world.label("batch norm", Content::Statistics));
        let mut group = world.workers().split(0, key)?;
        group.label(label);
        group.record(true);
        let shared = Arc::new(Mutex::new(Shared::default()));
        let seen = Arc::clone(&shared);
        model.normalise_with(Box::new(move |numbers| {
            let mut seen = seen.lock().expect(NOBODY_PANICS);
            // After an error the pass goes on with numbers that nobody will use.
            if seen.error.is_none() {
                seen.error = group.all_reduce(numbers, Op::Sum, How::default()).err();
                seen.traffic = group.traffic();
                group.take_exchanges(&mut seen.exchanges);
            }
        }));
        Ok(Self { shared })
    }

    /// Fails if the last pass did.
    pub fn check(&self) -> Result<(), CollectiveError> {
        self.shared.lock().expect(NOBODY_PANICS).error.take().map_or(Ok(()), Err)
    }

    /// The exchanges since the last time.
    pub fn take_exchanges(&self) -> Vec<Exchange> {
        std::mem::take(&mut self.shared.lock().expect(NOBODY_PANICS).exchanges)
    }

    /// What this rank has sent and received so far.
    pub fn traffic(&self) -> Traffic {
        self.shared.lock().expect(NOBODY_PANICS).traffic
    }
}
