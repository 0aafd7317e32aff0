//! What becomes of a run whose workers die.

use std::fmt;
use std::str::FromStr;

use anyhow::{Result, anyhow, bail, ensure};
use serde::{Deserialize, Serialize};

use super::{Mode, ProcessTransport, Workers, workers};
use crate::names::{Refusal, as_number_or_text};

/// Flags about faults.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
#[command(next_help_heading = "Workers")]
pub struct FaultFlags {
    /// Go on up to so many times after workers have died, with new ones in their place [default: 0; with --elastic MAX
    /// less MIN]
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub max_restarts: Option<usize>,
    /// Go on with the workers that are left, at least MIN of them, instead of starting new ones; others may join, up to MAX
    #[arg(long, value_name = "MIN:MAX", hide_short_help = true)]
    pub elastic: Option<Elastic>,
}

/// What becomes of a run whose workers die.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Faults {
    /// How often it goes on.
    pub restarts: usize,
    /// With how many workers, if not always with as many.
    pub elastic: Option<Elastic>,
}

impl FaultFlags {
    /// What they mean for so many workers of one run.
    pub fn faults(&self, mode: Mode, count: usize, workers: &Workers) -> Result<Faults> {
        let flag = match self {
            Self { elastic: Some(_), .. } => "--elastic",
            Self { max_restarts: Some(1..), .. } => "--max-restarts",
            _ => return Ok(Faults::default()),
        };
        ensure!(mode == Mode::Train, "{flag} is for train: a comparison is not gone on with");
        let workers::Launch::Processes(processes) = &workers.launch else {
            bail!("{flag} is for worker processes; these workers are threads of one, and die together");
        };
        ensure!(
            processes.transport.0 != ProcessTransport::Mpi,
            "{flag}: MPI ends all processes when one of them dies; --transport auto goes on without it"
        );
        if let Some(elastic @ Elastic { least, most }) = self.elastic {
            ensure!((least..=most).contains(&count), "{count} workers are not within --elastic {elastic}");
        }
        let lost = self.elastic.map_or(0, |elastic| elastic.most - elastic.least);
        Ok(Faults { restarts: self.max_restarts.unwrap_or(lost), elastic: self.elastic })
    }
}

/// How many workers a run may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elastic {
    /// At least.
    pub least: usize,
    /// At most.
    pub most: usize,
}

impl FromStr for Elastic {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let parsed = || {
            let (least, most) = text.split_once(':')?;
            let (least, most) = (least.parse().ok()?, most.parse().ok()?);
            (least > 0 && least <= most).then_some(Self { least, most })
        };
        let refusal = || anyhow!("'{text}' is no range of workers: write 2:4 for at least 2 and at most 4");
        Ok(parsed().ok_or_else(refusal)?)
    }
}

impl fmt::Display for Elastic {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.least, self.most)
    }
}

as_number_or_text!([] Elastic);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_of_workers_is_written_as_it_is_read() {
        let range = |text: &str| text.parse::<Elastic>().map_err(|error| error.to_string());
        assert_eq!(range("2:4"), Ok(Elastic { least: 2, most: 4 }));
        assert_eq!(range("3:3").unwrap().to_string(), "3:3");
        for text in ["", "4", "0:4", "3:2", "2-4", "1:2:3", "-1:4", "1:"] {
            assert!(range(text).unwrap_err().starts_with(&format!("'{text}' is no range")), "{text}");
        }
    }
}
