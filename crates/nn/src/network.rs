//! What a network is, as data: a list of layers that one can write down in TOML or in Rust.

use serde::{Deserialize, Serialize};

use crate::layers::{
    Add, AveragePool, BatchNorm, Conv2d, Dropout, Geometry, Layer as Step, Linear, MaxPool, Relu, Shape, Tanh,
};

/// A network: what comes in, and the layers that it goes through.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Network {
    /// Height, width and channels of an image.
    pub input: [usize; 3],
    /// From the first to the last. What comes out of the last are the logits.
    #[serde(rename = "layer")]
    pub layers: Vec<Layer>,
}

/// A layer and its name.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Layer {
    /// The name of its weights in files; by default what it is and its number among its like, such as `conv1`.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub name: String,
    /// What it does.
    #[serde(flatten)]
    pub kind: Kind,
}

/// What a layer does.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Kind {
    /// Two-dimensional convolution.
    Conv {
        /// Channels that come out.
        filters: usize,
        /// Size of a filter; one number for squares.
        kernel: Pair,
        /// How far apart windows begin.
        #[serde(default = "Pair::one")]
        stride: Pair,
        /// Zeros on each side.
        #[serde(default)]
        padding: Pair,
        /// Whether each filter has one.
        #[serde(default = "yes")]
        bias: bool,
    },
    /// Fully connected.
    Linear {
        /// Numbers that come out.
        outputs: usize,
        /// Whether each output has one.
        #[serde(default = "yes")]
        bias: bool,
    },
    /// Batch normalisation.
    BatchNorm,
    /// The rectifier.
    Relu,
    /// The hyperbolic tangent.
    Tanh,
    /// The largest number of each window.
    MaxPool {
        /// Of a window.
        size: usize,
        /// How far apart windows begin; by default they do not overlap.
        stride: Option<usize>,
    },
    /// The mean of each square.
    AveragePool {
        /// Of a square.
        size: usize,
    },
    /// The mean of each channel.
    GlobalAveragePool,
    /// An image becomes a row of numbers, in the order in which they lie in memory: channels last.
    Flatten,
    /// Drops some numbers in training.
    Dropout {
        /// The share that is dropped.
        rate: f32,
    },
    /// The sum of what comes out of `body` and what comes out of `shortcut`.
    Residual {
        /// At least one layer.
        body: Vec<Layer>,
        /// By default the input itself.
        #[serde(default)]
        shortcut: Vec<Layer>,
    },
}

/// One number for both directions, or one for down and one for across.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum Pair {
    /// The same both ways.
    Both(usize),
    /// Down and across.
    Each([usize; 2]),
}

impl Pair {
    fn one() -> Self {
        Self::Both(1)
    }

    /// Down and across.
    pub fn each(self) -> [usize; 2] {
        match self {
            Self::Both(both) => [both; 2],
            Self::Each(each) => each,
        }
    }
}

impl Default for Pair {
    fn default() -> Self {
        Self::Both(0)
    }
}

fn yes() -> bool {
    true
}

/// A network that cannot be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("layer {layer}: {problem}")]
pub struct NetworkError {
    /// The layer's name.
    pub layer: String,
    /// What is wrong.
    pub problem: String,
}

impl Layer {
    /// A layer with a name.
    pub fn new(name: impl Into<String>, kind: Kind) -> Self {
        Self { name: name.into(), kind }
    }
}

/// A layer that is ready to run, and where its inputs come from: 0 is the images, i + 1 what comes out of step i.
pub(crate) struct Wired {
    pub name: String,
    pub step: Box<dyn Step>,
    pub input: usize,
    pub shortcut: Option<usize>,
}

impl Network {
    /// How many classes it tells apart, if it can be built.
    pub fn classes(&self) -> Result<usize, NetworkError> {
        let steps = self.wire(1)?;
        Ok(steps.last().map_or(0, |last| last.step.output().len()))
    }

