//! A network that can be trained: its layers, and the buffers that their numbers live in.

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};
use ringstep_cpu::Level;

use crate::aligned::Aligned;
use crate::body::{Body, part};
use crate::kernels::cross_entropy;
use crate::layers::{Peers, Shape, Start};
use crate::layout::{Node, Parameter, lay_out, place};
use crate::network::{Network, NetworkError};
use crate::state::State;
use crate::team::Team;

/// How a batch fared.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Score {
    /// Sum of the losses of its images.
    pub loss: f64,
    /// Images whose class was right.
    pub correct: usize,
}

/// Layers, and the buffers that their numbers live in.
///
/// A pass allocates nothing: activations and their gradients have their places in one arena, in which those whose time
/// is over make room for others.
pub struct Model {
    pub(crate) body: Body,
    gradients: Aligned,
    input: Shape,
    batch: usize,
    parameters: Vec<Parameter>,
    label_smoothing: f32,
}

impl Model {
    /// With room for `batch` images at once, on the threads of this team; the parameters are all zero.
    pub fn new(network: &Network, batch: usize, team: Team) -> Result<Self, NetworkError> {
        let (wired, threads) = (network.wire(batch)?, team.threads());
        let [height, width, channels] = network.input;
        let input = Shape::new(height, width, channels);
        let mut nodes: Vec<Node> = wired.into_iter().map(Node::new).collect();
        let (parameters, values, statistics) = lay_out(&mut nodes);
        let arena = place(&mut nodes, batch);
        let workspace = nodes.iter().map(|node| node.wired.step.workspace(batch, threads)).max().unwrap_or(0);
        let body = Body {
            layers: nodes,
            team,
            values: Aligned::zeros(values),
            statistics: Aligned::zeros(statistics),
            arena: Aligned::zeros(arena),
            workspace: Aligned::zeros(workspace),
            peers: None,
            seed: 0,
            passes: 0,
        };
        let gradients = Aligned::zeros(values);
        Ok(Self { body, gradients, input, batch, parameters, label_smoothing: 0.0 })
    }

    /// The instructions that its kernels use.
    pub fn level(&self) -> Level {
        self.body.team.level()
    }

    /// How many threads it computes on.
    pub fn threads(&self) -> usize {
        self.body.team.threads()
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
        self.body.layers.last().map_or(0, |last| last.shape.len())
    }

    /// Its tensors, in the order of the layers.
    pub fn parameters(&self) -> &[Parameter] {
        &self.parameters
    }

    /// All parameters, last layer first.
    pub fn values_mut(&mut self) -> &mut [f32] {
        &mut self.body.values
    }

    /// All gradients, in the same order.
    pub fn gradients_mut(&mut self) -> &mut [f32] {
        &mut self.gradients
    }

    /// The numbers that are not trained but kept with the weights: batch norm's running statistics.
    pub fn statistics_mut(&mut self) -> &mut [f32] {
        &mut self.body.statistics
    }

    /// What an optimizer needs: the threads, the parameters to change and the gradients to change them by.
    pub fn for_optimizer(&mut self) -> (&mut Team, &mut [f32], &[f32]) {
        (&mut self.body.team, &mut self.body.values, &self.gradients)
    }

    /// Spreads this much of the right class's probability over all classes.
    pub fn set_label_smoothing(&mut self, smoothing: f32) {
        self.label_smoothing = smoothing;
    }

