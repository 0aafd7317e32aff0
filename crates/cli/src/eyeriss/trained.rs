//! The activations of a trained run: its weights on its test images, layer by layer, to count zeros in.

use std::path::Path;

use anyhow::{Context, Result, ensure};
use ringstep_data::augment::View;
use ringstep_eyeriss::layer::Layer;
use ringstep_eyeriss::sparsity::Zeros;
use ringstep_nn::frozen::Fusion;
use ringstep_nn::layers::Geometry;
use ringstep_nn::optim::Rule;
use ringstep_train::memory::Need;
use ringstep_train::{checkpoint, fit};

use crate::datasets;
use crate::memory;
use crate::run_dir;
use crate::settings::Experiment;

/// A run's network, and the zeros of each of its layers.
pub struct Trained {
    pub title: String,
    layers: Vec<(Layer, Zeros)>,
}

impl Trained {
    /// Those with weights, first to last.
    pub fn layers(&self) -> Vec<Layer> {
        self.layers.iter().map(|(layer, _)| layer.clone()).collect()
    }

    /// Those of the layer of this name.
    pub fn zeros(&self, layer: &str) -> Option<Zeros> {
        self.layers.iter().find(|(known, _)| known.name == layer).map(|(_, zeros)| *zeros)
    }
}

/// Runs the first `batch` test images of a run's data through its model.
pub fn load(folder: &Path, batch: usize) -> Result<Trained> {
    let weights = folder.join("model.safetensors");
    ensure!(folder.is_dir(), "--model {}: there is no such folder", folder.display());
    ensure!(
        weights.is_file(),
        "--model {}: no model.safetensors in it; a comparison has one in the folder of each way",
        folder.display()
    );
    let config = run_dir::config_of(folder)
        .with_context(|| format!("--model {}: no config.toml in it or above it", folder.display()))?;
    let mut settings = Experiment::read(&config)?.common;
    let name = settings.model.model.clone().context("--model: its config.toml names no model")?;
    let design = name.design()?;
    let rule = Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay: 0.0 };
    memory::check(&design, Need::new(&design, batch, 1, rule), 1)?;
    let mut model = design.build_small();
    checkpoint::load(&mut model, &weights)?;
    let data = datasets::load(&settings.data.plan(design.input())?)?;
    let there = data.test.len();
    ensure!(batch <= there, "--batch {batch}: there are {there} test images");
    let canvas = fit::fit(&design, &data)?;
    let mut images = vec![0.0; batch * canvas.len()];
    let pixels = data.test.pixels.chunks_exact(data.test.shape.len());
    for (image, pixels) in images.chunks_exact_mut(canvas.len()).zip(pixels) {
        canvas.paint(pixels, View::PLAIN, image);
    }

    let filters: Vec<(String, Vec<f32>)> =
        model.parameters().iter().map(|tensor| (tensor.name.clone(), model.export(tensor))).collect();
    let mut layers = Vec::new();
    let kinds: Vec<(String, &str)> = model.layers().map(|layer| (layer.name, layer.kind)).collect();
    let kind = |name: &str| kinds.iter().find(|(known, _)| known == name).map_or("", |(_, kind)| *kind);
    // What follows a layer element by element is done before its output goes to DRAM; pooling is not.
    model.freeze_with(batch, 1, Fusion::ElementByElement).watch(&images, |step, input, output| {
        let Some(geometry) = step.geometry else { return };
        let weight = format!("{}.weight", step.name);
        let filters = &filters.iter().find(|(name, _)| *name == weight).expect("a layer with weights").1;
        let layer = layer(step.name, kind(step.name), geometry);
        let [input, output] = [(input, geometry.input), (output, step.output)]
            .map(|(numbers, shape)| planar(numbers, shape.height * shape.width, shape.channels));
        let zeros = Zeros::count(&layer, &input, filters, &output);
        layers.push((layer, zeros));
    });
    Ok(Trained { title: format!("{name} of {}", folder.display()), layers })
}

const LINEAR: &str = "linear";

/// From channels last to channels first. // N,H,W,C to N,C,H,W
fn planar(values: &[f32], pixels: usize, channels: usize) -> Vec<f32> {
    let image = |image: &[f32]| -> Vec<f32> {
        (0..channels).flat_map(|channel| image[channel..].iter().step_by(channels).copied()).collect()
    };
    values.chunks_exact(pixels * channels).flat_map(image).collect()
}

/// A layer of this kind in nn. A convolution whose only window is the whole image stays one: its sizes do not tell it from a
/// fully connected layer.
fn layer(name: &str, kind: &str, geometry: Geometry) -> Layer {
    let Geometry { input, output, kernel, stride, padding } = geometry;
    Layer {
        name: name.to_owned(),
        channels: input.channels,
        filters: output.channels,
        filter_height: kernel[0],
        filter_width: kernel[1],
        stride: stride[0],
        padding: padding[0],
        groups: 1,
        height: input.height,
        width: input.width,
        fully_connected: kind == LINEAR,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn planes_are_image_by_image() {
        let two_images_of_two_pixels = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0, 4.0, 40.0];
        assert_eq!(planar(&two_images_of_two_pixels, 2, 2), [1.0, 2.0, 10.0, 20.0, 3.0, 4.0, 30.0, 40.0]);
    }
}