    /// Whether there is batch norm in it.
    pub fn has_batch_norm(&self) -> bool {
        fn in_any(layers: &[Layer]) -> bool {
            layers.iter().any(|layer| match &layer.kind {
                Kind::BatchNorm => true,
                Kind::Residual { body, shortcut } => in_any(body) || in_any(shortcut),
                _ => false,
            })
        }
        in_any(&self.layers)
    }

    /// The steps, with those that can be done in one put together. No memory is taken for a batch or for weights, and all
    /// sizes that follow from theirs can be counted.
    pub(crate) fn wire(&self, batch: usize) -> Result<Vec<Wired>, NetworkError> {
        let [height, width, channels] = self.input;
        let input = Shape::new(height, width, channels);
        let problem = |layer: &str, problem: &str| NetworkError { layer: layer.into(), problem: problem.into() };
        if self.input.contains(&0) {
            return Err(problem("input", &format!("{height}x{width}x{channels} is no image")));
        }
        let mut wiring = Wiring { batch, input, steps: Vec::new(), counts: Vec::new(), numbers: 0 };
        wiring.count_images("input", input, "")?;
        let end = wiring.layers(&self.layers, 0, "")?;
        let Some(last) = wiring.steps.last() else { return Err(problem("output", "there are no layers")) };
        let logits = wiring.shape(end);
        if (logits.height, logits.width) != (1, 1) {
            let shape = format!("{}x{}x{} come out, not a row of logits", logits.height, logits.width, logits.channels);
            return Err(problem(&last.name, &shape));
        }
        if logits.channels > 256 {
            return Err(problem(&last.name, &format!("{} classes: at most 256 are possible", logits.channels)));
        }
        if let Some(twice) = (1..wiring.steps.len()).find(|&at| {
            let named = |step: &Wired| !step.step.tensors().is_empty() && step.name == wiring.steps[at].name;
            named(&wiring.steps[at]) && wiring.steps[..at].iter().any(named)
        }) {
            return Err(problem(&wiring.steps[twice].name, "another layer has this name"));
        }
        Ok(wiring.steps)
    }
}

/// The most numbers that a model may have in all: beyond any machine, and so few that no size that follows from them, on
/// however many threads, is more than can be counted.
const MOST_NUMBERS: usize = 1 << 44;
/// The longest side of a filter.
const LARGEST_FILTER: usize = 1024;
/// The longest side of an image that is convolved, with its padding: there are tables with an entry for each column.
const LONGEST_SIDE: usize = 1 << 16;
/// The most channels that are normalised.
const MOST_NORMALISED: usize = 1 << 24;

struct Wiring {
    batch: usize,
    input: Shape,
    steps: Vec<Wired>,
    /// Layers so far of each kind without a name.
    counts: Vec<(&'static str, usize)>,
    /// Numbers so far, of images, activations and weights.
    numbers: usize,
}

impl Wiring {
    /// Adds the product of these sizes to what the model holds; refuses what is more than a model may have.
    fn count(&mut self, layer: &str, what: &str, sizes: &[usize]) -> Result<(), NetworkError> {
        let product = sizes.iter().try_fold(1, |product: usize, &size| product.checked_mul(size));
        let sum = product.and_then(|product| product.checked_add(self.numbers));
        self.numbers = sum.filter(|&sum| sum <= MOST_NUMBERS).ok_or_else(|| {
            // Only to be shown, so it need not be exact.
            let bytes = |numbers: f64| numbers * size_of::<f32>() as f64;
            let taken = bytes(sizes.iter().map(|&size| size as f64).product());
            let most = bytes(MOST_NUMBERS as f64);
            let problem = format!("{what} would take {taken:.1e} bytes: a model can have up to {most:.1e}");
            NetworkError { layer: layer.into(), problem }
        })?;
        Ok(())
    }

