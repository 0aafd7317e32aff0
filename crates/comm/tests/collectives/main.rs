//! Every collective, operation, element type, algorithm and transport against closed forms.

#[path = "../common/mod.rs"]
mod common;
mod messages;
mod traffic;

use common::{TRANSPORTS, on_ranks};
use half::{bf16, f16};
use proptest::prelude::*;
use ringstep_comm::collective::chunk;
use ringstep_comm::transport::mem;
use ringstep_comm::{Algorithm, Element, Group, How, Op};

/// None, one, fewer than ranks, primes, and more than fits a block, a slot or a pipe.
const LENGTHS: [usize; 6] = [0, 1, 3, 64, 1009, 70_001];

/// Small integers: exact in every type, whatever the order, even the sum and the product of nine.
fn input(rank: usize, index: usize, op: Op) -> f64 {
    match op {
        Op::Product => [1.0, 2.0][(rank + index) % 4 / 3],
        _ => ((rank * 3 + index) % 7) as f64,
    }
}

/// The reduction of `input` over the ranks, from its definition.
fn expected(world: usize, index: usize, op: Op) -> f64 {
    let values = (0..world).map(|rank| input(rank, index, op));
    match op {
        Op::Sum | Op::Mean => values.sum(),
        Op::Product => values.product(),
        Op::Max => values.fold(f64::NEG_INFINITY, f64::max),
        Op::Min => values.fold(f64::INFINITY, f64::min),
    }
}

/// A mean is rounded as the type does: integers towards zero.
fn expected_element<T: Element>(world: usize, index: usize, op: Op) -> T {
    let mut value = [T::from_f64(expected(world, index, op))];
    if op == Op::Mean {
        T::divide(&mut value, world);
    }
    value[0]
}

fn possible(algorithm: Algorithm, group: &mut Group) -> bool {
    !algorithm.needs_shared_memory() || group.topology().all_share_memory()
}

fn check_all_reduce<T: Element>(group: &mut Group, length: usize, op: Op, how: How) {
    let (rank, world) = (group.rank(), group.world());
    let mut data: Vec<T> = (0..length).map(|i| T::from_f64(input(rank, i, op))).collect();
    group.all_reduce(&mut data, op, how).unwrap();
    for (index, &value) in data.iter().enumerate() {
        let right = expected_element::<T>(world, index, op);
        assert_eq!(value, right, "{how:?} {op:?}, {world} ranks, element {index} of {length}");
    }
}

fn every_type(group: &mut Group, length: usize, op: Op, how: How) {
    check_all_reduce::<f32>(group, length, op, how);
    check_all_reduce::<f64>(group, length, op, how);
    check_all_reduce::<f16>(group, length, op, how);
    check_all_reduce::<bf16>(group, length, op, how);
    check_all_reduce::<i32>(group, length, op, how);
    check_all_reduce::<i64>(group, length, op, how);
    check_all_reduce::<u8>(group, length, op, how);
}

#[test]
fn all_reduce_agrees_with_closed_forms() {
    for transport in TRANSPORTS {
        for world in 1..=9 {
            on_ranks(transport, world, |group| {
                for algorithm in Algorithm::ALL.into_iter().filter(|&it| possible(it, group)).collect::<Vec<_>>() {
                    for op in Op::ALL {
                        for length in [0, 1, 3, 1009] {
                            every_type(group, length, op, algorithm.into());
                        }
                    }
                    for length in LENGTHS {
                        for deterministic in [false, true] {
                            let how = How { algorithm: Some(algorithm), deterministic };
                            check_all_reduce::<f32>(group, length, Op::Sum, how);
                        }
                    }
                    check_all_reduce::<u8>(group, 1_300_003, Op::Max, algorithm.into());
                }
            });
        }
    }
}

