//! The accelerator: how large each part is, how fast, and what an access costs.

use serde::{Deserialize, Serialize};

/// An accelerator with a PE array, scratchpads in each PE, a global buffer and DRAM. By default the published chip
/// (Chen et al., JSSC 2017).
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Architecture {
    /// What it is called in reports.
    pub name: String,
    /// Rows of the PE array.
    pub rows: usize,
    /// Columns of the PE array.
    pub columns: usize,
    /// Bits of a word.
    pub word_bits: usize,
    /// Core clock.
    pub clock_mhz: f64,
    /// When an output is processed in strips rather than whole.
    pub strips: Strips,
    /// Words in the scratchpads of each PE.
    pub scratchpad: Scratchpad,
    /// The global buffer.
    pub buffer: Buffer,
    /// Words a cycle between buffer and array.
    pub bus: Bus,
    /// The link to DRAM.
    pub dram: Dram,
    /// What an access costs, a MAC being 1.
    pub energy: EnergyCosts,
    /// What the other dataflows have instead of these scratchpads.
    pub others: Others,
}

/// When an output is processed in strips of rows, and whether PEs may idle for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Strips {
    /// Only if the whole height does not fit on the array, as on the chip, and with as many PEs at work as can be.
    WhenNeeded,
    /// Whenever it is better, and with PEs that idle if that is.
    WhenBetter,
}

/// Words in the scratchpads of each PE.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Scratchpad {
    /// For a window of the input.
    pub input: usize,
    /// For filter rows.
    pub filter: usize,
    /// For partial sums.
    pub partial_sum: usize,
}

/// The global buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Buffer {
    /// All of it.
    pub bytes: usize,
    /// Of these, for the filters of the next pass; the rest is for inputs and partial sums.
    pub filter_bytes: usize,
}

/// Words a cycle between buffer and array.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Bus {
    /// Inputs to the array.
    pub input: usize,
    /// Filters to the array.
    pub filter: usize,
    /// Partial sums to the array, and as many back.
    pub partial_sum: usize,
}

/// The link to DRAM.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Dram {
    /// How fast it is.
    pub megabytes_per_second: f64,
}

/// What an access costs, a MAC being 1.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct EnergyCosts {
    /// A multiply-accumulate.
    pub mac: f64,
    /// A word of a scratchpad.
    pub scratchpad: f64,
    /// A word that goes into a PE or from one to another.
    pub array: f64,
    /// A word of the global buffer.
    pub buffer: f64,
    /// A word of DRAM.
    pub dram: f64,
}

/// What the other dataflows have on the same area: they keep less in each PE, and have a larger buffer for it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Others {
    /// Their global buffer; 0 for the same as that of row-stationary.
    pub buffer_bytes: usize,
}

impl Default for Architecture {
    fn default() -> Self {
        Self {
            name: "Eyeriss chip, JSSC 2017".to_owned(),
            rows: 12,
            columns: 14,
            word_bits: 16,
            clock_mhz: 200.0,
            strips: Strips::WhenNeeded,
            scratchpad: Scratchpad::default(),
            buffer: Buffer::default(),
            bus: Bus::default(),
            dram: Dram::default(),
            energy: EnergyCosts::default(),
            others: Others::default(),
        }
    }
}

impl Default for Scratchpad {
    fn default() -> Self {
        Self { input: 12, filter: 224, partial_sum: 24 }
    }
}

impl Default for Buffer {
    fn default() -> Self {
        Self { bytes: 108 * 1024, filter_bytes: 8 * 1024 }
    }
}

impl Default for Bus {
    fn default() -> Self {
        Self { input: 1, filter: 4, partial_sum: 4 }
    }
}

impl Default for Dram {
    fn default() -> Self {
        // 64 bits at a link clock of 60 MHz.
        Self { megabytes_per_second: 480.0 }
    }
}

impl Default for EnergyCosts {
    fn default() -> Self {
        Self { mac: 1.0, scratchpad: 1.0, array: 2.0, buffer: 6.0, dram: 200.0 }
    }
}

/// An architecture file that makes no sense.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ArchitectureError {
    /// It is no TOML, or has fields that do not exist.
    #[error("line {line}: {problem}")]
    Malformed {
        /// Counted from 1.
        line: usize,
        /// What is wrong there.
        problem: String,
    },
    /// A size that must not be zero, or is too large to count with.
    #[error("{field} is {value}: it must be between 1 and {most}")]
    Size {
        /// As it is named in the file.
        field: &'static str,
        /// What it says.
        value: usize,
        /// The largest that will do.
        most: usize,
    },
    /// A rate or cost that is none.
    #[error("{field} is {value}: it must be {must}")]
    Number {
        /// As it is named in the file.
        field: &'static str,
        /// What it says.
        value: String,
        /// What it should be.
        must: &'static str,
    },
    /// More filter bytes than there are bytes.
    #[error("buffer.filter-bytes is {filter}: it must be less than the {all} of buffer.bytes")]
    NoRoomBesideFilters {
        /// For filters.
        filter: usize,
        /// In all.
        all: usize,
    },
}

/// Sizes beyond this are mistakes, and products of them would overflow.
const MOST: usize = 1 << 30;
/// PEs along a side: more is no array that anyone draws.
const MOST_PES: usize = 256;

