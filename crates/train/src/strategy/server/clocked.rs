//! Servers that keep a clock: synchronous learning, and stale synchronous parallel (SSP: Ho et al., "More effective distributed
//! ML via a stale synchronous parallel parameter server", NIPS 2013).
//!
//! A worker's clock is the number of its steps. Once all workers have pushed their gradients of a clock, it is complete: the
//! gradients are added in the order of the workers, and the optimizer takes one step. So the parameters follow the curve
//! of synchronous learning, whoever came first.
//!
//! A worker about to take step c may read if all clocks before c - S are complete, with S the staleness that is allowed. It
//! sees these, and of the clocks from there to c whatever has come, its own gradients among it: the optimizer takes these steps
//! on a copy. With S = 0 there are none, and what is read are the parameters themselves: SSP without staleness is the
//! synchronous parameter server, to the bit.
//!
//! A worker that has left is waited for no more: clocks are then complete without it, and once all have left, all of them are.

use std::collections::VecDeque;

use ringstep_nn::optim::Optimizer;
use ringstep_nn::schedule::Schedule;
use ringstep_nn::state::State as Remembered;
use ringstep_nn::team::Team;

/// A shard of the parameters of a model, and the steps that it is to take.
pub struct Clocked {
    state: State,
    schedule: Schedule,
    /// Of each worker, whether it will push no more.
    left: Vec<bool>,
    staleness: u64,
    /// Clocks that are complete.
    clock: u64,
    /// The gradients of those that are not, first the one that is next; of each worker, as far as it has pushed.
    open: VecDeque<Vec<Option<Vec<f32>>>>,
    /// What a reader who is ahead of the clock sees: which clock it has reached, and after how many pushes.
    ahead: Option<(State, [u64; 2])>,
    pushes: u64,
    sum: Vec<f32>,
}

/// Parameters, and what the optimizer remembers of their way.
#[derive(Clone)]
struct State {
    values: Vec<f32>,
    optimizer: Optimizer,
}

/// What a worker sees.
#[derive(Debug, PartialEq)]
pub struct Read<'a> {
    /// The shard's parameters.
    pub values: &'a [f32],
    /// Clocks before the worker's own that were not complete.
    pub staleness: u64,
}

impl Clocked {
    /// Of so many workers, each of which pushes every clock.
    pub fn new(values: Vec<f32>, optimizer: Optimizer, schedule: Schedule, workers: usize, staleness: u64) -> Self {
        let sum = vec![0.0; values.len()];
        let (open, state) = (VecDeque::new(), State { values, optimizer });
        Self { state, schedule, left: vec![false; workers], staleness, clock: 0, open, ahead: None, pushes: 0, sum }
    }

    /// What it remembers from clock to clock.
    pub fn state(&mut self, state: &mut Remembered<'_>) {
        let workers = self.left.len();
        state.numbers("values", &mut self.state.values);
        state.within("optimizer", |state| self.state.optimizer.state(state));
        state.number("clock", &mut self.clock);
        let mut open = Vec::from(std::mem::take(&mut self.open));
        state.each(
            "open",
            &mut open,
            || vec![None; workers],
            |state, gradients| {
                for (worker, gradient) in gradients.iter_mut().enumerate() {
                    let mut pushed = gradient.take();
                    state.within(worker, |state| {
                        let mut there = pushed.is_some();
                        state.flag("pushed", &mut there);
                        if there {
                            state.list("gradient", pushed.get_or_insert_default());
                        }
                    });
                    *gradient = pushed;
                }
            },
        );
        self.open = open.into();
        self.ahead = None;
    }

    /// Clocks that are complete.
    pub fn clock(&self) -> u64 {
        self.clock
    }

    /// The parameters after all complete clocks.
    pub fn values(&self) -> &[f32] {
        &self.state.values
    }

