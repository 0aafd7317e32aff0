//! Post-local SGD (Lin, Stich, Patel and Jaggi, "Don't use large mini-batches, use local SGD", 2018): in step with each
//! other while the model changes fast, alone afterwards.

use std::io;
use std::time::Instant;

use ringstep_nn::schedule::Schedule;
use ringstep_nn::state::State;

use super::ddp::Ddp;
use super::local_sgd::LocalSgd;
use super::{Next, Progress, Strategy, Turn, Weighting};
use crate::error::WorkerError;
use crate::records::Compressed;
use crate::replica::Replica;
use crate::world::World;

/// One way until a step of the job, another from then on.
pub struct PostLocalSgd {
    early: Ddp,
    late: LocalSgd,
    /// The first step of the second way.
    switch_at: usize,
    /// Whether it has come.
    switched: bool,
}

impl PostLocalSgd {
    /// `switch_at` is in epochs; without one it is half of the job.
    pub fn new(early: Ddp, late: LocalSgd, switch_at: Option<f32>, schedule: &Schedule) -> Self {
        let in_steps = |epochs: f32| (f64::from(epochs) * schedule.epoch as f64).round() as usize;
        let switch_at = switch_at.map_or(schedule.steps / 2, in_steps);
        Self { early, late, switch_at, switched: false }
    }
}

impl Strategy for PostLocalSgd {
    fn prepare(&self, world: &mut World<'_>) -> io::Result<()> {
        self.early.prepare(world)
    }

    fn before(
        &mut self,
        world: &mut World<'_>,
        replicas: &mut [Replica<'_>],
        progress: &Progress,
    ) -> Result<Next, WorkerError> {
        if !self.switched && progress.done == self.switch_at {
            self.switched = true;
            self.late.begin(world.workers().world(), progress.done);
            self.late.anchor(replicas[0].model.values_mut());
            // What was trained on together is no reason to weigh one model more than another.
            replicas[0].take_images();
        }
        let way: &mut dyn Strategy = if self.switched { &mut self.late } else { &mut self.early };
        way.before(world, replicas, progress)
    }

    fn backward(&mut self, world: &mut World<'_>, replica: &mut Replica<'_>, scale: f32) -> Result<(), WorkerError> {
        let way: &mut dyn Strategy = if self.switched { &mut self.late } else { &mut self.early };
        way.backward(world, replica, scale)
    }

    fn update(&mut self, world: &mut World<'_>, replicas: &mut [Replica<'_>], turn: Turn) -> Result<(), WorkerError> {
        let way: &mut dyn Strategy = if self.switched { &mut self.late } else { &mut self.early };
        way.update(world, replicas, turn)
    }

    /// Without a step alone there is nothing to average.
    fn finish(&mut self, world: &mut World<'_>, replicas: &mut [Replica<'_>]) -> Result<(), WorkerError> {
        self.late.finish(world, replicas)
    }

    fn state(&mut self, state: &mut State<'_>) {
        state.flag("switched", &mut self.switched);
        state.within("early", |state| self.early.state(state));
        state.within("late", |state| self.late.state(state));
    }

    fn is_common_moment(&self) -> bool {
        !self.switched || self.late.is_common_moment()
    }

    fn compressed(&self) -> Option<Compressed> {
        [&self.early as &dyn Strategy, &self.late].map(Strategy::compressed).into_iter().sum()
    }

    fn take_encoding(&mut self) -> Vec<(u16, [Instant; 2])> {
        let mut encoding = self.early.take_encoding();
        encoding.extend(self.late.take_encoding());
        encoding
    }

    fn weighting(&self, step: usize) -> Weighting {
        if self.switched { self.late.weighting(step) } else { self.early.weighting(step) }
    }

    fn replicas_equal(&self) -> bool {
        self.late.replicas_equal()
    }
}
