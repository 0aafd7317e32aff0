//! PowerSGD (Vogels, Karimireddy and Jaggi, *PowerSGD: practical low-rank gradient compression for distributed optimization*,
//! 2019): a matrix M of gradients as the product of two narrow ones.
//!
//! A step of power iteration from the Q of the last step, which is near to what is looked for already:
//!
//! ```text
//! P <- M Q                    all-reduced
//! P <- orthonormal vectors    the same on all ranks
//! Q <- M^T P                  all-reduced
//! M <- P Q^T
//! ```
//!
//! M has rows and columns, P and Q have `rank` vectors as long as a column and a row. Both products are linear in M, so that
//! sums over ranks of P and Q are those of the sum of all M: (rows + columns) `rank` numbers go round instead of rows times
//! columns. What a rank's own M was taken for, which [error feedback](super::error_feedback) needs, is P Q^T with its own Q.
//!
//! The caller all-reduces between the functions; those of several matrices can lie in one slice. Where nothing is all-reduced,
//! a worker makes [factors](super::factors) of its own.

use ringstep_cpu::random::mix;
use ringstep_cpu::simd::{Rest, Whole};
use ringstep_cpu::{Level, Simd, along, kernels};

use super::Key;

/// The size of a matrix, which stands row by row, and of its factors, which stand vector by vector.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LowRank {
    /// Rows of M, numbers in a vector of P.
    pub rows: usize,
    /// Columns of M, numbers in a vector of Q.
    pub columns: usize,
    /// Vectors of P and of Q.
    pub rank: usize,
}

impl LowRank {
    /// Numbers of P.
    pub fn p_len(self) -> usize {
        self.rows * self.rank
    }

    /// Numbers of Q.
    pub fn q_len(self) -> usize {
        self.columns * self.rank
    }

    /// Whether P and Q are less than M.
    pub fn shrinks(self) -> bool {
        self.p_len() + self.q_len() < self.rows * self.columns
    }

    /// Draws the vectors of Q that are zero: all of them before the first step, where it starts as zeros, and later those that
    /// a matrix of a smaller rank has left empty, which would stay empty for ever.
    pub fn draw(self, key: Key, q: &mut [f32]) {
        assert_eq!(q.len(), self.q_len());
        let random = key.of_bucket().stream();
        for (at, vector) in q.chunks_exact_mut(self.columns.max(1)).enumerate() {
            if vector.iter().all(|&number| number == 0.0) {
                for (place, number) in vector.iter_mut().enumerate() {
                    let bits = mix((at * self.columns + place) as u32, random);
                    // From -1 to 1, and never 0.
                    *number = (bits >> 8) as f32 / 8_388_608.0 - 1.0 + 1.0 / 16_777_216.0;
                }
            }
        }
    }

    /// P <- M Q.
    pub fn project(self, level: Level, m: &[f32], q: &[f32], p: &mut [f32]) {
        self.check(m, p, q);
        project(level, self, m, q, p);
    }

    /// P <- orthonormal vectors of the same span, by the modified Gram-Schmidt process with double precision. Those that
    /// depend on the ones before become zero.
    pub fn orthogonalise(self, p: &mut [f32]) {
        assert_eq!(p.len(), self.p_len());
        let mut basis: Vec<Vec<f64>> = Vec::with_capacity(self.rank);
        for column in p.chunks_exact_mut(self.rows.max(1)) {
            let mut vector: Vec<f64> = column.iter().copied().map(f64::from).collect();
            let length = norm(&vector);
            for other in &basis {
                let along = dot(&vector, other);
                vector.iter_mut().zip(other).for_each(|(a, b)| *a -= along * b);
            }
            let left = norm(&vector);
            // What rounding leaves of a vector has no direction.
            let factor = if left > 1e-10 * length { 1.0 / left } else { 0.0 };
            vector.iter_mut().for_each(|number| *number *= factor);
            column.iter_mut().zip(&vector).for_each(|(to, &from)| *to = from as f32);
            basis.push(vector);
        }
    }

    /// Q <- M^T P.
    pub fn project_back(self, level: Level, m: &[f32], p: &[f32], q: &mut [f32]) {
        self.check(m, p, q);
        project_back(level, self, m, p, q);
    }

