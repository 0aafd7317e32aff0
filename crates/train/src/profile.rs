//! How long a worker computes in a step, part by part: what predictions rest on.

use std::time::{Duration, Instant};

use ringstep_comm::Topology;
use ringstep_comm::cost::Tuning;
use ringstep_comm::tune::Timings;
use ringstep_cpu::Level;
use ringstep_nn::Model;
use ringstep_nn::optim::{Optimizer, Rule};
use ringstep_nn::team::Team;
use serde::{Deserialize, Serialize};

use crate::job::Design;

/// Multiplications and additions for each parameter in a step of SGD with momentum and weight decay.
const UPDATE_OPERATIONS: f64 = 6.0;
/// Steps before the clock counts: memory is touched, caches and branch predictors have learned.
const WARM_UP: usize = 2;
/// Steps that are timed at least, for a median, and for how long they are repeated.
const FEWEST: usize = 5;
const PATIENCE: Duration = Duration::from_millis(1500);

/// What a prediction of a job's steps rests on, as its workers have found it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Basis {
    /// How long a worker computes in a step.
    pub profile: Profile,
    /// How long exchanges of all workers take while nobody computes.
    pub timings: Timings,
    /// Who is where.
    pub topology: Topology,
    /// Cores that the workers of a host may use.
    pub cores: usize,
    /// The numbers that the choice of buckets and algorithms rested on.
    pub tuning: Tuning,
}

/// What a worker computes in a step, in seconds on cores of its own.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Profile {
    /// Forward, and the loss; in training also what a worker does between two steps.
    pub forward: f64,
    /// Where each layer's gradients end in the flat buffer, and the seconds of its backward; last layer first.
    pub backward: Vec<(usize, f64)>,
    /// The optimizer.
    pub update: f64,
    /// The thread that loads images meanwhile.
    pub load: f64,
}

impl Profile {
    /// Of a worker that does so many operations a second, by the layers' definitions, whatever an algorithm saves.
    pub fn of_operations(design: &Design, batch: usize, operations_per_second: f64) -> Self {
        let model = design.build_small();
        let seconds = |operations: usize| (operations * batch) as f64 / operations_per_second;
        let layers = model.layers().zip(model.timeline().map(|layer| layer.gradients_end));
        let mut backward: Vec<_> = layers.map(|(layer, end)| (end, seconds(layer.backward_operations))).collect();
        backward.reverse();
        let trained: usize = model.parameters().iter().filter(|tensor| tensor.trained).map(|t| t.range().len()).sum();
        Self {
            forward: seconds(model.layers().map(|layer| layer.operations).sum()),
            backward,
            update: UPDATE_OPERATIONS * trained as f64 / operations_per_second,
            load: 0.0,
        }
    }

    /// As measured on this machine, of so many workers that compute at once; takes some seconds.
    pub fn measure(
        design: &Design,
        batch: usize,
        (threads, level): (usize, Level),
        rule: Rule,
        workers: usize,
    ) -> Self {
        let profiles: Vec<Self> = std::thread::scope(|scope| {
            let measure = || measure_one(design, batch, Team::new(threads, level), rule);
            let workers: Vec<_> = (0..workers).map(|_| scope.spawn(measure)).collect();
            workers.into_iter().map(|worker| worker.join().expect("a worker computes")).collect()
        });
        Self::mean(&profiles)
    }

    /// The mean of several workers' with one model.
    pub fn mean(profiles: &[Self]) -> Self {
        let mean = |of: &dyn Fn(&Self) -> f64| profiles.iter().map(of).sum::<f64>() / profiles.len() as f64;
        let layers = profiles[0].backward.iter().enumerate();
        Self {
            forward: mean(&|profile| profile.forward),
            backward: layers.map(|(at, &(end, _))| (end, mean(&|profile| profile.backward[at].1))).collect(),
            update: mean(&|profile| profile.update),
            load: mean(&|profile| profile.load),
        }
    }

    /// The same with every part so many times as long.
    pub fn scaled(&self, factor: f64) -> Self {
        let backward = self.backward.iter().map(|&(end, seconds)| (end, factor * seconds)).collect();
        let [forward, update, load] = [self.forward, self.update, self.load].map(|seconds| factor * seconds);
        Self { forward, backward, update, load }
    }

    /// Seconds of the whole backward.
    pub fn backward_seconds(&self) -> f64 {
        self.backward.iter().map(|(_, seconds)| seconds).sum()
    }

    /// Seconds of a step of one worker that has nobody to wait for.
    pub fn alone(&self) -> f64 {
        self.forward + self.backward_seconds() + self.update
    }

    /// Seconds from the beginning of backward until all gradients before this place of the flat buffer are there.
    pub fn ready(&self, end: usize) -> f64 {
        // A layer without parameters ends where the one behind it does, and comes later: it is not waited for.
        let before = self.backward.iter().position(|(reached, _)| *reached >= end);
        self.backward[..before.map_or(self.backward.len(), |at| at + 1)].iter().map(|(_, seconds)| seconds).sum()
    }
}

