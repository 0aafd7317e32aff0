//! What is found out about a model and its integers.

use anyhow::Result;
use ringstep_nn::layers::Geometry;
use ringstep_nn::team::Team;
use ringstep_quant::calibrate::Histogram;
use ringstep_quant::engine::Engine;
use ringstep_quant::graph::Op;
use ringstep_quant::model::IntegerOp;
use ringstep_quant::steps::{Partly, Seen, integers_seen, signal_to_noise};
use ringstep_quant::{Bits, Graph, Grid, Quantized, Recipe, Survey};

use super::subject::Subject;
use crate::eval::Classifier;
use crate::eval::judge::{Verdict, judge};
use crate::eval::measure::{Latency, latency, throughput};
use crate::eval::pictures::Pictures;

/// Images at once.
const BATCH: usize = 64;
/// Test images that the sweeps look at: they run the model once for each layer and each number of bits.
const SWEPT: usize = 1000;
/// Calibration images that noise is measured on.
const HEARD: usize = 128;

/// What was found out.
pub struct Study {
    /// The model in integers.
    pub model: Quantized,
    /// Operators in floats.
    pub graph: Graph,
    /// What goes through it.
    pub survey: Survey,
    /// Training images that it was calibrated with.
    pub calibrated_with: usize,
    /// Accuracy in floats, and after each step.
    pub float: f64,
    pub steps: Vec<(&'static str, f64)>,
    /// Of the images and of what comes out of each node.
    pub layers: Vec<LayerFacts>,
    /// Of each layer with weights.
    pub weights: Vec<WeightFacts>,
    /// Accuracy with one layer alone in integers.
    pub sensitivity: Vec<(String, f64)>,
    /// Accuracy of the images that sweeps look at, in floats.
    pub swept_float: f64,
    pub swept: usize,
    /// Integers that went into layers, all of which were found to be what the bits have, and of how many test images.
    pub checked: usize,
    pub checked_images: usize,
    /// Accuracy with so many bits.
    pub by_bits: Vec<(u32, f64)>,
    pub float_cost: Cost,
    pub integer_cost: Cost,
    /// The instructions that integers are multiplied with.
    pub instructions: &'static str,
    /// Images whose answer changed: what floats and what integers said.
    pub changed: Vec<(Verdict, Verdict)>,
    /// How many there are in all, and how many were tried.
    pub changes: usize,
    pub tried: usize,
}

/// An activation.
pub struct LayerFacts {
    pub name: String,
    pub kind: &'static str,
    pub grid: Grid,
    pub clipped: f64,
    /// The ratio of signal to noise, if there is noise.
    pub sqnr_db: Option<f64>,
    /// Why some of it is cut off whatever the calibration.
    pub cut: Option<Cut>,
    /// The integers of it that were seen.
    pub seen: Seen,
}

/// What a tangent cuts off.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Cut {
    /// What goes into one, where what comes out does not change any more.
    BeforeTanh,
    /// What comes out of one, next to one: the specification says its scale.
    OfTanh,
}

/// A layer's weights.
pub struct WeightFacts {
    pub name: String,
    pub histogram: Histogram,
    /// What the integers stand for.
    pub rounded: Vec<f32>,
    pub scales: Vec<f32>,
    /// How many distinct integers are used.
    pub integers: usize,
    /// The share of weights that were cut off.
    pub clipped: f64,
    /// In floats, and as integers with their scale, for the largest.
    pub biases: Vec<(f32, i32, f32)>,
}

/// What a model takes.
pub struct Cost {
    pub bytes: usize,
    pub latency: Latency,
    pub images_per_second: f64,
    pub batch: usize,
}

