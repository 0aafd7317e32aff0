//! A quantized model at speed: the operators of [`crate::plain`] on the kernels and threads of `nn`, to the same bit.
//!
//! Activations are bytes without a sign, the specification's integers and 128, as [`ringstep_nn::integer`] has them.

use std::ops::Range;
use std::sync::Arc;

use ringstep_cpu::DotLevel;
use ringstep_nn::integer::{IntegerConv, IntegerSum, Recipe, Room, Workspace};
use ringstep_nn::layers::Shape;
use ringstep_nn::plan::{Need, plan};
use ringstep_nn::team::{Team, Units};

use crate::grid::{Bits, Grid};
use crate::model::{IntegerOp, Quantized};
use crate::plain::Operator;
use crate::reference::{Conv, HEADROOM, Pool, mean};

enum Step {
    /// Part of the step behind it.
    Nothing,
    Conv(Box<IntegerConv>),
    Add(IntegerSum),
    Largest(Pool),
    Average(Mean),
    Table([u8; 256]),
}

/// An average pool: the mean that goes with each sum of bytes is known beforehand.
struct Mean {
    pool: Pool,
    of_sum: Vec<u8>,
}

struct Node {
    step: Step,
    inputs: Vec<usize>,
    shape: Shape,
    /// In the arena, for a whole batch; the first is that of the images.
    place: Range<usize>,
}

/// A quantized model that classifies, for up to `batch` images at once.
pub struct Engine {
    nodes: Arc<Vec<Node>>,
    input: Shape,
    input_grid: Grid,
    output_grid: Grid,
    bits: Bits,
    batch: usize,
    level: DotLevel,
    team: Team,
    images: Vec<u8>,
    arena: Vec<u8>,
    workspace: Workspace,
    logits: Vec<f32>,
}

impl Engine {
    /// With the fastest instructions that go with the team's level.
    pub fn new(model: &Quantized, batch: usize, team: Team) -> Self {
        let level = DotLevel::with(team.level());
        Self::with_instructions(model, batch, team, level)
    }

    /// With these instructions.
    pub fn with_instructions(model: &Quantized, batch: usize, team: Team, level: DotLevel) -> Self {
        Self::build(model, batch, team, level, true)
    }

    /// The same as [`Engine::new`], but with every node a step of its own, for [`Engine::logits_seeing`].
    pub fn to_be_watched(model: &Quantized, batch: usize, team: Team) -> Self {
        let level = DotLevel::with(team.level());
        Self::build(model, batch, team, level, false)
    }

    /// Max pooling may be part of the convolution before it.
    fn build(model: &Quantized, batch: usize, team: Team, level: DotLevel, pools: bool) -> Self {
        let readers = |index: usize| model.nodes.iter().filter(|node| node.inputs.contains(&(index + 1))).count();
        let fused = |index: usize| {
            let node = &model.nodes[index];
            let before = node.inputs[0].checked_sub(1).filter(|&before| pools && readers(before) == 1)?;
            let halves = node.op == IntegerOp::MaxPool { size: 2, stride: 2 };
            match &model.nodes[before].op {
                IntegerOp::Conv { geometry, .. } if halves && IntegerConv::pools(geometry, batch) => Some(before),
                _ => None,
            }
        };
        let fused: Vec<Option<usize>> = (0..model.nodes.len()).map(fused).collect();
        let inputs: Vec<Vec<usize>> = (0..model.nodes.len())
            .map(|index| match (fused[index], fused.contains(&Some(index))) {
                (Some(conv), _) => model.nodes[conv].inputs.clone(),
                (None, true) => Vec::new(),
                (None, false) => model.nodes[index].inputs.clone(),
            })
            .collect();
        // A byte is needed from the step that makes it to the last that reads it; the logits are wanted after the end.
        let needs: Vec<Need> = (0..model.nodes.len())
            .map(|index| {
                let last = inputs.iter().rposition(|inputs| inputs.contains(&(index + 1)));
                let until = last.unwrap_or(model.nodes.len());
                // Neighbours in memory are lines apart.
                let size = (batch * model.nodes[index].shape.len()).next_multiple_of(64);
                let size = if inputs[index].is_empty() { 0 } else { size };
                Need { size, from: index, until }
            })
            .collect();
        let (places, arena) = plan(&needs);
        let nodes: Vec<Node> = model
            .nodes
            .iter()
            .zip(places)
            .zip(&inputs)
            .zip(&fused)
            .map(|(((node, place), inputs), &fused)| {
                let step = match fused {
                    _ if inputs.is_empty() => Step::Nothing,
                    Some(conv) => Step::new(Operator::new(model, &model.nodes[conv]), level, batch, true),
                    None => Step::new(Operator::new(model, node), level, batch, false),
                };
                Node { step, inputs: inputs.clone(), shape: node.shape, place }
            })
            .collect();
        let room = |node: &Node| match &node.step {
            Step::Conv(conv) => conv.room(),
            _ => Room::default(),
        };
        let workspace = Workspace::new(nodes.iter().map(room).fold(Room::default(), Room::and), team.threads());
        Self {
            nodes: Arc::new(nodes),
            input: model.input,
            input_grid: model.input_grid,
            output_grid: model.grid_of(model.nodes.len()),
            bits: model.bits,
            batch,
            level,
            team,
            images: vec![0; batch * model.input.len()],
            arena: vec![0; arena],
            workspace,
            logits: Vec::with_capacity(batch * model.classes()),
        }
    }

