//! What is counted: accesses by level and kind, and the energy that they cost.

use std::ops::AddAssign;

use serde::Serialize;

use crate::arch::Architecture;

/// Reads and writes, in words.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Access {
    /// Words read. In the array: words sent.
    pub reads: u64,
    /// Words written. In the array nothing is kept, so none.
    pub writes: u64,
}

impl Access {
    /// Both.
    pub fn total(self) -> u64 {
        self.reads + self.writes
    }
}

/// Accesses by kind of data.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Kinds {
    /// Pixels of the input.
    pub input: Access,
    /// Weights.
    pub filter: Access,
    /// Partial sums, and in DRAM the finished output.
    pub partial_sum: Access,
}

impl Kinds {
    /// The kinds' names, in the order of [`Kinds::each`].
    pub const NAMES: [&'static str; 3] = ["input", "filter", "partial sum"];

    /// By kind.
    pub fn each(&self) -> [Access; 3] {
        [self.input, self.filter, self.partial_sum]
    }

    /// Words of all kinds.
    pub fn total(&self) -> u64 {
        self.each().into_iter().map(Access::total).sum()
    }
}

/// Accesses by level.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Accesses {
    /// Off the chip.
    pub dram: Kinds,
    /// The global buffer.
    pub buffer: Kinds,
    /// Words that enter, leave or pass between PEs.
    pub array: Kinds,
    /// The scratchpads in the PEs.
    pub scratchpad: Kinds,
}

impl Accesses {
    /// The levels' names, in the order of [`Accesses::each`].
    pub const NAMES: [&'static str; 4] = ["DRAM", "buffer", "array", "scratchpads"];

    /// By level.
    pub fn each(&self) -> [Kinds; 4] {
        [self.dram, self.buffer, self.array, self.scratchpad]
    }
}

impl AddAssign for Accesses {
    fn add_assign(&mut self, other: Self) {
        let levels = [&mut self.dram, &mut self.buffer, &mut self.array, &mut self.scratchpad];
        for (level, more) in levels.into_iter().zip(other.each()) {
            let kinds = [&mut level.input, &mut level.filter, &mut level.partial_sum];
            for (access, more) in kinds.into_iter().zip(more.each()) {
                access.reads += more.reads;
                access.writes += more.writes;
            }
        }
    }
}

/// Energy in units of a MAC.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Energy {
    /// The MACs themselves.
    pub mac: f64,
    /// By level, then by kind, in the orders of [`Accesses::each`] and [`Kinds::each`].
    pub data: [[f64; 3]; 4],
}

impl Energy {
    /// What these MACs and accesses cost.
    pub fn of(macs: u64, accesses: &Accesses, arch: &Architecture) -> Self {
        let costs = [arch.energy.dram, arch.energy.buffer, arch.energy.array, arch.energy.scratchpad];
        let levels = accesses.each();
        Self {
            mac: macs as f64 * arch.energy.mac,
            data: std::array::from_fn(|level| levels[level].each().map(|access| access.total() as f64 * costs[level])),
        }
    }

    /// By level, without the MACs.
    pub fn by_level(&self) -> [f64; 4] {
        self.data.map(|kinds| kinds.iter().sum())
    }

    /// By kind, without the MACs.
    pub fn by_kind(&self) -> [f64; 3] {
        std::array::from_fn(|kind| self.data.iter().map(|level| level[kind]).sum())
    }

    /// All of it.
    pub fn total(&self) -> f64 {
        self.mac + self.by_level().iter().sum::<f64>()
    }
}

impl AddAssign for Energy {
    fn add_assign(&mut self, other: Self) {
        self.mac += other.mac;
        for (level, more) in self.data.iter_mut().zip(other.data) {
            level.iter_mut().zip(more).for_each(|(energy, more)| *energy += more);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn energy_is_the_same_by_level_and_by_kind() {
        let mut accesses = Accesses::default();
        accesses.dram.input.reads = 2;
        accesses.buffer.partial_sum.writes = 5;
        accesses.buffer.filter.reads = 1;
        accesses.scratchpad.input.reads = 7;
        let energy = Energy::of(3, &accesses, &Architecture::default());
        assert_eq!(energy.by_level(), [400.0, 36.0, 0.0, 7.0]);
        assert_eq!(energy.by_kind(), [407.0, 6.0, 30.0]);
        assert_eq!(energy.total(), 446.0);
        let mut twice = energy;
        twice += energy;
        assert_eq!(twice.total(), 892.0);
        let mut sum = accesses;
        sum += accesses;
        assert_eq!(Energy::of(6, &sum, &Architecture::default()), twice);
    }
}
