//! A model for inference alone: a copy of a model's weights as they were, laid out once, and the buffers that a forward
//! needs.
//!
//! [`fuse`] puts layers together: batch norm is folded into the convolution before it, and the sum, activation and pooling
//! that follow are done before its output leaves the cache.

mod fuse;

use std::ops::Range;

use crate::aligned::Aligned;
use crate::described::InferenceLayer;
use crate::kernels::rows::add_slice;
use crate::layers::conv2d::frozen::{FrozenConv, Pass};
use crate::layers::{AveragePool, Geometry, MaxPool, Shape, affine, average, largest, rectify, tangents};
use crate::model::Model;
use crate::plan::{Need, plan};
use crate::team::{Team, Units};
pub use fuse::Fusion;
use fuse::fuse;

/// What is done in one go.
#[derive(Clone)]
enum Step {
    /// With what was folded into it and what follows it.
    Conv(FrozenConv),
    /// Batch norm that follows no convolution. The numbers below the last are cut off.
    Affine {
        scale: Vec<f32>,
        offset: Vec<f32>,
        floor: f32,
    },
    Relu,
    Tanh,
    /// The sum of both inputs; the numbers below this are cut off.
    Add {
        floor: f32,
    },
    MaxPool(MaxPool),
    AveragePool(AveragePool),
}

/// A step, and where its numbers are: 0 is the images, i + 1 what comes out of step i.
#[derive(Clone)]
struct Node {
    name: String,
    step: Step,
    input: usize,
    other: Option<usize>,
    shape: Shape,
    /// In the arena, for a whole batch.
    place: Range<usize>,
}

/// A trained model that only classifies. It knows nothing of the model that it was made from.
pub struct Frozen {
    nodes: Vec<Node>,
    input: Shape,
    batch: usize,
    team: Team,
    arena: Aligned,
    workspace: Aligned,
}

/// A step as reports show it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StepReport<'a> {
    /// The name of its first layer.
    pub name: &'a str,
    /// How it is computed, where there is a choice.
    pub algorithm: &'static str,
    /// Its sizes, if it is a convolution or fully connected.
    pub geometry: Option<Geometry>,
    /// Height, width and channels of what comes out.
    pub output: Shape,
}

impl Model {
    /// A copy of the weights as they are now, for up to `batch` images at once, on `threads` threads.
    pub fn freeze(&self, batch: usize, threads: usize) -> Frozen {
        self.freeze_with(batch, threads, Fusion::All)
    }

    /// The same, with layers put together as far as this: [`Frozen::watch`] sees what is a step of its own.
    pub fn freeze_with(&self, batch: usize, threads: usize, fusion: Fusion) -> Frozen {
        let layers = self.inference().collect();
        Frozen::of(layers, self.input(), batch, Team::new(threads, self.level()), fusion)
    }
}

impl Frozen {
    /// Layers that need not be a model's: each reads what those before it make.
    pub fn of(layers: Vec<InferenceLayer>, input: Shape, batch: usize, team: Team, fusion: Fusion) -> Self {
        let mut frozen = Self::new(fuse(layers, input, fusion), input, batch, team);
        let Self { nodes, team, .. } = &mut frozen;
        for node in nodes {
            if let Step::Conv(conv) = &node.step {
                conv.prepare(team, batch);
            }
        }
        frozen
    }

    fn new(mut nodes: Vec<Node>, input: Shape, batch: usize, team: Team) -> Self {
        // A number is needed from the step that makes it to the last that reads it; the logits are wanted after the end.
        let needs: Vec<Need> = (0..nodes.len())
            .map(|index| {
                let reads = |node: &Node| node.input == index + 1 || node.other == Some(index + 1);
                let last = nodes.iter().rposition(reads).unwrap_or(nodes.len());
                Need { size: batch * nodes[index].shape.len(), from: index, until: last }
            })
            .collect();
        let (places, arena) = plan(&needs);
        let room = |node: &Node| match &node.step {
            Step::Conv(conv) => conv.workspace(batch, team.threads()),
            _ => 0,
        };
        let workspace = nodes.iter().map(room).max().unwrap_or(0);
        for (node, place) in nodes.iter_mut().zip(places) {
            node.place = place;
        }
        Self { nodes, input, batch, team, arena: Aligned::zeros(arena), workspace: Aligned::zeros(workspace) }
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
        self.nodes.last().map_or(0, |last| last.shape.len())
    }

