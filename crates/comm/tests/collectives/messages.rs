//! Messages whose length the sender decides, from one rank or from whichever comes.

use std::sync::Barrier;
use std::time::{Duration, Instant};

use ringstep_comm::Gathered;

use crate::common::{TRANSPORTS, on_ranks};

/// Part of rank `from` for rank `to`: empty, some bytes, or more than fits a pipe.
fn part(from: usize, to: usize) -> Vec<u8> {
    let length = [0, 5, 33, 20_000, 300_001][(from * 3 + to) % 5];
    (0..length).map(|i| (i * 7 + from * 31 + to) as u8).collect()
}

#[test]
fn parts_of_any_length_arrive() {
    for transport in TRANSPORTS {
        for world in 1..=9 {
            on_ranks(transport, world, |group| {
                let (rank, mut all) = (group.rank(), Gathered::default());
                for turn in 0..3 {
                    let before = group.traffic();
                    group.all_gather_varied(&part(rank, turn), 300_001, &mut all).unwrap();
                    assert!(all.parts().eq((0..world).map(|from| part(from, turn))), "{transport}, {world} ranks");
                    let passed = group.traffic() - before;
                    // All parts but that of the right neighbour go out, all but its own come in.
                    let all_but =
                        |out: usize| all.parts().enumerate().filter(|it| it.0 != out).map(|it| it.1.len()).sum();
                    let expected: [usize; 2] = [all_but((rank + 1) % world), all_but(rank)];
                    assert_eq!(passed.payload, expected.map(|bytes| bytes as u64));

                    let outgoing: Vec<_> = (0..world).map(|to| part(rank, to + turn)).collect();
                    group.exchange_varied(&outgoing, 300_001, &mut all).unwrap();
                    assert!(
                        all.parts().eq((0..world).map(|from| part(from, rank + turn))),
                        "{transport}, {world} ranks"
                    );
                }
                let mut received = vec![9; 77];
                if rank == 0 {
                    (1..world).for_each(|to| group.send_varied(&part(0, to), 400_000, to).unwrap());
                }
                if rank > 0 {
                    group.recv_varied(0, 400_000, &mut received).unwrap();
                    assert_eq!(received, part(0, rank));
                }
            });
        }
    }
}

/// Rank 0 receives from all others, whoever comes: everything arrives, and what comes from one comes in order.
#[test]
fn whoever_has_sent_something_is_received_from() {
    const MESSAGES: usize = 40;
    for transport in TRANSPORTS {
        for world in [2, 4, 6] {
            on_ranks(transport, world, |group| {
                let (rank, limit) = (group.rank(), 300_001);
                if rank > 0 {
                    for turn in 0..MESSAGES {
                        if turn % (rank + 4) == 0 {
                            std::thread::sleep(Duration::from_micros(700 * rank as u64));
                        }
                        group.send_varied(&part(rank, turn), limit, 0).unwrap();
                    }
                    return;
                }
                let (mut counts, mut message) = (vec![0; world], Vec::new());
                loop {
                    let others: Vec<usize> = (1..world).filter(|&from| counts[from] < MESSAGES).collect();
                    if others.is_empty() {
                        break;
                    }
                    let until = Some(Instant::now() + Duration::from_micros(100));
                    if let Some(from) = group.recv_any(&others, limit, &mut message, until).unwrap() {
                        assert!(message == part(from, counts[from]), "{transport}, {world} ranks");
                        counts[from] += 1;
                    }
                }
            });
        }
    }
}

#[test]
fn those_that_have_sent_something_take_turns() {
    for transport in TRANSPORTS {
        let (sent, received) = (Barrier::new(4), Barrier::new(4));
        on_ranks(transport, 4, |group| {
            let mut message = Vec::new();
            if group.rank() == 0 {
                let nobody = group.recv_any(&[3, 1, 2], 8, &mut message, Some(Instant::now())).unwrap();
                assert_eq!(nobody, None, "{transport}");
            }
            sent.wait();
            if group.rank() > 0 {
                (0..3).for_each(|turn| group.send_varied(&[turn], 8, 0).unwrap());
            }
            received.wait();
            if group.rank() == 0 {
                for turn in 0..3 {
                    for from in [3, 1, 2] {
                        assert_eq!(
                            group.recv_any(&[3, 1, 2], 8, &mut message, None).unwrap(),
                            Some(from),
                            "{transport}"
                        );
                        assert_eq!(message, [turn]);
                    }
                }
            }
        });
    }
}
