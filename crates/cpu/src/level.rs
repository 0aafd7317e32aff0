//! The instruction levels that kernels are compiled for, and the proof that this machine has one of them.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

#[cfg(target_arch = "aarch64")]
use crate::simd::Neon;
use crate::simd::Portable;
#[cfg(target_arch = "x86_64")]
use crate::simd::{Avx2, Avx512};

/// Instructions that this machine has. Each variant holds a token that only detection gives out, so whoever has a level may
/// run the kernels that were compiled for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Level {
    /// What every machine of the architecture has; products are rounded before they are added.
    Portable(Portable),
    /// AVX2, FMA and F16C: eight numbers at once.
    #[cfg(target_arch = "x86_64")]
    Avx2(Avx2),
    /// AVX-512 (F, VL, BW and DQ): sixteen numbers at once, in twice as many registers.
    #[cfg(target_arch = "x86_64")]
    Avx512(Avx512),
    /// NEON: four numbers at once.
    #[cfg(target_arch = "aarch64")]
    Neon(Neon),
}

impl Level {
    /// The levels of this machine, narrowest first.
    pub fn available() -> Vec<Self> {
        let mut levels = vec![Self::Portable(Portable::new())];
        #[cfg(target_arch = "x86_64")]
        {
            levels.extend(Avx2::detect().map(Self::Avx2));
            levels.extend(Avx512::detect().map(Self::Avx512));
        }
        #[cfg(target_arch = "aarch64")]
        levels.extend(Neon::detect().map(Self::Neon));
        levels
    }

    /// The widest level of this machine.
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        let best = Avx512::detect().map(Self::Avx512).or_else(|| Avx2::detect().map(Self::Avx2));
        #[cfg(target_arch = "aarch64")]
        let best = Neon::detect().map(Self::Neon);
        #[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
        let best = None;
        best.unwrap_or(Self::Portable(Portable::new()))
    }

    /// The name on the command line and in records.
    pub fn name(self) -> &'static str {
        self.wanted().name()
    }

    /// The same level, or AVX2 instead of AVX-512: for kernels on short runs of numbers, which would leave half of the wider
    /// registers empty.
    pub fn at_most_eight_lanes(self) -> Self {
        match self {
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(simd) => Self::Avx2(simd.narrower()),
            other => other,
        }
    }

    fn wanted(self) -> Instructions {
        match self {
            Self::Portable(_) => Instructions::Portable,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2(_) => Instructions::Avx2,
            #[cfg(target_arch = "x86_64")]
            Self::Avx512(_) => Instructions::Avx512,
            #[cfg(target_arch = "aarch64")]
            Self::Neon(_) => Instructions::Neon,
        }
    }
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Which level somebody asks for; whether this machine has it is another matter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Instructions {
    /// The widest that the machine has.
    #[default]
    Auto,
    /// [`Level::Portable`].
    Portable,
    /// AVX2, FMA and F16C.
    Avx2,
    /// AVX-512.
    Avx512,
    /// NEON.
    Neon,
}

impl Instructions {
    /// All that can be asked for.
    pub const ALL: [Self; 5] = [Self::Auto, Self::Portable, Self::Avx2, Self::Avx512, Self::Neon];

    /// The name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Portable => "portable",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512",
            Self::Neon => "neon",
        }
    }

    /// The level, if this machine has it.
    pub fn level(self) -> Result<Level, MissingInstructions> {
        let available = Level::available();
        match self {
            Self::Auto => Ok(Level::best()),
            _ => available.iter().copied().find(|level| level.wanted() == self).ok_or(MissingInstructions {
                wanted: self,
                available: available.iter().map(|level| level.name()).collect(),
            }),
        }
    }
}

impl fmt::Display for Instructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Instructions {
    type Err = String;

    fn from_str(name: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|instructions| instructions.name() == name).ok_or_else(|| {
            let names = Self::ALL.map(Self::name).join(", ");
            format!("unknown instructions {name}: there are {names}")
        })
    }
}

/// This machine has not got the instructions that somebody asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MissingInstructions {
    wanted: Instructions,
    available: Vec<&'static str>,
}

impl fmt::Display for MissingInstructions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "this machine has no {} instructions: it has {}", self.wanted, self.available.join(", "))
    }
}

impl std::error::Error for MissingInstructions {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_level_of_this_machine_can_be_asked_for_by_name_and_the_widest_is_the_best() {
        for level in Level::available() {
            assert_eq!(level.name().parse::<Instructions>().unwrap().level(), Ok(level));
        }
        assert_eq!(Instructions::Auto.level(), Ok(Level::best()));
        assert_eq!(Level::available().pop(), Some(Level::best()));
    }

    #[test]
    fn what_is_not_there_is_refused_with_what_is() {
        let available = Level::available();
        for wanted in Instructions::ALL {
            if wanted != Instructions::Auto && available.iter().all(|level| level.wanted() != wanted) {
                let refusal = wanted.level().unwrap_err().to_string();
                assert!(refusal.starts_with(&format!("this machine has no {wanted} instructions: it has portable")));
            }
        }
        assert!("sse9".parse::<Instructions>().unwrap_err().contains("auto, portable, avx2, avx512, neon"));
    }
}
