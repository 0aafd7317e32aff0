//! PowerSGD without an all-reduce: a worker makes the [factors](super::power_sgd) of its own matrices, P and Q, and whoever gets
//! them multiplies.
//!
//! ```text
//! P <- M Q                    Q is that of this worker's last step
//! P <- orthonormal vectors
//! Q <- M^T P
//! send P and Q; they stand for P Q^T
//! ```
//!
//! Each worker's vectors suit its own matrix, so that a sum of what p codes stand for may have a rank of p times as much. Biases,
//! and matrices that would not shrink, go as they are.

use std::ops::Range;

use ringstep_cpu::Level;
use ringstep_nn::Parameter;

use super::power_sgd::LowRank;
use super::{Codec, Key, Malformed};

/// A parameter in the flat buffer of all gradients.
#[derive(Debug, Clone)]
pub struct Tensor {
    /// Where it stands.
    pub at: Range<usize>,
    /// Rows that it has as a matrix: all that leads to an output is one.
    pub rows: usize,
}

impl Tensor {
    /// Those that are trained.
    pub fn trained(parameters: &[Parameter]) -> Vec<Self> {
        let trained = parameters.iter().filter(|parameter| parameter.trained);
        trained.map(|parameter| Self { at: parameter.range(), rows: parameter.shape[0] }).collect()
    }
}

/// What stands in a slice of the flat buffer.
#[derive(Debug, Clone, Default)]
pub struct Parts {
    /// What is sent as factors.
    pub matrices: Vec<Matrix>,
    /// What is sent as it is.
    pub dense: Vec<Range<usize>>,
    /// Numbers of all P.
    pub p_len: usize,
    /// Numbers of all Q.
    pub q_len: usize,
}

/// Where a matrix of a slice stands in it, and its P and Q among those of the slice.
#[derive(Debug, Clone)]
pub struct Matrix {
    /// Its size, and that of its factors.
    pub size: LowRank,
    /// Where it stands.
    pub at: Range<usize>,
    /// Where its P stands.
    pub p: Range<usize>,
    /// Where its Q stands.
    pub q: Range<usize>,
}

impl Parts {
    /// Of a slice that holds whole tensors; those that it cuts are no part of it.
    pub fn of(slice: &Range<usize>, tensors: &[Tensor], rank: usize) -> Self {
        let mut parts = Self::default();
        let inside = |at: &Range<usize>| slice.start <= at.start && at.end <= slice.end;
        for Tensor { at, rows } in tensors.iter().filter(|tensor| inside(&tensor.at)) {
            let at = at.start - slice.start..at.end - slice.start;
            let (rows, columns) = (*rows, at.len() / rows);
            let size = LowRank { rows, columns, rank: rank.min(rows).min(columns) };
            if !size.shrinks() {
                parts.dense.push(at);
                continue;
            }
            let (p, q) = (parts.p_len..parts.p_len + size.p_len(), parts.q_len..parts.q_len + size.q_len());
            (parts.p_len, parts.q_len) = (p.end, q.end);
            parts.matrices.push(Matrix { size, at, p, q });
        }
        parts
    }

    /// Numbers of all its tensors: as many as the slice has, unless that cuts one.
    pub fn numbers(&self) -> usize {
        self.matrices.iter().map(|matrix| &matrix.at).chain(&self.dense).map(Range::len).sum()
    }

    /// Numbers that are all-reduced first, all P and what goes as it is; and then, all Q.
    pub fn lengths(&self) -> [usize; 2] {
        [self.p_len + self.dense.iter().map(Range::len).sum::<usize>(), self.q_len]
    }

    /// Numbers of a code: all P, all Q, and what goes as it is.
    fn code_len(&self) -> usize {
        self.lengths().iter().sum()
    }
}

/// Makes codes of one slice.
#[derive(Debug, Clone)]
pub struct Factors {
    level: Level,
    parts: Parts,
    p: Vec<f32>,
    /// Those of the last step are where the next begins.
    q: Vec<f32>,
}

impl Factors {
    /// Of a slice with these parts, whose vectors are drawn at random in the first step.
    pub fn new(level: Level, parts: Parts) -> Self {
        Self::after(level, parts, Vec::new())
    }

    /// Of a slice whose last step ended with these Q.
    pub fn after(level: Level, parts: Parts, q: Vec<f32>) -> Self {
        Self { level, parts, p: Vec::new(), q }
    }