impl Study {
    /// Quantizes, and tries all of it.
    pub fn new(subject: &Subject) -> Result<Self> {
        let team = || Team::new(subject.threads, subject.level);
        let (data, recipe) = (&subject.data, subject.recipe);
        let pictures = Pictures::new(data, subject.canvas.clone());
        let training = Pictures::to_train_on(data, subject.canvas.clone(), subject.images);
        let mut images = Vec::new();
        training.paint(0..training.len(), &mut images);

        let graph = Graph::of(&subject.model);
        let mut float = graph.frozen(BATCH, team());
        let survey = Survey::of(&graph, &mut float, &images)?;
        let model = Quantized::new(&graph, &survey, recipe)?;
        let mut engine = Engine::new(&model, BATCH, team());
        let heard = &images[..images.len().min(HEARD * float.input().len())];
        let mut watched = Engine::to_be_watched(&model, BATCH, team());
        let noise = signal_to_noise(&mut float, &mut watched, &model, heard);

        // The float model as it is otherwise used: with all that can be put together.
        let mut frozen = subject.model.freeze(BATCH.min(pictures.len()), subject.threads);
        let said = judge(&mut frozen, &pictures, |_| ())?;
        let now = judge(&mut engine, &pictures, |_| ())?;
        let step = |mut model: Partly| Ok::<_, anyhow::Error>(accuracy(&judge(&mut model, &pictures, |_| ())?));
        let weights = step(Partly::weights(&graph, &model, BATCH, team()))?;
        let activations = step(Partly::activations(&graph, &model, BATCH, team()))?;
        let steps = vec![("weights", weights), ("activations", activations), ("biases", accuracy(&now))];

        let few = pictures.first(SWEPT);
        few.paint(0..few.len(), &mut images);
        let seen = integers_seen(&mut watched, &model, &images)?;
        let read = |source: &usize| graph.nodes.iter().any(|node| node.inputs.contains(source));
        let checked = (0..seen.len()).filter(read).map(|source| seen[source].count).sum();
        let mut sensitivity = Vec::new();
        for (index, node) in graph.nodes.iter().enumerate().filter(|(_, node)| matches!(node.op, Op::Conv { .. })) {
            let mut one = Partly::one(&graph, &model, index, BATCH, team());
            sensitivity.push((node.name.clone(), accuracy(&judge(&mut one, &few, |_| ())?)));
        }
        let mut by_bits = Vec::new();
        for bits in (2..=8).rev().filter_map(Bits::new) {
            let fewer = Quantized::new(&graph, &survey, Recipe { bits, ..recipe })?;
            by_bits.push((bits.count(), accuracy(&judge(&mut Engine::new(&fewer, BATCH, team()), &few, |_| ())?)));
        }

        let batch = frozen.batch();
        let cost = |single: &mut dyn Classifier, many: &mut dyn Classifier, bytes: usize| Cost {
            bytes,
            latency: latency(single, &pictures),
            images_per_second: throughput(many, &pictures),
            batch,
        };
        let mut many = Engine::new(&model, batch, team());
        let float_cost = cost(&mut subject.model.freeze(1, subject.threads), &mut frozen, graph.bytes());
        let integer_cost = cost(&mut Engine::new(&model, 1, team()), &mut many, model.bytes());
        let pairs = said.iter().zip(&now).filter(|(float, integer)| float.predicted != integer.predicted);
        let changed: Vec<_> = pairs.map(|(float, integer)| (*float, *integer)).collect();
        Ok(Self {
            layers: layers(&graph, &model, &survey, &noise, &seen),
            weights: weights_of(&graph, &model),
            calibrated_with: training.len(),
            float: accuracy(&said),
            steps,
            sensitivity,
            swept_float: accuracy(&said[..few.len()]),
            swept: few.len(),
            checked,
            checked_images: few.len(),
            by_bits,
            float_cost,
            integer_cost,
            instructions: engine.level().name(),
            changes: changed.len(),
            tried: now.len(),
            changed: changed.into_iter().take(48).collect(),
            model,
            graph,
            survey,
        })
    }

    /// Accuracy in integers.
    pub fn quantized(&self) -> f64 {
        self.steps.last().map_or(self.float, |(_, accuracy)| *accuracy)
    }
}

fn accuracy(verdicts: &[Verdict]) -> f64 {
    verdicts.iter().filter(|verdict| verdict.is_right()).count() as f64 / verdicts.len() as f64
}

fn layers(graph: &Graph, model: &Quantized, survey: &Survey, noise: &[Option<f64>], seen: &[Seen]) -> Vec<LayerFacts> {
    let mut cuts: Vec<Option<Cut>> = vec![None];
    for (index, node) in graph.nodes.iter().enumerate() {
        let mut readers = graph.nodes.iter().filter(|reader| reader.inputs.contains(&(index + 1))).peekable();
        let before = readers.peek().is_some() && readers.all(|reader| reader.op == Op::Tanh);
        cuts.push(match node.op {
            Op::Tanh => Some(Cut::OfTanh),
            // They keep their input's grid.
            Op::Relu | Op::MaxPool { .. } | Op::AveragePool { .. } => cuts[node.inputs[0]],
            _ => before.then_some(Cut::BeforeTanh),
        });
    }
    let fact = |source: usize| {
        let node = source.checked_sub(1).map(|index| &graph.nodes[index]);
        let grid = model.grid_of(source);
        let [low, high] = grid.range(model.bits);
        // Up to half a step beyond the ends is rounded, not cut off.
        let range = [low - grid.scale / 2.0, high + grid.scale / 2.0];
        LayerFacts {
            name: node.map_or_else(|| "input".to_owned(), |node| node.name.clone()),
            kind: node.map_or("images", |node| node.op.kind()),
            grid,
            clipped: survey.histograms[source].outside(range),
            sqnr_db: noise[source],
            cut: cuts[source],
            seen: seen[source],
        }
    };
    (0..=graph.nodes.len()).map(fact).collect()
}

fn weights_of(graph: &Graph, model: &Quantized) -> Vec<WeightFacts> {
    let mut facts = Vec::new();
    for (node, integers) in graph.nodes.iter().zip(&model.nodes) {
        let Op::Conv { geometry, weights, bias, .. } = &node.op else { continue };
        let IntegerOp::Conv { weights: quantized, scales, bias: integer_bias, .. } = &integers.op else { continue };
        let window = Geometry::window(geometry);
        let rounded: Vec<f32> =
            quantized.iter().enumerate().map(|(at, &weight)| f32::from(weight) * scales[at / window]).collect();
        let most = model.bits.weights() as f32 + 0.5;
        let clipped = weights.iter().enumerate().filter(|(at, weight)| weight.abs() > most * scales[at / window]);
        let clipped = clipped.count() as f64 / weights.len() as f64;
        let mut used = [false; 256];
        quantized.iter().for_each(|&weight| used[(i32::from(weight) + 128) as usize] = true);
        let input = model.grid_of(integers.inputs[0]).scale;
        let mut biases: Vec<_> =
            bias.iter().zip(integer_bias).zip(scales).map(|((&b, &q), &scale)| (b, q, input * scale)).collect();
        biases.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()));
        biases.truncate(4);
        facts.push(WeightFacts {
            name: node.name.clone(),
            histogram: Histogram::of(weights),
            rounded,
            scales: scales.clone(),
            integers: used.iter().filter(|used| **used).count(),
            clipped,
            biases,
        });
    }
    facts
}