    /// The most images it takes at once.
    pub fn batch(&self) -> usize {
        self.batch
    }

    /// The shape of an image.
    pub fn input(&self) -> Shape {
        self.input
    }

    /// How many classes it tells apart.
    pub fn classes(&self) -> usize {
        self.nodes.last().map_or(0, |last| last.shape.len())
    }

    /// The instructions that it multiplies with.
    pub fn level(&self) -> DotLevel {
        self.level
    }

    /// The bytes that its weights and its buffers take.
    pub fn bytes(&self) -> usize {
        let weights = self.nodes.iter().map(|node| match &node.step {
            Step::Conv(conv) => conv.bytes(),
            Step::Table(_) => 256,
            Step::Average(average) => average.of_sum.len(),
            _ => 0,
        });
        weights.sum::<usize>() + self.images.len() + self.arena.len() + self.workspace.size()
    }

    /// What the last operator makes of images, as numbers: only here and where images become integers is there a float.
    pub fn logits(&mut self, images: &[f32]) -> &[f32] {
        self.logits_seeing(images, |_, _| ())
    }

    /// The same, and shows the integers of the images, as source 0, and of what comes out of each node that is a step of its
    /// own, as bytes without a sign.
    pub fn logits_seeing(&mut self, images: &[f32], mut see: impl FnMut(usize, &[u8])) -> &[f32] {
        let count = images.len() / self.input.len();
        let (grid, bits, length) = (self.input_grid, self.bits, self.input.len());
        let mut bytes = std::mem::take(&mut self.images);
        self.team.deal(count, Units::new(&mut bytes, length), |range, bytes| {
            let images = &images[range.start * length..range.end * length];
            for (byte, &number) in bytes.iter_mut().zip(images) {
                *byte = unsigned(grid.quantize(number, bits));
            }
        });
        see(0, &bytes[..count * length]);
        self.run(&bytes[..count * length], see);
        self.images = bytes;
        let Self { nodes, arena, logits, output_grid, .. } = self;
        logits.clear();
        if let Some(last) = nodes.last() {
            let made = &arena[last.place.start..][..count * last.shape.len()];
            logits.extend(made.iter().map(|&byte| output_grid.real(signed(byte))));
        }
        logits
    }

    /// The logits as integers, of images as integers.
    pub fn integer_logits(&mut self, images: &[i8]) -> Vec<i8> {
        let bytes: Vec<u8> = images.iter().map(|&number| unsigned(number)).collect();
        self.run(&bytes, |_, _| ());
        let count = images.len() / self.input.len();
        let last = self.nodes.last().map_or(0..0, |last| last.place.start..last.place.start + count * last.shape.len());
        self.arena[last].iter().map(|&byte| signed(byte)).collect()
    }

    fn run(&mut self, images: &[u8], mut see: impl FnMut(usize, &[u8])) {
        let count = images.len() / self.input.len();
        assert!(count <= self.batch, "{count} images in a model for {}", self.batch);
        if count == 0 {
            return;
        }
        let (nodes, level) = (Arc::clone(&self.nodes), self.level);
        for (index, node) in nodes.iter().enumerate() {
            let place = |source: usize| match source.checked_sub(1) {
                None => 0..0,
                Some(index) => nodes[index].place.start..nodes[index].place.start + count * nodes[index].shape.len(),
            };
            let Some(&first) = node.inputs.first() else { continue };
            let second = node.inputs.get(1).copied();
            // Both may be the same.
            let second_place = second.filter(|&second| second != first).map_or(0..0, place);
            let own = node.place.start..node.place.start + count * node.shape.len();
            let parts = self.arena.get_disjoint_mut([place(first), second_place, own]);
            let [from, other, output] = parts.expect("places do not overlap");
            let from = if first == 0 { images } else { &*from };
            let other = match second {
                Some(0) => images,
                Some(second) if second != first => &*other,
                _ => from,
            };
            match &node.step {
                Step::Nothing => {}
                Step::Conv(conv) => conv.forward(&mut self.team, from, output, &mut self.workspace),
                Step::Add(sum) => self.team.deal(output.len(), Units::new(output, 1), |range, output| {
                    sum.forward(level, &from[range.clone()], &other[range], output);
                }),
                Step::Largest(pool) => {
                    by_image(&mut self.team, pool, from, output, |from, to| largest(pool, from, to));
                }
                Step::Average(average) => {
                    by_image(&mut self.team, &average.pool, from, output, |from, to| average.forward(from, to));
                }
                Step::Table(table) => self.team.deal(output.len(), Units::new(output, 1), |range, output| {
                    for (out, &byte) in output.iter_mut().zip(&from[range]) {
                        *out = table[usize::from(byte)];
                    }
                }),
            }
            see(index + 1, output);
        }
    }
}

