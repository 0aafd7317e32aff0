//! LeNet-5, in the form that courses train: tanh, average pooling, a linear output.

use crate::layers::{AveragePool, Conv2d, Linear, Shape, Tanh};
use crate::model::{Builder, Model};

pub(super) fn build(batch: usize) -> Model {
    Builder::new(Shape::new(32, 32, 1), batch)
        .add("conv1", |input| Conv2d::new(input, 6, 5, batch)) // 28,28,6
        .add("tanh1", Tanh::new)
        .add("pool1", |input| AveragePool::new(input, 2)) // 14,14,6
        .add("conv2", |input| Conv2d::new(input, 16, 5, batch)) // 10,10,16
        .add("tanh2", Tanh::new)
        .add("pool2", |input| AveragePool::new(input, 2)) // 5,5,16
        .add("conv3", |input| Conv2d::new(input, 120, 5, batch)) // 1,1,120
        .add("tanh3", Tanh::new)
        .add("fc1", |input| Linear::new(input, 84))
        .add("tanh4", Tanh::new)
        .add("fc2", |input| Linear::new(input, 10))
        .build()
}
