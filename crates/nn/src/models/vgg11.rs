//! VGG-11 with batch norm, for 32x32 images.

use super::{linear, plain};
use crate::network::{Kind, Layer, Network, Pair};

/// Filters of each convolution, and `None` for a pool.
const PLAN: [Option<usize>; 13] = [
    Some(64),
    None,
    Some(128),
    None,
    Some(256),
    Some(256),
    None,
    Some(512),
    Some(512),
    None,
    Some(512),
    Some(512),
    None,
];

pub(super) fn network() -> Network {
    let mut layers = Vec::new();
    // torchvision numbers all layers of `features`, those without weights too.
    let mut number = 0;
    for stage in PLAN {
        let Some(filters) = stage else {
            layers.push(plain(Kind::MaxPool { size: 2, stride: None }));
            number += 1;
            continue;
        };
        let (kernel, stride, padding) = (Pair::Both(3), Pair::Both(1), Pair::Both(1));
        let conv = Kind::Conv { filters, kernel, stride, padding, bias: true };
        layers.push(Layer::new(format!("features.{number}"), conv));
        layers.push(Layer::new(format!("features.{}", number + 1), Kind::BatchNorm));
        layers.push(plain(Kind::Relu));
        number += 3;
    }
    layers.push(plain(Kind::Flatten));
    layers.push(linear("classifier", 10, true));
    Network { input: [32, 32, 3], layers }
}
