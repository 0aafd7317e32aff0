//! Beside [`Shaped`], whose links are those of the simulation: threads that really send, and really wait.

use std::sync::Barrier;
use std::thread;
use std::time::{Duration, Instant};

use ringstep_comm::transport::{Net, Shaped, mem};
use ringstep_comm::{Algorithm, Group, Op};
use ringstep_sim::{Cluster, Slice, Sync, Workload, simulate};

/// Links are the same, and messages are received in the same order; threads only come later to what they do. So whoever
/// really sends is never through earlier than the simulation says.
#[test]
fn what_really_sends_takes_no_less() {
    let net = Net { bytes_per_second: 2e6, latency: Duration::from_millis(1) };
    for world in [2, 3, 4] {
        for algorithm in Algorithm::ALL.into_iter().filter(|algorithm| !algorithm.needs_shared_memory()) {
            let elements = 3001;
            let slices = vec![Slice::of_f32(elements, 0.0).by(algorithm)];
            let workload = Workload::new(0.0, 0.0, 0.0, slices, Sync::AfterBackward);
            let simulated = simulate(&Cluster::flat(world, net), &workload).unwrap().times.step_seconds;
            assert!(simulated > 2e-3);
            let barrier = Barrier::new(world);
            let took = thread::scope(|scope| {
                let ranks: Vec<_> = mem::mesh(world)
                    .into_iter()
                    .map(|end| {
                        let barrier = &barrier;
                        scope.spawn(move || {
                            let mut group = Group::new(Shaped::new(end, net));
                            barrier.wait();
                            let began = Instant::now();
                            group.all_reduce(&mut vec![1f32; elements], Op::Sum, algorithm).unwrap();
                            (began, Instant::now())
                        })
                    })
                    .collect();
                let times: Vec<_> = ranks.into_iter().map(|rank| rank.join().unwrap()).collect();
                let began = times.iter().map(|time| time.0).min().unwrap();
                (times.iter().map(|time| time.1).max().unwrap() - began).as_secs_f64()
            });
            assert!(took >= simulated - 1e-6, "{algorithm:?}, {world} workers: {took} s, simulated {simulated} s");
        }
    }
}
