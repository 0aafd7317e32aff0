//! Linear layers and nothing else.

use super::{linear, plain};
use crate::network::{Kind, Network};

pub(super) fn network() -> Network {
    let layers = vec![
        plain(Kind::Flatten),
        linear("fc1", 256, true),
        plain(Kind::Relu),
        linear("fc2", 128, true),
        plain(Kind::Relu),
        linear("fc3", 10, true),
    ];
    Network { input: [32, 32, 1], layers }
}