    /// Workers that the next clock waits for.
    pub fn missing(&self) -> impl Iterator<Item = usize> + '_ {
        let pushed = |worker: usize| self.open.front().is_some_and(|clock| clock[worker].is_some());
        (0..self.left.len()).filter(move |&worker| !self.left[worker] && !pushed(worker))
    }

    /// Takes a worker's gradient of a clock, which is its share of the sum. Each worker pushes one clock after the other.
    pub fn push(&mut self, team: &mut Team, worker: usize, clock: u64, gradient: Vec<f32>) -> Result<(), &'static str> {
        if gradient.len() != self.state.values.len() {
            return Err("a gradient of another length than the shard's");
        }
        let open = clock.checked_sub(self.clock).ok_or("a clock that is complete already")? as usize;
        if open > self.open.len() || self.open.iter().take(open).any(|clock| clock[worker].is_none()) {
            return Err("a clock before which the worker has left one out");
        }
        if open == self.open.len() {
            self.open.push_back(vec![None; self.left.len()]);
        }
        if self.open[open][worker].replace(gradient).is_some() {
            return Err("a clock that the worker has pushed already");
        }
        self.pushes += 1;
        self.complete(team);
        Ok(())
    }

    /// A worker will push no more.
    pub fn leave(&mut self, team: &mut Team, worker: usize) {
        self.left[worker] = true;
        self.complete(team);
    }

    /// Takes the steps of all clocks for which nobody is waited for any more.
    fn complete(&mut self, team: &mut Team) {
        while !self.open.is_empty() && self.missing().next().is_none() {
            let gradients = self.open.pop_front().expect("there is one");
            let lr = self.lr(self.clock);
            self.state.step(team, &gradients, &mut self.sum, lr);
            self.clock += 1;
        }
    }

    /// Of a clock. Who is ahead in the end goes on with that of the last step.
    fn lr(&self, clock: u64) -> f32 {
        self.schedule.lr((clock as usize).min(self.schedule.steps.saturating_sub(1)))
    }

    /// What a worker that has pushed all clocks before this one may see; `None` if it must wait.
    pub fn read(&mut self, team: &mut Team, clock: u64) -> Option<Read<'_>> {
        let staleness = clock.saturating_sub(self.clock);
        if staleness > self.staleness {
            return None;
        }
        if staleness == 0 {
            return Some(Read { values: &self.state.values, staleness });
        }
        let seen = [clock, self.pushes];
        if self.ahead.as_ref().is_none_or(|(_, reached)| *reached != seen) {
            let mut state = self.state.clone();
            for (clock, gradients) in (self.clock..clock).zip(&self.open) {
                let lr = self.lr(clock);
                state.step(team, gradients, &mut self.sum, lr);
            }
            self.ahead = Some((state, seen));
        }
        self.ahead.as_ref().map(|(state, _)| Read { values: &state.values, staleness })
    }
}

impl State {
    /// A step of the optimizer by the gradients that are there, added in the order of the workers.
    fn step(&mut self, team: &mut Team, gradients: &[Option<Vec<f32>>], sum: &mut [f32], lr: f32) {
        sum.fill(0.0);
        for gradient in gradients.iter().flatten() {
            sum.iter_mut().zip(gradient).for_each(|(sum, &number)| *sum += number);
        }
        self.optimizer.step(team, &mut self.values, sum, lr);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use ringstep_cpu::Level;
    use ringstep_nn::optim::Rule;
    use ringstep_nn::schedule::{Curve, WarmUp};

    use super::*;

    const LENGTH: usize = 3;

    fn team() -> Team {
        Team::new(1, Level::best())
    }

    fn clocked(workers: usize, staleness: u64) -> Clocked {
        let rule = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.01 };
        let optimizer = Optimizer::for_tensors(rule, LENGTH, vec![(0..LENGTH, true)]);
        let schedule = Schedule {
            lr: 0.1,
            warm_up: WarmUp::Linear { epochs: 0.0 },
            curve: Curve::Constant,
            epoch: 10,
            steps: 100,
        };
        Clocked::new(vec![1.0, -2.0, 0.5], optimizer, schedule, workers, staleness)
    }

    /// Any function of worker, clock and what was read.
    fn gradient(worker: usize, clock: u64, values: &[f32]) -> Vec<f32> {
        values.iter().map(|value| 0.1 * value + 0.01 * (worker as f32 - 1.5) * (clock as f32 + 1.0)).collect()
    }

    /// What workers do in turns that `order` decides: a turn is a read and a push, or nothing where it has to wait. The
    /// staleness of each read, and the bits of the parameters after each complete clock.
    fn play(workers: usize, staleness: u64, order: &[usize]) -> (Vec<u64>, Vec<Vec<u32>>) {
        let (mut team, mut server) = (team(), clocked(workers, staleness));
        let mut clocks = vec![0; workers];
        let (mut observed, mut states) = (Vec::new(), Vec::new());
        for turn in order {
            let worker = turn % workers;
            let Some(read) = server.read(&mut team, clocks[worker]) else {
                // Who waits is ahead of the slowest by more than the bound; the slowest never waits.
                assert!(clocks[worker] > clocks.iter().min().unwrap() + staleness);
                continue;
            };
            observed.push(read.staleness);
            let gradient = gradient(worker, clocks[worker], read.values);
            server.push(&mut team, worker, clocks[worker], gradient).unwrap();
            clocks[worker] += 1;
            assert_eq!(server.clock(), *clocks.iter().min().unwrap());
            states.resize(server.clock() as usize, server.values().iter().map(|value| value.to_bits()).collect());
        }
        (observed, states)
    }