    /// The bytes that its weights, in the layouts that have been used, and its buffers take.
    pub fn bytes(&self) -> usize {
        let weights = self.nodes.iter().map(|node| match &node.step {
            Step::Conv(conv) => conv.bytes(),
            Step::Affine { scale, offset, .. } => size_of::<f32>() * (scale.len() + offset.len()),
            _ => 0,
        });
        weights.sum::<usize>() + size_of::<f32>() * (self.arena.len() + self.workspace.len())
    }

    /// The same once more, for another thread: it has buffers and threads of its own, and shares the weights.
    pub fn another(&self) -> Self {
        let team = Team::new(self.team.threads(), self.team.level());
        Self::new(self.nodes.clone(), self.input, self.batch, team)
    }

    /// What the last layer makes of the images, of which there are as many as `images` holds. // N,classes
    pub fn logits(&mut self, images: &[f32]) -> &[f32] {
        let count = self.count(images);
        for index in 0..self.nodes.len() {
            if count > 0 {
                self.run(index, images, count);
            }
        }
        self.output(self.nodes.len() - 1, count)
    }

    /// The same, but what comes out of each step is changed before the next reads it.
    pub fn logits_changing(&mut self, images: &[f32], mut change: impl FnMut(usize, &mut [f32])) -> &[f32] {
        let count = self.count(images);
        for index in 0..self.nodes.len() {
            if count > 0 {
                self.run(index, images, count);
                let Node { place, shape, .. } = &self.nodes[index];
                change(index, &mut self.arena[place.start..][..count * shape.len()]);
            }
        }
        self.output(self.nodes.len() - 1, count)
    }

    /// Runs the images through all steps, and shows what goes into each and what comes out.
    pub fn watch(&mut self, images: &[f32], mut see: impl FnMut(StepReport<'_>, &[f32], &[f32])) {
        let count = self.count(images);
        for index in 0..self.nodes.len() {
            self.run(index, images, count);
            let node = &self.nodes[index];
            let input = if node.input == 0 { images } else { self.output(node.input - 1, count) };
            let (algorithm, geometry) = match &node.step {
                Step::Conv(conv) => (conv.algorithm_name(count), Some(conv.geometry())),
                _ => ("", None),
            };
            let report = StepReport { name: &node.name, algorithm, geometry, output: node.shape };
            see(report, input, self.output(index, count));
        }
    }

    fn count(&self, images: &[f32]) -> usize {
        let count = images.len() / self.input.len();
        assert_eq!(images.len(), count * self.input.len(), "whole images");
        assert!(count <= self.batch, "{count} images in a frozen model for {}", self.batch);
        count
    }

    /// What came out of a step.
    fn output(&self, index: usize, count: usize) -> &[f32] {
        let node = &self.nodes[index];
        &self.arena[node.place.start..][..count * node.shape.len()]
    }

    fn run(&mut self, index: usize, images: &[f32], count: usize) {
        let place = |source: usize| match source.checked_sub(1) {
            None => 0..0,
            Some(step) => {
                let Node { place, shape, .. } = &self.nodes[step];
                place.start..place.start + count * shape.len()
            }
        };
        let Node { step, input, other, .. } = &self.nodes[index];
        // A layer that does nothing in inference leaves a sum whose two inputs are one.
        let second_place = other.filter(|other| other != input).map_or(0..0, place);
        let places = [place(*input), second_place, place(index + 1)];
        let [from, second, output] = self.arena.get_disjoint_mut(places).expect("places do not overlap");
        let from = if *input == 0 { images } else { &*from };
        let second = other.map(|source| match source {
            0 => images,
            source if source == *input => from,
            _ => &*second,
        });
        let (level, team) = (self.team.level(), &mut self.team);
        match step {
            Step::Conv(conv) => {
                conv.forward(Pass { team, input: from, residual: second, output, workspace: &mut self.workspace });
            }
            Step::Affine { scale, offset, floor } => {
                team.deal(output.len() / scale.len(), Units::new(output, scale.len()), |range, output| {
                    let from = &from[range.start * scale.len()..range.end * scale.len()];
                    affine(level, output, from, (scale, offset, *floor));
                });
            }
            Step::Relu => element_by_element(team, output, |range, output| rectify(level, output, &from[range])),
            Step::Tanh => element_by_element(team, output, |range, output| tangents(level, output, &from[range])),
            Step::Add { floor } => {
                let second = second.expect("a sum has two inputs");
                element_by_element(team, output, |range, output| {
                    output.copy_from_slice(&from[range.clone()]);
                    add_slice(level, output, &second[range]);
                    if *floor == 0.0 {
                        output.iter_mut().filter(|number| **number < 0.0).for_each(|number| *number = 0.0);
                    }
                });
            }
            Step::MaxPool(pool) => by_image(team, from, output, count, |from, to| largest(level, pool, from, to, None)),
            Step::AveragePool(pool) => by_image(team, from, output, count, |from, to| average(level, pool, from, to)),
        }
    }
}

fn element_by_element(team: &mut Team, output: &mut [f32], work: impl Fn(Range<usize>, &mut [f32]) + Sync) {
    team.deal(output.len(), Units::new(output, 1), work);
}

fn by_image(
    team: &mut Team,
    input: &[f32],
    output: &mut [f32],
    images: usize,
    work: impl Fn(&[f32], &mut [f32]) + Sync,
) {
    let [from, to] = [input.len(), output.len()].map(|numbers| numbers / images.max(1));
    team.deal(images, Units::new(output, to), |range, output| {
        for (image, output) in range.zip(output.chunks_exact_mut(to)) {
            work(&input[image * from..][..from], output);
        }
    });
}

#[cfg(test)]
mod tests {
    use ringstep_cpu::Level;

