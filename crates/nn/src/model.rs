//! A model: layers one after the other, and the flat buffers that their numbers live in.

use std::ops::Range;

use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::{Rng, SeedableRng};

use crate::kernels::cross_entropy;
use crate::layers::{Backward, Layer, Shape};

/// How a batch fared.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Score {
    /// Sum of the losses of its images.
    pub loss: f64,
    /// Images whose class was right.
    pub correct: usize,
}

/// A tensor among a model's parameters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parameter {
    /// PyTorch's name for it, such as `conv1.weight`.
    pub name: String,
    /// Its shape in PyTorch's layout: OIHW for a convolution, [out, in] for a linear layer.
    pub shape: Vec<usize>,
    fan_in: usize,
    /// Where it stands in the flat buffers.
    range: Range<usize>,
}

impl Parameter {
    /// For each element in PyTorch's layout its place in the flat buffers, where filters are OHWI: channels last, as
    /// the activations have them.
    fn places(&self) -> impl Iterator<Item = usize> + use<> {
        let (channels, area) = match self.shape[..] {
            [_, channels, height, width] => (channels, height * width),
            _ => (1, 1),
        };
        let start = self.range.start;
        (0..self.range.len()).map(move |index| {
            let (filter, channel, at) = (index / (channels * area), index / area % channels, index % area);
            start + (filter * area + at) * channels + channel
        })
    }
}

/// Layers one after the other.
pub struct Model {
    layers: Vec<Box<dyn Layer>>,
    /// Each layer's part of the flat buffers.
    ranges: Vec<Range<usize>>,
    parameters: Vec<Parameter>,
    values: Vec<f32>,
    gradients: Vec<f32>,
    /// What goes into each layer, and at the end what comes out of the last.
    shapes: Vec<Shape>,
    batch: usize,
    /// What each layer put out. // layer; N,H,W,C
    outputs: Vec<Vec<f32>>,
    /// Gradients with respect to a layer's output and input; backward swaps them from layer to layer.
    deltas: [Vec<f32>; 2],
}

impl Model {
    /// The most images it takes at once.
    pub fn batch(&self) -> usize {
        self.batch
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

    /// Parameters to change and the gradients to change them by.
    pub fn values_and_gradients(&mut self) -> (&mut [f32], &[f32]) {
        (&mut self.values, &self.gradients)
    }

    /// Fills all parameters as PyTorch does by default: evenly between plus and minus one over the root of fan-in.
    pub fn initialise(&mut self, seed: u64) {
        let mut random = ChaCha8Rng::seed_from_u64(seed);
        for parameter in &self.parameters {
            let bound = 1.0 / (parameter.fan_in as f32).sqrt();
            for place in parameter.places() {
                let uniform = (random.next_u32() >> 8) as f32 / (1 << 24) as f32; // [0, 1)
                self.values[place] = bound * (2.0 * uniform - 1.0);
            }
        }
    }

    /// A parameter's values in PyTorch's layout.
    pub fn export(&self, parameter: &Parameter) -> Vec<f32> {
        parameter.places().map(|place| self.values[place]).collect()
    }

    /// Sets the parameter at this index of [`Model::parameters`] from values in PyTorch's layout.
    pub fn import(&mut self, index: usize, values: &[f32]) {
        let parameter = &self.parameters[index];
        assert_eq!(values.len(), parameter.range.len());
        for (place, &value) in parameter.places().zip(values) {
            self.values[place] = value;
        }
    }

    /// Runs the images through all layers and says how they fared.
    pub fn forward(&mut self, images: &[f32], labels: &[u8]) -> Score {
        let batch = labels.len();
        assert_eq!(images.len(), batch * self.shapes[0].len());
        assert!(batch <= self.batch, "a batch of {batch} in a model built for {}", self.batch);
        for index in 0..self.layers.len() {
            let (before, from) = self.outputs.split_at_mut(index);
            let input = before.last().map_or(images, |output| &output[..batch * self.shapes[index].len()]);
            let output = &mut from[0][..batch * self.shapes[index + 1].len()];
            self.layers[index].forward(&self.values[self.ranges[index].clone()], input, output);
        }
        let mut score = Score::default();
        for (logits, &label) in self.logits(batch).zip(labels) {
            let outcome = cross_entropy::forward(logits, label.into());
            score.loss += outcome.loss;
            score.correct += usize::from(outcome.correct);
        }
        score
    }

    /// Overwrites the gradients with those of `scale` times the sum of the images' losses. Comes after
    /// [`Model::forward`] with the same images.
    pub fn backward(&mut self, images: &[f32], labels: &[u8], scale: f32) {
        let batch = labels.len();
        let [mut delta, mut next] = std::mem::take(&mut self.deltas);
        let gradients = delta.chunks_exact_mut(self.classes());
        for ((logits, gradient), &label) in self.logits(batch).zip(gradients).zip(labels) {
            cross_entropy::backward(logits, label.into(), scale, gradient);
        }
        for index in (0..self.layers.len()).rev() {
            let [input_length, output_length] = [index, index + 1].map(|at| batch * self.shapes[at].len());
            let input = if index == 0 { images } else { &self.outputs[index - 1][..input_length] };
            let range = self.ranges[index].clone();
            self.layers[index].backward(Backward {
                parameters: &self.values[range.clone()],
                input,
                output: &self.outputs[index][..output_length],
                output_gradient: &delta[..output_length],
                gradients: &mut self.gradients[range],
                input_gradient: (index > 0).then(|| &mut next[..input_length]),
            });
            std::mem::swap(&mut delta, &mut next);
        }
        self.deltas = [delta, next];
    }

    fn classes(&self) -> usize {
        self.shapes[self.layers.len()].len()
    }

    fn logits(&self, batch: usize) -> impl Iterator<Item = &[f32]> {
        self.outputs[self.layers.len() - 1].chunks_exact(self.classes()).take(batch)
    }
}

/// Puts a model together, layer by layer.
pub struct Builder {
    input: Shape,
    batch: usize,
    names: Vec<&'static str>,
    layers: Vec<Box<dyn Layer>>,
}

impl Builder {
    /// For images of this shape, up to `batch` at once.
    pub fn new(input: Shape, batch: usize) -> Self {
        Self { input, batch, names: Vec::new(), layers: Vec::new() }
    }

