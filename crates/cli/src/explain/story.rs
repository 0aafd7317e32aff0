//! Puts what each worker did by itself into rounds that all of them go through together.

use std::collections::VecDeque;
use std::ops::Range;

use ringstep_comm::collective::Combine;

use super::record::{Rank, Recording};

/// A collective from beginning to end.
pub struct Story {
    /// How messages cut the values into chunks.
    pub parts: Vec<Range<usize>>,
    /// What each worker holds at first.
    pub start: Vec<Holding>,
    /// What happens then.
    pub rounds: Vec<Round>,
}

/// What a worker holds.
#[derive(PartialEq)]
pub struct Holding {
    /// All of its values.
    pub values: Vec<f64>,
    /// For each of them, whether it is the result.
    pub finished: Vec<bool>,
}

/// What happens at once.
pub struct Round {
    /// What is sent.
    pub messages: Vec<Message>,
    /// What each worker holds afterwards.
    pub holds: Vec<Holding>,
}

/// Values that go from one worker to another.
pub struct Message {
    /// Who has them.
    pub from: usize,
    /// Who gets them.
    pub to: usize,
    /// Which ones.
    pub part: Range<usize>,
    /// What they are.
    pub values: Vec<f64>,
    /// What becomes of them.
    pub combine: Combine,
    /// Whether they are read from shared memory rather than sent.
    pub in_memory: bool,
}

/// A receive, and the event of the sender that it belongs to.
struct Link {
    from: usize,
    sent_at: usize,
    to: usize,
    received_at: usize,
    part: Range<usize>,
    combine: Combine,
    in_memory: bool,
}

impl Story {
    /// What the recording tells.
    pub fn of(recording: &Recording) -> Self {
        let ranks = &recording.ranks;
        let links = links(ranks);
        let rounds = rounds(ranks, &links);
        let count = rounds.iter().flatten().copied().max().unwrap_or(0);
        let held: Vec<Vec<Vec<f64>>> = ranks.iter().map(held).collect();
        let sources = sources(ranks, &links, &rounds, count);
        let everyone = (1u32 << ranks.len()) - 1;
        let holds_after = |round: usize| -> Vec<Holding> {
            let holding = |rank: usize| {
                let done = rounds[rank].iter().filter(|&&at| at <= round).count();
                let (values, sources) = (&held[rank][done], &sources[rank][done]);
                let finished = (0..values.len()).map(|index| {
                    sources[index] == everyone && values[index].to_bits() == ranks[rank].end[index].to_bits()
                });
                Holding { values: values.clone(), finished: finished.collect() }
            };
            (0..ranks.len()).map(holding).collect()
        };
        let messages_of = |round: usize| {
            let mut links: Vec<&Link> =
                links.iter().filter(|link| rounds[link.to][link.received_at] == round).collect();
            links.sort_by_key(|link| (link.from, link.to));
            let message = |link: &Link| Message {
                from: link.from,
                to: link.to,
                part: link.part.clone(),
                values: held[link.from][link.sent_at][link.part.clone()].to_vec(),
                combine: link.combine,
                in_memory: link.in_memory,
            };
            links.into_iter().map(message).collect()
        };
        let round = |round| Round { messages: messages_of(round), holds: holds_after(round) };
        Self {
            parts: parts(ranks[0].start.len(), &links),
            start: holds_after(0),
            rounds: (1..=count).map(round).collect(),
        }
    }

    /// What a message calls a part of the values.
    pub fn part_name(&self, part: &Range<usize>) -> String {
        let inside = |chunk: &Range<usize>| part.start <= chunk.start && chunk.end <= part.end;
        let chunks: Vec<usize> = (0..self.parts.len()).filter(|&index| inside(&self.parts[index])).collect();
        match chunks.as_slice() {
            _ if part.is_empty() => "an empty chunk".to_owned(),
            all if all.len() == self.parts.len() => "all".to_owned(),
            [one] => format!("chunk {one}"),
            [first, .., last] => format!("chunks {first}-{last}"),
            [] => unreachable!("parts are cut where messages are"),
        }
    }
}

