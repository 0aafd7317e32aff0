//! A model's layers and buffers, all but the gradients: those can be in other hands while backward still goes on.

use std::ops::Range;
use std::time::Instant;

use crate::aligned::Aligned;
use crate::kernels::rows::add_slice;
use crate::layers::{Backward, Forward, Peers, Shape};
use crate::layout::{Destination, Node, Timing};
use crate::team::{Team, Units};

/// Layers, and the buffers that their numbers live in.
pub(crate) struct Body {
    pub layers: Vec<Node>,
    pub team: Team,
    pub values: Aligned,
    pub statistics: Aligned,
    pub arena: Aligned,
    pub workspace: Aligned,
    /// The other ranks that batch norm normalises with.
    pub peers: Option<Peers>,
    pub seed: u64,
    /// Training passes so far.
    pub passes: u64,
}

/// A part of a place for a whole batch.
pub(crate) fn part(place: &Range<usize>, images: usize, shape: Shape) -> Range<usize> {
    place.start..place.start + if place.is_empty() { 0 } else { images * shape.len() }
}

impl Body {
    /// What came out of a layer.
    pub fn output(&self, index: usize, batch: usize) -> &[f32] {
        let node = &self.layers[index];
        &self.arena[part(&node.output, batch, node.shape)]
    }

    /// Runs one layer's forward.
    pub fn forward_layer(&mut self, index: usize, images: &[f32], batch: usize) {
        let started = Instant::now();
        let place = |source: usize| match source {
            0 => 0..0,
            _ => part(&self.layers[source - 1].output, batch, self.layers[source - 1].shape),
        };
        let (input, shortcut) = (self.layers[index].wired.input, self.layers[index].wired.shortcut);
        let places = [place(input), shortcut.map_or(0..0, place), place(index + 1)];
        let random = self.random(index);
        let [from, other, output] = self.arena.get_disjoint_mut(places).expect("places do not overlap");
        let node = &mut self.layers[index];
        node.wired.step.forward(Forward {
            team: &mut self.team,
            peers: self.peers.as_mut(),
            random,
            parameters: &self.values[node.values.clone()],
            statistics: &mut self.statistics[node.statistics.clone()],
            input: if input == 0 { images } else { from },
            shortcut: if shortcut == Some(0) { images } else { other },
            output,
            workspace: &mut self.workspace,
        });
        node.forward = Timing::since(started);
    }

    /// Another number for each step and layer.
    fn random(&self, layer: usize) -> u64 {
        let mut bits = self.seed ^ self.passes.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ ((layer as u64) << 48);
        bits = (bits ^ (bits >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        bits ^ (bits >> 31)
    }

    /// Runs one layer's backward; `gradients` are those of its own tensors.
    pub fn backward_layer(&mut self, index: usize, images: &[f32], batch: usize, gradients: &mut [f32]) {
        let started = Instant::now();
        let random = self.random(index);
        let node = &self.layers[index];
        let (input, shortcut) = (node.wired.input, node.wired.shortcut);
        let value_of = |source: usize| part(&self.layers[source - 1].output, batch, self.layers[source - 1].shape);
        let gradient_of =
            |source: usize| part(&self.layers[source - 1].output_gradient, batch, self.layers[source - 1].shape);
        let written = |destination: &Destination, source: usize| match destination {
            Destination::Nowhere => 0..0,
            Destination::Set | Destination::Add => gradient_of(source),
            Destination::Aside(place) => part(place, batch, self.layers[source - 1].shape),
        };
        let rereads = node.wired.step.rereads();
        let operands = [(&node.input_gradient, input), (&node.shortcut_gradient, shortcut.unwrap_or(0))];
        let [of_input, of_shortcut] = operands.map(|(destination, source)| written(destination, source));
        let places = [
            if input > 0 && rereads.input { value_of(input) } else { 0..0 },
            if rereads.output { value_of(index + 1) } else { 0..0 },
            gradient_of(index + 1),
            of_input.clone(),
            of_shortcut.clone(),
        ];
        let asides = operands.map(|(destination, source)| match destination {
            Destination::Aside(_) => Some([gradient_of(source), written(destination, source)]),
            _ => None,
        });
        let [has_input, has_shortcut] = operands.map(|(destination, _)| *destination != Destination::Nowhere);
        let adds = node.input_gradient == Destination::Add;
        let [from, output, output_gradient, input_gradient, shortcut_gradient] =
            self.arena.get_disjoint_mut(places).expect("places do not overlap");
        let node = &mut self.layers[index];
        node.wired.step.backward(Backward {
            team: &mut self.team,
            peers: self.peers.as_mut(),
            random,
            parameters: &self.values[node.values.clone()],
            input: if input == 0 { images } else { from },
            output,
            output_gradient,
            gradients,
            input_gradient: has_input.then_some(input_gradient),
            adds,
            shortcut_gradient: has_shortcut.then_some(shortcut_gradient),
            workspace: &mut self.workspace,
        });
        let level = self.team.level();
        for places in asides.into_iter().flatten() {
            let [sum, own] = self.arena.get_disjoint_mut(places).expect("places do not overlap");
            self.team.deal(sum.len(), Units::new(sum, 1), |range, sum| add_slice(level, sum, &own[range]));
        }
        node.backward = Timing::since(started);
    }
}
