//! What passes between ranks, as groups count and record it.

use ringstep_comm::log::With;
use ringstep_comm::transport::Traffic;
use ringstep_comm::{Algorithm, Group, Op, cost};

use crate::common::{TRANSPORTS, on_ranks};
use crate::{LENGTHS, possible};

#[test]
fn counted_bytes_are_those_of_the_cost_model() {
    for transport in TRANSPORTS {
        let shared = !transport.starts_with("tcp");
        // What is encrypted has 22 bytes more for each 16 KiB, and some of it is received before it is asked for.
        let tls = transport.contains("tls");
        for world in 1..=9 {
            let traffic = on_ranks(transport, world, |group| {
                let (rank, topology) = (group.rank(), group.topology().clone());
                let mut traffic = Vec::new();
                for algorithm in Algorithm::ALL.into_iter().filter(|&it| possible(it, group)).collect::<Vec<_>>() {
                    for length in LENGTHS {
                        let before = group.traffic();
                        group.all_reduce(&mut vec![1.0f64; length], Op::Sum, algorithm).unwrap();
                        let passed = group.traffic() - before;
                        let formula = cost::bytes_sent(algorithm, rank, &topology, length, 8) as u64;
                        let place = format!("{algorithm:?} on {transport}, rank {rank} of {world}, {length}");
                        assert_eq!(passed.payload[0], formula, "{place}");
                        let by_messages =
                            algorithm != Algorithm::Direct && (!shared || algorithm != Algorithm::Hierarchical);
                        for way in if tls { 0..1 } else { 0..2 } {
                            // A header, and what keeps data in its place.
                            let least = passed.payload[way] + if by_messages { 32 * passed.messages[way] } else { 0 };
                            assert!(passed.wire[way] >= least, "{place}: {passed:?}");
                            let (each, records) = if tls { (95 + 22, passed.payload[way] / 700) } else { (95, 0) };
                            let most = passed.payload[way] + each * passed.messages[way] + records;
                            assert!(passed.wire[way] <= most, "{place}: {passed:?}");
                        }
                        traffic.push((by_messages, passed));
                    }
                }
                traffic
            });
            // What some send, others receive.
            for at in 0..traffic[0].len() {
                let by_messages = traffic[0][at].0;
                let total = traffic.iter().fold(Traffic::default(), |sum, rank| sum + rank[at].1);
                assert_eq!(total.messages[0], total.messages[1], "{transport}, {world} ranks");
                if by_messages {
                    assert_eq!(total.payload[0], total.payload[1], "{transport}, {world} ranks");
                    assert!(tls || total.wire[0] == total.wire[1], "{transport}, {world} ranks");
                }
            }
        }
    }
}

/// In shared memory each of p ranks reads what the p-1 others have laid out: flat all of it, chunked its chunk of it and
/// their chunks of the result.
#[test]
fn what_is_read_in_shared_memory_counts_as_received() {
    for (elements, received) in [(100, 3 * 800), (40_000, 3 * 80_000 + 3 * 80_000)] {
        let traffic = on_ranks("mem", 4, |group| {
            group.all_reduce(&mut vec![1.0f64; elements], Op::Sum, Algorithm::Direct).unwrap();
            group.traffic()
        });
        assert!(traffic.iter().all(|traffic| traffic.payload[1] == received && traffic.wire == traffic.payload));
    }
}

#[test]
fn recorded_exchanges_are_those_that_were_made() {
    on_ranks("mem", 2, |group| {
        let (rank, mut exchanges) = (group.rank(), Vec::new());
        group.barrier().unwrap();
        group.record(true);
        group.label(3);
        group.broadcast(&mut [1.0f32; 5], 0).unwrap();
        group.label(4);
        let mut lent = [0u8; 7];
        let each = |group: &mut Group, lent: &mut [u8; 7]| match rank {
            0 => group.send(lent, 1),
            _ => group.recv(lent, 0),
        };
        group.while_doing(each, |queue| queue.push(&mut lent)).unwrap();
        group.barrier().unwrap();
        group.take_exchanges(&mut exchanges);
        let seen: Vec<_> = exchanges.iter().map(|it| (it.call.to_string(), it.with, it.label, it.beside)).collect();
        let with = if rank == 0 { With::To(1) } else { With::From(0) };
        let expected = [
            ("broadcast #2 (5 f32, root 0)".to_owned(), With::All, 3, false),
            ("send/recv #1 (7 u8)".to_owned(), with, 4, true),
            ("barrier #3 (0 u8)".to_owned(), With::All, 4, false),
        ];
        assert_eq!(seen, expected);
        assert!(exchanges.iter().all(|it| it.began <= it.ended));
        assert!(exchanges.is_sorted_by_key(|it| it.ended));
        group.record(false);
        group.barrier().unwrap();
        group.take_exchanges(&mut exchanges);
        assert_eq!(exchanges.len(), 3);
    });
}

#[test]
fn the_ring_sends_exactly_its_share_when_the_slice_divides() {
    for world in 2..=9 {
        let sent = on_ranks("mem", world, |group| {
            group.all_reduce(&mut vec![1.0f32; world * 1000], Op::Sum, Algorithm::Ring).unwrap();
            group.bytes_sent()
        });
        assert_eq!(sent, vec![(2 * (world - 1) * 1000 * 4) as u64; world]);
    }
}
