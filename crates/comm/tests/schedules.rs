//! Every collective's schedule, proved for 1 to 64 ranks: sends meet receives, nothing deadlocks even without buffers, and
//! everybody ends with every contribution exactly once.

use ringstep_comm::collective::{self, Lane, all_to_all, barrier, chunk, deterministic, ring, rooted, tree};
use ringstep_comm::proof::{Followed, Holding, MOST_RANKS, Made, follow};
use ringstep_comm::transport::TransportError;
use ringstep_comm::{Algorithm, Topology};

/// Elements: none, fewer than ranks, and some that no number of ranks divides.
const LENGTHS: [usize; 4] = [0, 1, 5, 131];

/// Ranks that are all on one host, on a host each, and on hosts of four and fewer, in two orders.
fn topologies(world: usize) -> Vec<Topology> {
    let mut all = vec![
        Topology::new(vec![0; world], true),
        Topology::new(vec![0; world], false),
        Topology::new((0..world).collect(), false),
    ];
    for shares_memory in [false, true] {
        all.push(Topology::new((0..world).map(|rank| rank / 4).collect(), shares_memory));
        all.push(Topology::new((0..world).map(|rank| rank % 4).collect(), shares_memory));
    }
    all
}

/// Follows a collective in place, and says what each rank ends with.
fn in_place(
    topology: &Topology,
    elements: usize,
    algorithm: impl AsyncFn(&mut Followed<'_>) -> Result<(), TransportError>,
) -> Vec<Holding> {
    let holdings = (0..topology.world()).map(|rank| Holding::in_place(rank, elements)).collect();
    follow(topology, holdings, algorithm).unwrap_or_else(|flaw| panic!("{elements} elements, {topology:?}: {flaw}"))
}

/// Follows a collective from one slice to another.
fn apart(
    topology: &Topology,
    holding: impl Fn(usize) -> Holding,
    algorithm: impl AsyncFn(&mut Followed<'_>) -> Result<(), TransportError>,
) -> Vec<Holding> {
    let holdings = (0..topology.world()).map(holding).collect();
    follow(topology, holdings, algorithm).unwrap_or_else(|flaw| panic!("{topology:?}: {flaw}"))
}

/// All ranks' contributions to an element.
fn sum(world: usize, index: usize) -> Option<Made> {
    Some(Made { of: u64::MAX >> (MOST_RANKS - world), index, finished: true })
}

/// An element as a rank had it.
fn of(rank: usize, index: usize) -> Option<Made> {
    Some(Made { of: 1 << rank, index, finished: false })
}

#[test]
fn all_reduce() {
    for world in 1..=MOST_RANKS {
        for topology in topologies(world) {
            for algorithm in Algorithm::ALL {
                if algorithm.needs_shared_memory() && !topology.all_share_memory() {
                    continue;
                }
                for elements in LENGTHS {
                    let expected: Vec<_> = (0..elements).map(|index| sum(world, index)).collect();
                    let plain = in_place(&topology, elements, async |lane: &mut Followed<'_>| {
                        collective::all_reduce(algorithm, lane).await
                    });
                    assert!(plain.iter().all(|end| end.data == expected), "{algorithm:?}, {topology:?}");
                }
            }
            // In the order of the ranks it is the same schedule by all algorithms that do not reduce in it anyway.
            let ordered = in_place(&topology, 131, async |lane: &mut Followed<'_>| {
                deterministic::all_reduce(Algorithm::Ring, lane).await
            });
            assert!(ordered.iter().all(|end| (0..131).all(|index| end.data[index] == sum(world, index))));
        }
    }
}

/// Large chunks go around in segments, and large slices in blocks.
#[test]
fn all_reduce_in_segments() {
    for world in [2, 3, 5, 8] {
        let (topology, elements) = (Topology::new(vec![0; world], false), 200_003 * world);
        for algorithm in [Algorithm::Ring, Algorithm::HalvingDoubling] {
            let ends = in_place(&topology, elements, async |lane: &mut Followed<'_>| {
                assert!(lane.segments(lane.world()) > 1);
                collective::all_reduce(algorithm, lane).await
            });
            assert!(ends.iter().all(|end| (0..elements).all(|index| end.data[index] == sum(world, index))));
        }
    }
}

