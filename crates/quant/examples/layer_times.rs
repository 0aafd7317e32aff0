//! What each convolution of a quantized model takes on one thread, in microseconds an image, beside its multiplications.
//!
//!     cargo run --release -p ringstep-quant --example layer_times -- quantized.safetensors 64 [LEVEL [LAYER]]

use std::time::Instant;

use ringstep_cpu::{DotLevel, Level};
use ringstep_nn::integer::{FixedPoint, IntegerConv, Recipe, Workspace};
use ringstep_nn::team::Team;
use ringstep_quant::file;
use ringstep_quant::model::IntegerOp;

const ROUNDS: usize = 40;

fn main() {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [path, batch, rest @ ..] = &words[..] else { panic!("layer_times MODEL BATCH [LEVEL [LAYER]]") };
    let batch: usize = batch.parse().expect("a number of images");
    let model = file::load(path.as_ref()).expect("a quantized model");
    let (wanted, layer) = (rest.first(), rest.get(1));
    let levels = DotLevel::available().into_iter().filter(|level| wanted.is_none_or(|name| level.name() == name));
    for level in levels {
        println!("{}, batch {batch}", level.name());
        let mut team = Team::new(1, Level::best());
        for (index, node) in model.nodes.iter().enumerate() {
            let IntegerOp::Conv { geometry, weights, scales, bias, .. } = &node.op else { continue };
            if layer.is_some_and(|layer| *layer != node.name) {
                continue;
            }
            let pool =
                model.nodes.get(index + 1).is_some_and(|next| next.op == IntegerOp::MaxPool { size: 2, stride: 2 });
            let (input, factors) = (model.grid_of(node.inputs[0]), vec![FixedPoint::new(0.001); scales.len()]);
            let recipe = Recipe {
                geometry: *geometry,
                weights,
                bias,
                factors: &factors,
                input_zero: input.zero_point,
                output_zero: node.grid.zero_point,
                limits: [-128, 127],
                pooled: pool && IntegerConv::pools(geometry, batch),
            };
            let conv = IntegerConv::new(recipe, level, batch);
            let images: Vec<u8> = (0..batch * geometry.input.len()).map(|at| (at * 37 % 251) as u8).collect();
            let mut output = vec![0; batch * geometry.output.len() / if recipe.pooled { 4 } else { 1 }];
            let mut workspace = Workspace::new(conv.room(), 1);
            let mut least = f64::MAX;
            for _ in 0..ROUNDS {
                let start = Instant::now();
                conv.forward(&mut team, &images, &mut output, &mut workspace);
                least = least.min(start.elapsed().as_secs_f64());
            }
            let products = (geometry.positions() * geometry.window() * geometry.output.channels) as f64 / 1e6;
            let micros = 1e6 * least / batch as f64;
            println!(
                "  {:12} {:8} {products:7.1} million products {micros:8.1} us {:7.1} products/ns",
                node.name,
                conv.algorithm(),
                products * 1e3 / micros
            );
        }
    }
}
