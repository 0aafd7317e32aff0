//! Ranks that disagree, leave, are killed or fall silent: an error that names them, never a hang or wrong numbers.

mod common;

use std::fs;
use std::net::Ipv4Addr;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::{TRANSPORTS, on_patient_ranks, on_ranks};
use ringstep_comm::call::{Call, Collective};
use ringstep_comm::element::ElementType;
use ringstep_comm::rendezvous::{Invitation, Meeting, Secret};
use ringstep_comm::transport::shm::Shm;
use ringstep_comm::transport::{Incoming, Sink, Transport, mem};
use ringstep_comm::{Algorithm, CollectiveError, Gathered, Group, Op};

fn reduce(group: &mut Group, length: usize, algorithm: Algorithm) -> Result<(), CollectiveError> {
    group.all_reduce(&mut vec![1.0f32; length], Op::Sum, algorithm)
}

#[test]
fn another_length_names_both_sides() {
    for transport in ["mem", "tcp", "shm"] {
        for algorithm in Algorithm::ALL {
            if algorithm.needs_shared_memory() && transport == "tcp" {
                continue;
            }
            let errors = on_ranks(transport, 2, |group| {
                let length = 1000 + group.rank();
                reduce(group, length, algorithm).map_err(|error| error.to_string())
            });
            let named = |rank: usize| {
                let name = algorithm.name();
                errors[rank].as_ref().is_err_and(|error| {
                    error.starts_with(&format!("rank {rank}: all_reduce #1 ({name}, sum of {} f32): ", 1000 + rank))
                        && error.contains(&format!("rank {}: ", 1 - rank))
                        && (error.contains(&format!("it is in all_reduce #1 ({name}, sum of {} f32)", 1001 - rank))
                            || error.ends_with("connection closed"))
                })
            };
            assert!(named(0) && named(1), "{transport}, {algorithm:?}: {errors:?}");
            assert!(errors.iter().any(|error| error.as_ref().unwrap_err().contains("it is in")), "{errors:?}");
        }
    }
}

#[test]
fn another_operation_type_order_or_algorithm_is_noticed() {
    type Wrong = fn(&mut Group) -> Result<(), CollectiveError>;
    let wrongs: [(&str, Wrong); 5] = [
        ("max of 9 f32", |group| group.all_reduce(&mut [1.0f32; 9], Op::Max, Algorithm::Ring)),
        ("sum of 9 i32", |group| group.all_reduce(&mut [1i32; 9], Op::Sum, Algorithm::Ring)),
        ("tree, sum of 9 f32", |group| group.all_reduce(&mut [1.0f32; 9], Op::Sum, Algorithm::Tree)),
        ("broadcast #1 (9 f32, root 0)", |group| group.broadcast(&mut [1.0f32; 9], 0)),
        ("barrier #1", |group| group.barrier()),
    ];
    for transport in ["mem", "tcp", "shm"] {
        for (theirs, wrong) in wrongs {
            let errors = on_patient_ranks(transport, 2, Duration::from_secs(5), |group| match group.rank() {
                0 => reduce(group, 9, Algorithm::Ring).unwrap_err().to_string(),
                _ => wrong(group).err().map_or(String::new(), |error| error.to_string()),
            });
            // Whoever hears of the other first says so; the other then finds it gone.
            let noticed =
                errors[0].contains(theirs) || errors[1].contains("it is in all_reduce #1 (ring, sum of 9 f32)");
            assert!(noticed, "{transport}: {errors:?}");
        }
    }
}

/// Whoever loses it first names it; a rank that waits for another which has left for that reason names that one.
#[test]
fn a_rank_that_leaves_is_named() {
    for transport in TRANSPORTS {
        for algorithm in [Algorithm::Ring, Algorithm::GatherScatter, Algorithm::Direct] {
            if algorithm.needs_shared_memory() && !["mem", "shm"].contains(&transport) {
                continue;
            }
            let errors = on_ranks(transport, 3, |group| match group.rank() {
                1 => None,
                _ => Some(reduce(group, 500_000, algorithm).unwrap_err().to_string()),
            });
            let errors: Vec<String> = errors.into_iter().flatten().collect();
            assert!(errors.iter().all(|error| error.ends_with(": connection closed")), "{transport}: {errors:?}");
            assert!(errors.iter().any(|error| error.contains("rank 1: connection")), "{transport}: {errors:?}");
        }
    }
}