/// Finds the send of each receive: messages between a pair arrive in order. What nobody sent was read from memory, where
/// all are in step.
fn links(ranks: &[Rank]) -> Vec<Link> {
    let mut sent = vec![vec![VecDeque::new(); ranks.len()]; ranks.len()];
    for (from, rank) in ranks.iter().enumerate() {
        for (at, event) in rank.events.iter().enumerate() {
            if let Some((to, _)) = event.sent {
                sent[from][to].push_back(at);
            }
        }
    }
    let mut links = Vec::new();
    for (to, rank) in ranks.iter().enumerate() {
        for (received_at, event) in rank.events.iter().enumerate() {
            for (from, part, combine) in event.received.iter().cloned() {
                let send = sent[from][to].pop_front();
                let (sent_at, in_memory) = (send.unwrap_or(received_at), send.is_none());
                links.push(Link { from, sent_at, to, received_at, part, combine, in_memory });
            }
        }
    }
    links
}

/// The round of each event of each rank, from 1: after the rank's event before it, and no sooner than the sends that it
/// receives. That is the longest path to it.
fn rounds(ranks: &[Rank], links: &[Link]) -> Vec<Vec<usize>> {
    let mut rounds: Vec<Vec<usize>> = ranks.iter().map(|rank| (1..=rank.events.len()).collect()).collect();
    // A round that moves may move others. The run came to an end, so this does too.
    let mut moved = true;
    while moved {
        moved = false;
        for link in links {
            let sent = rounds[link.from][link.sent_at];
            let mut earliest = sent;
            for round in &mut rounds[link.to][link.received_at..] {
                moved |= *round < earliest;
                *round = earliest.max(*round);
                earliest = *round + 1;
            }
        }
    }
    rounds
}

/// What a rank holds before its first event and after each. A mean is divided between two events: elements that change
/// without being received did so right after the event before.
fn held(rank: &Rank) -> Vec<Vec<f64>> {
    let mut held = vec![rank.start.clone()];
    for (at, event) in rank.events.iter().enumerate() {
        let next = rank.events.get(at + 1);
        let later = next.map_or(&rank.end, |next| &next.holds);
        let received = |index: usize| next.is_some_and(|next| next.received.iter().any(|(_, p, _)| p.contains(&index)));
        let value = |index: usize| if received(index) { event.holds[index] } else { later[index] };
        held.push((0..rank.start.len()).map(value).collect());
    }
    held
}

/// For each rank, before its first event and after each: the ranks whose values have gone into each element, as bits.
fn sources(ranks: &[Rank], links: &[Link], rounds: &[Vec<usize>], count: usize) -> Vec<Vec<Vec<u32>>> {
    let own = |rank: usize| vec![vec![1u32 << rank; ranks[rank].start.len()]];
    let mut sources: Vec<_> = (0..ranks.len()).map(own).collect();
    for round in 1..=count {
        for rank in 0..ranks.len() {
            let Some(at) = rounds[rank].iter().position(|&at| at == round) else { continue };
            let mut after = sources[rank][at].clone();
            for link in links.iter().filter(|link| (link.to, link.received_at) == (rank, at)) {
                let sent = &sources[link.from][link.sent_at];
                for index in link.part.clone() {
                    match link.combine {
                        Combine::Copy => after[index] = sent[index],
                        Combine::Reduce => after[index] |= sent[index],
                    }
                }
            }
            sources[rank].push(after);
        }
    }
    sources
}

/// The values, cut wherever a message begins or ends.
fn parts(length: usize, links: &[Link]) -> Vec<Range<usize>> {
    let mut cuts: Vec<usize> = links.iter().flat_map(|link| [link.part.start, link.part.end]).collect();
    cuts.extend([0, length]);
    cuts.sort_unstable();
    cuts.dedup();
    cuts.windows(2).map(|cut| cut[0]..cut[1]).collect()
}