    proptest! {
        #[test]
        fn nobody_is_further_ahead_than_the_bound(workers in 1usize..6, staleness in 0u64..5, order in prop::collection::vec(0usize..60, 1..800)) {
            let (observed, _) = play(workers, staleness, &order);
            prop_assert!(observed.iter().all(|&observed| observed <= staleness));
        }

        #[test]
        fn without_staleness_the_order_of_workers_changes_no_bit(workers in 1usize..6, order in prop::collection::vec(0usize..60, 1..400)) {
            let (_, states) = play(workers, 0, &order);
            let rounds: Vec<usize> = (0..states.len() * workers).collect();
            let (observed, expected) = play(workers, 0, &rounds);
            prop_assert!(observed.iter().all(|&observed| observed == 0));
            prop_assert_eq!(states, expected);
        }
    }

    #[test]
    fn a_worker_sees_its_own_steps_and_what_has_come_of_others() {
        let (mut team, mut server) = (team(), clocked(2, 2));
        let mut alone = clocked(1, 0);
        for clock in 0..2 {
            let values = server.read(&mut team, clock).unwrap().values.to_vec();
            let own = gradient(0, clock, &values);
            server.push(&mut team, 0, clock, own.clone()).unwrap();
            alone.push(&mut team, 0, clock, own).unwrap();
            // The other has pushed nothing: its own steps are all that there is to be seen.
            assert_eq!(server.read(&mut team, clock + 1).unwrap().values, alone.values());
            assert_eq!(server.values(), [1.0, -2.0, 0.5], "no clock is complete");
        }
        assert_eq!(server.read(&mut team, 2).unwrap().staleness, 2);
        server.push(&mut team, 0, 2, vec![0.0; LENGTH]).unwrap();
        assert_eq!(server.read(&mut team, 3), None);
        assert_eq!(server.missing().collect::<Vec<_>>(), [1]);
        // What the other pushes is seen at once, by those who were there before too.
        let before = server.read(&mut team, 2).unwrap().values.to_vec();
        server.push(&mut team, 1, 0, vec![1.0; LENGTH]).unwrap();
        assert_eq!(server.clock(), 1);
        let after = server.read(&mut team, 3).unwrap();
        assert!(after.staleness == 2 && after.values.iter().zip(&before).all(|(after, before)| after < before));
    }

    #[test]
    fn nobody_waits_for_a_worker_that_has_left_and_in_the_end_all_is_applied() {
        let (mut team, mut server) = (team(), clocked(2, 1));
        let mut alone = clocked(1, 0);
        for clock in 0..3 {
            assert!(server.read(&mut team, clock).is_some());
            server.push(&mut team, 0, clock, vec![0.5; LENGTH]).unwrap();
            alone.push(&mut team, 0, clock, vec![0.5; LENGTH]).unwrap();
            if clock == 1 {
                assert_eq!(server.read(&mut team, 2), None);
                server.leave(&mut team, 1);
            }
        }
        assert_eq!((server.clock(), server.values()), (3, alone.values()));
        assert_eq!(server.missing().collect::<Vec<_>>(), [0]);

        let mut server = clocked(2, 1);
        server.push(&mut team, 0, 0, vec![0.5; LENGTH]).unwrap();
        server.leave(&mut team, 0);
        assert_eq!(server.clock(), 0);
        server.leave(&mut team, 1);
        assert_eq!(server.clock(), 1);
    }

    #[test]
    fn what_no_worker_would_push_is_refused() {
        let (mut team, mut server) = (team(), clocked(2, 1));
        assert!(server.push(&mut team, 0, 0, vec![0.0; LENGTH + 1]).is_err());
        assert!(server.push(&mut team, 0, 1, vec![0.0; LENGTH]).is_err());
        assert_eq!(server.push(&mut team, 0, 0, vec![0.0; LENGTH]), Ok(()));
        assert!(server.push(&mut team, 0, 0, vec![0.0; LENGTH]).is_err());
        assert_eq!(server.push(&mut team, 1, 0, vec![0.0; LENGTH]), Ok(()));
        assert!(server.push(&mut team, 1, 0, vec![0.0; LENGTH]).is_err(), "that clock is complete");
    }
}
