//! Quantized models as safetensors files: a layer's integers and scales as tensors, in TFLite's layout, and what surrounds them
//! as JSON in the file's metadata. The file says all there is to say: it needs no network beside it.

use std::collections::HashMap;
use std::path::Path;

use ringstep_nn::layers::{Geometry, Shape};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde::{Deserialize, Serialize};

use crate::error::QuantError;
use crate::grid::{Bits, Grid};
use crate::model::{IntegerNode, IntegerOp, Quantized};

/// Where the metadata has it.
const KEY: &str = "ringstep-quantized";

/// A model but for its tensors.
#[derive(Serialize, Deserialize)]
struct Outline {
    input: [usize; 3],
    input_grid: Grid,
    bits: u32,
    nodes: Vec<NodeOutline>,
}

#[derive(Serialize, Deserialize)]
struct NodeOutline {
    name: String,
    inputs: Vec<usize>,
    shape: [usize; 3],
    grid: Grid,
    #[serde(flatten)]
    op: OpOutline,
}

#[derive(Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "kebab-case")]
enum OpOutline {
    Conv { kernel: [usize; 2], stride: [usize; 2], padding: [usize; 2], rectified: bool },
    Relu,
    Tanh,
    Add { rectified: bool },
    MaxPool { size: usize, stride: usize },
    AveragePool { size: [usize; 2] },
}

fn sizes(shape: Shape) -> [usize; 3] {
    [shape.height, shape.width, shape.channels]
}

/// The bytes of a file with this model. They depend on nothing but the model.
pub fn to_bytes(model: &Quantized) -> Vec<u8> {
    let mut tensors: Vec<(String, Dtype, Vec<usize>, Vec<u8>)> = Vec::new();
    let mut nodes = Vec::new();
    for node in &model.nodes {
        let op = match &node.op {
            IntegerOp::Conv { geometry, weights, scales, bias, rectified } => {
                let &Geometry { input, output, kernel, stride, padding } = geometry;
                let shape = vec![output.channels, kernel[0], kernel[1], input.channels];
                let name = |tensor: &str| format!("{}.{tensor}", node.name);
                let integers = weights.iter().map(|&weight| weight as u8).collect();
                tensors.push((name("weight"), Dtype::I8, shape, integers));
                let bytes = scales.iter().flat_map(|scale| scale.to_le_bytes()).collect();
                tensors.push((name("weight_scale"), Dtype::F32, vec![output.channels], bytes));
                let bytes = bias.iter().flat_map(|bias| bias.to_le_bytes()).collect();
                tensors.push((name("bias"), Dtype::I32, vec![output.channels], bytes));
                OpOutline::Conv { kernel, stride, padding, rectified: *rectified }
            }
            IntegerOp::Relu => OpOutline::Relu,
            IntegerOp::Tanh => OpOutline::Tanh,
            &IntegerOp::Add { rectified } => OpOutline::Add { rectified },
            &IntegerOp::MaxPool { size, stride } => OpOutline::MaxPool { size, stride },
            &IntegerOp::AveragePool { size } => OpOutline::AveragePool { size },
        };
        let (name, inputs, shape) = (node.name.clone(), node.inputs.clone(), sizes(node.shape));
        nodes.push(NodeOutline { name, inputs, shape, grid: node.grid, op });
    }
    let outline = Outline { input: sizes(model.input), input_grid: model.input_grid, bits: model.bits.count(), nodes };
    let outline = serde_json::to_string(&outline).expect("an outline can be written");
    let views = tensors.iter().map(|(name, dtype, shape, bytes)| {
        (name.as_str(), TensorView::new(*dtype, shape.clone(), bytes).expect("as many bytes as the shape says"))
    });
    safetensors::serialize(views, Some(HashMap::from([(KEY.to_owned(), outline)]))).expect("names and sizes are valid")
}

/// Whether a file is a safetensors file that says that it holds a quantized model.
pub fn is_quantized(bytes: &[u8]) -> bool {
    outline(bytes).is_some()
}

fn outline(bytes: &[u8]) -> Option<String> {
    let (_, metadata) = SafeTensors::read_metadata(bytes).ok()?;
    metadata.metadata().as_ref()?.get(KEY).cloned()
}

/// Reads a file.
pub fn load(path: &Path) -> Result<Quantized, QuantError> {
    let bytes = std::fs::read(path).map_err(|error| QuantError::Io { path: path.to_owned(), error })?;
    from_bytes(&bytes).map_err(|problem| QuantError::Malformed { path: path.to_owned(), problem })
}

