//! What a model says of its layers: for reports, for timelines, and for those who only classify with it.

use std::time::Duration;

use crate::body::Body;
use crate::layers::{Geometry, Inference, Shape};
use crate::layout::{Node, Timing};
use crate::model::Model;

/// A layer as reports show it.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerReport {
    /// Its name.
    pub name: String,
    /// What it does.
    pub kind: &'static str,
    /// How, where there is a choice.
    pub algorithm: &'static str,
    /// Height, width and channels of what comes out.
    pub output: [usize; 3],
    /// Its sizes, if it is a convolution or fully connected.
    pub geometry: Option<Geometry>,
    /// Multiplications and additions of forward for one image, by the definition.
    pub operations: usize,
    /// Those of backward.
    pub backward_operations: usize,
    /// Time of the last forward.
    pub forward: Duration,
    /// Time of the last backward.
    pub backward: Duration,
}

/// When a layer's last backward went on.
#[derive(Debug, Clone, Copy)]
pub struct LayerTimes<'a> {
    /// The layer.
    pub name: &'a str,
    /// Where its gradients end in the flat buffer.
    pub gradients_end: usize,
    /// Its last backward.
    pub backward: Timing,
}

/// A layer that is not trained any more, and where its inputs come from: 0 is the images, i + 1 what comes out of layer i.
#[derive(Debug, Clone)]
pub struct InferenceLayer {
    /// Its name.
    pub name: String,
    /// What it does.
    pub does: Inference,
    /// What it reads.
    pub input: usize,
    /// What is added to that, if it is a sum.
    pub shortcut: Option<usize>,
    /// The shape of what comes out.
    pub shape: Shape,
}

impl Node {
    fn report(&self, images: usize) -> LayerReport {
        let step = &self.wired.step;
        // Weights and inputs each have a gradient as costly as forward; nobody wants that of the images.
        let gradients = if self.wired.input == 0 { 1 } else { 2 };
        LayerReport {
            name: self.wired.name.clone(),
            kind: step.kind(),
            algorithm: step.algorithm(images),
            output: [self.shape.height, self.shape.width, self.shape.channels],
            geometry: step.geometry(),
            operations: step.operations(),
            backward_operations: gradients * step.operations(),
            forward: self.forward.took,
            backward: self.backward.took,
        }
    }
}

impl Model {
    /// What each layer does once it is not trained any more.
    pub fn inference(&self) -> impl Iterator<Item = InferenceLayer> {
        let Body { layers, values, statistics, .. } = &self.body;
        layers.iter().map(|node| InferenceLayer {
            name: node.wired.name.clone(),
            does: node.wired.step.inference(&values[node.values.clone()], &statistics[node.statistics.clone()]),
            input: node.wired.input,
            shortcut: node.wired.shortcut,
            shape: node.shape,
        })
    }

    /// When each layer's last backward went on, in the order of the layers.
    pub fn timeline(&self) -> impl DoubleEndedIterator<Item = LayerTimes<'_>> {
        self.body.layers.iter().map(|node| LayerTimes {
            name: &node.wired.name,
            gradients_end: node.values.end,
            backward: node.backward,
        })
    }

    /// The layers, with the times of their last passes.
    pub fn layers(&self) -> impl Iterator<Item = LayerReport> {
        self.body.layers.iter().map(|node| node.report(self.batch()))
    }
}