/// Only ranks of one host pass chunks on in segments, so one host is compared with two.
#[test]
fn segments_change_neither_bits_nor_bytes() {
    for world in [2, 3, 5] {
        for algorithm in [Algorithm::Ring, Algorithm::HalvingDoubling] {
            let results = ["mem", "tcp", "tcp on 2 hosts"].map(|transport| {
                on_ranks(transport, world, |group| {
                    let value = |i: usize| ((group.rank() + 2) as f32 / (i % 1013 + 3) as f32).sqrt();
                    let mut data: Vec<f32> = (0..world * 150_000 + 1).map(value).collect();
                    let before = (group.bytes_sent(), group.messages_sent());
                    group.all_reduce(&mut data, Op::Sum, algorithm).unwrap();
                    let bits: Vec<u32> = data.into_iter().map(f32::to_bits).collect();
                    (bits, group.bytes_sent() - before.0, group.messages_sent() - before.1)
                })
            });
            let [mem, tcp, apart] = results;
            assert_eq!(mem, tcp, "{algorithm:?}, {world} ranks");
            for ((bits, bytes, messages), (bits_apart, bytes_apart, messages_apart)) in tcp.into_iter().zip(apart) {
                assert!(bits == bits_apart, "{algorithm:?}, {world} ranks");
                assert_eq!(bytes, bytes_apart, "{algorithm:?}, {world} ranks");
                assert!(messages > messages_apart, "{algorithm:?}, {world} ranks: {messages} messages");
            }
        }
    }
}

/// Wherever slices lie in memory, and even if they lie elsewhere on every rank.
#[test]
fn data_need_not_be_aligned() {
    fn check<T: Element>(group: &mut Group, skip: usize) {
        let (rank, world, length) = (group.rank(), group.world(), 30_011);
        let mut data: Vec<T> = (0..skip + length).map(|i| T::from_f64(input(rank, i - i.min(skip), Op::Sum))).collect();
        group.all_reduce(&mut data[skip..], Op::Sum, Algorithm::Ring).unwrap();
        for (index, &value) in data[skip..].iter().enumerate() {
            assert_eq!(value, expected_element::<T>(world, index, Op::Sum), "element {index} behind {skip}");
        }
    }
    for world in [2, 3] {
        on_ranks("tcp", world, |group| {
            for skip in 0..33 {
                check::<u8>(group, skip);
                check::<u8>(group, skip * (group.rank() + 1));
                check::<f16>(group, skip * (group.rank() + 1));
                check::<f64>(group, skip * (group.rank() + 1));
            }
        });
    }
}

#[test]
fn the_other_collectives_agree_with_closed_forms() {
    for transport in TRANSPORTS {
        for world in [1, 2, 3, 4, 7] {
            on_ranks(transport, world, |group| {
                for length in LENGTHS {
                    check_others(group, length);
                }
            });
        }
    }
}

fn check_others(group: &mut Group, length: usize) {
    let (rank, world) = (group.rank(), group.world());
    let mine = |rank: usize, i: usize| (rank * 1000 + i) as i64;
    let sum = |i: usize| (0..world).map(|rank| mine(rank, i)).sum::<i64>();
    let own: Vec<i64> = (0..length).map(|i| mine(rank, i)).collect();
    for root in 0..world {
        let mut data = own.clone();
        group.broadcast(&mut data, root).unwrap();
        assert!((0..length).all(|i| data[i] == mine(root, i)));

        let mut data = own.clone();
        group.reduce(&mut data, Op::Sum, root).unwrap();
        assert!(rank != root || (0..length).all(|i| data[i] == sum(i)));

        let mut all = vec![0; if rank == root { length * world } else { 0 }];
        group.gather(&own, &mut all, root).unwrap();
        assert!(all.iter().enumerate().all(|(at, &value)| value == mine(at / length, at % length)));

        let mut part = vec![0; length];
        group.scatter(&all, &mut part, root).unwrap();
        assert_eq!(part, own);
    }

    let mut data = vec![0; length];
    for i in chunk(length, world, rank) {
        data[i] = 7 * i as i64;
    }
    group.all_gather(&mut data).unwrap();
    assert!((0..length).all(|i| data[i] == 7 * i as i64));

    let mut data = own.clone();
    group.reduce_scatter(&mut data, Op::Sum).unwrap();
    assert!(chunk(length, world, rank).all(|i| data[i] == sum(i)));

    let outgoing: Vec<i64> = (0..length * world).map(|at| mine(rank, at)).collect();
    let mut incoming = vec![0; length * world];
    group.all_to_all(&outgoing, &mut incoming).unwrap();
    assert!(incoming.iter().enumerate().all(|(at, &v)| v == mine(at / length, rank * length + at % length)));

    // Around in a circle: even ranks send first.
    let (right, left) = ((rank + 1) % world, (rank + world - 1) % world);
    if world % 2 == 0 {
        let mut received = vec![0; length];
        if rank % 2 == 0 {
            group.send(&own, right).unwrap();
            group.recv(&mut received, left).unwrap();
        } else {
            group.recv(&mut received, left).unwrap();
            group.send(&own, right).unwrap();
        }
        assert!((0..length).all(|i| received[i] == mine(left, i)));
    }
    group.barrier().unwrap();
}