/// The model of a file's bytes, or what is wrong with them.
pub fn from_bytes(bytes: &[u8]) -> Result<Quantized, String> {
    let file = SafeTensors::deserialize(bytes).map_err(|error| error.to_string())?;
    let text = outline(bytes).ok_or("it has no scales")?;
    let outline: Outline = serde_json::from_str(&text).map_err(|error| error.to_string())?;
    let shape = |[height, width, channels]: [usize; 3]| -> Result<Shape, String> {
        let count = height.checked_mul(width).and_then(|pixels| pixels.checked_mul(channels));
        match count {
            Some(1..=0x7fff_ffff) => Ok(Shape::new(height, width, channels)),
            _ => Err(format!("no image is {height}x{width}x{channels}")),
        }
    };
    let bits = Bits::new(outline.bits).ok_or_else(|| format!("{} bits", outline.bits))?;
    let input = shape(outline.input)?;
    let mut model = Quantized { input, input_grid: checked(outline.input_grid, bits)?, bits, nodes: Vec::new() };
    for node in outline.nodes {
        let NodeOutline { name, inputs, grid, op, .. } = node;
        let out = shape(node.shape)?;
        let wanted = if matches!(op, OpOutline::Add { .. }) { 2 } else { 1 };
        if inputs.len() != wanted || inputs.iter().any(|&source| source > model.nodes.len()) {
            return Err(format!("layer {name} reads what is not there"));
        }
        let from = model.shape_of(inputs[0]);
        let fits = |fits: bool| if fits { Ok(()) } else { Err(format!("layer {name}: its sizes do not fit")) };
        let same_grid = grid == model.grid_of(inputs[0]);
        let op = match op {
            OpOutline::Conv { kernel, stride, padding, rectified } => {
                fits(!stride.contains(&0) && !kernel.contains(&0))?;
                let geometry = Geometry::new(from, out.channels, kernel, stride, padding);
                let geometry = geometry.filter(|geometry| geometry.output == out);
                fits(geometry.is_some())?;
                let geometry = geometry.expect("it fits");
                let tensor = |tensor: &str, dtype: Dtype, shape: &[usize]| {
                    let view = file.tensor(&format!("{name}.{tensor}")).map_err(|error| error.to_string())?;
                    match view.dtype() == dtype && view.shape() == shape {
                        true => Ok(view.data()),
                        false => Err(format!("{name}.{tensor} is {:?} of {:?}", view.dtype(), view.shape())),
                    }
                };
                let filters = [out.channels];
                let weights = tensor("weight", Dtype::I8, &[out.channels, kernel[0], kernel[1], from.channels])?;
                let scales = tensor("weight_scale", Dtype::F32, &filters)?.as_chunks::<4>().0;
                let bias = tensor("bias", Dtype::I32, &filters)?.as_chunks::<4>().0;
                let scales: Vec<f32> = scales.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
                if scales.iter().any(|scale| !(scale.is_finite() && *scale > 0.0)) {
                    return Err(format!("layer {name}: a scale is no positive number"));
                }
                IntegerOp::Conv {
                    geometry,
                    weights: weights.iter().map(|&weight| weight as i8).collect(),
                    scales,
                    bias: bias.iter().map(|&bytes| i32::from_le_bytes(bytes)).collect(),
                    rectified,
                }
            }
            OpOutline::Relu => {
                fits(out == from && same_grid)?;
                IntegerOp::Relu
            }
            OpOutline::Tanh => {
                fits(out == from)?;
                IntegerOp::Tanh
            }
            OpOutline::Add { rectified } => {
                fits(out == from && model.shape_of(inputs[1]) == from)?;
                IntegerOp::Add { rectified }
            }
            OpOutline::MaxPool { size, stride } => {
                fits(size > 0 && stride > 0 && size <= from.height.min(from.width) && same_grid)?;
                let reach = |length: usize| (length - size) / stride + 1;
                fits(out == Shape::new(reach(from.height), reach(from.width), from.channels))?;
                IntegerOp::MaxPool { size, stride }
            }
            OpOutline::AveragePool { size } => {
                fits(!size.contains(&0) && same_grid)?;
                fits(out == Shape::new(from.height / size[0], from.width / size[1], from.channels))?;
                IntegerOp::AveragePool { size }
            }
        };
        let grid = checked(grid, bits)?;
        model.nodes.push(IntegerNode { name, op, inputs, shape: out, grid });
    }
    if model.nodes.is_empty() {
        return Err("it has no layers".to_owned());
    }
    Ok(model)
}

fn checked(grid: Grid, bits: Bits) -> Result<Grid, String> {
    let [least, most] = bits.activations();
    let sound = grid.scale.is_finite() && grid.scale > 0.0 && (least..=most).contains(&grid.zero_point);
    if sound { Ok(grid) } else { Err(format!("a scale of {} with zero point {}", grid.scale, grid.zero_point)) }
}