fn unsigned(number: i8) -> u8 {
    (number as u8) ^ 0x80
}

/// The specification's integer that a byte stands for.
pub fn signed(byte: u8) -> i8 {
    (byte ^ 0x80) as i8
}

impl Step {
    fn new(operator: Operator, level: DotLevel, batch: usize, pooled: bool) -> Self {
        match operator {
            Operator::Conv(Conv { geometry, weights, bias, input_zero, requantize }) => {
                let recipe = Recipe {
                    geometry,
                    weights: &weights,
                    bias: &bias,
                    factors: &requantize.factors,
                    input_zero,
                    output_zero: requantize.zero_point,
                    limits: requantize.limits,
                    pooled,
                };
                Self::Conv(Box::new(IntegerConv::new(recipe, level, batch)))
            }
            Operator::Add(add) => Self::Add(IntegerSum {
                input_zeros: add.zero_points,
                inputs: add.inputs,
                headroom: HEADROOM,
                output: add.output,
                output_zero: add.zero_point,
                limits: add.limits,
            }),
            Operator::Largest(pool) => Self::Largest(pool),
            Operator::Average(pool) => Self::Average(Mean::new(pool)),
            Operator::Table(table) => {
                let entry = |byte: usize| unsigned(table[byte]);
                Self::Table(std::array::from_fn(entry))
            }
        }
    }
}

fn by_image(team: &mut Team, pool: &Pool, input: &[u8], output: &mut [u8], work: impl Fn(&[u8], &mut [u8]) + Sync) {
    let (from, to) = (pool.input.len(), pool.output.len());
    team.deal(output.len() / to, Units::new(output, to), |range, output| {
        for (image, output) in range.zip(output.chunks_exact_mut(to)) {
            work(&input[image * from..][..from], output);
        }
    });
}

/// Shows the pixels of each window: what comes in for each pixel that goes out, and whether it is the first.
#[inline(always)]
fn windows(pool: &Pool, image: &[u8], output: usize, mut see: impl FnMut(usize, &[u8], bool)) {
    let Pool { input: from, size, stride, .. } = *pool;
    let (y, x) = (output / pool.output.width * stride[0], output % pool.output.width * stride[1]);
    for row in y..y + size[0] {
        for column in x..x + size[1] {
            let place = (row * from.width + column) * from.channels;
            see(output, &image[place..place + from.channels], (row, column) == (y, x));
        }
    }
}

fn largest(pool: &Pool, image: &[u8], output: &mut [u8]) {
    let channels = pool.output.channels;
    for index in 0..output.len() / channels {
        windows(pool, image, index, |index, pixel, first| {
            let most = &mut output[index * channels..][..channels];
            if first {
                most.copy_from_slice(pixel);
            } else {
                most.iter_mut().zip(pixel).for_each(|(most, &byte)| *most = byte.max(*most));
            }
        });
    }
}

impl Mean {
    fn new(pool: Pool) -> Self {
        let count = (pool.size[0] * pool.size[1]) as i32;
        let of_sum = (0..=255 * count).map(|sum| unsigned(mean(sum - 128 * count, count))).collect();
        Self { pool, of_sum }
    }

    fn forward(&self, image: &[u8], output: &mut [u8]) {
        let channels = self.pool.output.channels;
        let mut sums = vec![0u32; channels];
        for (index, out) in output.chunks_exact_mut(channels).enumerate() {
            sums.fill(0);
            windows(&self.pool, image, index, |_, pixel, _| {
                sums.iter_mut().zip(pixel).for_each(|(sum, &byte)| *sum += u32::from(byte));
            });
            out.iter_mut().zip(&sums).for_each(|(out, &sum)| *out = self.of_sum[sum as usize]);
        }
    }
}
