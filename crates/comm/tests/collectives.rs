//! Every collective on 1 to 9 ranks, over threads and over sockets, against closed forms.

use std::net::Ipv4Addr;
use std::thread;
use std::time::Duration;

use proptest::prelude::*;
use ringstep_comm::transport::{Transport, mem};
use ringstep_comm::{Algorithm, Group, collective, rendezvous};

const LENGTHS: [usize; 7] = [0, 1, 3, 7, 64, 1009, 20_000];

/// Runs the same closure on every rank of a group and returns what each returned.
fn on_all_ranks<T, R>(transports: Vec<T>, work: impl Fn(&mut Group) -> R + Send + Sync) -> Vec<R>
where
    T: Transport + 'static,
    R: Send,
{
    let work = &work;
    thread::scope(|scope| {
        let ranks: Vec<_> = transports.into_iter().map(|t| scope.spawn(move || work(&mut Group::new(t)))).collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

fn tcp_mesh(world: usize) -> Vec<ringstep_comm::transport::tcp::Tcp> {
    let (token, patience) = ([7; 16], Duration::from_secs(30));
    let meeting = rendezvous::Meeting::open(Ipv4Addr::LOCALHOST.into(), token).unwrap();
    let address = meeting.address();
    thread::scope(|scope| {
        scope.spawn(move || meeting.host(world, patience).unwrap());
        let ranks: Vec<_> = (0..world)
            .map(|rank| scope.spawn(move || rendezvous::join(address, token, rank, world, patience).unwrap()))
            .collect();
        ranks.into_iter().map(|rank| rank.join().unwrap()).collect()
    })
}

/// Small integers: their sums are exact in f32, in whatever order.
fn input(rank: usize, index: usize) -> f32 {
    ((rank + 1) * (index % 101 + 1)) as f32
}

/// The sum of `input` over the ranks, in closed form.
fn expected_sum(world: usize, index: usize) -> f32 {
    (world * (world + 1) / 2 * (index % 101 + 1)) as f32
}

fn check_everything(group: &mut Group) {
    let (rank, world) = (group.rank(), group.world());
    for length in LENGTHS {
        for algorithm in Algorithm::ALL {
            let mut data: Vec<f32> = (0..length).map(|i| input(rank, i)).collect();
            let before = group.bytes_sent();
            group.all_reduce(&mut data, algorithm).unwrap();
            for (index, &sum) in data.iter().enumerate() {
                assert_eq!(
                    sum,
                    expected_sum(world, index),
                    "{algorithm:?}, {world} ranks, element {index} of {length}"
                );
            }
            assert_eq!(group.bytes_sent() - before, expected_bytes(algorithm, rank, world, length));
        }
        let mut data: Vec<f32> = (0..length).map(|i| input(rank, i)).collect();
        group.broadcast(&mut data).unwrap();
        assert!(data.iter().enumerate().all(|(i, &value)| value == input(0, i)));
        group.barrier().unwrap();
    }
}

/// What docs/algorithms.md says that a rank sends.
fn expected_bytes(algorithm: Algorithm, rank: usize, world: usize, length: usize) -> u64 {
    let elements = match algorithm {
        Algorithm::GatherScatter if rank == 0 => (world - 1) * length,
        Algorithm::GatherScatter => length,
        // All but one chunk in each phase: 2(p-1)/p of the slice, to the rounding of the chunks.
        Algorithm::Ring => {
            let left_out = |chunk| collective::chunk(length, world, chunk % world).len();
            2 * length - left_out(rank + 1) - left_out(rank + 2)
        }
    };
    4 * elements as u64
}

#[test]
fn threads_agree_with_closed_forms() {
    for world in 1..=9 {
        on_all_ranks(mem::mesh(world), check_everything);
    }
}

#[test]
fn sockets_agree_with_closed_forms() {
    for world in [1, 2, 3, 4, 7] {
        on_all_ranks(tcp_mesh(world), check_everything);
    }
}

#[test]
fn the_ring_sends_exactly_its_share_when_the_slice_divides() {
    for world in 2..=9 {
        let length = world * 1000;
        let sent = on_all_ranks(mem::mesh(world), |group| {
            group.all_reduce(&mut vec![1.0; length], Algorithm::Ring).unwrap();
            group.bytes_sent()
        });
        assert_eq!(sent, vec![(2 * (world - 1) * 1000 * 4) as u64; world]);
    }
}

#[test]
fn a_barrier_lets_nobody_leave_early() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for world in 1..=9 {
        let arrived = AtomicUsize::new(0);
        on_all_ranks(mem::mesh(world), |group| {
            for round in 1..=20 {
                arrived.fetch_add(1, Ordering::SeqCst);
                group.barrier().unwrap();
                assert!(arrived.load(Ordering::SeqCst) >= round * world);
            }
        });
    }
}

#[test]
fn a_rank_that_leaves_is_named_by_its_neighbours() {
    let errors = on_all_ranks(tcp_mesh(3), |group| match group.rank() {
        1 => String::new(),
        _ => group.all_reduce(&mut [1.0; 5000], Algorithm::GatherScatter).unwrap_err().to_string(),
    });
    assert_eq!(errors[0], "rank 0: all_reduce: recv from rank 1: connection closed");
    assert_eq!(errors[2], "rank 2: all_reduce: recv from rank 0: connection closed");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 32, ..ProptestConfig::default() })]

    /// Values whose sums round: every rank still has the same bits, and every repeat too.
    #[test]
    fn all_ranks_end_with_the_same_bits(
        world in 1usize..=6,
        rows in prop::collection::vec(prop::collection::vec(-1e3f32..1e3, 6), 0..60),
    ) {
        for algorithm in Algorithm::ALL {
            let run = || on_all_ranks(mem::mesh(world), |group| {
                let mut data: Vec<f32> = rows.iter().map(|row| row[group.rank()]).collect();
                group.all_reduce(&mut data, algorithm).unwrap();
                data.into_iter().map(f32::to_bits).collect::<Vec<_>>()
            });
            let first = run();
            prop_assert!(first.iter().all(|bits| bits == &first[0]));
            prop_assert_eq!(first, run());
        }
    }
}
