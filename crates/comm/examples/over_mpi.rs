//! Every collective over MPI against closed forms, messages of all lengths, sub-groups, and ranks that disagree.
//!
//!     cargo build -p ringstep-comm --features mpi --example over_mpi
//!     mpirun -n 4 target/debug/examples/over_mpi
//!
//! Ranks meet at a port of this host that the first of them writes into a file.

use std::time::{Duration, Instant};

use half::{bf16, f16};
use ringstep_comm::collective::chunk;
use ringstep_comm::rendezvous::{Invitation, Meeting, Secret};
use ringstep_comm::transport::mpi::{self, Mpi};
use ringstep_comm::{Algorithm, Element, Gathered, Group, How, Op};

const TIMEOUT: Duration = Duration::from_secs(20);

fn main() {
    let world = mpi::start().expect("MPI starts");
    let mut group = join(world.rank, world.size);
    for algorithm in Algorithm::ALL.into_iter().chain([Algorithm::Mpi]).filter(|it| !it.needs_shared_memory()) {
        for op in Op::ALL {
            for length in [0, 1, 3, 1009, 300_007] {
                for deterministic in [false, true] {
                    let how = How { algorithm: Some(algorithm), deterministic };
                    check::<f32>(&mut group, length, op, how);
                    check::<f64>(&mut group, length, op, how);
                    check::<f16>(&mut group, length, op, how);
                    check::<bf16>(&mut group, length, op, how);
                    check::<i32>(&mut group, length, op, how);
                    check::<i64>(&mut group, length, op, how);
                    check::<u8>(&mut group, length, op, how);
                }
            }
        }
    }
    for length in [0, 1, 7, 70_001] {
        others(&mut group, length);
    }
    messages(&mut group);
    group.barrier().unwrap();
    sub_groups(&mut group);
    disagreement_beside(&mut group);
    disagreement(group);
    println!("rank {} of {} over {}: ok", world.rank, world.size, world.library);
    mpi::end(TIMEOUT);
}

