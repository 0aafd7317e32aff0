//! Steps and bytes against the formulas of `docs/algorithms.md`.

use anyhow::{Result, ensure};
use ringstep_comm::Algorithm;

use super::record::Recording;

/// What an algorithm should take.
struct Formula {
    /// Steps, in letters and as a number.
    steps: (&'static str, usize),
    /// Slices that the busiest worker sends, in letters and as a number.
    slices: (&'static str, f64),
    /// What letters other than p stand for.
    letters: String,
}

fn formula(algorithm: Algorithm, world: usize) -> Formula {
    let (floor, ceil) = (world.ilog2() as usize, world.next_power_of_two().ilog2() as usize);
    let power = 1usize << floor;
    let even = power == world;
    let share = |p: usize| 2.0 * (p as f64 - 1.0) / p as f64;
    let mut letters = String::new();
    let (steps, slices) = match algorithm {
        Algorithm::Ring => (("2(p-1)", 2 * (world - 1)), ("2(p-1)/p", share(world))),
        Algorithm::GatherScatter => (("2(p-1)", 2 * (world - 1)), ("(p-1)", world as f64 - 1.0)),
        Algorithm::Tree if even => (("2 log2 p", 2 * ceil), ("log2 p", ceil as f64)),
        Algorithm::Tree => (("2 ceil(log2 p)", 2 * ceil), ("ceil(log2 p)", ceil as f64)),
        Algorithm::RecursiveDoubling if even => (("log2 p", floor), ("log2 p", floor as f64)),
        Algorithm::RecursiveDoubling => (("floor(log2 p) + 2", floor + 2), ("(floor(log2 p) + 1)", floor as f64 + 1.0)),
        Algorithm::HalvingDoubling if even => (("2 log2 p", 2 * floor), ("2(p-1)/p", share(world))),
        Algorithm::HalvingDoubling => {
            letters = format!(", q = {power}, the power of two below p");
            (("2 log2 q + 2", 2 * floor + 2), ("(2(q-1)/q + 1)", share(power) + 1.0))
        }
        Algorithm::Direct => (("1", 1), ("1", 1.0)),
        Algorithm::Hierarchical => {
            let most = world.div_ceil(2);
            letters = format!(", h = 2 hosts, m = {most} on the larger");
            (("2(m-1) + 2(h-1)", 2 * most), ("(m-1 + 2(h-1)/h)", most as f64))
        }
        #[cfg(feature = "mpi")]
        Algorithm::Mpi => unreachable!("it is no schedule that could be explained"),
    };
    Formula { steps, slices, letters }
}

/// The line of steps and bytes.
pub fn closing(algorithm: Algorithm, recording: &Recording, steps: usize) -> Result<String> {
    let (ranks, world) = (&recording.ranks, recording.ranks.len());
    let size = size_of_val(ranks[0].start.as_slice());
    let Formula { steps: (steps_formula, expected), slices: (slices, factor), letters } = formula(algorithm, world);
    ensure!(steps == expected, "{steps} steps, not {expected}");
    let most = ranks.iter().map(|rank| rank.bytes).max().unwrap_or(0);
    let busiest: Vec<usize> = (0..world).filter(|&rank| ranks[rank].bytes == most).collect();
    let who = match busiest.as_slice() {
        all if all.len() == world => "each worker".to_owned(),
        [one] => format!("worker {}, the busiest,", recording.name(*one)),
        _ => "the busiest workers".to_owned(),
    };
    let how = if algorithm.needs_shared_memory() { "laid out" } else { "sent" };
    let exact = (factor * size as f64 - most as f64).abs() < 1e-6;
    let (equals, rounding) = if exact { ("=", "") } else { ("~", ", to the rounding of a chunk") };
    let steps = if steps == 1 { "1 step".to_owned() } else { format!("{steps} steps = {steps_formula}") };
    Ok(format!(
        "{steps}, {most} bytes {how} by {who} {equals} {slices} x {size} bytes{rounding} (p = {world}{letters})"
    ))
}

#[cfg(test)]
mod tests {
    use ringstep_comm::Op;

    use super::super::record::record;
    use super::super::story::Story;
    use super::*;

    /// Values that every number of chunks divides leave no rounding.
    #[test]
    fn formulas_are_exact_where_chunks_are_equal() {
        for algorithm in Algorithm::ALL {
            for world in 2..=16usize {
                let length = world * (1 << world.ilog2());
                let recording = record(algorithm, Op::Sum, vec![vec![1.0; length]; world]).unwrap();
                let line = closing(algorithm, &recording, Story::of(&recording).rounds.len()).unwrap();
                assert!(!line.contains('~'), "{algorithm:?} {world}: {line}");
            }
        }
    }

    #[test]
    fn a_rounded_chunk_is_said_to_be() {
        let recording = record(Algorithm::Ring, Op::Sum, vec![vec![1.0; 4]; 3]).unwrap();
        let line = "4 steps = 2(p-1), 48 bytes sent by worker 0, the busiest, ~ 2(p-1)/p x 32 bytes, to the rounding of a \
                    chunk (p = 3)";
        assert_eq!(closing(Algorithm::Ring, &recording, 4).unwrap(), line);
    }
}
