//! Measuring the numbers that the choice of algorithms rests on.
//!
//! Exchanges are timed as training has them: some in a row, after ranks have computed. Where ranks outnumber cores, exchanges that
//! follow one another fall into a rhythm that depends on who shares a core with whom, and take a fifth of what they take
//! otherwise, or several times as much; those that compute in between have none.

use std::time::Instant;

use ringstep_cpu::cores::thread_seconds;
use serde::{Deserialize, Serialize};

use crate::collective::{Algorithm, direct};
use crate::cost::Tuning;
use crate::element::{Element, Op};
use crate::group::{CollectiveError, Group};

/// Slices to measure with, in bytes.
const SMALL: usize = 64;
const MEDIUM: usize = 64 << 10;
const LARGE: usize = 16 << 20;
/// Nothing is faster than that, whatever the clock says.
const LEAST: f64 = 1e-12;

/// Messages that a rank sends in one go before it receives as many: few enough for all of them to be on their way at once.
const MESSAGES: usize = 8;

/// Seconds that ranks compute before they exchange something, and how many exchanges of a size there are then.
const BURST: f64 = 100e-6;
const IN_A_ROW: usize = 8;

/// How long a group took for that from which its numbers are found, in seconds; the same on all ranks.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Timings {
    /// Rings of [`Timings::SIZES`] bytes.
    pub rings: [f64; 3],
    /// A message to the next rank and one from the rank before, of [`Timings::MESSAGES`] that all send before they receive:
    /// nobody waits for anybody.
    pub message: f64,
    /// To reduce a byte.
    pub reduce: f64,
    /// All-reduces in shared memory of the same sizes, if all ranks share some.
    pub direct: Option<[f64; 3]>,
}

impl Timings {
    /// The sizes of slices, in bytes: as good as none, a part of a segment, and one that no cache holds for all ranks.
    pub const SIZES: [usize; 3] = [SMALL, MEDIUM, LARGE];
    /// How many messages a rank sends in one go.
    pub const MESSAGES: usize = MESSAGES;
    /// Seconds of a core that each rank computes before.
    pub const BURST: f64 = BURST;

    /// How many exchanges of so many bytes are timed in a row.
    pub const fn in_a_row(bytes: usize) -> usize {
        if bytes == LARGE { 1 } else { IN_A_ROW }
    }

    /// Takes the times, which takes some tenths of a second.
    pub fn take(group: &mut Group) -> Result<Self, CollectiveError> {
        let mut times = Self { rings: [0.0; 3], message: 0.0, reduce: time_to_reduce() / LARGE as f64, direct: None };
        if group.world() > 1 {
            times.rings = time_each(group, Algorithm::Ring)?;
            times.message = time_messages(group)?;
            if group.topology().all_share_memory() {
                times.direct = Some(time_each(group, Algorithm::Direct)?);
            }
        }
        // Rank 0's clock counts.
        let mut numbers = [[times.message, times.reduce, 0.0], times.rings, times.direct.unwrap_or_default()];
        group.broadcast(numbers.as_flattened_mut(), 0)?;
        let [[message, reduce, _], rings, direct] = numbers;
        Ok(Self { rings, message, reduce, direct: times.direct.map(|_| direct) })
    }

    /// What the cost model makes of them in a group like the one that was measured; otherwise its numbers stay.
    pub fn tuning(&self, world: usize, mut tuning: Tuning) -> Tuning {
        if world > 1 {
            self.messages(world as f64, &mut tuning);
            if let Some(direct) = self.direct {
                shared_memory(world, direct, &mut tuning);
            }
        }
        tuning
    }

    /// Solves the model of the ring for its numbers.
    fn messages(&self, world: f64, tuning: &mut Tuning) {
        let n = LARGE as f64;
        let (steps, share) = (2.0 * (world - 1.0), (world - 1.0) / world);
        let [small, _, large] = self.rings;
        tuning.gamma = self.reduce;
        tuning.alpha = small / steps;
        tuning.beta = ((large - steps * tuning.alpha - share * n * tuning.gamma) / (2.0 * share * n)).max(LEAST);
    }
}

/// Measures this group's transport and lets its choices rest on the result, which is the same on all ranks.
pub fn measure(group: &mut Group) -> Result<Timings, CollectiveError> {
    let times = Timings::take(group)?;
    group.set_tuning(times.tuning(group.world(), group.tuning()));
    Ok(times)
}

/// Solves the model of the direct all-reduce for its numbers: what a byte costs by the difference of two sizes, then what
/// remains.
fn shared_memory(world: usize, [small, medium, large]: [f64; 3], tuning: &mut Tuning) {
    tuning.turn = small;
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
}

fn time_each(group: &mut Group, algorithm: Algorithm) -> Result<[f64; 3], CollectiveError> {
    let mut times = [0.0; 3];
    for (time, bytes) in times.iter_mut().zip(Timings::SIZES) {
        let mut data = vec![0f32; bytes / size_of::<f32>()];
        *time = self::time(group, bytes, |group| group.all_reduce(&mut data, Op::Sum, algorithm))?;
    }
    Ok(times)
}

/// A small message there and one back, of those that nobody has to wait for.
fn time_messages(group: &mut Group) -> Result<f64, CollectiveError> {
    let (rank, world) = (group.rank(), group.world());
    let mut data = vec![0f32; SMALL / size_of::<f32>()];
    let seconds = time(group, SMALL, |group| {
        (0..MESSAGES).try_for_each(|_| group.send(&data, (rank + 1) % world))?;
        (0..MESSAGES).try_for_each(|_| group.recv(&mut data, (rank + world - 1) % world))
    })?;
    Ok(seconds / MESSAGES as f64)
}

fn time(
    group: &mut Group,
    bytes: usize,
    mut work: impl FnMut(&mut Group) -> Result<(), CollectiveError>,
) -> Result<f64, CollectiveError> {
    let count = Timings::in_a_row(bytes);
    let mut seconds = [Vec::new(), Vec::new()];
    for _ in 0..rounds(bytes) {
        for (seconds, count) in seconds.iter_mut().zip([0, count]) {
            group.barrier()?;
            let began = Instant::now();
            compute(BURST);
            (0..count).try_for_each(|_| work(group))?;
            group.barrier()?;
            seconds.push(began.elapsed().as_secs_f64());
        }
    }
    let [without, with] = seconds.map(middle);
    Ok(((with - without) / count as f64).max(LEAST))
}

/// Wants a core for so many seconds.
fn compute(seconds: f64) {
    let began = thread_seconds();
    while thread_seconds() - began < seconds {
        std::hint::spin_loop();
    }
}

/// The mean of the middle half: what others do to a machine now and then does not count.
fn middle(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    let (from, to) = (seconds.len() / 4, seconds.len() - seconds.len() / 4);
    seconds[from..to].iter().sum::<f64>() / (to - from) as f64
}

/// How often a slice is timed.
fn rounds(bytes: usize) -> usize {
    match bytes {
        SMALL => 100,
        LARGE => 5,
        _ => 24,
    }
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
                        measure(&mut group).unwrap();
                        (group.tuning(), [16, 4096, 1 << 20, 1 << 26].map(|bytes| group.choice(bytes)))
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
