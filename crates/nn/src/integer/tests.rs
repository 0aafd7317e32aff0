//! Both algorithms, on every level, against a convolution in plain integers.

use ringstep_cpu::{DotLevel, Level};

use super::direct::Direct;
use super::winograd::Winograd;
use super::workspace::Workspace;
use super::{FixedPoint, IntegerConv, Recipe};
use crate::layers::{Geometry, Shape};
use crate::team::Team;

/// Numbers that look random.
fn noise(count: usize, seed: u32) -> impl Iterator<Item = u32> {
    let hash = move |at: u32| (at ^ seed.wrapping_mul(0x9e37_79b9)).wrapping_mul(2_654_435_761) >> 7;
    (0..count as u32).map(move |at| hash(hash(at)))
}

fn plain(recipe: &Recipe<'_>, images: &[u8]) -> Vec<u8> {
    let Recipe { geometry, weights, bias, factors, .. } = *recipe;
    let Geometry { input, output, kernel, stride, padding } = geometry;
    let zero = recipe.input_zero + 128;
    let byte = |image: &[u8], y: usize, x: usize, filter: usize| {
        let mut sum = bias[filter];
        for tap in 0..geometry.window() {
            let (pixel, channel) = (tap / input.channels, tap % input.channels);
            let row = (y * stride[0] + pixel / kernel[1]).checked_sub(padding[0]).filter(|&row| row < input.height);
            let column =
                (x * stride[1] + pixel % kernel[1]).checked_sub(padding[1]).filter(|&column| column < input.width);
            if let (Some(row), Some(column)) = (row, column) {
                let number = image[(row * input.width + column) * input.channels + channel];
                sum += (i32::from(number) - zero) * i32::from(weights[filter * geometry.window() + tap]);
            }
        }
        let number = factors[filter].times(sum).saturating_add(recipe.output_zero);
        (number.clamp(recipe.limits[0], recipe.limits[1]) + 128) as u8
    };
    let side = if recipe.pooled { 2 } else { 1 };
    let mut made = Vec::new();
    for image in images.chunks_exact(input.len()) {
        for (y, x) in (0..output.height / side).flat_map(|y| (0..output.width / side).map(move |x| (y, x))) {
            for filter in 0..output.channels {
                let squares = (0..side).flat_map(|down| (0..side).map(move |across| (down, across)));
                let bytes = squares.map(|(down, across)| byte(image, y * side + down, x * side + across, filter));
                made.push(bytes.max().unwrap());
            }
        }
    }
    made
}

/// A geometry, whether it is pooled, and what stands for zero.
fn cases() -> Vec<(Geometry, bool, i32)> {
    let geometry = |size: [usize; 3], filters, kernel: usize, stride: usize, padding: usize| {
        let [height, width, channels] = size;
        let shape = Shape::new(height, width, channels);
        Geometry::new(shape, filters, [kernel; 2], [stride; 2], [padding; 2]).unwrap()
    };
    vec![
        // For Winograd's algorithm too: whole tiles, and parts of them.
        (geometry([8, 8, 32], 40, 3, 1, 1), true, -128),
        (geometry([7, 5, 64], 33, 3, 1, 1), false, 17),
        (geometry([5, 6, 32], 7, 3, 1, 0), true, -3),
        (geometry([4, 4, 32], 16, 3, 1, 2), false, 127),
        // For windows alone.
        (geometry([2, 2, 8], 35, 3, 1, 1), true, -128),
        (geometry([3, 4, 4], 5, 5, 2, 2), false, 100),
        (geometry([6, 6, 3], 9, 3, 1, 1), true, -20),
        (geometry([5, 5, 12], 3, 1, 2, 1), false, 5),
        (geometry([1, 1, 37], 10, 1, 1, 0), false, -128),
    ]
}

