//! The small network for CIFAR-10 of quantization courses.

use super::{conv, linear, plain};
use crate::network::{Kind, Network};

pub(super) fn network(bias: bool) -> Network {
    let (relu, pool) = (|| plain(Kind::Relu), || plain(Kind::MaxPool { size: 2, stride: None }));
    let layers = vec![
        conv("conv1", 6, 5, bias), // 28,28,6
        relu(),
        pool(),                     // 14,14,6
        conv("conv2", 16, 5, bias), // 10,10,16
        relu(),
        pool(), // 5,5,16
        plain(Kind::Flatten),
        linear("fc1", 120, bias),
        relu(),
        linear("fc2", 84, bias),
        relu(),
        linear("fc3", 10, bias),
    ];
    Network { input: [32, 32, 3], layers }
}
