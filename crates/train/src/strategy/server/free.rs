//! Servers without a clock: asynchronous learning (Dean et al., "Large scale distributed deep networks", NIPS 2012).
//!
//! What has arrived is applied, on arrival or once in a while, whoever is missing. A gradient is the mean over a worker's own
//! images, and the learning rate is its share of a step of all workers: as many pushes as there are workers move the
//! parameters as far as one synchronous step, and weight decay and what Adam remembers with them.
//!
//! Between a worker's read and its push the parameters have taken some steps, which is the gradient's staleness. If that is
//! to be taken into account, its learning rate is divided by it (Zhang et al., "Staleness-aware async-SGD for distributed
//! deep learning", IJCAI 2016).

use ringstep_nn::optim::Optimizer;
use ringstep_nn::schedule::Schedule;
use ringstep_nn::state::State;
use ringstep_nn::team::Team;

/// A shard of the parameters of a model, and the steps that it is to take.
pub struct Free {
    values: Vec<f32>,
    optimizer: Optimizer,
    schedule: Schedule,
    workers: usize,
    /// Images of a step of all workers.
    whole_step: f64,
    staleness_aware: bool,
    /// Steps of the optimizer so far, and gradients that it took for them.
    version: u64,
    applied: u64,
    /// The sum over gradients that have arrived of images times gradient, divided by its staleness where that counts.
    sum: Vec<f32>,
    images: f64,
    arrived: u64,
}

impl Free {
    /// Of so many workers, who together have so many images in a step.
    pub fn new(
        values: Vec<f32>,
        optimizer: Optimizer,
        schedule: Schedule,
        workers: usize,
        whole_step: usize,
        staleness_aware: bool,
    ) -> Self {
        let sum = vec![0.0; values.len()];
        let whole_step = whole_step as f64;
        Self {
            values,
            optimizer,
            schedule,
            workers,
            whole_step,
            staleness_aware,
            version: 0,
            applied: 0,
            sum,
            images: 0.0,
            arrived: 0,
        }
    }

    /// What it remembers from step to step.
    pub fn state(&mut self, state: &mut State<'_>) {
        state.numbers("values", &mut self.values);
        state.within("optimizer", |state| self.optimizer.state(state));
        state.number("version", &mut self.version);
        state.number("applied", &mut self.applied);
        state.numbers("sum", &mut self.sum);
        state.number("images", &mut self.images);
        state.number("arrived", &mut self.arrived);
    }

    /// Whether a gradient has arrived that no step was taken by.
    pub fn has_arrivals(&self) -> bool {
        self.arrived > 0
    }

    /// The parameters as they are, and how many steps they have taken.
    pub fn read(&self) -> (&[f32], u64) {
        (&self.values, self.version)
    }

    /// Takes the mean gradient over some images, which was computed from the parameters of a version. Returns its staleness.
    pub fn push(&mut self, read: u64, images: usize, gradient: &[f32]) -> Result<u64, &'static str> {
        if gradient.len() != self.values.len() {
            return Err("a gradient of another length than the shard's");
        }
        let staleness = self.version.checked_sub(read).ok_or("a version that is not there yet")?;
        let share = if self.staleness_aware { images as f64 / staleness.max(1) as f64 } else { images as f64 };
        // The mean over no images is no number.
        if images > 0 {
            self.sum.iter_mut().zip(gradient).for_each(|(sum, &number)| *sum += share as f32 * number);
        }
        self.images += images as f64;
        self.arrived += 1;
        Ok(staleness)
    }

    /// Takes a step by what has arrived, if anything has.
    pub fn apply(&mut self, team: &mut Team) {
        if self.arrived == 0 {
            return;
        }
        if self.images > 0.0 {
            let step = self.applied / self.workers as u64;
            let lr = f64::from(self.schedule.lr(step as usize)) * self.images / self.whole_step;
            let images = self.images as f32;
            self.sum.iter_mut().for_each(|sum| *sum /= images);
            self.optimizer.step(team, &mut self.values, &self.sum, lr as f32);
            self.version += 1;
        }
        self.applied += self.arrived;
        self.sum.fill(0.0);
        (self.images, self.arrived) = (0.0, 0);
    }
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::Level;
    use ringstep_nn::optim::Rule;
    use ringstep_nn::schedule::{Curve, WarmUp};

    use super::*;

    const START: [f32; 2] = [1.0, -2.0];

    fn schedule() -> Schedule {
        Schedule { lr: 0.5, warm_up: WarmUp::Linear { epochs: 0.0 }, curve: Curve::Constant, epoch: 10, steps: 100 }
    }

    fn optimizer(rule: Rule) -> Optimizer {
        Optimizer::for_tensors(rule, 2, vec![(0..2, true)])
    }

    fn free(workers: usize, whole_step: usize, staleness_aware: bool) -> Free {
        let rule = Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
        Free::new(START.to_vec(), optimizer(rule), schedule(), workers, whole_step, staleness_aware)
    }

    #[test]
    fn one_worker_alone_is_plain_training_to_the_bit() {
        let mut team = Team::new(1, Level::best());
        for rule in [
            Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.01 },
            Rule::Adam { betas: [0.9, 0.999], weight_decay: 0.01 },
        ] {
            let (mut plain, mut values) = (optimizer(rule), START);
            let mut server = Free::new(START.to_vec(), optimizer(rule), schedule(), 1, 8, true);
            for step in 0..20 {
                // Eight images: their number divides what it multiplied without a trace.
                let gradient = values.map(|value| value * 0.3 + step as f32 * 0.01);
                let version = server.read().1;
                assert_eq!(server.push(version, 8, &gradient), Ok(0));
                server.apply(&mut team);
                plain.step(&mut team, &mut values, &gradient, schedule().lr(step));
                assert_eq!(server.read(), (&values[..], step as u64 + 1));
            }
        }
    }

    #[test]
    fn as_many_pushes_as_workers_are_one_step_of_all() {
        let mut team = Team::new(1, Level::best());
        let (mut on_arrival, mut together) = (free(2, 4, false), free(2, 4, false));
        for (images, gradient) in [(1, [4.0, 8.0]), (3, [8.0, -4.0])] {
            for server in [&mut on_arrival, &mut together] {
                server.push(0, images, &gradient).unwrap();
            }
            on_arrival.apply(&mut team);
        }
        together.apply(&mut team);
        // The mean over the four images is [7, -1].
        let expected = [1.0 - 0.5 * 7.0, -2.0 + 0.5];
        assert_eq!((on_arrival.read(), together.read()), ((&expected[..], 2), (&expected[..], 1)));
    }

    #[test]
    fn what_is_stale_counts_for_less_if_that_is_wanted() {
        let mut team = Team::new(1, Level::best());
        for (aware, share) in [(false, 1.0), (true, 0.25)] {
            let mut server = free(1, 1, aware);
            for _ in 0..4 {
                server.push(server.read().1, 1, &[0.0; 2]).unwrap();
                server.apply(&mut team);
            }
            assert_eq!(server.push(0, 1, &[2.0, 0.0]), Ok(4));
            server.apply(&mut team);
            assert_eq!(server.read(), (&[1.0 - 0.5 * 2.0 * share, -2.0][..], 5));
        }
    }

    #[test]
    fn what_no_worker_would_push_is_refused_and_nothing_is_no_step() {
        let mut server = free(1, 1, false);
        assert!(server.push(0, 1, &[0.0; 3]).is_err());
        assert!(server.push(1, 1, &[0.0; 2]).is_err());
        server.apply(&mut Team::new(1, Level::best()));
        assert_eq!(server.read(), (&START[..], 0));
    }
}
