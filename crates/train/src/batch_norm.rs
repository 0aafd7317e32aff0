//! Batch norm across workers.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use ringstep_comm::{CollectiveError, Group, How, Op};
use ringstep_nn::Model;
use serde::{Deserialize, Serialize};

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
        Self { label: world.label("statistics") }
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
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    /// A layer has nobody to tell of an error: whoever ran the pass asks for it.
    error: Mutex<Option<CollectiveError>>,
    bytes_sent: AtomicU64,
    messages_sent: AtomicU64,
    /// Nanoseconds that layers spent in it since somebody asked.
    nanoseconds: AtomicU64,
}

impl SyncBatchNorm {
    /// From now on the model's batch norm normalises over all ranks.
    pub fn begin(model: &mut Model, group: &mut Group) -> Result<Self, CollectiveError> {
        let shared = Arc::new(Shared::default());
        let (mut group, seen) = (group.split(0, group.rank() as i64)?, Arc::clone(&shared));
        model.normalise_with(Box::new(move |numbers| {
            let mut error = seen.error.lock().expect("nobody panics with it");
            // After an error the pass goes on with numbers that nobody will use.
            if error.is_none() {
                let began = Instant::now();
                *error = group.all_reduce(numbers, Op::Sum, How::default()).err();
                seen.bytes_sent.store(group.bytes_sent(), Ordering::Relaxed);
                seen.messages_sent.store(group.messages_sent(), Ordering::Relaxed);
                seen.nanoseconds.fetch_add(began.elapsed().as_nanos() as u64, Ordering::Relaxed);
            }
        }));
        Ok(Self { shared })
    }

    /// How long layers have spent in it since the last time; fails if the last pass did.
    pub fn check(&self) -> Result<Duration, CollectiveError> {
        let time = Duration::from_nanos(self.shared.nanoseconds.swap(0, Ordering::Relaxed));
        self.shared.error.lock().expect("nobody panics with it").take().map_or(Ok(time), Err)
    }

    /// Bytes and messages sent so far.
    pub fn sent(&self) -> (u64, u64) {
        let [bytes, messages] =
            [&self.shared.bytes_sent, &self.shared.messages_sent].map(|count| count.load(Ordering::Relaxed));
        (bytes, messages)
    }
}