    /// M <- P Q^T.
    pub fn multiply(self, level: Level, p: &[f32], q: &[f32], m: &mut [f32]) {
        self.check(m, p, q);
        multiply(level, self, p, q, m, false);
    }

    /// M <- M + P Q^T.
    pub fn add_product(self, level: Level, p: &[f32], q: &[f32], m: &mut [f32]) {
        self.check(m, p, q);
        multiply(level, self, p, q, m, true);
    }

    fn check(self, m: &[f32], p: &[f32], q: &[f32]) {
        let lengths = [self.rows * self.columns, self.p_len(), self.q_len()];
        assert_eq!([m, p, q].map(<[f32]>::len), lengths, "{self:?}");
    }
}

fn norm(vector: &[f64]) -> f64 {
    dot(vector, vector).sqrt()
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// Partial sums of a product of vectors, on every level.
const PARTS: usize = 16;

/// Vectors that a row is multiplied with at once.
const TOGETHER: usize = 4;

kernels! {
    fn project<S>(simd: S, size: LowRank, m: &[f32], q: &[f32], p: &mut [f32]) {
        let LowRank { rows, columns, rank } = size;
        let vector = |at: usize| &q[at * columns..][..columns];
        for row in 0..rows {
            let numbers = &m[row * columns..][..columns];
            let mut first = 0;
            while rank - first >= TOGETHER {
                let vectors = [vector(first), vector(first + 1), vector(first + 2), vector(first + 3)];
                for (at, dot) in dots::<S, TOGETHER>(simd, numbers, vectors).into_iter().enumerate() {
                    p[(first + at) * rows + row] = dot;
                }
                first += TOGETHER;
            }
            for at in first..rank {
                [p[at * rows + row]] = dots::<S, 1>(simd, numbers, [vector(at)]);
            }
        }
    }

    fn project_back<S>(simd: S, size: LowRank, m: &[f32], p: &[f32], q: &mut [f32]) {
        q.fill(0.0);
        if m.is_empty() {
            return;
        }
        for (row, numbers) in m.chunks_exact(size.columns).enumerate() {
            for (vector, factors) in q.chunks_exact_mut(size.columns).zip(p.chunks_exact(size.rows)) {
                let factor = simd.splat(factors[row]);
                along!(simd, numbers.len(), |at| {
                    let sum = at.load(vector) + at.load(numbers) * factor;
                    at.store(vector, sum);
                });
            }
        }
    }

    fn multiply<S>(simd: S, size: LowRank, p: &[f32], q: &[f32], m: &mut [f32], add: bool) {
        if m.is_empty() {
            return;
        }
        for (row, numbers) in m.chunks_exact_mut(size.columns).enumerate() {
            along!(simd, numbers.len(), |at| {
                let mut sum = if add { at.load(numbers) } else { simd.zero() };
                for (vector, factors) in q.chunks_exact(size.columns).zip(p.chunks_exact(size.rows)) {
                    sum = sum + at.load(vector) * simd.splat(factors[row]);
                }
                at.store(numbers, sum);
            });
        }
    }
}

/// Products of a row with some vectors, each in [`PARTS`] partial sums that are added in one order on every level.
#[inline(always)]
#[allow(clippy::needless_range_loop)] // Registers are numbered.
fn dots<S: Simd, const COUNT: usize>(simd: S, row: &[f32], vectors: [&[f32]; COUNT]) -> [f32; COUNT] {
    // As many as the narrowest vectors need.
    let mut sums = [[simd.zero(); PARTS / 4]; COUNT];
    let whole = row.len() / PARTS * PARTS;
    for start in (0..whole).step_by(PARTS) {
        for part in 0..PARTS / S::LANES {
            let place = Whole::new(simd, start + part * S::LANES);
            let numbers = place.load(row);
            for at in 0..COUNT {
                sums[at][part] = sums[at][part] + numbers * place.load(vectors[at]);
            }
        }
    }
    for part in 0..PARTS / S::LANES {
        let start = (whole + part * S::LANES).min(row.len());
        let place = Rest::new(simd, start, (row.len() - start).min(S::LANES));
        let numbers = place.load(row);
        for at in 0..COUNT {
            sums[at][part] = sums[at][part] + numbers * place.load(vectors[at]);
        }
    }
    let mut dots = [0.0; COUNT];
    for at in 0..COUNT {
        let mut parts = [0.0; PARTS];
        for part in 0..PARTS / S::LANES {
            Whole::new(simd, part * S::LANES).store(&mut parts, sums[at][part]);
        }
        for part in parts {
            dots[at] += part;
        }
    }
    dots
}

/// What tests of low rank share.
#[cfg(test)]
pub(super) mod rounding {
    use super::*;

    /// How far off a matrix of low rank may come back, as a share of its length. M Q is rounded to a share of |M| |Q|, and where
    /// its vectors are almost dependent, as random ones are now and then, what tells them apart is not much longer than that.
    /// Gram-Schmidt that always takes the longest of what is left finds out how long it is.
    pub fn bound(size: LowRank, m: &[f32], q: &[f32]) -> f64 {
        let wide = |numbers: &[f32]| numbers.iter().copied().map(f64::from).collect::<Vec<f64>>();
        let mut p = vec![0.0; size.p_len()];
        size.project(Level::best(), m, q, &mut p);
        let mut left: Vec<Vec<f64>> = p.chunks_exact(size.rows).map(wide).collect();
        let mut shortest = f64::INFINITY;
        while !left.is_empty() {
            left.sort_by(|a, b| norm(a).total_cmp(&norm(b)));
            let longest = left.pop().expect("it is not empty");
            shortest = norm(&longest).max(f64::MIN_POSITIVE);
            for other in &mut left {
                let along = dot(other, &longest) / (shortest * shortest);
                other.iter_mut().zip(&longest).for_each(|(a, b)| *a -= along * b);
            }
        }
        1e-6 * (1.0 + norm(&wide(m)) * norm(&wide(q)) / shortest)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::super::check;
    use super::*;

    /// What becomes of a sum of matrices, each one's on a rank, in some steps from zeros; and Q.
    fn compressed(size: LowRank, ranks: &[Vec<f32>], steps: u64) -> (Vec<f32>, Vec<f32>) {
        let level = Level::best();
        let sum_of = |length: usize, of: &dyn Fn(&[f32], &mut [f32])| {
            let mut sum = vec![0.0; length];
            for m in ranks {
                let mut own = vec![f32::NAN; length];
                of(m, &mut own);
                sum.iter_mut().zip(own).for_each(|(sum, own)| *sum += own);
            }
            sum
        };
        let mut q = vec![0.0; size.q_len()];
        let mut m = vec![f32::NAN; size.rows * size.columns];
        for step in 0..steps {
            size.draw(Key { step, ..Key::default() }, &mut q);
            let mut p = sum_of(size.p_len(), &|m, p| size.project(level, m, &q, p));
            size.orthogonalise(&mut p);
            q = sum_of(size.q_len(), &|m, q| size.project_back(level, m, &p, q));
            size.multiply(level, &p, &q, &mut m);
        }
        (m, q)
    }

    fn of_rank(size: LowRank, rank: usize, seed: u64) -> Vec<f32> {
        let (p, q) = (check::noise(size.rows * rank, seed), check::noise(size.columns * rank, seed ^ 1));
        let mut m = vec![0.0; size.rows * size.columns];
        LowRank { rank, ..size }.multiply(Level::best(), &p, &q, &mut m);
        m
    }

    fn distance(a: &[f32], b: &[f32]) -> f64 {
        a.iter().zip(b).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>().sqrt()
    }

    /// By which share of its length a matrix came back wrong.
    fn off(found: &[f32], expected: &[f32]) -> f64 {
        distance(found, expected) / distance(expected, &vec![0.0; expected.len()]).max(1e-6)
    }

    /// How far off a sum may be after the first step.
    fn first_bound(size: LowRank, ranks: &[Vec<f32>]) -> f64 {
        let mut q = vec![0.0; size.q_len()];
        size.draw(Key::default(), &mut q);
        rounding::bound(size, &sum(ranks), &q)
    }

    fn sum(ranks: &[Vec<f32>]) -> Vec<f32> {
        (0..ranks[0].len()).map(|at| ranks.iter().map(|m| m[at]).sum()).collect()
    }

    proptest! {
        #[test]
        fn a_sum_of_matrices_of_low_rank_comes_back(rows in 1usize..40, columns in 1usize..70, rank in 1usize..7, seed: u64) {
            let size = LowRank { rows, columns, rank };
            // Two ranks' matrices, whose ranks add up to the whole one.
            let ranks = [of_rank(size, rank / 2, seed), of_rank(size, rank - rank / 2, seed ^ 2)];
            let (expected, (found, _)) = (sum(&ranks), compressed(size, &ranks, 1));
            prop_assert!(off(&found, &expected) < first_bound(size, &ranks));
        }

        #[test]
        fn a_full_rank_loses_nothing(rows in 1usize..20, columns in 1usize..20, seed: u64) {
            let size = LowRank { rows, columns, rank: rows.min(columns) };
            let m = [check::noise(rows * columns, seed)];
            prop_assert!(off(&compressed(size, &m, 1).0, &m[0]) < first_bound(size, &m));
        }

        #[test]
        fn vectors_become_orthonormal_or_zero(rows in 1usize..30, rank in 1usize..8, seed: u64) {
            let size = LowRank { rows, columns: 1, rank };
            let mut p = check::noise(size.p_len(), seed);
            let (first, others) = p.split_at_mut(rows);
            if let Some(last) = others.chunks_exact_mut(rows).last() {
                last.copy_from_slice(first);
            }
            size.orthogonalise(&mut p);
            let vectors: Vec<&[f32]> = p.chunks_exact(rows).collect();
            for (at, a) in vectors.iter().enumerate() {
                for (other, b) in vectors.iter().enumerate() {
                    let dot: f64 = a.iter().zip(*b).map(|(a, b)| f64::from(a * b)).sum();
                    let expected = if at == other && a.iter().any(|&number| number != 0.0) { 1.0 } else { 0.0 };
                    prop_assert!((dot - expected).abs() < 1e-5, "{at} {other}: {dot}");
                }
            }
        }
    }

    /// From a Q of the same matrix, a step is one of power iteration: it comes nearer to the best that the rank allows.
    #[test]
    fn steps_that_begin_where_the_last_one_ended_come_nearer() {
        let size = LowRank { rows: 30, columns: 50, rank: 2 };
        let m = [check::noise(size.rows * size.columns, 3)];
        let errors = [1, 2, 4, 16].map(|steps| distance(&compressed(size, &m, steps).0, &m[0]));
        assert!(errors.is_sorted_by(|a, b| a >= b), "{errors:?}");
        assert!(errors[3] < 0.99 * errors[0], "{errors:?}");
    }

    /// A gradient that is zero for a step must not be zero for ever.
    #[test]
    fn vectors_that_are_empty_are_drawn_again() {
        let size = LowRank { rows: 6, columns: 5, rank: 3 };
        let (_, mut q) = compressed(size, &[vec![0.0; 30]], 1);
        assert_eq!(q, vec![0.0; size.q_len()]);
        size.draw(Key::default(), &mut q);
        assert!(q.iter().all(|&number| number != 0.0 && number.abs() <= 1.0));
        let kept = q.clone();
        q[..5].fill(0.0);
        size.draw(Key { rank: 3, step: 1, ..Key::default() }, &mut q);
        assert_ne!(q[..5], kept[..5]);
        assert_eq!(q[5..], kept[5..]);
    }

    #[test]
    fn every_level_finds_the_same_bits() {
        for (rows, columns, rank) in [(0, 3, 2), (3, 0, 2), (1, 1, 1), (7, 19, 3), (33, 64, 4), (20, 100, 9)] {
            let size = LowRank { rows, columns, rank };
            let (m, p, q) =
                (check::noise(rows * columns, 1), check::noise(size.p_len(), 2), check::noise(size.q_len(), 3));
            let of = |level: Level| {
                let (mut m_out, mut p_out, mut q_out) = (m.clone(), p.clone(), q.clone());
                size.project(level, &m, &q, &mut p_out);
                size.project_back(level, &m, &p, &mut q_out);
                size.multiply(level, &p, &q, &mut m_out);
                [m_out, p_out, q_out].map(|numbers| check::bits(&numbers))
            };
            let levels = Level::available();
            assert!(levels.iter().all(|&level| of(level) == of(levels[0])), "{size:?}");
        }
    }

    #[test]
    fn small_matrices_do_not_shrink() {
        assert!(LowRank { rows: 64, columns: 576, rank: 4 }.shrinks());
        assert!(!LowRank { rows: 10, columns: 1, rank: 1 }.shrinks());
        assert!(!LowRank { rows: 8, columns: 8, rank: 4 }.shrinks());
    }
}