    /// What the next step begins with.
    pub fn q(&self) -> &[f32] {
        &self.q
    }
}

impl Codec for Factors {
    fn encode(&mut self, key: Key, values: &[f32], out: &mut Vec<u8>) {
        let Self { level, parts: Parts { matrices, dense, p_len, q_len }, p, q } = self;
        p.resize(*p_len, 0.0);
        q.resize(*q_len, 0.0);
        for Matrix { size, at, p: of_p, q: of_q } in matrices {
            let (m, p, q) = (&values[at.clone()], &mut p[of_p.clone()], &mut q[of_q.clone()]);
            size.draw(key, q);
            size.project(*level, m, q, p);
            size.orthogonalise(p);
            size.project_back(*level, m, p, q);
        }
        let dense = dense.iter().flat_map(|range| &values[range.clone()]);
        out.clear();
        out.extend(p.iter().chain(&*q).chain(dense).flat_map(|number| number.to_le_bytes()));
    }

    fn add(&self, _: Key, code: &[u8], into: &mut [f32]) -> Result<(), Malformed> {
        let Self { level, parts, .. } = self;
        let expected = size_of::<f32>() * parts.code_len();
        if code.len() != expected {
            return Err(Malformed::Length { found: code.len(), expected });
        }
        let (numbers, _) = code.as_chunks();
        let numbers: Vec<f32> = numbers.iter().map(|&number| f32::from_le_bytes(number)).collect();
        let (p, rest) = numbers.split_at(parts.p_len);
        let (q, dense) = rest.split_at(parts.q_len);
        for Matrix { size, at, p: of_p, q: of_q } in &parts.matrices {
            size.add_product(*level, &p[of_p.clone()], &q[of_q.clone()], &mut into[at.clone()]);
        }
        for (at, number) in parts.dense.iter().cloned().flatten().zip(dense) {
            into[at] += number;
        }
        Ok(())
    }

