//! Workers that never talk, each on its own shard: the floor that every way to synchronise should beat.

use super::{Strategy, Turn, Weighting};
use crate::content::Content;
use crate::error::WorkerError;
use crate::replica::Replica;
use crate::world::{CHIEF, World};

/// Nobody keeps in step with anybody.
pub struct Unconnected {
    label: u16,
}

impl Unconnected {
    pub fn new(world: &mut World<'_>) -> Self {
        Self { label: world.label("final model", Content::Parameters) }
    }
}

impl Strategy for Unconnected {
    fn update(&mut self, _: &mut World<'_>, replicas: &mut [Replica<'_>], turn: Turn) -> Result<(), WorkerError> {
        replicas.iter_mut().for_each(|replica| replica.optimize_alone(turn.lr));
        Ok(())
    }

    /// The chief's model is as good as any.
    fn finish(&mut self, world: &mut World<'_>, replicas: &mut [Replica<'_>]) -> Result<(), WorkerError> {
        let workers = world.workers_for(self.label);
        // Who is late is waited for.
        workers.meet()?;
        Ok(workers.broadcast(replicas[0].model.values_mut(), CHIEF)?)
    }

    fn weighting(&self, _: usize) -> Weighting {
        Weighting::OwnImages
    }

    fn replicas_equal(&self) -> bool {
        false
    }
}
