//! A network that can be trained: its layers, and the buffers that their numbers live in.

use std::ops::Range;
use std::time::{Duration, Instant};

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::kernels::cross_entropy;
use crate::layers::{Backward, Forward, Geometry, Shape, Start};
use crate::layout::{Node, Parameter, lay_out, place};
use crate::network::{Network, NetworkError};
use crate::team::{Team, Units};

/// How a batch fared.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Score {
    /// Sum of the losses of its images.
    pub loss: f64,
    /// Images whose class was right.
    pub correct: usize,
}

/// What a pass is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Phase {
    /// A backward follows.
    Training,
    /// Batch norm uses its running statistics, and dropout drops nothing.
    Evaluation,
}

/// A layer as reports show it.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerReport {
    /// Its name.
    pub name: String,
    /// What it does.
    pub kind: &'static str,
    /// How, where there is a choice.
    pub algorithm: &'static str,
    /// Height, width and channels of what comes out.
    pub output: [usize; 3],
    /// Its sizes, if it is a convolution or fully connected.
    pub geometry: Option<Geometry>,
    /// Multiplications and additions of forward for one image, by the definition.
    pub operations: usize,
    /// Those of backward.
    pub backward_operations: usize,
    /// Time of the last forward.
    pub forward: Duration,
    /// Time of the last backward.
    pub backward: Duration,
}

/// Layers, and the buffers that their numbers live in.
///
/// A pass allocates nothing: activations and their gradients have their places in one arena, in which those whose time
/// is over make room for others.
pub struct Model {
    layers: Vec<Node>,
    team: Team,
    input: Shape,
    batch: usize,
    parameters: Vec<Parameter>,
    values: Vec<f32>,
    gradients: Vec<f32>,
    statistics: Vec<f32>,
    arena: Vec<f32>,
    workspace: Vec<f32>,
    label_smoothing: f32,
    seed: u64,
    /// Training passes so far.
    passes: u64,
}

impl Node {
    fn report(&self) -> LayerReport {
        let step = &self.wired.step;
        // Weights and inputs each have a gradient as costly as forward; nobody wants that of the images.
        let gradients = if self.wired.input == 0 { 1 } else { 2 };
        LayerReport {
            name: self.wired.name.clone(),
            kind: step.kind(),
            algorithm: step.algorithm(),
            output: [self.shape.height, self.shape.width, self.shape.channels],
            geometry: step.geometry(),
            operations: step.operations(),
            backward_operations: gradients * step.operations(),
            forward: self.forward,
            backward: self.backward,
        }
    }
}

/// A part of a place for a whole batch.
fn part(place: &Range<usize>, images: usize, shape: Shape) -> Range<usize> {
    place.start..place.start + if place.is_empty() { 0 } else { images * shape.len() }
}

impl Model {
    /// With room for `batch` images at once, on `threads` threads; the parameters are all zero.
    pub fn new(network: &Network, batch: usize, threads: usize) -> Result<Self, NetworkError> {
        let wired = network.wire(batch)?;
        let [height, width, channels] = network.input;
        let input = Shape::new(height, width, channels);
        let mut nodes: Vec<Node> = wired.into_iter().map(Node::new).collect();
        let (parameters, values, statistics) = lay_out(&mut nodes);
        let arena = place(&mut nodes, batch);
        let workspace = nodes.iter().map(|node| node.wired.step.workspace(batch, threads)).max().unwrap_or(0);
        Ok(Self {
            layers: nodes,
            team: Team::new(threads),
            input,
            batch,
            parameters,
            values: vec![0.0; values],
            gradients: vec![0.0; values],
            statistics: vec![0.0; statistics],
            arena: vec![0.0; arena],
            workspace: vec![0.0; workspace],
            label_smoothing: 0.0,
            seed: 0,
            passes: 0,
        })
    }

    /// The most images it takes at once.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The shape of an image.
    pub fn input(&self) -> Shape {
        self.input
    }

    /// How many classes it tells apart.
    pub fn classes(&self) -> usize {
        self.layers.last().map_or(0, |last| last.shape.len())
    }