/// Meets the others where the first one says in a file.
fn join(rank: usize, world: usize) -> Group {
    let job = std::env::var("PMIX_NAMESPACE").or_else(|_| std::env::var("PMI_JOBID"));
    let job = job.unwrap_or_else(|_| std::os::unix::process::parent_id().to_string());
    let name: String = job.chars().filter(char::is_ascii_alphanumeric).collect();
    let file = std::env::temp_dir().join(format!("ringstep-over-mpi-{name}-{}", std::os::unix::process::parent_id()));
    if rank == 0 {
        let mut meeting = Meeting::open("127.0.0.1:0".parse().unwrap(), Secret::of(b"over mpi")).unwrap();
        let aside = file.with_extension("new");
        std::fs::write(&aside, meeting.address().to_string()).unwrap();
        std::fs::rename(&aside, &file).unwrap();
        std::thread::spawn(move || meeting.host(world, TIMEOUT).unwrap());
    }
    let address = loop {
        if let Some(address) = std::fs::read_to_string(&file).ok().and_then(|text| text.parse().ok()) {
            break address;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let tcp = Invitation::new(address, Secret::of(b"over mpi")).join(rank, world, TIMEOUT).unwrap();
    let _ = std::fs::remove_file(&file);
    Group::new(Mpi::over(tcp.with_timeout(TIMEOUT)).unwrap())
}

/// Small integers: exact in every type, whatever the order.
fn input(rank: usize, index: usize, op: Op) -> f64 {
    match op {
        Op::Product => [1.0, 2.0][(rank + index) % 4 / 3],
        _ => ((rank * 3 + index) % 7) as f64,
    }
}

fn check<T: Element>(group: &mut Group, length: usize, op: Op, how: How) {
    let (rank, world) = (group.rank(), group.world());
    let mut data: Vec<T> = (0..length).map(|index| T::from_f64(input(rank, index, op))).collect();
    group.all_reduce(&mut data, op, how).unwrap();
    for (index, &value) in data.iter().enumerate() {
        let values = (0..world).map(|rank| input(rank, index, op));
        let mut right = [T::from_f64(match op {
            Op::Sum | Op::Mean => values.sum(),
            Op::Product => values.product(),
            Op::Max => values.fold(f64::NEG_INFINITY, f64::max),
            Op::Min => values.fold(f64::INFINITY, f64::min),
        })];
        if op == Op::Mean {
            T::divide(&mut right, world);
        }
        assert_eq!(value, right[0], "{how:?} {op:?}, element {index} of {length}");
    }
}

fn others(group: &mut Group, length: usize) {
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
    group.barrier().unwrap();
    group.meet().unwrap();
}

/// Codes of their own lengths; and rank 0 as a server of all others, whoever comes first.
fn messages(group: &mut Group) {
    let (rank, world, limit) = (group.rank(), group.world(), 600_000);
    let own = vec![rank as u8; 200_000 * rank];
    let mut all = Gathered::default();
    group.all_gather_varied(&own, limit, &mut all).unwrap();
    assert!(all.parts().enumerate().all(|(rank, part)| part == vec![rank as u8; 200_000 * rank]));
    let mut message = Vec::new();
    if rank > 0 {
        group.send_varied(&own, limit, 0).unwrap();
        return;
    }
    let mut left: Vec<usize> = (1..world).collect();
    while !left.is_empty() {
        let from = group.recv_any(&left, limit, &mut message, None).unwrap().expect("somebody comes");
        assert_eq!(message, vec![from as u8; 200_000 * from]);
        left.retain(|&rank| rank != from);
    }
    if world > 1 {
        let until = Instant::now() + Duration::from_millis(20);
        assert_eq!(group.recv_any(&[1], limit, &mut message, Some(until)).unwrap(), None);
    }
}

/// Even and odd ranks, the latter in reverse order, beside their parent.
fn sub_groups(group: &mut Group) {
    let (rank, world) = (group.rank(), group.world());
    let odd = rank % 2 == 1;
    let mut half = group.split(i64::from(odd), if odd { -(rank as i64) } else { 0 }).unwrap();
    let of_half: i64 = (0..world).filter(|other| other % 2 == rank % 2).map(|other| other as i64).sum();
    for algorithm in [Algorithm::Mpi, Algorithm::Ring] {
        let (mut sum, mut all) = (vec![rank as i64; 5000], vec![1i64; 3000]);
        half.while_doing(
            |half, slice: &mut Vec<i64>| half.all_reduce(slice, Op::Sum, algorithm),
            |queue| {
                queue.push(&mut sum);
                group.all_reduce(&mut all, Op::Sum, algorithm).unwrap();
            },
        )
        .unwrap();
        assert_eq!((all, sum), (vec![world as i64; 3000], vec![of_half; 5000]));
    }
}

/// Ranks that disagree on the communication thread find out by their connections: rank 1 and its neighbours in one step, and the
/// others at the latest when these are gone.
fn disagreement_beside(group: &mut Group) {
    let (rank, world) = (group.rank(), group.world());
    if world == 1 {
        return;
    }
    let mut all = group.split(0, 0).unwrap();
    let mut data = vec![1f32; 100 + usize::from(rank == 1)];
    let error = all
        .while_doing(
            |all, slice: &mut Vec<f32>| all.all_reduce(slice, Op::Sum, Algorithm::Mpi),
            |queue| queue.push(&mut data),
        )
        .unwrap_err();
    let is_told = error.to_string().contains("it is in all_reduce");
    assert!(is_told || !(1..=2).contains(&rank), "{error}");
}

/// Ranks that disagree in a large all-reduce say with whom.
fn disagreement(mut group: Group) {
    let (rank, world) = (group.rank(), group.world());
    if world == 1 {
        return;
    }
    let length = (1 << 20) + usize::from(rank == 1);
    let error = group.all_reduce(&mut vec![1f32; length], Op::Sum, Algorithm::Mpi).unwrap_err().to_string();
    let theirs = if rank == 1 { 1 << 20 } else { (1 << 20) + 1 };
    let other = usize::from(rank != 1);
    assert!(error.contains(&format!("recv from rank {other}: it is in all_reduce")), "{error}");
    assert!(error.ends_with(&format!("(mpi, sum of {theirs} f32)")), "{error}");
    assert!(group.barrier().unwrap_err().to_string().contains("the group is of no use"), "{rank}");
}