#[test]
fn a_silent_rank_is_named_after_the_timeout() {
    for transport in TRANSPORTS {
        let given_up = AtomicBool::new(false);
        let errors = on_patient_ranks(transport, 2, Duration::from_millis(100), |group| {
            if group.rank() == 1 {
                wait_for(&given_up);
                return String::new();
            }
            let error = reduce(group, 10, Algorithm::Ring).unwrap_err().to_string();
            given_up.store(true, Ordering::Relaxed);
            error
        });
        let expected = "rank 0: all_reduce #1 (ring, sum of 10 f32): recv from rank 1: timed out after 100ms";
        assert_eq!(errors[0], expected, "{transport}");
    }
}

/// Waits for a flag that another rank sets.
fn wait_for(flag: &AtomicBool) {
    while !flag.load(Ordering::Relaxed) {
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// What peers have sent may be half-way, and would be taken for the next call's numbers.
#[test]
fn a_group_that_failed_is_of_no_more_use() {
    for transport in TRANSPORTS {
        let given_up = AtomicBool::new(false);
        let errors = on_patient_ranks(transport, 2, Duration::from_millis(100), |group| {
            if group.rank() == 1 {
                wait_for(&given_up);
                return Vec::new();
            }
            reduce(group, 10, Algorithm::Ring).unwrap_err();
            given_up.store(true, Ordering::Relaxed);
            let again = [group.barrier(), group.send(&[1i32], 1), group.split(0, 0).map(drop)];
            again.map(|result| result.unwrap_err().to_string()).to_vec()
        });
        let reason = "the group is of no use since all_reduce #1 (ring, sum of 10 f32) failed";
        let calls = ["barrier #2 (0 u8)", "send/recv #1 (1 i32)", "split #2 (4 i64)"];
        assert_eq!(errors[0], calls.map(|call| format!("rank 0: {call}: {reason}")), "{transport}");
    }
}

#[test]
fn wrong_arguments_are_errors_and_do_no_harm() {
    for transport in ["mem", "tcp"] {
        on_ranks(transport, 2, |group| {
            let rank = group.rank();
            let mut five = [1i32; 5];
            let wrong = [
                (group.broadcast(&mut five, 2), "broadcast #1 (5 i32, root 2): of 2 ranks none is the root"),
                (group.reduce(&mut five, Op::Max, 9), "reduce #1 (max of 5 i32, root 9): of 2 ranks none is the root"),
                (
                    group.gather(&[1i32; 2], &mut five, rank),
                    &format!("gather #1 (2 i32, root {rank}): 5 elements are not 2 parts of 2"),
                ),
                (
                    group.scatter(&five, &mut [1; 2], rank),
                    &format!("scatter #1 (2 i32, root {rank}): 5 elements are not 2 parts of 2"),
                ),
                (
                    group.all_to_all(&five, &mut [1; 5]),
                    "all_to_all #1 (5 i32): 5 elements are no equal parts for 2 ranks",
                ),
                (group.all_to_all(&five, &mut [1; 4]), "all_to_all #1 (5 i32): 5 elements go out and 4 come in"),
                (group.send(&five, 2), "send/recv #1 (5 i32): of 2 ranks none is rank 2"),
                (group.recv(&mut five, rank), &format!("send/recv #1 (5 i32): rank {rank} is itself")),
                (
                    group.recv_any(&[], 8, &mut Vec::new(), None).map(drop),
                    "send/recv_varied #1 (8 u8): there is nobody to receive from",
                ),
                (
                    group.recv_any(&[1 - rank, 5], 8, &mut Vec::new(), None).map(drop),
                    "send/recv_varied #1 (8 u8): of 2 ranks none is rank 5",
                ),
                (
                    group.exchange_varied(&[[1u8]], 8, &mut Gathered::default()),
                    "exchange_varied #1 (8 u8): 1 parts are not one for each of 2 ranks",
                ),
            ];
            for (result, expected) in wrong {
                assert_eq!(result.unwrap_err().to_string(), format!("rank {rank}: {expected}"));
            }
            group.all_reduce(&mut five, Op::Sum, Algorithm::Ring).unwrap();
            assert_eq!(five, [2; 5]);
        });
    }
}

#[test]
fn a_rank_that_is_slow_to_meet_is_not_dead() {
    for transport in TRANSPORTS {
        on_patient_ranks(transport, 3, Duration::from_millis(100), |group| {
            for slow in [1, 2] {
                if group.rank() == slow {
                    std::thread::sleep(Duration::from_millis(400));
                }
                group.meet().unwrap();
            }
        });
    }
}

#[test]
fn one_that_is_gone_is_named_while_others_meet() {
    for transport in TRANSPORTS {
        let errors = on_patient_ranks(transport, 3, Duration::from_millis(100), |group| {
            if group.rank() == 1 {
                std::thread::sleep(Duration::from_millis(400));
                return None;
            }
            Some(group.meet().unwrap_err().to_string())
        });
        let errors: Vec<String> = errors.into_iter().flatten().collect();
        assert!(errors.iter().all(|error| error.ends_with(": connection closed")), "{transport}: {errors:?}");
        assert!(errors.iter().any(|error| error.contains("rank 1: connection")), "{transport}: {errors:?}");
    }
}

#[test]
fn receiving_from_any_waits_for_the_slow_and_names_the_dead() {
    for transport in TRANSPORTS {
        let (received, done) = (AtomicBool::new(false), AtomicBool::new(false));
        let errors = on_patient_ranks(transport, 4, Duration::from_millis(100), |group| {
            match group.rank() {
                0 => {
                    let mut message = Vec::new();
                    assert_eq!(group.recv_any(&[1, 2, 3], 8, &mut message, None).unwrap(), Some(2), "{transport}");
                    received.store(true, Ordering::Relaxed);
                    let error = group.recv_any(&[1, 2, 3], 8, &mut message, None).unwrap_err();
                    done.store(true, Ordering::Relaxed);
                    return error.to_string();
                }
                1 => wait_for(&done),
                2 => {
                    std::thread::sleep(Duration::from_millis(400));
                    group.send_varied(&[1], 8, 0).unwrap();
                    wait_for(&done);
                }
                _ => wait_for(&received),
            }
            String::new()
        });
        let expected = "rank 0: send/recv_varied #1 (8 u8): recv from rank 3: connection closed";
        assert_eq!(errors[0], expected, "{transport}");
    }
}

#[test]
fn who_is_gone_is_named_though_others_never_stop_talking() {
    for transport in TRANSPORTS {
        let errors = on_ranks(transport, 3, |group| {
            match group.rank() {
                0 => {
                    let mut message = Vec::new();
                    let received = || group.recv_any(&[1, 2], 8, &mut message, None);
                    return std::iter::repeat_with(received).find_map(Result::err).unwrap().to_string();
                }
                // Until nobody listens any more.
                1 => while group.send_varied(&[1], 8, 0).is_ok() {},
                _ => {}
            }
            String::new()
        });
        assert!(errors[0].ends_with("recv from rank 2: connection closed"), "{transport}: {errors:?}");
    }
}

#[test]
fn a_part_that_is_too_long_names_its_rank() {
    for transport in TRANSPORTS {
        let errors = on_ranks(transport, 3, |group| {
            let part = vec![0; if group.rank() == 1 { 101 } else { 100 }];
            let error = group.all_gather_varied(&part, 100, &mut Gathered::default()).unwrap_err();
            error.to_string()
        });
        let expected = "rank 1: all_gather_varied #1 (100 u8): 101 bytes are more than the limit of 100";
        assert_eq!(errors[1], expected, "{transport}");
        assert!(errors[0].ends_with("connection closed") && errors[2].ends_with("connection closed"), "{errors:?}");
    }
}

/// All must agree on the limit, and a peer that does not keep to it is not believed.
#[test]
fn a_message_that_is_longer_than_agreed_is_refused() {
    for transport in ["mem", "tcp", "shm"] {
        let errors = on_ranks(transport, 2, |group| match group.rank() {
            0 => group.send_varied(&[1; 50], 100, 1).err().map(|error| error.to_string()),
            _ => group.recv_varied(0, 60, &mut Vec::new()).err().map(|error| error.to_string()),
        });
        let expected = "rank 1: send/recv_varied #1 (60 u8): recv from rank 0: it is in send/recv_varied #1 (100 u8)";
        assert_eq!(errors, [None, Some(expected.to_owned())], "{transport}");
    }
    let mut ranks = mem::mesh(2);
    for rank in &mut ranks {
        rank.begin(Call {
            sequence: 1,
            collective: Collective::SendVaried,
            algorithm: None,
            op: None,
            element: ElementType::U8,
            elements: 60,
            root: None,
        });
    }
    ranks[0].send(1, &[1; 61]).unwrap();
    let sink = Sink::Take { into: &mut Vec::new(), limit: 60 };
    let error = ranks[1].transfer(None, Some(Incoming { from: 0, sink })).unwrap_err();
    assert_eq!(error.to_string(), "recv from rank 0: expected at most 60 bytes, got 61");
}

#[test]
fn an_aborted_collective_ends() {
    for transport in TRANSPORTS {
        let given_up = AtomicBool::new(false);
        let errors = on_ranks(transport, 2, |group| {
            if group.rank() == 1 {
                wait_for(&given_up);
                return String::new();
            }
            let aborter = group.aborter();
            let error = std::thread::scope(|scope| {
                scope.spawn(move || {
                    std::thread::sleep(Duration::from_millis(20));
                    aborter.abort();
                });
                reduce(group, 10, Algorithm::Ring).unwrap_err().to_string()
            });
            given_up.store(true, Ordering::Relaxed);
            error
        });
        let expected = "rank 0: all_reduce #1 (ring, sum of 10 f32): recv from rank 1: aborted";
        assert_eq!(errors[0], expected, "{transport}");
    }
}

const CHILD: &str = "RINGSTEP_TEST_CHILD";
const PATIENCE: Duration = Duration::from_secs(30);

/// Rank 1 of the test below, in a process of its own: it reduces until it is killed.
#[test]
fn child_that_is_killed() {
    let Ok(orders) = std::env::var(CHILD) else { return };
    let (transport, address) = orders.split_once(' ').unwrap();
    let invitation = Invitation::new(address.parse().unwrap(), Secret::of(b"test"));
    let tcp = invitation.join(1, 2, PATIENCE).unwrap();
    let mut group = match transport {
        "tcp" => Group::new(tcp),
        _ => Group::new(Shm::over(tcp).unwrap()),
    };
    while reduce(&mut group, 300_000, Algorithm::Ring).is_ok() {}
}

#[test]
fn a_rank_that_is_killed_is_named_at_once() {
    for (transport, algorithm) in [("tcp", Algorithm::Ring), ("shm", Algorithm::Ring)] {
        let mut meeting = Meeting::open((Ipv4Addr::LOCALHOST, 0).into(), Secret::of(b"test")).unwrap();
        let address = meeting.address();
        let mut child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "child_that_is_killed"])
            .env(CHILD, format!("{transport} {address}"))
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::spawn(move || meeting.host(2, PATIENCE));
        let tcp = Invitation::new(address, Secret::of(b"test")).join(0, 2, PATIENCE).unwrap();
        let mut group = match transport {
            "tcp" => Group::new(tcp),
            _ => Group::new(Shm::over(tcp).unwrap()),
        };
        for _ in 0..20 {
            reduce(&mut group, 300_000, algorithm).unwrap();
        }
        child.kill().unwrap();
        let killed = Instant::now();
        let error = loop {
            if let Err(error) = reduce(&mut group, 300_000, algorithm) {
                break error;
            }
        };
        assert!(killed.elapsed() < PATIENCE, "it took {:?}", killed.elapsed());
        assert!(error.to_string().ends_with("rank 1: connection closed"), "{error}");
        assert!(error.call.sequence > 20);
        child.wait().unwrap();
    }
}

