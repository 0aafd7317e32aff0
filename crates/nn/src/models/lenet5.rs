//! LeNet-5, in the form that courses train: tanh, average pooling, a linear output.

use super::{conv, linear, plain};
use crate::network::{Kind, Network};

pub(super) fn network() -> Network {
    let (tanh, pool) = (|| plain(Kind::Tanh), || plain(Kind::AveragePool { size: 2 }));
    let layers = vec![
        conv("conv1", 6, 5, true), // 28,28,6
        tanh(),
        pool(),                     // 14,14,6
        conv("conv2", 16, 5, true), // 10,10,16
        tanh(),
        pool(),                      // 5,5,16
        conv("conv3", 120, 5, true), // 1,1,120
        tanh(),
        linear("fc1", 84, true),
        tanh(),
        linear("fc2", 10, true),
    ];
    Network { input: [32, 32, 1], layers }
}
