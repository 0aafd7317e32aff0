//! A frozen convolution against the layers that it stands for.

use ringstep_cpu::Level;

use super::super::super::check::noise;
use super::super::super::{Shape, check};
use super::super::{Conv2d, Layer};
use super::*;

/// A convolution as it is trained, then everything that may follow it, one after the other.
#[test]
fn it_is_what_the_layers_do_one_after_the_other() {
    // Height, width, channels, filters, kernel, stride, padding, images.
    let cases: [[usize; 8]; 9] = [
        [8, 8, 16, 32, 3, 1, 1, 4],
        [7, 9, 16, 16, 3, 1, 1, 3],
        [4, 4, 32, 20, 3, 1, 1, 1],
        [9, 8, 3, 10, 3, 1, 1, 3],
        [12, 12, 1, 6, 5, 1, 0, 1],
        [8, 8, 17, 33, 3, 2, 1, 3],
        [2, 2, 16, 48, 3, 1, 1, 9],
        [5, 5, 4, 12, 5, 1, 0, 5],
        [6, 6, 20, 7, 1, 1, 0, 2],
    ];
    for [height, width, channels, filters, kernel, stride, padding, images] in cases {
        let input = Shape::new(height, width, channels);
        let geometry = Geometry::new(input, filters, [kernel; 2], [stride; 2], [padding; 2]).unwrap();
        let mut layer = Conv2d::new(geometry, true);
        let mut bench = check::Bench::new(&mut layer, input, images, 1);
        let sums = bench.forward(images);
        let (weights, bias) = bench.parameters.split_at(filters * geometry.window());
        let to = layer.output();
        let residual = noise(images * to.len(), 9);
        for (level, threads) in Level::available().into_iter().flat_map(|level| [(level, 1), (level, 3)]) {
            for (activation, adds, pool) in [
                (Activation::None, false, false),
                (Activation::Relu, true, false),
                (Activation::Tanh, false, true),
                (Activation::Relu, true, true),
            ] {
                let pool = pool && to.height.min(to.width) > 1;
                let mut frozen = FrozenConv::new(geometry, weights.to_vec(), bias.to_vec());
                (frozen.activation, frozen.pool) = (activation, pool);
                let mut team = Team::new(threads, level);
                let mut workspace = vec![f32::NAN; frozen.workspace(images, threads)];
                let [tall, wide] = frozen.output_size();
                let mut output = vec![f32::NAN; images * tall * wide * filters];
                frozen.forward(Pass {
                    team: &mut team,
                    input: &bench_input(images, input),
                    residual: adds.then_some(&residual[..]),
                    output: &mut output,
                    workspace: &mut workspace,
                });
                let value = |image: usize, y: usize, x: usize, filter: usize| {
                    let at = ((image * to.height + y) * to.width + x) * filters + filter;
                    let sum = sums[at] + if adds { residual[at] } else { 0.0 };
                    match activation {
                        Activation::None => sum,
                        Activation::Relu => sum.max(0.0),
                        Activation::Tanh => sum.tanh(),
                    }
                };
                for (at, &found) in output.iter().enumerate() {
                    let (pixel, filter) = (at / filters, at % filters);
                    let (image, y, x) = (pixel / (tall * wide), pixel / wide % tall, pixel % wide);
                    let side = if pool { 2 } else { 1 };
                    let squares =
                        (0..side * side).map(|of| value(image, y * side + of / side, x * side + of % side, filter));
                    let expected = squares.fold(f32::NEG_INFINITY, f32::max);
                    assert!(
                        (found - expected).abs() < 2e-4,
                        "{level}, {geometry:?}, {activation:?}: {found} is not {expected}"
                    );
                }
            }
        }
    }
}

/// What [`check::Bench`] has for input.
fn bench_input(images: usize, shape: Shape) -> Vec<f32> {
    noise(images * shape.len(), 2)
}