#[test]
fn a_barrier_lets_nobody_leave_early() {
    use std::sync::atomic::{AtomicUsize, Ordering};
    for transport in TRANSPORTS {
        for world in [1, 2, 3, 5, 8] {
            let arrived = AtomicUsize::new(0);
            on_ranks(transport, world, |group| {
                for round in 1..=20 {
                    arrived.fetch_add(1, Ordering::SeqCst);
                    group.barrier().unwrap();
                    assert!(arrived.load(Ordering::SeqCst) >= round * world);
                }
            });
        }
    }
}

#[test]
fn what_is_queued_is_worked_off_in_order_and_mixes_with_other_calls() {
    for transport in ["mem", "tcp", "shm"] {
        on_ranks(transport, 3, |group| {
            let rank = group.rank();
            for _ in 0..3 {
                let mut slices = vec![vec![0.0f32; 1000]; 20];
                let mut done = Vec::new();
                let filled = group.while_doing(
                    |group, (at, slice): (usize, &mut Vec<f32>)| {
                        done.push(at);
                        // Any collective will do.
                        group.broadcast(&mut [at as i64], 0)?;
                        group.all_reduce(slice, Op::Sum, Algorithm::Ring)
                    },
                    |queue| {
                        for (at, slice) in slices.iter_mut().enumerate() {
                            slice.fill((rank + at) as f32);
                            queue.push((at, slice));
                        }
                        20
                    },
                );
                assert_eq!(filled.unwrap(), 20);
                assert_eq!(done, (0..20).collect::<Vec<_>>());
                assert!(slices.iter().enumerate().all(|(at, slice)| *slice == vec![(3 + 3 * at) as f32; 1000]));
                let mut data = [rank as i32];
                group.all_reduce(&mut data, Op::Max, How::default()).unwrap();
                assert_eq!(data, [2]);
            }
            // The first error is what comes out, and nothing is done after it.
            let mut last = 0;
            let outcome = group.while_doing(
                |_, at| {
                    last = at;
                    if at < 3 { Ok(()) } else { Err(at) }
                },
                |queue| (0..10).for_each(|at| queue.push(at)),
            );
            assert_eq!((outcome, last), (Err(3), 3));
            assert_eq!(group.while_doing(|_, ()| Ok::<_, ()>(()), |_| "nothing queued"), Ok("nothing queued"));
        });
    }
}

