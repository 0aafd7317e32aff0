//! Every operation on every level, against its definition on single numbers.

use super::*;
use crate::Level;

const NUMBERS: [f32; 24] = [
    1.5,
    -2.25,
    0.0,
    -0.0,
    f32::NAN,
    f32::INFINITY,
    f32::NEG_INFINITY,
    3.0e-39,
    1.0 / 3.0,
    -7.1,
    1e20,
    16_777_217.0,
    0.1,
    0.2,
    0.3,
    -0.7,
    9.0,
    100.5,
    -3.0,
    2.0,
    4.25,
    1e-3,
    -1e-3,
    5.5,
];

crate::kernels! {
    /// The results of all operations on three slices, one after the other.
    fn operations<S>(simd: S, a: &[f32], b: &[f32], c: &[f32]) -> Vec<[f32; 10]> {
        let mut results = vec![[0.0; 10]; a.len()];
        for start in (0..a.len()).step_by(S::LANES) {
            let count = S::LANES.min(a.len() - start);
            // SAFETY: `count` numbers from `start` on are there.
            let [x, y, z] = [a, b, c].map(|numbers| unsafe { simd.load_some(numbers.as_ptr().add(start), count) });
            let of = [x + y, x - y, x * y, x / y, x.multiply_add(y, z), x.sqrt(), x.max(y), x.min(y), x.where_greater(y, z, simd.splat(7.0)), x.where_equal(y, z, simd.splat(3.0))];
            for (index, vector) in of.into_iter().enumerate() {
                let mut lanes = [0.0; 16];
                // SAFETY: no set has more lanes.
                unsafe { simd.store(lanes.as_mut_ptr(), vector) };
                for lane in 0..count {
                    results[start + lane][index] = lanes[lane];
                }
            }
        }
        results
    }

    /// A part of the numbers, copied by loads and stores of all lengths.
    fn copy_some<S>(simd: S, to: &mut [f32], from: &[f32], count: usize) {
        assert!(count <= S::LANES && from.len() >= S::LANES && to.len() >= S::LANES);
        // SAFETY: the assertion above.
        unsafe {
            simd.store_some(to.as_mut_ptr(), count, simd.load(from.as_ptr()));
        }
    }

    /// All bytes, read and written again.
    fn copy_bytes<S>(simd: S, to: &mut [u8], from: &[u8]) {
        for start in (0..from.len()).step_by(S::LANES) {
            let (from, to) = (&from[start..start + S::LANES], &mut to[start..start + S::LANES]);
            // SAFETY: as many bytes as lanes.
            unsafe { simd.store_bytes(to.as_mut_ptr(), simd.load_bytes(from.as_ptr())) };
        }
    }

    fn lanes<S>(_simd: S) -> usize {
        S::LANES
    }

    fn transpose<S>(simd: S, from: &[f32], to: &mut [f32], from_rows: usize, to_rows: usize) {
        assert!(from.len() >= SQUARE * 11 && to.len() >= SQUARE * 9);
        // SAFETY: rows of eight, eleven and nine numbers apart.
        unsafe { simd.transpose_square(from.as_ptr(), 11, from_rows, to.as_mut_ptr(), 9, to_rows) };
    }
}

fn same(found: f32, expected: f32) -> bool {
    found.to_bits() == expected.to_bits() || (found.is_nan() && expected.is_nan())
}

#[test]
fn operations_are_those_on_single_numbers() {
    for level in Level::available() {
        let fused = !matches!(level, Level::Portable(_));
        for shift in 0..NUMBERS.len() {
            let (mut b, mut c) = (NUMBERS, NUMBERS);
            b.rotate_left(shift);
            c.rotate_left(2 * shift % NUMBERS.len());
            // Also lengths that no vector divides.
            for length in [24, 23, 17, 5] {
                let results = operations(level, &NUMBERS[..length], &b, &c);
                for (at, found) in results.iter().enumerate() {
                    let (x, y, z) = (NUMBERS[at], b[at], c[at]);
                    let expected = [
                        x + y,
                        x - y,
                        x * y,
                        x / y,
                        if fused { x.mul_add(y, z) } else { x * y + z },
                        x.sqrt(),
                        if x > y { x } else { y },
                        if x < y { x } else { y },
                        if x > y { z } else { 7.0 },
                        if x == y { z } else { 3.0 },
                    ];
                    for (index, (&found, expected)) in found.iter().zip(expected).enumerate() {
                        assert!(
                            same(found, expected),
                            "{level}: operation {index} of {x} {y} {z}: {found}, not {expected}"
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn a_tail_touches_nothing_beyond_it() {
    for level in Level::available() {
        let from: Vec<f32> = (1..=16).map(|number| number as f32).collect();
        for count in 0..=lanes(level) {
            let mut to = [0.0; 16];
            copy_some(level, &mut to, &from, count);
            assert_eq!(to[..count], from[..count], "{level}");
            assert!(to[count..].iter().all(|&number| number == 0.0), "{level}: {count}");
        }
    }
}

#[test]
fn squares_are_transposed() {
    let from: Vec<f32> = (0..100).map(|number| number as f32).collect();
    for level in Level::available() {
        for (from_rows, to_rows) in [(8, 8), (3, 8), (8, 5), (1, 1)] {
            let mut to = [-1.0; 72];
            transpose(level, &from, &mut to, from_rows, to_rows);
            for row in 0..to_rows {
                for column in 0..from_rows {
                    assert_eq!(to[row * 9 + column], from[column * 11 + row], "{level}");
                }
            }
            assert!(to[to_rows * 9..].iter().all(|&number| number == -1.0), "{level}");
        }
    }
}

#[test]
fn bytes_come_back_as_they_were() {
    let from: Vec<u8> = (0..=255).collect();
    for level in Level::available() {
        let mut to = vec![0; 256];
        copy_bytes(level, &mut to, &from);
        assert_eq!(to, from, "{level}");
    }
}