impl Architecture {
    /// Reads and validates an architecture; what the text does not say is as on the chip.
    pub fn from_toml(text: &str) -> Result<Self, ArchitectureError> {
        let architecture: Self = toml::from_str(text).map_err(|error| {
            let line = 1 + error.span().map_or(0, |span| text[..span.start].matches('\n').count());
            ArchitectureError::Malformed { line, problem: error.message().replace('\n', " ") }
        })?;
        architecture.validate()?;
        Ok(architecture)
    }

    fn validate(&self) -> Result<(), ArchitectureError> {
        for (field, value, most) in [
            ("rows", self.rows, MOST_PES),
            ("columns", self.columns, MOST_PES),
            ("word-bits", self.word_bits, 1024),
            ("scratchpad.input", self.scratchpad.input, MOST),
            ("scratchpad.filter", self.scratchpad.filter, MOST),
            ("scratchpad.partial-sum", self.scratchpad.partial_sum, MOST),
            ("buffer.bytes", self.buffer.bytes, MOST),
            ("buffer.filter-bytes", self.buffer.filter_bytes, MOST),
            ("bus.input", self.bus.input, MOST),
            ("bus.filter", self.bus.filter, MOST),
            ("bus.partial-sum", self.bus.partial_sum, MOST),
            // Zero means: as much as row-stationary has.
            ("others.buffer-bytes", self.others.buffer_bytes.max(1), MOST),
        ] {
            if value == 0 || value > most {
                return Err(ArchitectureError::Size { field, value, most });
            }
        }
        if self.buffer.filter_bytes >= self.buffer.bytes {
            let (filter, all) = (self.buffer.filter_bytes, self.buffer.bytes);
            return Err(ArchitectureError::NoRoomBesideFilters { filter, all });
        }
        for (field, value) in
            [("clock-mhz", self.clock_mhz), ("dram.megabytes-per-second", self.dram.megabytes_per_second)]
        {
            if !(value > 0.0 && value.is_finite()) {
                return Err(ArchitectureError::Number { field, value: value.to_string(), must: "positive" });
            }
        }
        for (field, value) in [
            ("energy.mac", self.energy.mac),
            ("energy.scratchpad", self.energy.scratchpad),
            ("energy.array", self.energy.array),
            ("energy.buffer", self.energy.buffer),
            ("energy.dram", self.energy.dram),
        ] {
            if !(value >= 0.0 && value.is_finite()) {
                return Err(ArchitectureError::Number { field, value: value.to_string(), must: "zero or more" });
            }
        }
        Ok(())
    }

    /// PEs in all.
    pub fn pes(&self) -> usize {
        self.rows * self.columns
    }

    /// Words of the buffer for inputs and partial sums.
    pub fn map_words(&self) -> usize {
        (self.buffer.bytes - self.buffer.filter_bytes) * 8 / self.word_bits
    }

    /// Words of the buffer for filters.
    pub fn filter_words(&self) -> usize {
        self.buffer.filter_bytes * 8 / self.word_bits
    }

    /// Words of the other dataflows' buffer.
    pub fn others_buffer_words(&self) -> usize {
        let bytes = if self.others.buffer_bytes == 0 { self.buffer.bytes } else { self.others.buffer_bytes };
        bytes * 8 / self.word_bits
    }

    /// The bytes of so many words.
    pub fn bytes(&self, words: u64) -> u64 {
        words * self.word_bits as u64 / 8
    }

    /// The milliseconds of so many cycles.
    pub fn milliseconds(&self, cycles: u64) -> f64 {
        cycles as f64 / (self.clock_mhz * 1e3)
    }

    /// The milliseconds that so many words take to or from DRAM.
    pub fn dram_milliseconds(&self, words: u64) -> f64 {
        self.bytes(words) as f64 / (self.dram.megabytes_per_second * 1e3)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_file_does_not_say_is_as_on_the_chip() {
        assert_eq!(Architecture::from_toml("").unwrap(), Architecture::default());
        let other = Architecture::from_toml("rows = 16\n[energy]\ndram = 100.0\n").unwrap();
        assert_eq!((other.rows, other.columns, other.energy.dram, other.energy.buffer), (16, 14, 100.0, 6.0));
        assert_eq!(other.map_words(), 51_200);
    }

    #[test]
    fn a_file_repeats_the_architecture_it_was_written_from() {
        let text = toml::to_string(&Architecture::default()).unwrap();
        assert_eq!(Architecture::from_toml(&text).unwrap(), Architecture::default());
    }

    #[test]
    fn the_file_of_the_chip_is_the_default() {
        let chip = Architecture::from_toml(include_str!("../../../architectures/eyeriss-chip.toml")).unwrap();
        assert_eq!(chip, Architecture::default());
    }

    #[test]
    fn what_makes_no_sense_is_named() {
        for (text, error) in [
            ("rows = 0", "rows is 0: it must be between 1 and 256"),
            ("[scratchpad]\nfilter = 0", "scratchpad.filter is 0: it must be between 1 and 1073741824"),
            ("clock-mhz = 0.0", "clock-mhz is 0: it must be positive"),
            ("[energy]\ndram = nan", "energy.dram is NaN: it must be zero or more"),
            ("[buffer]\nbytes = 8192", "buffer.filter-bytes is 8192: it must be less than the 8192 of buffer.bytes"),
        ] {
            assert_eq!(Architecture::from_toml(text).unwrap_err().to_string(), error);
        }
        let unknown = Architecture::from_toml("rows = 3\ncolums = 4\n").unwrap_err().to_string();
        assert!(unknown.starts_with("line 2: unknown field `colums`"), "{unknown}");
    }
}