    /// Adds the layer that `make` makes for what comes out of those before it.
    pub fn add<L: Layer + 'static>(mut self, name: &'static str, make: impl FnOnce(Shape) -> L) -> Self {
        let input = self.layers.last().map_or(self.input, |layer| layer.output());
        self.names.push(name);
        self.layers.push(Box::new(make(input)));
        self
    }

    /// Lays the parameters out, last layer first, and reserves room for a batch.
    pub fn build(self) -> Model {
        let mut ranges = vec![0..0; self.layers.len()];
        let mut parameters = Vec::new();
        let mut end = 0;
        for (index, layer) in self.layers.iter().enumerate().rev() {
            let start = end;
            for (position, tensor) in layer.tensors().into_iter().enumerate() {
                let range = end..end + tensor.shape.iter().product::<usize>();
                end = range.end;
                let name = format!("{}.{}", self.names[index], tensor.name);
                // The list is in the order of the layers, so an earlier layer's tensors go before all others.
                let parameter = Parameter { name, shape: tensor.shape, fan_in: tensor.fan_in, range };
                parameters.insert(position, parameter);
            }
            ranges[index] = start..end;
        }
        let shapes = std::iter::once(self.input).chain(self.layers.iter().map(|layer| layer.output())).collect();
        let outputs: Vec<_> = self.layers.iter().map(|layer| vec![0.0; self.batch * layer.output().len()]).collect();
        let delta = vec![0.0; outputs.iter().map(Vec::len).max().unwrap_or(0)];
        Model {
            layers: self.layers,
            ranges,
            parameters,
            values: vec![0.0; end],
            gradients: vec![0.0; end],
            shapes,
            batch: self.batch,
            outputs,
            deltas: [delta.clone(), delta],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::layers::{Conv2d, Linear, Tanh};

    fn small(batch: usize) -> Model {
        Builder::new(Shape::new(4, 4, 2), batch)
            .add("conv", |input| Conv2d::new(input, 3, 3, batch))
            .add("tanh", Tanh::new)
            .add("fc", |input| Linear::new(input, 4))
            .build()
    }

    fn images(count: usize) -> Vec<f32> {
        (0..count * 32).map(|i| ((i * 37 % 101) as f32 - 50.0) / 50.0).collect()
    }

    #[test]
    fn gradients_of_the_whole_model_agree_with_differences() {
        let (images, labels) = (images(3), [2, 0, 3]);
        let mut model = small(3);
        model.initialise(1);
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

    #[test]
    fn the_last_layer_comes_first_in_the_buffers_and_last_in_the_list() {
        let model = small(1);
        let names: Vec<_> = model.parameters().iter().map(|parameter| parameter.name.as_str()).collect();
        assert_eq!(names, ["conv.weight", "conv.bias", "fc.weight", "fc.bias"]);
        let starts: Vec<_> = model.parameters().iter().map(|parameter| parameter.range.start).collect();
        assert_eq!(starts, [52, 106, 0, 48]);
    }

    #[test]
    fn what_is_imported_is_exported_and_filters_are_laid_out_channels_last() {
        let mut model = small(1);
        let values: Vec<f32> = (0..54).map(|i| i as f32).collect();
        model.import(0, &values);
        assert_eq!(model.export(&model.parameters()[0]), values);
        // The first filter's first pixel: channel 0 is element 0 of OIHW, channel 1 is element 9.
        assert_eq!(model.values_mut()[52..54], [0.0, 9.0]);
    }

    #[test]
    fn a_smaller_batch_and_none_at_all_are_fine() {
        let mut model = small(3);
        model.initialise(1);
        let alone = model.forward(&images(1), &[1]);
        let mut tight = small(1);
        tight.initialise(1);
        assert_eq!(alone, tight.forward(&images(1), &[1]));
        assert_eq!(model.forward(&[], &[]), Score::default());
        model.backward(&[], &[], 1.0);
        assert!(model.gradients_mut().iter().all(|&gradient| gradient == 0.0));
    }
}
