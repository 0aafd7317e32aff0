//! Residual networks for 32x32 images, named as torchvision names them.

use super::{linear, plain};
use crate::network::{Kind, Layer, Network, Pair};

pub(super) fn resnet18() -> Network {
    network(&[64, 128, 256, 512], 2)
}

pub(super) fn resnet20() -> Network {
    network(&[16, 32, 64], 3)
}

/// Stages of `blocks` blocks each; every stage but the first halves the map in its first block.
fn network(stages: &[usize], blocks: usize) -> Network {
    let mut layers = vec![conv("conv1", stages[0], 3, 1), norm("bn1"), plain(Kind::Relu)];
    let mut channels = stages[0];
    for (stage, &filters) in stages.iter().enumerate() {
        for block in 0..blocks {
            let stride = if stage > 0 && block == 0 { 2 } else { 1 };
            layers.push(basic_block(&format!("layer{}.{block}", stage + 1), channels, filters, stride));
            layers.push(plain(Kind::Relu));
            channels = filters;
        }
    }
    layers.extend([plain(Kind::GlobalAveragePool), plain(Kind::Flatten), linear("fc", 10, true)]);
    Network { input: [32, 32, 3], layers }
}

fn basic_block(name: &str, channels: usize, filters: usize, stride: usize) -> Layer {
    let body = vec![
        conv("conv1", filters, 3, stride),
        norm("bn1"),
        plain(Kind::Relu),
        conv("conv2", filters, 3, 1),
        norm("bn2"),
    ];
    let changes = stride > 1 || channels != filters;
    let shortcut =
        if changes { vec![conv("downsample.0", filters, 1, stride), norm("downsample.1")] } else { Vec::new() };
    Layer::new(name, Kind::Residual { body, shortcut })
}

/// Padded so that stride 1 keeps the size.
fn conv(name: &str, filters: usize, kernel: usize, stride: usize) -> Layer {
    let padding = Pair::Both(kernel / 2);
    Layer::new(
        name,
        Kind::Conv { filters, kernel: Pair::Both(kernel), stride: Pair::Both(stride), padding, bias: false },
    )
}

fn norm(name: &str) -> Layer {
    Layer::new(name, Kind::BatchNorm)
}
