//! Backward against differences of forward, on one, two and three threads.

use ringstep_cpu::Level;

use super::*;

/// Numbers between -1 and 1 without a pattern.
pub fn noise(length: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).max(1);
    std::iter::repeat_with(|| {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        state as f32 / u32::MAX as f32 * 2.0 - 1.0
    })
    .take(length)
    .collect()
}

/// A layer with everything that a pass needs.
pub struct Bench<'a> {
    pub layer: &'a mut dyn Layer,
    pub team: Team,
    pub peers: Option<Peers>,
    pub parameters: Vec<f32>,
    pub statistics: Vec<f32>,
    pub input: Vec<f32>,
    pub shortcut: Vec<f32>,
}

/// Gradients with respect to parameters, input and shortcut.
pub struct Gradients {
    pub parameters: Vec<f32>,
    pub input: Vec<f32>,
    pub shortcut: Vec<f32>,
}

fn count(tensors: &[Tensor]) -> usize {
    tensors.iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum()
}

impl<'a> Bench<'a> {
    /// Noise for parameters and inputs.
    pub fn new(layer: &'a mut dyn Layer, input: Shape, batch: usize, threads: usize) -> Self {
        Self::on_team(layer, input, batch, Team::new(threads, Level::best()))
    }

    /// The same with these threads and instructions.
    pub fn on_team(layer: &'a mut dyn Layer, input: Shape, batch: usize, team: Team) -> Self {
        let parameters = noise(count(&layer.tensors()), 1);
        let statistics = vec![1.0; count(&layer.statistics())];
        let (input, shortcut) = (noise(batch * input.len(), 2), noise(batch * input.len(), 4));
        Self { layer, team, peers: None, parameters, statistics, input, shortcut }
    }

    fn workspace(&self) -> Vec<f32> {
        // A layer may not rely on what it finds there.
        vec![f32::NAN; self.layer.workspace(64, self.team.threads())]
    }

    pub fn forward(&mut self, batch: usize) -> Vec<f32> {
        let mut output = vec![f32::NAN; batch * self.layer.output().len()];
        let mut workspace = self.workspace();
        self.layer.forward(Forward {
            team: &mut self.team,
            peers: self.peers.as_mut(),
            random: 7,
            parameters: &self.parameters,
            statistics: &mut self.statistics,
            input: &self.input,
            shortcut: &self.shortcut,
            output: &mut output,
            workspace: &mut workspace,
        });
        output
    }

    pub fn backward(&mut self, output: &[f32], output_gradient: &[f32]) -> Gradients {
        self.backward_to(output, output_gradient, true)
    }

    /// As a first layer, whose input needs no gradient.
    fn backward_of_first(&mut self, output: &[f32], output_gradient: &[f32]) -> Vec<f32> {
        self.backward_to(output, output_gradient, false).parameters
    }

    fn backward_to(&mut self, output: &[f32], output_gradient: &[f32], wanted: bool) -> Gradients {
        let [parameters, input, shortcut] =
            [&self.parameters, &self.input, &self.shortcut].map(|values| vec![f32::NAN; values.len()]);
        let mut gradients = Gradients { parameters, input, shortcut };
        let mut workspace = self.workspace();
        let rereads = self.layer.rereads();
        self.layer.backward(Backward {
            team: &mut self.team,
            peers: self.peers.as_mut(),
            random: 7,
            parameters: &self.parameters,
            input: if rereads.input { &self.input } else { &[] },
            output: if rereads.output { output } else { &[] },
            output_gradient,
            gradients: &mut gradients.parameters,
            input_gradient: wanted.then_some(&mut gradients.input[..]),
            adds: false,
            shortcut_gradient: Some(&mut gradients.shortcut),
            workspace: &mut workspace,
        });
        gradients
    }
}

/// Which numbers to vary.
type Part = for<'b> fn(&'b mut Bench<'_>) -> &'b mut Vec<f32>;

/// For the loss `sum(c * output)` with fixed c, compares every gradient with a central difference of width `2h`, the gradients
/// that several threads find with those of one, and what every level of this machine computes: levels that round a
/// multiply-add once agree to the bit.
pub fn gradients(layer: &mut dyn Layer, input_shape: Shape, batch: usize, h: f32, tolerance: f64) {
    let direction = noise(batch * layer.output().len(), 3);
    let mut on_team = |threads, level| {
        let mut bench = Bench::on_team(layer, input_shape, batch, Team::new(threads, level));
        let output = bench.forward(batch);
        let gradients = bench.backward(&output, &direction);
        let of_first = bench.backward_of_first(&output, &direction);
        (output, gradients, of_first)
    };
    let (output, found, of_first) = on_team(1, Level::best());
    let close = |what: &str, ours: &[f32], theirs: &[f32]| {
        for (ours, theirs) in ours.iter().zip(theirs) {
            assert!((ours - theirs).abs() < 1e-4 * ours.abs().max(1.0), "{what}: {theirs} is not {ours}");
        }
    };
    close("as a first layer", &found.parameters, &of_first);
    for threads in [2, 3] {
        let (_, other, other_of_first) = on_team(threads, Level::best());
        close(&format!("{threads} threads, as a first layer"), &found.parameters, &other_of_first);
        close(&format!("{threads} threads"), &found.parameters, &other.parameters);
        close(&format!("{threads} threads"), &found.input, &other.input);
    }
    for (index, level) in Level::available().into_iter().enumerate() {
        let (other_output, other, other_of_first) = on_team(1, level);
        let pairs = [
            (&output, &other_output),
            (&found.parameters, &other.parameters),
            (&found.input, &other.input),
            (&of_first, &other_of_first),
        ];
        for (ours, theirs) in pairs {
            let bits = |numbers: &[f32]| numbers.iter().map(|number| number.to_bits()).collect::<Vec<_>>();
            match index {
                0 => close(level.name(), ours, theirs),
                _ => assert!(bits(ours) == bits(theirs), "{level} does not find the same bits"),
            }
        }
    }
    let mut bench = Bench::new(layer, input_shape, batch, 1);
    let mut check = |part: Part, what: &str, found: &[f32]| {
        for (at, &gradient) in found.iter().enumerate() {
            let mut side = |by: f32| {
                let before = part(&mut bench)[at];
                part(&mut bench)[at] += by;
                let output = bench.forward(batch);
                part(&mut bench)[at] = before;
                output.iter().zip(&direction).map(|(&y, &c)| f64::from(y) * f64::from(c)).sum::<f64>()
            };
            let difference = (side(h) - side(-h)) / (2.0 * f64::from(h));
            let error = (difference - f64::from(gradient)).abs();
            assert!(error <= tolerance * difference.abs().max(1.0), "{what} {at}: {gradient} is not {difference}");
        }
    };
    check(|bench| &mut bench.parameters, "parameter", &found.parameters);
    check(|bench| &mut bench.input, "input", &found.input);
    if found.shortcut.iter().all(|gradient| !gradient.is_nan()) {
        check(|bench| &mut bench.shortcut, "shortcut", &found.shortcut);
    }
}