#[cfg(test)]
mod tests {
    use ringstep_comm::{Algorithm, Op};

    use super::super::record::record;
    use super::super::values;
    use super::*;

    fn story(algorithm: Algorithm, op: Op, world: usize) -> Story {
        Story::of(&record(algorithm, op, values::choose(None, Some(world)).unwrap()).unwrap())
    }

    #[test]
    fn rounds_are_the_steps_of_the_papers() {
        for world in 2..=16usize {
            let rounds = |algorithm| story(algorithm, Op::Sum, world).rounds.len();
            assert_eq!(rounds(Algorithm::Ring), 2 * (world - 1));
            assert_eq!(rounds(Algorithm::GatherScatter), 2 * (world - 1));
            assert_eq!(rounds(Algorithm::Tree), 2 * world.next_power_of_two().ilog2() as usize);
            assert_eq!(rounds(Algorithm::Direct), 1);
            if world.is_power_of_two() {
                assert_eq!(rounds(Algorithm::RecursiveDoubling), world.ilog2() as usize);
                assert_eq!(rounds(Algorithm::HalvingDoubling), 2 * world.ilog2() as usize);
            }
        }
    }

    #[test]
    fn a_round_of_a_ring_has_a_message_from_everyone_and_finishes_a_chunk_at_a_time() {
        for op in Op::ALL {
            let story = story(Algorithm::Ring, op, 5);
            assert_eq!(story.parts, [0..1, 1..2, 2..3, 3..4, 4..5]);
            for (index, round) in story.rounds.iter().enumerate() {
                let pairs: Vec<_> = round.messages.iter().map(|message| (message.from, message.to)).collect();
                assert_eq!(pairs, [(0, 1), (1, 2), (2, 3), (3, 4), (4, 0)]);
                for holding in &round.holds {
                    let finished = holding.finished.iter().filter(|&&finished| finished).count();
                    assert_eq!(finished, (index + 1).saturating_sub(3), "{op:?}, round {}", index + 1);
                }
            }
        }
    }

    /// Nobody is finished by chance: where all values are the same, so is the maximum from the start.
    #[test]
    fn finished_is_what_everyone_went_into() {
        let story = Story::of(&record(Algorithm::Tree, Op::Max, vec![vec![7.0]; 4]).unwrap());
        let finished = |holds: &[Holding]| holds.iter().map(|holding| holding.finished[0]).collect::<Vec<_>>();
        assert_eq!(finished(&story.start), [false; 4]);
        assert_eq!(finished(&story.rounds[0].holds), [false; 4]);
        assert_eq!(finished(&story.rounds[1].holds), [true, false, false, false]);
        assert_eq!(finished(&story.rounds[2].holds), [true, false, true, false]);
        assert_eq!(finished(&story.rounds[3].holds), [true; 4]);
    }

    #[test]
    fn all_is_finished_in_the_end_and_not_before() {
        for algorithm in Algorithm::ALL {
            for op in Op::ALL {
                for world in 2..=16 {
                    let story = story(algorithm, op, world);
                    let done = |holds: &[Holding]| holds.iter().all(|holding| holding.finished.iter().all(|&is| is));
                    let (last, before) = story.rounds.split_last().unwrap();
                    assert!(done(&last.holds), "{algorithm:?} {op:?} {world}");
                    assert!(!before.iter().any(|round| done(&round.holds)), "{algorithm:?} {op:?} {world}");
                }
            }
        }
    }

    #[test]
    fn parts_have_names() {
        let story = story(Algorithm::Ring, Op::Sum, 4);
        let names = [0..0, 0..1, 1..3, 0..4].map(|part| story.part_name(&part));
        assert_eq!(names, ["an empty chunk", "chunk 0", "chunks 1-2", "all"]);
    }
}
