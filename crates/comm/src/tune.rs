//! Measuring the numbers that the choice of algorithms rests on.

use std::time::Instant;

use crate::collective::{Algorithm, direct};
use crate::cost::Tuning;
use crate::element::{Element, Op};
use crate::group::{CollectiveError, Group};

/// Slices to measure with, in bytes: as good as none, a part of a segment, and one that no cache holds for all ranks.
const SMALL: usize = 64;
const MEDIUM: usize = 64 << 10;
const LARGE: usize = 16 << 20;
/// Nothing is faster than that, whatever the clock says.
const LEAST: f64 = 1e-12;

/// Measures this group's transport and lets its choices rest on the result, which is the same on all ranks. Takes some
/// tenths of a second.
pub fn measure(group: &mut Group) -> Result<Tuning, CollectiveError> {
    let mut tuning = group.tuning();
    if group.world() > 1 {
        messages(group, &mut tuning)?;
        if group.can_be_direct() {
            shared_memory(group, &mut tuning)?;
        }
    }
    // Rank 0's clock counts.
    let mut numbers = [tuning.alpha, tuning.beta, tuning.gamma, tuning.turn, tuning.sync, tuning.copy];
    group.broadcast(&mut numbers, 0)?;
    let [alpha, beta, gamma, turn, sync, copy] = numbers;
    let tuning = Tuning { alpha, beta, gamma, turn, sync, copy };
    group.set_tuning(tuning);
    Ok(tuning)
}

/// Solves the model of the ring for its numbers.
fn messages(group: &mut Group, tuning: &mut Tuning) -> Result<(), CollectiveError> {
    let (world, n) = (group.world() as f64, LARGE as f64);
    let (steps, share) = (2.0 * (world - 1.0), (world - 1.0) / world);
    tuning.gamma = time_to_reduce() / n;
    tuning.alpha = time(group, Algorithm::Ring, SMALL)? / steps;
    let large = time(group, Algorithm::Ring, LARGE)?;
    tuning.beta = ((large - steps * tuning.alpha - share * n * tuning.gamma) / (2.0 * share * n)).max(LEAST);
    Ok(())
}

/// Solves the model of the direct all-reduce for its numbers: what a byte costs by the difference of two sizes, then what
/// remains.
fn shared_memory(group: &mut Group, tuning: &mut Tuning) -> Result<(), CollectiveError> {
    let world = group.world();
    tuning.turn = time(group, Algorithm::Direct, SMALL)?;
    let medium = time(group, Algorithm::Direct, MEDIUM)?;
    let large = time(group, Algorithm::Direct, LARGE)?;
    let of = |turn: f64, sync: f64, copy: f64, bytes: usize| {
        Tuning { turn, sync, copy, ..*tuning }.predict_direct(world, bytes)
    };
    if direct::is_flat(LARGE, world) {
        let turns = of(tuning.turn, 0.0, 0.0, LARGE);
        tuning.copy = ((large - turns) / of(0.0, 0.0, 1.0, LARGE)).max(LEAST);
    } else {
        let [medium_syncs, large_syncs] = [MEDIUM, LARGE].map(|bytes| of(0.0, 1.0, 0.0, bytes));
        let [medium_copies, large_copies] = [MEDIUM, LARGE].map(|bytes| of(0.0, 0.0, 1.0, bytes));
        let ratio = large_syncs / medium_syncs;
        let copy = ((large - ratio * medium) / (large_copies - ratio * medium_copies)).max(LEAST);
        tuning.sync = ((medium - copy * medium_copies) / medium_syncs).max(LEAST);
        tuning.copy = copy;
    }
    Ok(())
}

fn time(group: &mut Group, algorithm: Algorithm, bytes: usize) -> Result<f64, CollectiveError> {
    let mut data = vec![0f32; bytes / size_of::<f32>()];
    let rounds = rounds(bytes);
    let mut seconds = Vec::with_capacity(rounds);
    for _ in 0..rounds {
        group.barrier()?;
        let began = Instant::now();
        group.all_reduce(&mut data, Op::Sum, algorithm)?;
        seconds.push(began.elapsed().as_secs_f64());
    }
    seconds.sort_by(f64::total_cmp);
    // The lower quartile: what disturbs makes it longer, never shorter.
    Ok(seconds[rounds / 4])
}

/// How often a slice is timed.
fn rounds(bytes: usize) -> usize {
    if bytes == LARGE { 5 } else { 20 }
}

fn time_to_reduce() -> f64 {
    let elements = LARGE / size_of::<f32>();
    let (mut into, other) = (vec![0f32; elements], vec![1f32; elements]);
    let mut best = f64::INFINITY;
    for _ in 0..rounds(LARGE) {
        let began = Instant::now();
        f32::reduce(Op::Sum, std::hint::black_box(&mut into), std::hint::black_box(&other));
        best = best.min(began.elapsed().as_secs_f64());
    }
    best
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::transport::mem;

    #[test]
    fn all_ranks_have_the_same_numbers_and_choose_alike() {
        for world in [1, 2, 3] {
            let ranks: Vec<_> = mem::mesh(world)
                .into_iter()
                .map(|transport| {
                    std::thread::spawn(move || {
                        let mut group = Group::new(transport);
                        let tuning = measure(&mut group).unwrap();
                        (tuning, [16, 4096, 1 << 20, 1 << 26].map(|bytes| group.choice(bytes)))
                    })
                })
                .collect();
            let found: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
            assert!(found.iter().all(|theirs| *theirs == found[0]), "{found:?}");
            let Tuning { alpha, beta, gamma, turn, sync, copy } = found[0].0;
            assert!([alpha, beta, gamma, turn, sync, copy].iter().all(|&number| number > 0.0 && number.is_finite()));
        }
    }
}
