//! CROSSBOW's synchronous model averaging (Koliousis et al., VLDB 2019): each worker trains several replicas on small
//! batches, one after the other, and all are held together by a [`Central`] model. The formulas stand there.
//!
//! What a replica is pulled back by depends on where it is before its step, so the sum over all workers is made on the
//! communication thread, as it is or by sending less, behind the backward of a worker's first replica. An exchange a step serves all its replicas.

use std::io;
use std::time::Instant;

use ringstep_comm::{Algorithm, Group, Op};
use ringstep_nn::schedule::Schedule;
use ringstep_nn::state::State;

use super::central::Central;
use super::reducer::Reducer;
use super::{Next, Progress, Strategy, Turn, Weighting, add, how};
use crate::content::Content;
use crate::error::WorkerError;
use crate::records::Compressed;
use crate::replica::Replica;
use crate::world::World;

/// A learning rate that is less than this part of the one before has dropped; a curve that falls smoothly falls less.
const DROP: f32 = 0.9;

/// Replicas around a central model, which all workers hold.
pub struct Sma {
    central: Central,
    /// Sums the corrections over the workers.
    reducer: Reducer,
    algorithm: Option<Algorithm>,
    schedule: Schedule,
    label: u16,
    /// Sum of the corrections of this worker's replicas, after the first backward of all workers'.
    corrections: Vec<f32>,
    /// Whether they have been summed over the workers in this step.
    summed: bool,
    /// Room for the correction of one replica.
    correction: Vec<f32>,
}

impl Sma {
    pub fn new(
        central: Central,
        reducer: Reducer,
        algorithm: Option<Algorithm>,
        schedule: &Schedule,
        world: &mut World<'_>,
    ) -> Self {
        let (label, zeros) = (world.label("statistics", Content::Statistics), vec![0.0; central.values().len()]);
        let (corrections, correction) = (zeros.clone(), zeros);
        Self { central, reducer, algorithm, schedule: *schedule, label, corrections, summed: false, correction }
    }

    /// Whether the learning rate of this step is a new, lower one.
    fn lr_drops(&self, step: usize) -> bool {
        step > 0 && self.schedule.lr(step) < DROP * self.schedule.lr(step - 1)
    }
}

impl Strategy for Sma {
    fn prepare(&self, world: &mut World<'_>) -> io::Result<()> {
        world.workers().start_thread()
    }

    fn before(
        &mut self,
        _: &mut World<'_>,
        replicas: &mut [Replica<'_>],
        progress: &Progress,
    ) -> Result<Next, WorkerError> {
        let next = progress.next();
        if let Next::Step(step) = next {
            if self.lr_drops(step) {
                self.central.stop();
                replicas
                    .iter_mut()
                    .for_each(|replica| replica.model.values_mut().copy_from_slice(self.central.values()));
            }
            self.corrections.fill(0.0);
            for replica in replicas {
                self.central.correction(replica.model.values_mut(), &mut self.correction);
                add(&mut self.corrections, &self.correction);
            }
            self.summed = false;
            self.reducer.begin_step(step);
        }
        Ok(next)
    }

    fn backward(&mut self, world: &mut World<'_>, replica: &mut Replica<'_>, scale: f32) -> Result<(), WorkerError> {
        let Self { corrections, summed, reducer, .. } = self;
        if *summed {
            replica.backward(scale);
            return Ok(());
        }
        *summed = true;
        let sum = |group: &mut Group, corrections: &mut [f32]| reducer.sum(group, 0, corrections);
        world.workers().while_doing(sum, |queue| {
            queue.push(&mut corrections[..]);
            replica.backward(scale);
        })
    }

    /// Neither replicas nor the central model have moved since [`Strategy::before`], so corrections are still the same.
    fn update(&mut self, _: &mut World<'_>, replicas: &mut [Replica<'_>], turn: Turn) -> Result<(), WorkerError> {
        for replica in replicas {
            self.central.correction(replica.model.values_mut(), &mut self.correction);
            replica.optimize_alone(turn.lr);
            for (value, correction) in replica.model.values_mut().iter_mut().zip(&self.correction) {
                *value -= correction;
            }
        }
        self.central.follow(&self.corrections);
        Ok(())
    }

    /// The central model, with the mean of all replicas' statistics.
    fn finish(&mut self, world: &mut World<'_>, replicas: &mut [Replica<'_>]) -> Result<(), WorkerError> {
        let learners = replicas.len() as f32;
        let (first, others) = replicas.split_first_mut().expect("a worker has at least one replica");
        first.model.values_mut().copy_from_slice(self.central.values());
        if first.model.has_statistics() {
            let statistics = first.model.statistics_mut();
            others.iter_mut().for_each(|replica| add(statistics, replica.model.statistics_mut()));
            statistics.iter_mut().for_each(|number| *number /= learners);
            world.workers_for(self.label).all_reduce(statistics, Op::Mean, how(self.algorithm))?;
        }
        Ok(())
    }

    fn state(&mut self, state: &mut State<'_>) {
        state.within("central", |state| self.central.state(state));
        self.reducer.state(state);
    }

    fn compressed(&self) -> Option<Compressed> {
        self.reducer.compressed()
    }

    fn take_encoding(&mut self) -> Vec<(u16, [Instant; 2])> {
        self.reducer.take_encoding()
    }

    fn weighting(&self, _: usize) -> Weighting {
        Weighting::OwnImages
    }

    fn replicas_equal(&self) -> bool {
        false
    }

    fn view<'a>(&'a self, _: &'a mut [Replica<'_>]) -> &'a [f32] {
        self.central.values()
    }
}