#[test]
fn sub_groups_work_beside_each_other_and_their_parent() {
    for transport in TRANSPORTS {
        on_ranks(transport, 6, |group| {
            let rank = group.rank();
            // Even and odd ranks, the latter in reverse order.
            let odd = rank % 2 == 1;
            let mut half = group.split(i64::from(odd), if odd { -(rank as i64) } else { 0 }).unwrap();
            assert_eq!(half.world(), 3);
            assert_eq!(half.rank(), if odd { (5 - rank) / 2 } else { rank / 2 });
            let mut from_first = [rank as i32];
            half.broadcast(&mut from_first, 0).unwrap();
            assert_eq!(from_first, [if odd { 5 } else { 0 }]);
            // Both at once: the sub-group's is under way while the parent works.
            for algorithm in [Algorithm::Ring, Algorithm::Hierarchical] {
                let (mut sum, mut all) = (vec![rank as i64; 5000], vec![1i64; 3000]);
                half.while_doing(
                    |half, slice: &mut Vec<i64>| half.all_reduce(slice, Op::Sum, algorithm),
                    |queue| {
                        queue.push(&mut sum);
                        group.all_reduce(&mut all, Op::Sum, algorithm).unwrap();
                    },
                )
                .unwrap();
                assert_eq!(all, vec![6; 3000]);
                assert_eq!(sum, vec![if odd { 9 } else { 6 }; 5000]);
            }
            let mut alone = half.split(half.rank() as i64, 0).unwrap();
            assert_eq!(alone.world(), 1);
            alone.barrier().unwrap();
        });
    }
}

/// Pipes between all pairs of 512 ranks are 64 GiB of addresses, and of memory what they use.
#[test]
fn hundreds_of_ranks_share_memory() {
    for algorithm in [Algorithm::Ring, Algorithm::Direct] {
        let sums = on_ranks("mem", 512, |group| {
            let mut data = [group.rank() as i32; 3];
            group.all_reduce(&mut data, Op::Sum, algorithm).unwrap();
            data
        });
        assert!(sums.iter().all(|&sum| sum == [512 * 511 / 2; 3]));
    }
    let refusal = mem::try_mesh(20_000).unwrap_err().to_string();
    assert_eq!(refusal, "20000 ranks are more than the 16384 that can share memory on one host");
}

/// Rounding sums of a whole world, as bits.
fn bits(transport: &str, world: usize, rows: &[Vec<f32>], how: How) -> Vec<Vec<u32>> {
    on_ranks(transport, world, |group| {
        let mut data: Vec<f32> = rows.iter().map(|row| row[group.rank()]).collect();
        group.all_reduce(&mut data, Op::Sum, how).unwrap();
        data.into_iter().map(f32::to_bits).collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 12, ..ProptestConfig::default() })]

    /// Values whose sums round: every rank has the same bits, in every repeat, over every transport of one layout; in
    /// deterministic mode they are those of adding in the order of the ranks, whatever the algorithm.
    #[test]
    fn bits_depend_on_nothing_but_the_inputs(
        world in 1usize..=6,
        rows in prop::collection::vec(prop::collection::vec(-1e3f32..1e3, 6), 0..60),
    ) {
        let in_order: Vec<u32> =
            rows.iter().map(|row| row[1..world].iter().fold(row[0], |sum, value| sum + value).to_bits()).collect();
        for algorithm in Algorithm::ALL {
            let first = bits("mem", world, &rows, algorithm.into());
            prop_assert!(first.iter().all(|bits| bits == &first[0]));
            prop_assert_eq!(&first, &bits("mem", world, &rows, algorithm.into()));
            prop_assert_eq!(&first, &bits("shm", world, &rows, algorithm.into()));
            if !algorithm.needs_shared_memory() && algorithm != Algorithm::Hierarchical {
                prop_assert_eq!(&first, &bits("tcp", world, &rows, algorithm.into()));
            }
            let how = How { algorithm: Some(algorithm), deterministic: true };
            for transport in TRANSPORTS {
                if !algorithm.needs_shared_memory() || ["mem", "shm"].contains(&transport) {
                    let all = bits(transport, world, &rows, how);
                    prop_assert!(all.iter().all(|bits| *bits == in_order), "{:?} over {}", how, transport);
                }
            }
        }
    }
}