    use super::*;
    use crate::Architecture;
    use crate::layers::check::noise;

    /// Whatever then happens to the model, one image, some and a whole batch get the same logits, from a copy too.
    #[test]
    fn it_says_the_same_of_an_image_alone_and_among_others_on_every_level() {
        for architecture in [Architecture::LeNet5, Architecture::Cnn, Architecture::ResNet20, Architecture::Mlp] {
            let mut said: Option<Vec<f32>> = None;
            for level in Level::available() {
                let mut model = Model::new(&architecture.network(), 9, Team::new(1, level)).unwrap();
                model.initialise(3);
                let image = model.input().len();
                let images = noise(9 * image, 1);
                // A training pass leaves running statistics that are not those of the beginning.
                model.forward(&images, &[1; 9]);
                let mut frozen = model.freeze(9, 2);
                let all = frozen.logits(&images).to_vec();
                model.initialise(4);
                assert_eq!((frozen.batch(), frozen.input(), frozen.classes()), (9, model.input(), 10));
                let mut other = frozen.another();
                for frozen in [&mut frozen, &mut other] {
                    for count in [1, 3, 9] {
                        close(architecture, level, frozen.logits(&images[..count * image]), &all[..count * 10]);
                    }
                }
                close(architecture, level, &all, said.get_or_insert(all.clone()));
            }
        }
    }

    /// A sum of a value and itself, and batch norm, activations and sums that follow no convolution.
    #[test]
    fn layers_that_nothing_can_be_put_together_with_are_steps_of_their_own() {
        use crate::network::{Kind, Layer, Network, Pair};

        let plain = |kind| Layer::new("", kind);
        let conv = |name: &str| {
            let (kernel, stride, padding) = (Pair::Both(3), Pair::Both(1), Pair::Both(1));
            Layer::new(name, Kind::Conv { filters: 3, kernel, stride, padding, bias: true })
        };
        let residual = |body, shortcut| plain(Kind::Residual { body, shortcut });
        let layers = vec![
            plain(Kind::BatchNorm),
            plain(Kind::Tanh),
            residual(vec![plain(Kind::Dropout { rate: 0.5 })], Vec::new()),
            conv("one"),
            residual(vec![plain(Kind::Relu)], vec![conv("two"), plain(Kind::Tanh)]),
            plain(Kind::Relu),
            plain(Kind::MaxPool { size: 3, stride: Some(2) }),
            plain(Kind::AveragePool { size: 2 }),
            Layer::new("fc", Kind::Linear { outputs: 10, bias: false }),
        ];
        let network = Network { input: [9, 9, 3], layers };
        let mut model = Model::new(&network, 4, Team::new(1, Level::best())).unwrap();
        model.initialise(1);
        let images = noise(4 * 9 * 9 * 3, 5);
        let logits = model.freeze(4, 2).logits(&images).to_vec();
        // By hand: running statistics are 0 and 1, so batch norm divides by the root of 1 + epsilon, and dropout does nothing.
        let half: Vec<f32> = images.iter().map(|pixel| 2.0 * (pixel / 1.00001f32.sqrt()).tanh()).collect();
        let weights = |name: &str, of: &str| {
            let found = model.parameters().iter().find(|parameter| parameter.name.ends_with(&format!("{name}.{of}")));
            model.export(found.expect("a tensor of this name"))
        };
        let convolve = |input: &[f32], name: &str| -> Vec<f32> {
            let (filters, bias) = (weights(name, "weight"), weights(name, "bias"));
            let at = |image: usize, y: isize, x: isize, channel: usize| {
                let inside = (0..9).contains(&y) && (0..9).contains(&x);
                if inside { input[((image * 9 + y as usize) * 9 + x as usize) * 3 + channel] } else { 0.0 }
            };
            let mut out = Vec::new();
            for index in 0..4 * 81 * 3 {
                let (image, y, x, filter) = (index / 243, index / 27 % 9, index / 3 % 9, index % 3);
                let mut sum = bias[filter];
                for tap in 0..27 {
                    let (channel, ky, kx) = (tap / 9, tap / 3 % 3, tap % 3);
                    let pixel = at(image, (y + ky) as isize - 1, (x + kx) as isize - 1, channel);
                    sum += filters[filter * 27 + tap] * pixel;
                }
                out.push(sum);
            }
            out
        };
        let one = convolve(&half, "one");
        let two = convolve(&one, "two");
        let sum: Vec<f32> =
            one.iter().zip(&two).map(|(one, two)| one.max(0.0) + two.tanh()).map(|sum| sum.max(0.0)).collect();
        let fully = weights("fc", "weight");
        for (image, logits) in logits.chunks_exact(10).enumerate() {
            for (class, &logit) in logits.iter().enumerate() {
                let mut expected = 0.0;
                for at in 0..12 {
                    let (channel, y, x) = (at / 4, at / 2 % 2, at % 2);
                    let largest = |py: usize, px: usize| {
                        let window = (0..9).map(|of| ((py * 2 + of / 3), (px * 2 + of % 3)));
                        let value = |(y, x): (usize, usize)| sum[((image * 9 + y) * 9 + x) * 3 + channel];
                        window.map(value).fold(f32::NEG_INFINITY, f32::max)
                    };
                    let mean = (0..4).map(|of| largest(y * 2 + of / 2, x * 2 + of % 2)).sum::<f32>() / 4.0;
                    expected += mean * fully[class * 12 + at];
                }
                assert!((logit - expected).abs() < 1e-4, "{logit} is not {expected}");
            }
        }
    }