fn open_descriptors() -> usize {
    fs::read_dir("/proc/self/fd").unwrap().count()
}

fn mappings() -> usize {
    fs::read_to_string("/proc/self/maps").unwrap().matches("ringstep").count()
}

/// In a process of its own, since other tests have descriptors and threads too.
#[test]
fn child_that_makes_a_thousand_groups() {
    if std::env::var(CHILD).is_err() {
        return;
    }
    let one_round = || {
        on_ranks("shm", 2, |group| group.barrier().unwrap());
        on_ranks("mem", 2, |group| {
            let mut sum = [1i32];
            let each = |group: &mut Group, sum: &mut [i32; 1]| group.all_reduce(sum, Op::Sum, Algorithm::Direct);
            group.while_doing(each, |queue| queue.push(&mut sum)).unwrap();
            assert_eq!(sum, [2]);
            group.split(0, 0).unwrap().barrier().unwrap();
        });
    };
    one_round();
    let threads = || fs::read_dir("/proc/self/task").unwrap().count();
    let (descriptors, running) = (open_descriptors(), threads());
    // Each round makes two groups of two ranks, and two sub-groups.
    for _ in 0..170 {
        one_round();
    }
    // Threads that hosted a meeting may need a moment to end.
    let deadline = Instant::now() + PATIENCE;
    while (open_descriptors(), threads(), mappings()) != (descriptors, running, 0) {
        assert!(
            Instant::now() < deadline,
            "left: {} descriptors, {} threads, {} mappings",
            open_descriptors() - descriptors,
            threads() - running,
            mappings()
        );
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(mem::mesh(4));
}

#[test]
fn a_thousand_groups_leave_nothing_behind() {
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child_that_makes_a_thousand_groups", "--nocapture"])
        .env(CHILD, "")
        .output()
        .unwrap();
    assert!(child.status.success(), "{}", String::from_utf8_lossy(&child.stderr));
}