    /// Its tensors, in the order of the layers.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// All parameters, last layer first.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.values
    }

    /// All gradients, in the same order.
    pub fn gradients_mut(&mut self) -> &mut [f32] {
        &mut self.gradients
    }

    /// The numbers that are not trained but kept with the weights: batch norm's running statistics.
    pub fn statistics_mut(&mut self) -> &mut [f32] {
        &mut self.statistics
    }

    /// What an optimizer needs: the threads, the parameters to change and the gradients to change them by.
    pub fn for_optimizer(&mut self) -> (&mut Team, &mut [f32], &[f32]) {
        (&mut self.team, &mut self.values, &self.gradients)
    }

    /// Spreads this much of the right class's probability over all classes.
    pub fn set_label_smoothing(&mut self, smoothing: f32) {
        self.label_smoothing = smoothing;
    }

    /// Fills all parameters as PyTorch does by default. Dropout takes its randomness from the same seed.
    pub fn initialise(&mut self, seed: u64) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        for parameter in &self.parameters {
            let buffer = if parameter.trained { &mut self.values } else { &mut self.statistics };
            match parameter.start {
                Start::Ones => buffer[parameter.range()].fill(1.0),
                Start::Zeros => buffer[parameter.range()].fill(0.0),
                Start::Uniform { fan_in } => {
                    let bound = 1.0 / (fan_in as f32).sqrt();
                    for place in parameter.places() {
                        let uniform = (random.next_u32() >> 8) as f32 / (1 << 24) as f32; // [0, 1)
                        buffer[place] = bound * (2.0 * uniform - 1.0);
                    }
                }
            }
        }
    }

    /// Decides what dropout drops; ranks that train together need different seeds.
    pub fn set_dropout_seed(&mut self, seed: u64) {
        self.seed = seed;
    }

    /// A tensor's values in PyTorch's layout.
    pub fn export(&self, parameter: &Parameter) -> Vec<f32> {
        let buffer = if parameter.trained { &self.values } else { &self.statistics };
        parameter.places().map(|place| buffer[place]).collect()
    }

    /// A tensor's gradient in PyTorch's layout.
    pub fn export_gradient(&self, parameter: &Parameter) -> Vec<f32> {
        assert!(parameter.trained, "{} is not trained", parameter.name);
        parameter.places().map(|place| self.gradients[place]).collect()
    }

    /// Sets the tensor at this index of [`Model::parameters`] from values in PyTorch's layout.
    pub fn import(&mut self, index: usize, values: &[f32]) {
        let parameter = &self.parameters[index];
        assert_eq!(values.len(), parameter.range.len());
        let buffer = if parameter.trained { &mut self.values } else { &mut self.statistics };
        for (place, &value) in parameter.places().zip(values) {
            buffer[place] = value;
        }
    }

    /// The layers, with the times of their last passes.
    pub fn layers(&self) -> impl Iterator<Item = LayerReport> {
        self.layers.iter().map(Node::report)
    }

    /// Runs the images through all layers as in evaluation, and shows what goes into each and what comes out.
    pub fn watch(&mut self, images: &[f32], count: usize, mut see: impl FnMut(LayerReport, &[f32], &[f32])) {
        for index in 0..self.layers.len() {
            self.forward_layer(index, images, count, Phase::Evaluation);
            let node = &self.layers[index];
            let value = |source: usize| match source {
                0 => images,
                _ => &self.arena[part(&self.layers[source - 1].output, count, self.layers[source - 1].shape)],
            };
            see(node.report(), value(node.wired.input), value(index + 1));
        }
    }

    /// Runs the images through all layers and says how they fared.
    pub fn forward(&mut self, images: &[f32], labels: &[u8], phase: Phase) -> Score {
        let batch = labels.len();
        assert_eq!(images.len(), batch * self.input.len());
        assert!(batch <= self.batch, "a batch of {batch} in a model built for {}", self.batch);
        for index in 0..self.layers.len() {
            self.forward_layer(index, images, batch, phase);
        }
        let mut score = Score::default();
        for (logits, &label) in self.logits(batch).chunks_exact(self.classes()).zip(labels) {
            let outcome = cross_entropy::forward(logits, label.into(), self.label_smoothing);
            score.loss += outcome.loss;
            score.correct += usize::from(outcome.correct);
        }
        score
    }

    /// What came out of the last layer. // N,classes
    pub fn logits(&self, batch: usize) -> &[f32] {
        let last = self.layers.last().expect("a network has layers");
        &self.arena[part(&last.output, batch, last.shape)]
    }

    fn forward_layer(&mut self, index: usize, images: &[f32], batch: usize, phase: Phase) {
        let started = Instant::now();
        let place = |source: usize| match source {
            0 => 0..0,
            _ => part(&self.layers[source - 1].output, batch, self.layers[source - 1].shape),
        };
        let (input, shortcut) = (self.layers[index].wired.input, self.layers[index].wired.shortcut);
        let places = [place(input), shortcut.map_or(0..0, place), place(index + 1)];
        let random = self.random(index);
        let [from, other, output] = self.arena.get_disjoint_mut(places).expect("places do not overlap");
        let node = &mut self.layers[index];
        node.wired.step.forward(Forward {
            team: &mut self.team,
            training: phase == Phase::Training,
            random,
            parameters: &self.values[node.values.clone()],
            statistics: &mut self.statistics[node.statistics.clone()],
            input: if input == 0 { images } else { from },
            shortcut: if shortcut == Some(0) { images } else { other },
            output,
            workspace: &mut self.workspace,
        });
        node.forward = started.elapsed();
    }

    /// Another number for each step and layer.
    fn random(&self, layer: usize) -> u64 {
        let mut bits = self.seed ^ self.passes.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ((layer as u64) << 48);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits ^ (bits >> 31)
    }

    /// Overwrites the gradients with those of `scale` times the sum of the images' losses. Comes after
    /// [`Model::forward`] in training with the same images.
    pub fn backward(&mut self, images: &[f32], labels: &[u8], scale: f32) {
        let batch = labels.len();
        let (classes, smoothing) = (self.classes(), self.label_smoothing);
        let last = self.layers.last().expect("a network has layers");
        let places = [&last.output, &last.output_gradient].map(|place| part(place, batch, last.shape));
        let [logits, gradients] = self.arena.get_disjoint_mut(places).expect("places do not overlap");
        let images_of = logits.chunks_exact(classes).zip(gradients.chunks_exact_mut(classes));
        for ((logits, gradient), &label) in images_of.zip(labels) {
            cross_entropy::backward(logits, label.into(), smoothing, scale, gradient);
        }
        for index in (0..self.layers.len()).rev() {
            self.backward_layer(index, images, batch);
        }
        self.passes += 1;
    }

    fn backward_layer(&mut self, index: usize, images: &[f32], batch: usize) {
        let started = Instant::now();
        let random = self.random(index);
        let node = &self.layers[index];
        let (input, shortcut) = (node.wired.input, node.wired.shortcut);
        let gradient_of = |source: usize| match source {
            0 => 0..0,
            _ => part(&self.layers[source - 1].output_gradient, batch, self.layers[source - 1].shape),
        };
        let rereads = node.wired.step.rereads();
        let value_of = |source: usize| part(&self.layers[source - 1].output, batch, self.layers[source - 1].shape);
        let own = match &node.add_to_input {
            Some(place) => part(place, batch, self.layers[input - 1].shape),
            None => gradient_of(input),
        };
        let places = [
            if input > 0 && rereads.input { value_of(input) } else { 0..0 },
            if rereads.output { value_of(index + 1) } else { 0..0 },
            gradient_of(index + 1),
            own.clone(),
            shortcut.map_or(0..0, gradient_of),
        ];
        let add = node.add_to_input.as_ref().map(|_| [gradient_of(input), own]);
        let [from, output, output_gradient, input_gradient, shortcut_gradient] =
            self.arena.get_disjoint_mut(places).expect("places do not overlap");
        let node = &mut self.layers[index];
        node.wired.step.backward(Backward {
            team: &mut self.team,
            random,
            parameters: &self.values[node.values.clone()],
            input: if input == 0 { images } else { from },
            output,
            output_gradient,
            gradients: &mut self.gradients[node.values.clone()],
            input_gradient: (input > 0).then_some(input_gradient),
            shortcut_gradient: shortcut.filter(|&source| source > 0).map(|_| shortcut_gradient),
            workspace: &mut self.workspace,
        });
        if let Some(places) = add {
            let [sum, own] = self.arena.get_disjoint_mut(places).expect("places do not overlap");
            self.team.deal(sum.len(), Units::new(sum, 1), |range, sum| {
                for (sum, own) in sum.iter_mut().zip(&own[range]) {
                    *sum += own;
                }
            });
        }
        node.backward = started.elapsed();
    }

    /// The first layer from which something comes out that is not a finite number, or whose weights have it. Runs the
    /// images through the layers again, so it is for the case that something went wrong.
    pub fn first_not_finite(&mut self, images: &[f32], labels: &[u8]) -> Option<&str> {
        let finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
        for index in 0..self.layers.len() {
            self.forward_layer(index, images, labels.len(), Phase::Training);
            let node = &self.layers[index];
            let output = &self.arena[part(&node.output, labels.len(), node.shape)];
            if !finite(&self.values[node.values.clone()]) || !finite(output) {
                return Some(&self.layers[index].wired.name);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::network::{Kind, Layer, Pair};

    fn conv(name: &str, filters: usize, padding: usize) -> Layer {
        let (kernel, stride, padding) = (Pair::Both(3), Pair::Both(1), Pair::Both(padding));
        Layer::new(name, Kind::Conv { filters, kernel, stride, padding, bias: true })
    }

    fn small() -> Network {
        let layers = vec![
            conv("conv", 3, 0),
            Layer::new("", Kind::Tanh),
            Layer::new("fc", Kind::Linear { outputs: 4, bias: true }),
        ];
        Network { input: [4, 4, 2], layers }
    }

    /// Values that two layers read: before a plain residual, and before one whose shortcut has a layer.
    fn residual() -> Network {
        let block = |name: &str, filters, shortcut| {
            let body = vec![conv("conv", filters, 1), Layer::new("", Kind::Tanh)];
            Layer::new(name, Kind::Residual { body, shortcut })
        };
        let layers = vec![
            conv("stem", 2, 1),
            block("a", 2, Vec::new()),
            block("b", 3, vec![conv("short", 3, 1)]),
            Layer::new("", Kind::Tanh),
            Layer::new("", Kind::GlobalAveragePool),
            Layer::new("fc", Kind::Linear { outputs: 4, bias: false }),
        ];
        Network { input: [4, 4, 2], layers }
    }

    fn model(network: &Network, batch: usize) -> Model {
        Model::new(network, batch, 1).unwrap()
    }

    fn images(count: usize) -> Vec<f32> {
        (0..count * 32).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect()
    }

    #[test]
    fn gradients_of_whole_models_agree_with_differences() {
        for network in [small(), residual()] {
            let (images, labels) = (images(3), [2, 0, 3]);
            let mut model = model(&network, 3);
            model.initialise(1);
            model.set_label_smoothing(0.1);
            model.forward(&images, &labels, Phase::Training);
            model.backward(&images, &labels, 0.5);
            let gradients = model.gradients_mut().to_vec();
            for (at, gradient) in gradients.into_iter().enumerate() {
                let mut loss = |by: f32| {
                    model.values_mut()[at] += by;
                    let loss = model.forward(&images, &labels, Phase::Training).loss;
                    model.values_mut()[at] -= by;
                    loss
                };
                let difference = 0.5 * (loss(1e-2) - loss(-1e-2)) / 2e-2;
                assert!((difference - f64::from(gradient)).abs() < 2e-4, "{at}: {gradient} is not {difference}");
            }
        }
    }

    #[test]
    fn the_last_layer_comes_first_in_the_buffers_and_last_in_the_list() {
        let model = model(&small(), 1);
        let names: Vec<_> = model.parameters().iter().map(|parameter| parameter.name.as_str()).collect();
        assert_eq!(names, ["conv.weight", "conv.bias", "fc.weight", "fc.bias"]);
        let starts: Vec<_> = model.parameters().iter().map(|parameter| parameter.range.start).collect();
        assert_eq!(starts, [52, 106, 0, 48]);
    }

    #[test]
    fn what_is_imported_is_exported_and_channels_are_last_in_memory() {
        let mut model = model(&small(), 1);
        for (index, parameter) in model.parameters().to_vec().iter().enumerate() {
            let values: Vec<f32> = (0..parameter.range.len()).map(|i| i as f32).collect();
            model.import(index, &values);
            assert_eq!(model.export(parameter), values);
        }
        // The first filter's first pixel: channel 0 is element 0 of OIHW, channel 1 is element 9.
        assert_eq!(model.values_mut()[52..54], [0.0, 9.0]);
        // The linear layer takes 2x2 pixels of 3 channels: channel 1 of the first pixel is element 4 of CHW.
        assert_eq!(model.values_mut()[..2], [0.0, 4.0]);
    }

    #[test]
    fn a_smaller_batch_and_none_at_all_are_fine() {
        for network in [small(), residual()] {
            let mut wide = model(&network, 3);
            wide.initialise(1);
            let alone = wide.forward(&images(1), &[1], Phase::Training);
            let mut tight = model(&network, 1);
            tight.initialise(1);
            assert_eq!(alone, tight.forward(&images(1), &[1], Phase::Training));
            wide.backward(&images(1), &[1], 1.0);
            assert_eq!(wide.forward(&[], &[], Phase::Training), Score::default());
            wide.backward(&[], &[], 1.0);
            assert!(wide.gradients_mut().iter().all(|&gradient| gradient == 0.0));
        }
    }

    /// VGG-11 would need room for all activations and all their gradients if nothing were shared.
    #[test]
    fn activations_whose_time_is_over_make_room() {
        let model = Model::new(&crate::Architecture::Vgg11.network(), 8, 1).unwrap();
        let each: usize = model.layers.iter().map(|node| 8 * node.shape.len()).sum();
        assert!(model.arena.len() < 2 * each * 6 / 10, "{} of {}", model.arena.len(), 2 * each);
    }

    #[test]
    fn what_is_not_finite_is_found_where_it_begins() {
        let mut model = model(&residual(), 2);
        model.initialise(1);
        assert_eq!(model.first_not_finite(&images(2), &[0, 1]), None);
        let weight = model.parameters().iter().find(|parameter| parameter.name == "b.short.weight").unwrap().range();
        model.values_mut()[weight.start] = f32::INFINITY;
        assert_eq!(model.first_not_finite(&images(2), &[0, 1]), Some("b.short"));
        let mut broken = images(2);
        broken[5] = f32::NAN;
        assert_eq!(model.first_not_finite(&broken, &[0, 1]), Some("stem"));
    }
}