#[test]
fn both_algorithms_equal_plain_integers_on_every_level() {
    const IMAGES: usize = 13;
    let mut by_winograd = 0;
    for (index, (geometry, pooled, input_zero)) in cases().into_iter().enumerate() {
        let (filters, window) = (geometry.output.channels, geometry.window());
        let weights: Vec<i8> = noise(filters * window, 1).map(|number| (number % 255) as i8).collect();
        let weights: Vec<i8> = weights.into_iter().map(|weight| weight.max(-127)).collect();
        let bias: Vec<i32> = noise(filters, 2).map(|number| (number % 20_000) as i32 - 10_000).collect();
        let factor = |number: u32| FixedPoint::new(f64::from(number % 1000 + 1) / 1e6 / (window as f64).sqrt() * 3.0);
        let factors: Vec<FixedPoint> = noise(filters, 3).map(factor).collect();
        let images: Vec<u8> = noise(IMAGES * geometry.input.len(), 4).map(|number| number as u8).collect();
        let limits = if index % 2 == 0 { [-30, 127] } else { [-128, 127] };
        let recipe = Recipe {
            geometry,
            weights: &weights,
            bias: &bias,
            factors: &factors,
            input_zero,
            output_zero: -30,
            limits,
            pooled,
        };
        let expected = plain(&recipe, &images);
        assert!(expected.iter().any(|byte| *byte != expected[0]), "bytes that differ");
        for level in DotLevel::available() {
            for (threads, images) in [(1, IMAGES), (2, IMAGES), (3, 2), (2, 1)]
                .map(|(threads, count)| (threads, &images[..count * geometry.input.len()]))
            {
                let expected = &expected[..expected.len() / IMAGES * (images.len() / geometry.input.len())];
                let mut team = Team::new(threads, Level::best());
                let mut output = vec![0; expected.len()];
                let name = format!("case {index}, {}, {threads} threads, {} bytes", level.name(), images.len());
                let direct = Direct::new(recipe, level);
                direct.forward(&mut team, images, &mut output, &mut Workspace::new(direct.room(), threads));
                assert_eq!(output, expected, "direct, {name}");
                if let Some(winograd) = Winograd::new(recipe, level) {
                    output.fill(0);
                    winograd.forward(&mut team, images, &mut output, &mut Workspace::new(winograd.room(), threads));
                    assert_eq!(output, expected, "Winograd's, {name}");
                    by_winograd += 1;
                }
            }
        }
    }
    assert!(by_winograd >= 4 * 4 * DotLevel::available().len());
}

/// The largest sums that 64 times still fit in 32 bits, and the first that do not.
#[test]
fn filters_whose_sums_could_wrap_are_left_to_windows() {
    let geometry = Geometry::new(Shape::new(8, 8, 256), 1, [3; 2], [1; 2], [1; 2]).unwrap();
    let factors = [FixedPoint::new(2f64.powi(-18))];
    // 2^25 / 255 = 131586.1: so much may the weights of a sign add up to.
    let mut weights = vec![58i8; geometry.window()];
    weights[..2304 - 2268].fill(1);
    let sum: i32 = weights.iter().map(|&weight| i32::from(weight)).sum();
    weights[0] += i8::try_from(131_586 - sum).unwrap();
    for (more, exact) in [(0, true), (1, false)] {
        weights[1] += more;
        let recipe = Recipe {
            geometry,
            weights: &weights,
            bias: &[5],
            factors: &factors,
            input_zero: -128,
            output_zero: -128,
            limits: [-128, 127],
            pooled: false,
        };
        let images = vec![255; geometry.input.len()];
        let expected = plain(&recipe, &images);
        for level in DotLevel::available() {
            assert_eq!(Winograd::new(recipe, level).is_some(), exact, "{}", level.name());
            let conv = IntegerConv::new(recipe, level, 64);
            let mut output = vec![0; expected.len()];
            let mut workspace = Workspace::new(conv.room(), 1);
            conv.forward(&mut Team::new(1, Level::best()), &images, &mut output, &mut workspace);
            assert_eq!(output, expected, "{}", level.name());
        }
    }
}
