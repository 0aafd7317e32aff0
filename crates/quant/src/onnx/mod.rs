//! Models as ONNX files, for other runtimes: floats, or integers in QDQ form.
//!
//! Images are N,C,H,W there. A linear layer is a convolution with filters as large as its input, as it is here. In QDQ form each
//! activation goes through QuantizeLinear and DequantizeLinear with its grid, and weights and biases are integers behind a
//! DequantizeLinear: a runtime that knows the pattern computes in integers, another in floats on the same grids.

mod proto;

use prost::Message;
use ringstep_nn::layers::{Geometry, Shape};

use self::proto::{
    Attribute, Dimension, Entry, FLOAT, INT, INT8, INT32, INTS, Model, Node, OperatorSet, Tensor, TensorShape,
    TensorType, Type, ValueInfo,
};
use crate::graph::{Graph, Op};
use crate::grid::{Bits, Grid};
use crate::model::{IntegerOp, Quantized};

/// The version of the operators: the first that has a scale for each filter.
const OPERATORS: i64 = 13;
/// The version of the format that came with it, or soon after.
const FORMAT: i64 = 8;

/// What a file says of itself beside the model: for each channel the mean and the deviation that pixels from 0 to 1 are
/// normalised by.
pub type Normalisation<'a> = &'a [(f32, f32)];

/// The model in floats.
pub fn float(graph: &Graph, normalisation: Normalisation<'_>) -> Vec<u8> {
    Writer { graph, integers: None, made: proto::Graph::default() }.write(normalisation)
}

/// The model in integers.
pub fn quantized(graph: &Graph, model: &Quantized, normalisation: Normalisation<'_>) -> Vec<u8> {
    Writer { graph, integers: Some(model), made: proto::Graph::default() }.write(normalisation)
}

struct Writer<'a> {
    graph: &'a Graph,
    integers: Option<&'a Quantized>,
    made: proto::Graph,
}