fn measure_one(design: &Design, batch: usize, team: Team, rule: Rule) -> Profile {
    let mut model = design.build(batch, team);
    model.initialise(0);
    let mut optimizer = Optimizer::new(rule, &mut model);
    // Numbers as normalised images have them, without a pattern.
    let pixels = batch * model.input().len();
    let images: Vec<f32> =
        (0..pixels as u32).map(|at| (at.wrapping_mul(2_654_435_761) >> 8) as f32 / 8e6 - 1.0).collect();
    let labels: Vec<u8> = (0..batch).map(|image| (image % model.classes()) as u8).collect();
    let (mut times, began) = (Times::default(), Instant::now());
    let mut steps = 0;
    while steps < WARM_UP + FEWEST || began.elapsed() < PATIENCE {
        let started = Instant::now();
        model.forward(&images, &labels);
        let forward = started.elapsed();
        model.backward(&images, &labels, 1.0 / batch as f32);
        let middle = started.elapsed();
        let (team, values, gradients) = model.for_optimizer();
        optimizer.step(team, values, gradients, 1e-4);
        let update = started.elapsed() - middle;
        if steps >= WARM_UP {
            times.add(&model, [forward, middle - forward, update].map(|part| part.as_secs_f64()), 0.0);
        }
        steps += 1;
    }
    times.profile(&model).expect("steps were timed")
}

/// The times of some steps of a model.
#[derive(Debug, Default)]
pub(crate) struct Times {
    forward: Vec<f64>,
    update: Vec<f64>,
    load: Vec<f64>,
    /// Of each layer, in their order.
    backward: Vec<Vec<f64>>,
}

impl Times {
    /// Adds the model's last step, whose parts and whose images took so many seconds. Those of layers are scaled to those of the whole
    /// backward: what they take besides is between them, or was not theirs.
    pub fn add(&mut self, model: &Model, [forward, backward, update]: [f64; 3], load: f64) {
        let layers: Vec<f64> = model.timeline().map(|layer| layer.backward.took.as_secs_f64()).collect();
        let scale = backward / layers.iter().sum::<f64>().max(f64::MIN_POSITIVE);
        self.backward.resize_with(layers.len(), Vec::new);
        self.backward.iter_mut().zip(layers).for_each(|(times, seconds)| times.push(scale * seconds));
        self.forward.push(forward);
        self.update.push(update);
        self.load.push(load);
    }

    /// What a step takes, by the medians, if there was one.
    pub fn profile(mut self, model: &Model) -> Option<Profile> {
        let ends = model.timeline().map(|layer| layer.gradients_end);
        let mut backward = Vec::new();
        for (end, times) in ends.zip(std::mem::take(&mut self.backward)) {
            backward.push((end, median(times)?));
        }
        backward.reverse();
        let Self { forward, update, load, .. } = self;
        Some(Profile { forward: median(forward)?, backward, update: median(update)?, load: median(load)? })
    }
}

fn median(mut times: Vec<f64>) -> Option<f64> {
    times.sort_by(f64::total_cmp);
    times.get(times.len() / 2).copied()
}

#[cfg(test)]
mod tests {
    use ringstep_nn::Architecture;

    use super::*;

    fn lenet5() -> Design {
        Design::new("lenet5", Architecture::LeNet5.network()).unwrap()
    }

    /// Backward has two products for each of forward, except for the first layer, whose input needs no gradient.
    #[test]
    fn operations_are_those_of_the_layers() {
        let profile = Profile::of_operations(&lenet5(), 10, 1e9);
        let first = 2.0 * 25.0 * 6.0 * 784.0 * 10.0 / 1e9;
        assert!((profile.backward_seconds() - (2.0 * profile.forward - first)).abs() < 1e-4 * profile.forward);
        let twice = Profile::of_operations(&lenet5(), 20, 1e9);
        assert!((twice.forward / profile.forward - 2.0).abs() < 1e-12);
        assert_eq!(twice.update, profile.update);
    }

    /// The last layer's gradients come first, and all are there when backward is over.
    #[test]
    fn gradients_are_ready_when_their_layer_is_through() {
        let profile = Profile { forward: 1.0, backward: vec![(10, 0.1), (10, 0.2), (30, 0.4)], update: 0.0, load: 0.0 };
        assert_eq!([1, 10].map(|end| profile.ready(end)), [0.1; 2]);
        assert!([11, 30].iter().all(|&end| (profile.ready(end) - 0.7).abs() < 1e-12));
    }

    #[test]
    fn what_is_measured_takes_some_time() {
        let rule = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };
        let profile = Profile::measure(&lenet5(), 2, (1, Level::best()), rule, 2);
        assert!(profile.forward > 0.0 && profile.update > 0.0);
        assert!(profile.backward.iter().all(|(_, seconds)| *seconds > 0.0));
        let ends: Vec<usize> = profile.backward.iter().map(|(end, _)| *end).collect();
        assert!(ends.is_sorted() && ends.last() == Some(&61_706));
    }
}