    /// Dropout does nothing, and hides nobody who reads what comes before it.
    #[test]
    fn what_dropout_passes_on_has_all_its_readers() {
        use crate::network::{Kind, Layer, Network};

        let plain = |kind| Layer::new("", kind);
        let dropout = || plain(Kind::Dropout { rate: 0.5 });
        let residual = |body, shortcut| plain(Kind::Residual { body, shortcut });
        let linear = |outputs| plain(Kind::Linear { outputs, bias: true });
        let layers = |middle: Layer| vec![linear(6), middle, dropout()];
        let cases = [
            (residual(vec![dropout(), plain(Kind::Relu)], Vec::new()), (|x: f32| x + x.max(0.0)) as fn(f32) -> f32),
            (residual(vec![dropout(), plain(Kind::Tanh)], Vec::new()), |x| x + x.tanh()),
            (residual(vec![dropout()], vec![dropout()]), |x| x + x),
            (dropout(), |x| x),
        ];
        let images = noise(3 * 5, 1);
        for (middle, expected) in cases {
            let mut model =
                Model::new(&Network { input: [1, 1, 5], layers: layers(middle) }, 3, Team::new(1, Level::best()))
                    .unwrap();
            model.initialise(2);
            let (weight, bias) = (model.export(&model.parameters()[0]), model.export(&model.parameters()[1]));
            let mut frozen = model.freeze(3, 1);
            assert!(frozen.logits(&[]).is_empty());
            for (at, &logit) in frozen.logits(&images).iter().enumerate() {
                let (image, output) = (at / 6, at % 6);
                let sum: f32 = (0..5).map(|input| images[image * 5 + input] * weight[output * 5 + input]).sum();
                assert!((logit - expected(sum + bias[output])).abs() < 1e-5, "{logit}");
            }
        }
        let nothing = Network { input: [1, 1, 5], layers: vec![dropout()] };
        let model = Model::new(&nothing, 3, Team::new(1, Level::best())).unwrap();
        assert_eq!(model.freeze(3, 1).logits(&images), images);
    }

    fn close(architecture: Architecture, level: Level, found: &[f32], expected: &[f32]) {
        assert_eq!(found.len(), expected.len());
        let largest = expected.iter().fold(1.0f32, |largest, logit| largest.max(logit.abs()));
        for (found, expected) in found.iter().zip(expected) {
            let name = architecture.name();
            assert!((found - expected).abs() <= 1e-4 * largest, "{name}, {level}: {found} is not {expected}");
        }
    }
}