impl Writer<'_> {
    fn write(mut self, normalisation: Normalisation<'_>) -> Vec<u8> {
        let Shape { height, width, channels } = self.graph.input;
        let classes = self.graph.nodes.last().map_or(0, |last| last.shape.len());
        self.made.name = Some("ringstep".into());
        self.made.input = vec![value("images", &[channels, height, width])];
        self.made.output = vec![value("logits", &[classes])];
        let mut sources = vec![self.on_grid("images".into(), 0)];
        for (index, node) in self.graph.nodes.iter().enumerate() {
            // Names of layers are unique, and no layer is called as what surrounds it is.
            let name = format!("{index}.{}", node.name);
            let mut inputs: Vec<String> = node.inputs.iter().map(|&source| sources[source].clone()).collect();
            let (operator, attributes, rectified) = match &node.op {
                Op::Conv { geometry, rectified, .. } => {
                    inputs.extend(self.filters(index, &name, geometry));
                    let &Geometry { kernel, stride, padding, .. } = geometry;
                    let pads = [padding, padding].concat();
                    let sizes =
                        [integers("kernel_shape", &kernel), integers("strides", &stride), integers("pads", &pads)];
                    ("Conv", sizes.to_vec(), *rectified)
                }
                Op::Relu => ("Relu", Vec::new(), false),
                Op::Tanh => ("Tanh", Vec::new(), false),
                Op::Add { rectified } => ("Add", Vec::new(), *rectified),
                Op::MaxPool { size, stride } => {
                    let sizes = [integers("kernel_shape", &[*size; 2]), integers("strides", &[*stride; 2])];
                    ("MaxPool", sizes.to_vec(), false)
                }
                Op::AveragePool { size } => {
                    ("AveragePool", vec![integers("kernel_shape", size), integers("strides", size)], false)
                }
            };
            let mut output = self.node(operator, &name, inputs, attributes);
            if rectified {
                output = self.node("Relu", &format!("{name}.relu"), vec![output], Vec::new());
            }
            sources.push(self.on_grid(output, index + 1));
        }
        let last = sources.pop().expect("images at least");
        self.made.node.push(Node {
            input: vec![last],
            output: vec!["logits".into()],
            name: Some("logits".into()),
            op_type: Some("Flatten".into()),
            attribute: vec![Attribute {
                name: Some("axis".into()),
                i: Some(1),
                r#type: Some(INT),
                ..Attribute::default()
            }],
        });
        let list = |which: fn(&(f32, f32)) -> f32| {
            normalisation.iter().map(|pair| which(pair).to_string()).collect::<Vec<_>>().join(",")
        };
        let entry = |key: &str, value: String| Entry { key: Some(key.into()), value: Some(value) };
        let model = Model {
            ir_version: Some(FORMAT),
            producer_name: Some("ringstep".into()),
            producer_version: Some(env!("CARGO_PKG_VERSION").into()),
            graph: Some(self.made),
            opset_import: vec![OperatorSet { domain: Some(String::new()), version: Some(OPERATORS) }],
            metadata_props: vec![entry("mean", list(|pair| pair.0)), entry("std", list(|pair| pair.1))],
        };
        model.encode_to_vec()
    }

    fn node(&mut self, operator: &str, name: &str, input: Vec<String>, attribute: Vec<Attribute>) -> String {
        let (output, name) = (vec![name.to_owned()], Some(name.to_owned()));
        let op_type = Some(operator.to_owned());
        let made = output[0].clone();
        self.made.node.push(Node { input, output, name, op_type, attribute });
        made
    }

    fn constant(&mut self, name: String, kind: i32, sizes: &[usize], bytes: Vec<u8>) -> String {
        let dims = sizes.iter().map(|&size| size as i64).collect();
        let tensor = Tensor { dims, data_type: Some(kind), name: Some(name.clone()), raw_data: Some(bytes) };
        self.made.initializer.push(tensor);
        name
    }

    /// A value through integers and back, if there are any.
    fn on_grid(&mut self, value: String, source: usize) -> String {
        let Some(model) = self.integers else { return value };
        let Grid { scale, zero_point } = model.grid_of(source);
        let mut value = value;
        if model.bits != Bits::EIGHT {
            // The operator knows no fewer bits.
            let [low, high] = model.grid_of(source).range(model.bits);
            let ends = [("low", low), ("high", high)]
                .map(|(end, number)| self.constant(format!("{value}.{end}"), FLOAT, &[], number.to_le_bytes().into()));
            let inputs = [value.clone()].into_iter().chain(ends).collect();
            value = self.node("Clip", &format!("{value}.clip"), inputs, Vec::new());
        }
        let scale = self.constant(format!("{value}.scale"), FLOAT, &[], scale.to_le_bytes().into());
        let zero = self.constant(format!("{value}.zero_point"), INT8, &[], vec![zero_point as i8 as u8]);
        let inputs = vec![value.clone(), scale.clone(), zero.clone()];
        let integers = self.node("QuantizeLinear", &format!("{value}.quantized"), inputs, Vec::new());
        let inputs = vec![integers, scale, zero];
        self.node("DequantizeLinear", &format!("{value}.dequantized"), inputs, Vec::new())
    }

    /// A convolution's filters and biases. // O,C,KH,KW and O
    fn filters(&mut self, index: usize, name: &str, geometry: &Geometry) -> [String; 2] {
        let (channels, filters) = (geometry.input.channels, geometry.output.channels);
        let sizes = [filters, channels, geometry.kernel[0], geometry.kernel[1]];
        let [weight, bias] = ["weight", "bias"].map(|what| format!("{name}.{what}"));
        let integers = self.integers.map(|model| (&model.nodes[index].op, model.grid_of(model.nodes[index].inputs[0])));
        match (&self.graph.nodes[index].op, integers) {
            (_, Some((IntegerOp::Conv { weights, scales, bias: biases, .. }, input))) => {
                let weights: Vec<u8> =
                    channels_first(weights, channels, geometry.window()).iter().map(|&weight| weight as u8).collect();
                let of_bias: Vec<f32> = scales.iter().map(|scale| input.scale * scale).collect();
                let biases = biases.iter().flat_map(|bias| bias.to_le_bytes()).collect();
                let weights = self.constant(format!("{weight}.integers"), INT8, &sizes, weights);
                let biases = self.constant(format!("{bias}.integers"), INT32, &[filters], biases);
                [self.dequantize(&weight, weights, INT8, scales), self.dequantize(&bias, biases, INT32, &of_bias)]
            }
            (Op::Conv { weights, bias: biases, .. }, _) => {
                let weights = channels_first(weights, channels, geometry.window());
                [
                    self.constant(weight, FLOAT, &sizes, floats(&weights)),
                    self.constant(bias, FLOAT, &[filters], floats(biases)),
                ]
            }
            _ => unreachable!("only convolutions have filters"),
        }
    }

    fn dequantize(&mut self, name: &str, integers: String, kind: i32, scales: &[f32]) -> String {
        let width = if kind == INT8 { 1 } else { 4 };
        let scale = self.constant(format!("{name}.scale"), FLOAT, &[scales.len()], floats(scales));
        let zeros = vec![0; scales.len() * width];
        let zero = self.constant(format!("{name}.zero_point"), kind, &[scales.len()], zeros);
        let axis = Attribute { name: Some("axis".into()), i: Some(0), r#type: Some(INT), ..Attribute::default() };
        self.node("DequantizeLinear", name, vec![integers, scale, zero], vec![axis])
    }
}

fn floats(numbers: &[f32]) -> Vec<u8> {
    numbers.iter().flat_map(|number| number.to_le_bytes()).collect()
}

/// From channels last to channels first, filter by filter. // O,KH,KW,C to O,C,KH,KW
fn channels_first<T: Copy>(weights: &[T], channels: usize, window: usize) -> Vec<T> {
    let filter = |filter: &[T]| -> Vec<T> {
        (0..channels).flat_map(|channel| filter[channel..].iter().step_by(channels).copied()).collect()
    };
    weights.chunks_exact(window).flat_map(filter).collect()
}

fn integers(name: &str, numbers: &[usize]) -> Attribute {
    let ints = numbers.iter().map(|&number| number as i64).collect();
    Attribute { name: Some(name.into()), ints, r#type: Some(INTS), i: None }
}

/// A tensor of floats: as many as there are images, of these sizes.
fn value(name: &str, sizes: &[usize]) -> ValueInfo {
    let images = Dimension { dim_value: None, dim_param: Some("N".into()) };
    let others = sizes.iter().map(|&size| Dimension { dim_value: Some(size as i64), dim_param: None });
    let shape = TensorShape { dim: [images].into_iter().chain(others).collect() };
    let tensor_type = Some(TensorType { elem_type: Some(FLOAT), shape: Some(shape) });
    ValueInfo { name: Some(name.into()), r#type: Some(Type { tensor_type }) }
}
