//! Which process of MPI each rank is in. Most have one; where one has several, each is a thread.

/// What a message is for.
#[derive(Debug, Clone, Copy)]
pub(super) enum Kind {
    /// Data.
    Data,
    /// How far are you?
    Question,
    /// So far.
    Answer,
}

/// The places of a group's ranks.
#[derive(Debug, Clone)]
pub(super) struct Seats {
    /// The processes, by their number among all of the job, in the order of their first ranks.
    processes: Vec<usize>,
    /// For each rank its process, by its place in this order, and its seat there.
    places: Vec<(usize, usize)>,
    /// How many seats the process has that has most.
    most: usize,
}

impl Seats {
    /// Of ranks that are in these processes of the job.
    pub fn new(of_ranks: &[usize]) -> Self {
        let (mut processes, mut taken, mut places) = (Vec::new(), Vec::new(), Vec::new());
        for &process in of_ranks {
            let place = processes.iter().position(|&known| known == process).unwrap_or_else(|| {
                processes.push(process);
                taken.push(0);
                processes.len() - 1
            });
            places.push((place, taken[place]));
            taken[place] += 1;
        }
        Self { processes, places, most: taken.into_iter().max().unwrap_or(1) }
    }

    /// How many ranks there are.
    pub fn world(&self) -> usize {
        self.places.len()
    }

    /// The processes, by their number among all of the job.
    pub fn processes(&self) -> &[usize] {
        &self.processes
    }

    /// The process of a rank, by its number in the communicator.
    pub fn process(&self, rank: usize) -> usize {
        self.places[rank].0
    }

    /// The seat of a rank in its process.
    pub fn seat(&self, rank: usize) -> usize {
        self.places[rank].1
    }

    /// How many ranks a rank's process has.
    pub fn neighbours(&self, rank: usize) -> usize {
        self.places.iter().filter(|place| place.0 == self.places[rank].0).count()
    }

    /// Whether each rank is a process: only then do collectives of processes serve ranks.
    pub fn are_processes(&self) -> bool {
        self.most == 1
    }

    /// What tells messages between two ranks from those of others in the same processes.
    pub fn tag(&self, kind: Kind, from: usize, to: usize) -> usize {
        (kind as usize * self.most + self.seat(from)) * self.most + self.seat(to)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_process_have_seats_and_tags_of_their_own() {
        let seats = Seats::new(&[7, 3, 7, 5]);
        assert_eq!(seats.processes(), [7, 3, 5]);
        assert_eq!([0, 1, 2, 3].map(|rank| (seats.process(rank), seats.seat(rank))), [(0, 0), (1, 0), (0, 1), (2, 0)]);
        assert!(!seats.are_processes() && seats.neighbours(2) == 2 && seats.neighbours(3) == 1);
        let mut tags: Vec<usize> = [Kind::Data, Kind::Question, Kind::Answer]
            .into_iter()
            .flat_map(|kind| [(0, 2), (2, 0), (0, 0), (2, 2)].map(|(from, to)| seats.tag(kind, from, to)))
            .collect();
        tags.sort_unstable();
        tags.dedup();
        assert_eq!(tags.len(), 12);
        assert!(Seats::new(&[2, 0, 1]).are_processes());
    }
}