    /// Counts a batch of images or activations; `how` says what is special about them.
    fn count_images(&mut self, layer: &str, shape: Shape, how: &str) -> Result<(), NetworkError> {
        let Shape { height, width, channels } = shape;
        let images = if self.batch == 1 { "1 image".to_owned() } else { format!("{} images", self.batch) };
        let what = format!("{images} of {height}x{width}x{channels}{how}");
        self.count(layer, &what, &[self.batch, height, width, channels])
    }

    /// The shape of what comes out of step `source - 1`.
    fn shape(&self, source: usize) -> Shape {
        if source == 0 { self.input } else { self.steps[source - 1].step.output() }
    }

    fn push(&mut self, name: String, step: impl Step + 'static, input: usize, shortcut: Option<usize>) -> usize {
        self.steps.push(Wired { name, step: Box::new(step), input, shortcut });
        self.steps.len()
    }

    /// Adds layers after `source`; returns what their output is the source of.
    fn layers(&mut self, layers: &[Layer], mut source: usize, prefix: &str) -> Result<usize, NetworkError> {
        let mut rest = layers;
        while let [layer, after @ ..] = rest {
            // A ReLU is done by the batch norm or sum that it follows, or by the max pool that it precedes.
            (source, rest) = match (&layer.kind, after) {
                (Kind::BatchNorm | Kind::Residual { .. }, [Layer { kind: Kind::Relu, .. }, after @ ..]) => {
                    (self.layer(layer, source, prefix, true)?, after)
                }
                (Kind::Relu, [pool @ Layer { kind: Kind::MaxPool { .. }, .. }, after @ ..]) => {
                    (self.layer(pool, source, prefix, true)?, after)
                }
                _ => (self.layer(layer, source, prefix, false)?, after),
            };
        }
        Ok(source)
    }

    fn name(&mut self, layer: &Layer, prefix: &str) -> String {
        if !layer.name.is_empty() {
            return format!("{prefix}{}", layer.name);
        }
        let kind = layer.kind.name();
        let count = match self.counts.iter_mut().find(|(name, _)| *name == kind) {
            Some((_, count)) => count,
            None => {
                self.counts.push((kind, 0));
                &mut self.counts.last_mut().expect("just pushed").1
            }
        };
        *count += 1;
        format!("{prefix}{kind}{count}")
    }

