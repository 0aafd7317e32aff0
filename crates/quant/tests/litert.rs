//! The reference against LiteRT's, to the bit: `reference/make.py` has made `reference/litert.json`.

use ringstep_nn::layers::{Geometry, Shape};
use ringstep_quant::grid::{Bits, Grid};
use ringstep_quant::reference::{Add, Conv, Pool, Requantize, look_up, table};
use serde::Deserialize;

#[derive(Deserialize)]
struct Cases {
    conv: Vec<ConvCase>,
    linear: Vec<ConvCase>,
    add: Vec<AddCase>,
    average_pool: Vec<PoolCase>,
    max_pool: Vec<PoolCase>,
    tanh: Vec<TanhCase>,
}

#[derive(Deserialize)]
struct ConvCase {
    shape: [usize; 3],
    filters: usize,
    kernel: [usize; 2],
    stride: [usize; 2],
    padding: [usize; 2],
    relu: bool,
    input_grid: Grid,
    weight_scales: Vec<f32>,
    output_grid: Grid,
    input: Vec<i8>,
    weights: Vec<i8>,
    bias: Vec<i32>,
    output: Vec<i8>,
}

#[derive(Deserialize)]
struct AddCase {
    grids: [Grid; 3],
    relu: bool,
    left: Vec<i8>,
    right: Vec<i8>,
    output: Vec<i8>,
}

#[derive(Deserialize)]
struct PoolCase {
    shape: [usize; 3],
    size: [usize; 2],
    stride: [usize; 2],
    input: Vec<i8>,
    output: Vec<i8>,
}

#[derive(Deserialize)]
struct TanhCase {
    grid: Grid,
    output: Vec<i8>,
}

fn cases() -> Cases {
    serde_json::from_str(include_str!("reference/litert.json")).unwrap()
}

fn shape([height, width, channels]: [usize; 3]) -> Shape {
    Shape::new(height, width, channels)
}

#[test]
fn convolutions_and_linear_layers_are_litert_s() {
    let Cases { conv, linear, .. } = cases();
    for (index, case) in conv.into_iter().chain(linear).enumerate() {
        let ConvCase { input_grid, output_grid, .. } = case;
        let geometry = Geometry::new(shape(case.shape), case.filters, case.kernel, case.stride, case.padding).unwrap();
        let requantize = Requantize::new(input_grid, &case.weight_scales, output_grid, case.relu, Bits::EIGHT);
        let input_zero = input_grid.zero_point;
        let conv = Conv { geometry, weights: case.weights, bias: case.bias, input_zero, requantize };
        let mut output = vec![0; case.output.len()];
        conv.forward(&case.input, &mut output);
        assert_eq!(output, case.output, "case {index}");
    }
}

#[test]
fn sums_are_litert_s() {
    for case in cases().add {
        let [left, right, output] = case.grids;
        let add = Add::new([left, right], output, case.relu, Bits::EIGHT);
        let mut sums = vec![0; case.output.len()];
        add.forward(&case.left, &case.right, &mut sums);
        assert_eq!(sums, case.output);
    }
}

#[test]
fn pools_are_litert_s() {
    let Cases { average_pool, max_pool, .. } = cases();
    let pool = |case: &PoolCase| {
        let input = shape(case.shape);
        let reach = |length: usize, axis: usize| (length - case.size[axis]) / case.stride[axis] + 1;
        let output = Shape::new(reach(input.height, 0), reach(input.width, 1), input.channels);
        Pool { input, output, size: case.size, stride: case.stride }
    };
    for case in average_pool {
        let mut means = vec![0; case.output.len()];
        pool(&case).average(&case.input, &mut means);
        assert_eq!(means, case.output);
    }
    for case in max_pool {
        let mut largest = vec![0; case.output.len()];
        pool(&case).largest(&case.input, &mut largest);
        assert_eq!(largest, case.output);
    }
}

#[test]
fn tangents_are_litert_s() {
    let every: Vec<i8> = (i8::MIN..=i8::MAX).collect();
    for case in cases().tanh {
        let tanh = table(case.grid, Grid { scale: 1.0 / 128.0, zero_point: 0 }, Bits::EIGHT, f32::tanh);
        let mut output = vec![0; 256];
        look_up(&tanh, &every, &mut output);
        assert_eq!(output, case.output);
    }
}
