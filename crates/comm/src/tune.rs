//! Measuring the numbers that the choice of algorithms rests on.

use std::time::Instant;

use crate::collective::Algorithm;
use crate::cost::Tuning;
use crate::element::{Element, Op};
use crate::group::{CollectiveError, Group};

/// A small message and a large one, in elements of f32.
const SMALL: usize = 16;
const LARGE: usize = 256 << 10;
const ROUNDS: usize = 15;

/// Measures this group's transport and lets its choices rest on the result, which is the same on all ranks. Takes some
/// tens of milliseconds.
pub fn measure(group: &mut Group) -> Result<Tuning, CollectiveError> {
    let mut tuning = group.tuning();
    if group.world() > 1 {
        let world = group.world() as f64;
        let n = (LARGE * size_of::<f32>()) as f64;
        tuning.gamma = time_to_reduce() / n;
        let steps = 2.0 * (world - 1.0);
        tuning.alpha = time(group, Algorithm::Ring, SMALL)? / steps;
        let large = time(group, Algorithm::Ring, LARGE)? - steps * tuning.alpha;
        let share = (world - 1.0) / world;
        tuning.beta = ((large - share * n * tuning.gamma) / (2.0 * share * n)).max(1e-12);
        if group.can_be_direct() {
            tuning.sync = time(group, Algorithm::Direct, SMALL)?;
            let large = time(group, Algorithm::Direct, LARGE)?;
            // What the model says of one byte copied, without the synchronisations.
            let syncs = Tuning { copy: 0.0, ..tuning }.predict_direct(group.world(), n as usize);
            let copies = Tuning { copy: 1.0, sync: 0.0, ..tuning }.predict_direct(group.world(), n as usize);
            tuning.copy = ((large - syncs) / copies).max(1e-12);
        }
    }
    // Rank 0's clock counts.
    let mut numbers = [tuning.alpha, tuning.beta, tuning.gamma, tuning.sync, tuning.copy];
    group.broadcast(&mut numbers, 0)?;
    let [alpha, beta, gamma, sync, copy] = numbers;
    let tuning = Tuning { alpha, beta, gamma, sync, copy };
    group.set_tuning(tuning);
    Ok(tuning)
}

/// The median time of an all-reduce.
fn time(group: &mut Group, algorithm: Algorithm, elements: usize) -> Result<f64, CollectiveError> {
    let mut data = vec![0f32; elements];
    let mut seconds = Vec::with_capacity(ROUNDS);
    for _ in 0..ROUNDS {
        group.barrier()?;
        let began = Instant::now();
        group.all_reduce(&mut data, Op::Sum, algorithm)?;
        seconds.push(began.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    Ok(seconds[ROUNDS / 2])
}

fn time_to_reduce() -> f64 {
    let (mut into, other) = (vec![0f32; LARGE], vec![1f32; LARGE]);
    let mut best = f64::INFINITY;
    for _ in 0..ROUNDS {
        let began = Instant::now();
        f32::reduce(Op::Sum, std::hint::black_box(&mut into), std::hint::black_box(&other));
        best = best.min(began.elapsed().as_secs_f64());
    }
    best
}