    fn layer(&mut self, layer: &Layer, source: usize, prefix: &str, rectified: bool) -> Result<usize, NetworkError> {
        let name = self.name(layer, prefix);
        let input = self.shape(source);
        self.count_images(&name, input, "")?;
        let shown = format!("{}x{}x{}", input.height, input.width, input.channels);
        let fail = |problem: String| Err(NetworkError { layer: name.clone(), problem });

        Ok(match &layer.kind {
            Kind::Conv { filters, kernel, stride, padding, bias } => {
                let ([height, width], stride) = (kernel.each(), stride.each());
                if *filters == 0 || [height, width].contains(&0) || stride.contains(&0) {
                    return fail("filters, kernel and stride must be at least 1".into());
                }
                if height.max(width) > LARGEST_FILTER {
                    return fail(format!("kernel must be at most {LARGEST_FILTER}"));
                }
                let padded = |length: usize, by: usize| length.saturating_add(by.saturating_mul(2));
                let [above, before] = padding.each();
                let padded = Shape::new(padded(input.height, above), padded(input.width, before), input.channels);
                self.count_images(&name, padded, " with padding")?;
                if padded.height.max(padded.width) > LONGEST_SIDE {
                    return fail(format!("an input of {shown} with its padding is longer than {LONGEST_SIDE}"));
                }
                self.count(&name, "weights", &[*filters, height, width, input.channels])?;
                let Some(geometry) = Geometry::new(input, *filters, kernel.each(), stride, padding.each()) else {
                    return fail(format!("a {height}x{width} filter does not fit in an input of {shown}"));
                };
                self.count_images(&name, geometry.output, "")?;
                self.push(name, Conv2d::new(geometry, *bias), source, None)
            }
            Kind::Linear { outputs: 0, .. } => return fail("outputs must be at least 1".into()),
            Kind::Linear { outputs, bias } => {
                self.count(&name, "weights", &[*outputs, input.len()])?;
                self.push(name, Linear::new(input, *outputs, *bias), source, None)
            }
            Kind::BatchNorm if input.channels > MOST_NORMALISED => {
                return fail(format!("{} channels: at most {MOST_NORMALISED} can be normalised", input.channels));
            }
            Kind::BatchNorm => self.push(name, BatchNorm::new(input, rectified), source, None),
            Kind::Relu => self.push(name, Relu::new(input), source, None),
            Kind::Tanh => self.push(name, Tanh::new(input), source, None),
            Kind::MaxPool { size, stride } => {
                let stride = stride.unwrap_or(*size);
                if *size == 0 || stride == 0 || *size > MaxPool::LARGEST {
                    return fail(format!("size must be 1 to {}, stride at least 1", MaxPool::LARGEST));
                }
                if *size > input.height.min(input.width) {
                    return fail(format!("a {size}x{size} window does not fit in an input of {shown}"));
                }
                self.push(name, MaxPool::new(input, *size, stride, rectified), source, None)
            }
            Kind::AveragePool { size } => {
                if *size == 0 || *size > input.height.min(input.width) {
                    return fail(format!("a {size}x{size} square does not fit in an input of {shown}"));
                }
                self.push(name, AveragePool::new(input, *size), source, None)
            }
            Kind::GlobalAveragePool => self.push(name, AveragePool::global(input), source, None),
            // Numbers lie in memory in this order already, and a linear layer takes any shape.
            Kind::Flatten => source,
            Kind::Dropout { rate } if !(0.0..1.0).contains(rate) => {
                return fail(format!("rate is {rate}: it must be at least 0 and below 1"));
            }
            Kind::Dropout { rate } => self.push(name, Dropout::new(input, *rate), source, None),
            Kind::Residual { body, shortcut } => {
                let prefix = format!("{name}.");
                let end = self.layers(body, source, &prefix)?;
                let shortcut = self.layers(shortcut, source, &prefix)?;
                let (sum, other) = (self.shape(end), self.shape(shortcut));
                if end == source || end == shortcut {
                    return fail("the body of a residual layer has no layers".into());
                }
                if sum != other {
                    return fail(format!(
                        "body and shortcut differ: {}x{}x{} and {}x{}x{}",
                        sum.height, sum.width, sum.channels, other.height, other.width, other.channels
                    ));
                }
                self.push(name, Add::new(sum, rectified), end, Some(shortcut))
            }
        })
    }
}

impl Kind {
    fn name(&self) -> &'static str {
        match self {
            Self::Conv { .. } => "conv",
            Self::Linear { .. } => "linear",
            Self::BatchNorm => "batch-norm",
            Self::Relu => "relu",
            Self::Tanh => "tanh",
            Self::MaxPool { .. } => "max-pool",
            Self::AveragePool { .. } => "average-pool",
            Self::GlobalAveragePool => "global-average-pool",
            Self::Flatten => "flatten",
            Self::Dropout { .. } => "dropout",
            Self::Residual { .. } => "residual",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refusal(layers: &str) -> String {
        let network: Network = toml::from_str(&format!("input = [6, 5, 2]\n{layers}")).unwrap();
        network.wire(1).err().unwrap().to_string()
    }

    #[test]
    fn what_cannot_be_built_is_told_with_the_layers_name() {
        let layer = |rest: &str| format!("[[layer]]\n{rest}\n");
        assert_eq!(
            refusal(&layer("type = \"conv\"\nfilters = 2\nkernel = 7")),
            "layer conv1: a 7x7 filter does not fit in an input of 6x5x2"
        );
        assert_eq!(refusal(&layer("type = \"relu\"")), "layer relu1: 6x5x2 come out, not a row of logits");
        assert_eq!(refusal("layer = []"), "layer output: there are no layers");
        assert_eq!(
            refusal(&layer("type = \"dropout\"\nrate = 1.0")),
            "layer dropout1: rate is 1: it must be at least 0 and below 1"
        );
        assert_eq!(
            refusal(&layer("type = \"residual\"\nname = \"block\"\nbody = [{ type = \"global-average-pool\" }]")),
            "layer block: body and shortcut differ: 1x1x2 and 6x5x2"
        );
        assert_eq!(
            refusal(&layer("type = \"conv\"\nfilters = 2\nkernel = 1025")),
            "layer conv1: kernel must be at most 1024"
        );
        let twice = layer("type = \"linear\"\nname = \"fc\"\noutputs = 3").repeat(2);
        assert_eq!(refusal(&twice), "layer fc: another layer has this name");
    }

    /// Sizes whose products cannot be counted, or would take more than there can be, are told with what they would take.
    #[test]
    fn absurd_sizes_are_refused_before_anything_is_allocated() {
        let conv = |rest: &str| format!("[[layer]]\ntype = \"conv\"\nkernel = 3\n{rest}\n");
        let max = usize::MAX;
        assert_eq!(
            refusal(&conv("filters = 2\npadding = 9223372036854775807")),
            format!(
                "layer conv1: 1 image of {max}x{max}x2 with padding would take 2.7e39 bytes: a model can have up to 7.0e13"
            )
        );
        assert_eq!(
            refusal(&conv("filters = 9223372036854775807")),
            "layer conv1: weights would take 6.6e20 bytes: a model can have up to 7.0e13"
        );
        assert_eq!(
            refusal("[[layer]]\ntype = \"linear\"\noutputs = 9223372036854775807"),
            "layer linear1: weights would take 2.2e21 bytes: a model can have up to 7.0e13"
        );
        let pixel = Layer::new(
            "",
            Kind::Conv { filters: 1, kernel: Pair::Both(1), stride: Pair::one(), padding: Pair::default(), bias: true },
        );
        let long = Network { input: [1, 1 << 32, 1], layers: vec![pixel] }.classes().unwrap_err().to_string();
        assert_eq!(long, "layer conv1: an input of 1x4294967296x1 with its padding is longer than 65536");
        let wide = Network { input: [1, 1, 1 << 25], layers: vec![Layer::new("", Kind::BatchNorm)] };
        let error = wide.wire(1).err().unwrap().to_string();
        assert_eq!(error, "layer batch-norm1: 33554432 channels: at most 16777216 can be normalised");
        let vast = Network { input: [9_999_999_999, 9_999_999_999, 1], layers: Vec::new() };
        assert_eq!(
            vast.classes().unwrap_err().to_string(),
            "layer input: 1 image of 9999999999x9999999999x1 would take 4.0e20 bytes: a model can have up to 7.0e13"
        );
        let vgg11 = crate::Architecture::Vgg11.network();
        for batch in [999_999_999_999, usize::MAX] {
            let error = vgg11.memory(batch, 1).unwrap_err().to_string();
            assert!(error.starts_with(&format!("layer input: {batch} images of 32x32x3 would take ")), "{error}");
        }
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let text = "input = [8, 8, 1]\n[[layer]]\ntype = \"conv\"\nfilters = 4\nkernel = [3, 1]\n\
                    [[layer]]\nname = \"out\"\ntype = \"linear\"\noutputs = 10\nbias = false\n";
        let network: Network = toml::from_str(text).unwrap();
        assert_eq!(toml::from_str::<Network>(&toml::to_string(&network).unwrap()).unwrap(), network);
        let names: Vec<_> = network.wire(1).unwrap().into_iter().map(|wired| wired.name).collect();
        assert_eq!(names, ["conv1", "out"]);
    }
}