    /// Fills all parameters as PyTorch does by default. Dropout takes its randomness from the same seed.
    pub fn initialise(&mut self, seed: u64) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        for parameter in &self.parameters {
            let buffer = if parameter.trained { &mut self.body.values } else { &mut self.body.statistics };
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

    /// From now on batch norm normalises over the batches of all ranks, which `peers` adds numbers up over. All ranks
    /// must then do the same passes.
    pub fn normalise_with(&mut self, peers: Peers) {
        self.body.peers = Some(peers);
    }

    /// Whether there is batch norm in it.
    pub fn has_statistics(&self) -> bool {
        !self.body.statistics.is_empty()
    }

    /// What it remembers from step to step: parameters, running statistics, and what dropout goes by.
    pub fn state(&mut self, state: &mut State<'_>) {
        state.numbers("values", &mut self.body.values);
        state.numbers("statistics", &mut self.body.statistics);
        state.number("passes", &mut self.body.passes);
    }

    /// Decides what dropout drops; ranks that train together need different seeds.
    pub fn set_dropout_seed(&mut self, seed: u64) {
        self.body.seed = seed;
    }

    /// A tensor's values in PyTorch's layout.
    pub fn export(&self, parameter: &Parameter) -> Vec<f32> {
        let buffer = if parameter.trained { &self.body.values } else { &self.body.statistics };
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
        let buffer = if parameter.trained { &mut self.body.values } else { &mut self.body.statistics };
        for (place, &value) in parameter.places().zip(values) {
            buffer[place] = value;
        }
    }

    /// Runs the images through all layers as in training, and says how they fared.
    pub fn forward(&mut self, images: &[f32], labels: &[u8]) -> Score {
        let batch = labels.len();
        assert_eq!(images.len(), batch * self.input.len());
        assert!(batch <= self.batch, "a batch of {batch} in a model built for {}", self.batch);
        for index in 0..self.body.layers.len() {
            self.body.forward_layer(index, images, batch);
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
        self.body.output(self.body.layers.len() - 1, batch)
    }

    /// Overwrites the gradients with those of `scale` times the sum of the images' losses. Comes after
    /// [`Model::forward`] in training with the same images.
    pub fn backward(&mut self, images: &[f32], labels: &[u8], scale: f32) {
        self.backward_in_buckets(images, labels, scale, &[], |_| ());
    }

    /// The same, and hands the gradients out in buckets while it goes on: `ready` is given each as soon as it is
    /// complete. `ends` are the buckets' ends in the flat buffer, in ascending order.
    pub fn backward_in_buckets<'a>(
        &'a mut self,
        images: &[f32],
        labels: &[u8],
        scale: f32,
        ends: &[usize],
        mut ready: impl FnMut(&'a mut [f32]),
    ) {
        let batch = labels.len();
        self.backward_loss(labels, scale);
        // What has not been handed out begins at `start` of the flat buffer.
        let (mut gradients, mut start) = (&mut self.gradients[..], 0);
        let mut ends = ends.iter().copied().peekable();
        for index in (0..self.body.layers.len()).rev() {
            let own = self.body.layers[index].values.clone();
            self.body.backward_layer(index, images, batch, &mut gradients[own.start - start..own.end - start]);
            while let Some(end) = ends.next_if(|&end| end <= own.end) {
                let (bucket, rest) = gradients.split_at_mut(end - start);
                (gradients, start) = (rest, end);
                ready(bucket);
            }
        }
        self.body.passes += 1;
    }

    fn backward_loss(&mut self, labels: &[u8], scale: f32) {
        let (classes, smoothing) = (self.classes(), self.label_smoothing);
        let last = self.body.layers.last().expect("a network has layers");
        let places = [&last.output, &last.output_gradient].map(|place| part(place, labels.len(), last.shape));
        let [logits, gradients] = self.body.arena.get_disjoint_mut(places).expect("places do not overlap");
        let images_of = logits.chunks_exact(classes).zip(gradients.chunks_exact_mut(classes));
        for ((logits, gradient), &label) in images_of.zip(labels) {
            cross_entropy::backward(logits, label.into(), smoothing, scale, gradient);
        }
    }

    /// The first layer from which something comes out that is not a finite number, or whose weights have it. Runs the
    /// images through the layers again, so it is for the case that something went wrong.
    pub fn first_not_finite(&mut self, images: &[f32], labels: &[u8]) -> Option<&str> {
        let finite = |values: &[f32]| values.iter().all(|value| value.is_finite());
        // The other ranks do not look with us, and what batch norm remembers shall stay as it was.
        let (peers, statistics) = (self.body.peers.take(), self.body.statistics.to_vec());
        let broken = (0..self.body.layers.len()).find(|&index| {
            self.body.forward_layer(index, images, labels.len());
            let values = &self.body.values[self.body.layers[index].values.clone()];
            !finite(values) || !finite(self.body.output(index, labels.len()))
        });
        self.body.peers = peers;
        self.body.statistics.copy_from_slice(&statistics);
        broken.map(|index| self.body.layers[index].wired.name.as_str())
    }
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::Level;

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

    /// Values that three layers read: a shortcut that begins with a residual, and a body that does.
    fn nested() -> Vec<Network> {
        let inner = |name: &str| {
            let body = vec![conv("conv", 2, 1), Layer::new("", Kind::Tanh)];
            Layer::new(name, Kind::Residual { body, shortcut: Vec::new() })
        };
        let around = |body: Vec<Layer>, shortcut: Vec<Layer>| Network {
            input: [4, 4, 2],
            layers: vec![
                conv("stem", 2, 1),
                Layer::new("block", Kind::Residual { body, shortcut }),
                Layer::new("", Kind::Tanh),
                Layer::new("fc", Kind::Linear { outputs: 4, bias: false }),
            ],
        };
        let plain = || vec![conv("body", 2, 1)];
        vec![
            around(plain(), vec![inner("inner")]),
            around(vec![Layer::new("", Kind::Flatten), inner("inner")], Vec::new()),
            around(vec![inner("inner"), Layer::new("", Kind::Relu)], vec![inner("other")]),
            around(vec![inner("inner")], plain()),
        ]
    }

    fn model(network: &Network, batch: usize) -> Model {
        Model::new(network, batch, Team::new(1, Level::best())).unwrap()
    }

    fn images(count: usize) -> Vec<f32> {
        (0..count * 32).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect()
    }

    #[test]
    fn gradients_of_whole_models_agree_with_differences() {
        for network in [small(), residual()].into_iter().chain(nested()) {
            let (images, labels) = (images(3), [2, 0, 3]);
            let mut model = model(&network, 3);
            model.initialise(1);
            model.set_label_smoothing(0.1);
            model.forward(&images, &labels);
            model.backward(&images, &labels, 0.5);
            let gradients = model.gradients_mut().to_vec();
            for (at, gradient) in gradients.into_iter().enumerate() {
                let mut loss = |by: f32| {
                    model.values_mut()[at] += by;
                    let loss = model.forward(&images, &labels).loss;
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
        for (network, threads) in [(small(), 1), (residual(), 1), (small(), 3), (residual(), 3)] {
            let mut wide = Model::new(&network, 3, Team::new(threads, Level::best())).unwrap();
            wide.initialise(1);
            let alone = wide.forward(&images(1), &[1]);
            let mut tight = model(&network, 1);
            tight.initialise(1);
            if threads == 1 {
                assert_eq!(alone, tight.forward(&images(1), &[1]));
            }
            wide.backward(&images(1), &[1], 1.0);
            assert_eq!(wide.forward(&[], &[]), Score::default());
            wide.backward(&[], &[], 1.0);
            assert!(wide.gradients_mut().iter().all(|&gradient| gradient == 0.0));
        }
    }

    /// VGG-11 would need room for all activations and all their gradients if nothing were shared.
    #[test]
    fn activations_whose_time_is_over_make_room() {
        let model = model(&crate::Architecture::Vgg11.network(), 8);
        let each: usize = model.body.layers.iter().map(|node| 8 * node.shape.len()).sum();
        assert!(model.body.arena.len() < 2 * each * 6 / 10, "{} of {}", model.body.arena.len(), 2 * each);
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

    #[test]
    fn looking_for_it_changes_nothing() {
        let layers = vec![
            conv("conv", 3, 1),
            Layer::new("norm", Kind::BatchNorm),
            Layer::new("fc", Kind::Linear { outputs: 4, bias: true }),
        ];
        let mut model = model(&Network { input: [4, 4, 2], layers }, 2);
        model.initialise(1);
        model.normalise_with(Box::new(|numbers| numbers.iter_mut().for_each(|number| *number *= 2.0)));
        let before = model.forward(&images(2), &[0, 1]);
        let statistics = model.statistics_mut().to_vec();
        assert_eq!(model.first_not_finite(&images(2), &[0, 1]), None);
        assert_eq!(model.statistics_mut(), statistics);
        assert_eq!(model.forward(&images(2), &[0, 1]), before, "it still normalises with its peers");
    }

    /// The algorithm of a pass depends on its images, not on how many there could have been.
    #[test]
    fn an_image_alone_is_computed_as_in_a_model_for_one() {
        let network = crate::Architecture::Vgg11.network();
        let gradients = |batch: usize| {
            let mut model = model(&network, batch);
            model.initialise(1);
            let image: Vec<f32> = (0..model.input().len()).map(|at| (at % 17) as f32 / 8.0 - 1.0).collect();
            model.forward(&image, &[3]);
            model.backward(&image, &[3], 1.0);
            model.gradients_mut().iter().map(|number| number.to_bits()).collect::<Vec<_>>()
        };
        assert!(gradients(1) == gradients(16));
    }
}