    /// That of a slice without a matrix.
    fn limit(&self, length: usize) -> usize {
        size_of::<f32>() * length
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::power_sgd::rounding;
    use super::super::{ErrorFeedback, check};
    use super::*;

    /// A matrix, its biases, and another matrix, as they stand in a slice.
    fn tensors(rows: usize, columns: usize) -> [Tensor; 3] {
        let matrix = rows * columns;
        let ends = [0, matrix, matrix + rows, 2 * matrix + rows];
        let tensor = |number: usize, rows| Tensor { at: ends[number]..ends[number + 1], rows };
        [tensor(0, rows), tensor(1, rows), tensor(2, columns)]
    }

    fn factors(level: Level, rows: usize, columns: usize, rank: usize) -> (Factors, usize) {
        let length = 2 * rows * columns + rows;
        let parts = Parts::of(&(0..length), &tensors(rows, columns), rank);
        assert_eq!(parts.numbers(), length);
        (Factors::new(level, parts), length)
    }

    fn distance(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
    }

    fn length(values: &[f32]) -> f64 {
        distance(values, &vec![0.0; values.len()])
    }

    /// Both matrices have this rank.
    fn of_rank(rows: usize, columns: usize, rank: usize, seed: u64) -> Vec<f32> {
        let product = |rows: usize, columns: usize, seed: u64| {
            let (p, q) = (check::noise(rows * rank, seed), check::noise(columns * rank, seed ^ 1));
            let mut m = vec![0.0; rows * columns];
            LowRank { rows, columns, rank }.multiply(Level::best(), &p, &q, &mut m);
            m
        };
        [product(rows, columns, seed), check::noise(rows, seed ^ 2), product(columns, rows, seed ^ 4)].concat()
    }

    /// How far off both matrices may come back in the next step, as a share of their length.
    fn bound(codec: &Factors, key: Key, values: &[f32]) -> f64 {
        let mut q = codec.q.clone();
        q.resize(codec.parts.q_len, 0.0);
        let of_matrix = |matrix: &Matrix| {
            let (m, q) = (&values[matrix.at.clone()], &mut q[matrix.q.clone()]);
            matrix.size.draw(key, q);
            rounding::bound(matrix.size, m, q)
        };
        codec.parts.matrices.iter().map(of_matrix).sum()
    }

    proptest! {
        #[test]
        fn matrices_of_low_rank_come_back(rows in 1usize..40, columns in 1usize..70, rank in 1usize..7, seed: u64) {
            let (mut codec, _) = factors(Level::best(), rows, columns, rank);
            for step in 0..3 {
                let values = of_rank(rows, columns, rank, seed ^ step << 8);
                let key = Key { seed, step, ..Key::default() };
                let bound = bound(&codec, key, &values);
                let found = check::decoded(&mut codec, key, &values);
                let off = distance(&found, &values) / length(&values).max(1e-6);
                prop_assert!(off <= bound, "step {step}: {off}, not {bound}");
            }
        }

        #[test]
        fn a_full_rank_loses_nothing(rows in 1usize..20, columns in 1usize..20, seed: u64) {
            let (mut codec, length) = factors(Level::best(), rows, columns, rows.min(columns));
            let (values, key) = (check::noise(length, seed), Key { seed, ..Key::default() });
            let bound = bound(&codec, key, &values);
            let found = check::decoded(&mut codec, key, &values);
            prop_assert!(distance(&found, &values) <= bound * self::length(&values).max(1e-6));
        }

        #[test]
        fn what_was_sent_and_what_is_left_are_all(rows in 1usize..30, columns in 1usize..50, rank in 1usize..5, seed: u64) {
            let (codec, length) = factors(Level::best(), rows, columns, rank);
            let mut codec = ErrorFeedback::new(Level::best(), codec);
            for step in 0..5 {
                let values = check::noise(length, seed ^ step);
                let before = codec.residual(0, length).to_vec();
                let sent = check::decoded(&mut codec, Key { seed, step, ..Key::default() }, &values);
                let left = codec.residual(0, length);
                for at in 0..length {
                    prop_assert!((sent[at] + left[at] - values[at] - before[at]).abs() < 1e-5);
                }
            }
        }
    }

    /// Each step begins with the vectors of the last.
    #[test]
    fn steps_of_one_matrix_come_nearer() {
        let (mut codec, length) = factors(Level::best(), 30, 50, 2);
        let values = check::noise(length, 3);
        let mut error = |step| distance(&check::decoded(&mut codec, Key { step, ..Key::default() }, &values), &values);
        let errors: Vec<f64> = (0..16).map(&mut error).collect();
        assert!(errors[15] < 0.99 * errors[0], "{errors:?}");
    }

    #[test]
    fn every_level_makes_the_same_code() {
        for (rows, columns, rank) in [(1, 1, 1), (7, 19, 3), (33, 64, 4), (20, 100, 9)] {
            let of = |level: Level| {
                let (mut codec, length) = factors(level, rows, columns, rank);
                let (mut code, mut into) = (Vec::new(), check::noise(length, 3));
                for step in 0..2 {
                    codec.encode(Key { step, ..Key::default() }, &check::noise(length, step), &mut code);
                }
                codec.add(Key::default(), &code, &mut into).unwrap();
                (code, check::bits(&into))
            };
            let levels = Level::available();
            assert!(levels.iter().all(|&level| of(level) == of(levels[0])), "{rows} x {columns}");
        }
    }

    #[test]
    fn a_code_of_another_length_is_refused() {
        let (mut codec, length) = factors(Level::best(), 12, 20, 2);
        let (mut code, mut into) = (Vec::new(), vec![0.0; length]);
        codec.encode(Key::default(), &check::noise(length, 1), &mut code);
        assert_eq!(code.len(), 4 * (2 * 2 * (12 + 20) + 12));
        for wrong in [&code[..code.len() - 1], &code[4..], &[], &[&code[..], &[0; 4]].concat()[..]] {
            let expected = Malformed::Length { found: wrong.len(), expected: code.len() };
            assert_eq!(codec.add(Key::default(), wrong, &mut into), Err(expected));
            assert!(into.iter().all(|&number| number == 0.0));
        }
    }

    #[test]
    fn a_slice_that_cuts_a_tensor_shows() {
        let tensors = tensors(4, 6);
        for (slice, numbers) in [(0..24, 24), (24..28, 4), (0..52, 52), (1..28, 4), (0..30, 28), (24..51, 4)] {
            assert_eq!(Parts::of(&slice, &tensors, 1).numbers(), numbers, "{slice:?}");
        }
    }
}