#[test]
fn reduce_scatter_and_all_gather() {
    for world in 1..=MOST_RANKS {
        let topology = Topology::new((0..world).collect(), false);
        for elements in LENGTHS {
            let scattered =
                in_place(&topology, elements, async |lane: &mut Followed<'_>| ring::reduce_scatter(lane).await);
            for (rank, end) in scattered.iter().enumerate() {
                assert!(chunk(elements, world, rank).all(|index| end.data[index] == sum(world, index)));
            }
            let holding = |rank: usize| {
                let mut holding = Holding::in_place(rank, elements);
                let own = chunk(elements, world, rank);
                (0..elements).filter(|index| !own.contains(index)).for_each(|index| holding.data[index] = None);
                holding
            };
            for end in apart(&topology, holding, async |lane: &mut Followed<'_>| ring::all_gather(lane).await) {
                for owner in 0..world {
                    assert!(chunk(elements, world, owner).all(|index| end.data[index] == of(owner, index)));
                }
            }
        }
    }
}

#[test]
fn reduce_and_broadcast() {
    for world in 1..=MOST_RANKS {
        let topology = Topology::new((0..world).collect(), false);
        for root in [0, world / 3, world - 1] {
            let reduced = in_place(&topology, 5, async |lane: &mut Followed<'_>| tree::reduce(lane, root).await);
            assert!((0..5).all(|index| reduced[root].data[index] == sum(world, index)));
            let told = in_place(&topology, 5, async |lane: &mut Followed<'_>| tree::broadcast(lane, root).await);
            assert!(told.iter().all(|end| (0..5).all(|index| end.data[index] == of(root, index))));
        }
    }
}

#[test]
fn gather_and_scatter() {
    for world in 1..=MOST_RANKS {
        let (topology, part) = (Topology::new((0..world).collect(), false), 3);
        for root in [0, world / 3, world - 1] {
            let gatherer = |rank: usize| {
                let mut data = vec![None; if rank == root { world * part } else { 0 }];
                if rank == root {
                    (0..part).for_each(|index| data[root * part + index] = of(root, index));
                }
                Holding { elements: part, outgoing: Some(Holding::own(rank, part)), data, heard: 1 << rank }
            };
            let ends = apart(&topology, gatherer, async |lane: &mut Followed<'_>| rooted::gather(lane, root).await);
            let expected: Vec<_> = (0..world * part).map(|place| of(place / part, place % part)).collect();
            assert_eq!(ends[root].data, expected);

            let scatterer = |rank: usize| {
                let outgoing = Some(Holding::own(rank, if rank == root { world * part } else { 0 }));
                let data = (0..part).map(|index| if rank == root { of(root, root * part + index) } else { None });
                Holding { elements: part, outgoing, data: data.collect(), heard: 1 << rank }
            };
            let ends = apart(&topology, scatterer, async |lane: &mut Followed<'_>| rooted::scatter(lane, root).await);
            for (rank, end) in ends.iter().enumerate() {
                assert!((0..part).all(|index| end.data[index] == of(root, rank * part + index)));
            }
        }
    }
}

#[test]
fn all_to_all_exchanges() {
    for world in 1..=MOST_RANKS {
        let (topology, part) = (Topology::new((0..world).collect(), false), 2);
        let holding = |rank: usize| {
            let mut data = vec![None; world * part];
            (0..part).for_each(|index| data[rank * part + index] = of(rank, rank * part + index));
            let outgoing = Some(Holding::own(rank, world * part));
            Holding { elements: world * part, outgoing, data, heard: 1 << rank }
        };
        let ends = apart(&topology, holding, async |lane: &mut Followed<'_>| all_to_all::exchange(lane).await);
        for (rank, end) in ends.iter().enumerate() {
            let expected: Vec<_> =
                (0..world * part).map(|place| of(place / part, rank * part + place % part)).collect();
            assert_eq!(end.data, expected);
        }
    }
}

/// Whoever leaves has heard of everyone, through messages that were sent after they came.
#[test]
fn nobody_leaves_a_barrier_before_everybody_has_come() {
    for world in 1..=MOST_RANKS {
        let topology = Topology::new((0..world).collect(), false);
        let ends = in_place(&topology, 0, async |lane: &mut Followed<'_>| barrier::wait(lane).await);
        assert!(ends.iter().all(|end| end.heard == u64::MAX >> (MOST_RANKS - world)));
    }
}
