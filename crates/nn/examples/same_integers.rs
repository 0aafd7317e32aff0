//! A fingerprint of convolutions and sums in integers with each instruction level of this machine: all levels of all machines
//! must print the same.
//!
//!     cargo run --release -p ringstep-nn --example same_integers

use ringstep_cpu::{DotLevel, Level};
use ringstep_nn::integer::{FixedPoint, IntegerConv, IntegerSum, Recipe, Workspace};
use ringstep_nn::layers::{Geometry, Shape};
use ringstep_nn::team::Team;

const IMAGES: usize = 9;
/// Height and width, channels, filters, kernel, and whether it is pooled.
const CASES: [(usize, usize, usize, usize, bool); 4] =
    [(16, 32, 40, 3, true), (9, 64, 20, 3, false), (12, 3, 9, 5, true), (2, 16, 70, 3, false)];

fn main() {
    for level in DotLevel::available() {
        println!("{:12} {:016x}", level.name(), fingerprint(level));
    }
}

/// FNV-1a of all bytes that come out.
fn fingerprint(level: DotLevel) -> u64 {
    let mut hash = 0xcbf2_9ce4_8422_2325u64;
    for (size, channels, count, kernel, pooled) in CASES {
        let shape = Shape::new(size, size, channels);
        let geometry = Geometry::new(shape, count, [kernel; 2], [1; 2], [kernel / 2; 2]).expect("windows that fit");
        let bytes = |count: usize| (0..count as u32).map(|at| at.wrapping_mul(2_654_435_761) >> 11);
        let weights: Vec<i8> = bytes(count * geometry.window()).map(|number| (number as i8).max(-127)).collect();
        let factors: Vec<FixedPoint> =
            bytes(count).map(|number| FixedPoint::new(1e-5 * f64::from(number % 90))).collect();
        let recipe = Recipe {
            geometry,
            weights: &weights,
            bias: &vec![1234; count],
            factors: &factors,
            input_zero: -20,
            output_zero: -3,
            limits: [-128, 127],
            pooled,
        };
        let conv = IntegerConv::new(recipe, level, IMAGES);
        let images: Vec<u8> = bytes(IMAGES * shape.len()).map(|number| (number >> 5) as u8).collect();
        let length = IMAGES * geometry.output.len() / if pooled { 4 } else { 1 };
        let [mut made, mut sums] = [vec![0; length], vec![0; length]];
        let mut workspace = Workspace::new(conv.room(), 1);
        conv.forward(&mut Team::new(1, Level::best()), &images, &mut made, &mut workspace);
        let sum = IntegerSum {
            input_zeros: [-3, 11],
            inputs: [FixedPoint::new(0.5), FixedPoint::new(0.31)],
            headroom: 20,
            output: FixedPoint::new(1.7e-6),
            output_zero: 5,
            limits: [-128, 127],
        };
        let mirrored: Vec<u8> = made.iter().rev().copied().collect();
        sum.forward(level, &made, &mirrored, &mut sums);
        for byte in made.into_iter().chain(sums) {
            hash = (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
    hash
}
