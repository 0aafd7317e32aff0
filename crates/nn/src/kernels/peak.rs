//! How fast this machine can multiply and add at best.

use std::time::Instant;

use ringstep_cpu::kernels;

use crate::team::{Shares, Team};

/// Sums that depend on nothing but themselves: more than any processor has multiply-adds under way at once.
const SUMS: usize = 12;
/// About a millisecond.
const ROUNDS: usize = 100_000;

kernels! {
    /// Multiplies and adds in registers alone. Returns how many operations that were.
    fn multiply_and_add<S>(simd: S, out: &mut [f32]) -> usize {
        let (by, to) = (simd.splat(0.999), simd.splat(0.001));
        let mut sums = [simd.splat(0.5); SUMS];
        for _ in 0..ROUNDS {
            for sum in &mut sums {
                *sum = sum.multiply_add(by, to);
            }
        }
        let mut total = simd.zero();
        for sum in sums {
            total = total + sum;
        }
        assert!(S::LANES <= out.len());
        // SAFETY: the assertion above.
        unsafe { simd.store(out.as_mut_ptr(), total) };
        2 * SUMS * ROUNDS * S::LANES
    }
}

/// Multiplications and additions a second of all threads together, where memory does not matter; the best of many tries.
pub fn measure(team: &mut Team) -> f64 {
    let (threads, level) = (team.threads(), team.level());
    let mut numbers = vec![0.0; threads * 16];
    let try_once = |_| {
        let operations = std::sync::atomic::AtomicUsize::new(0);
        let started = Instant::now();
        team.deal(threads, Shares::new(&mut numbers, 16), |_, share| {
            let done = multiply_and_add(level, share);
            operations.fetch_add(done, std::sync::atomic::Ordering::Relaxed);
        });
        operations.into_inner() as f64 / started.elapsed().as_secs_f64()
    };
    (0..50).map(try_once).fold(0.0, f64::max)
}
