//! How often a run is saved on the way.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use anyhow::{Result, anyhow, ensure};
use serde::{Deserialize, Serialize};

use super::Mode;
use crate::names::{Refusal, as_number_or_text};

/// Checkpoints that stay unless told otherwise: the last, and one more for when that is damaged.
const KEPT: usize = 2;

/// Flags about checkpoints.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
#[command(next_help_heading = "Records")]
pub struct SavingFlags {
    /// Write a checkpoint after every so many steps, or after some time as in 30s, 10m or 1h [default: when interrupted]
    #[arg(long, value_name = "STEPS|TIME")]
    pub checkpoint_every: Option<Every>,
    /// How many checkpoints stay [default: 2]
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub keep_checkpoints: Option<usize>,
}

impl SavingFlags {
    /// How often.
    pub fn every(&self, mode: Mode) -> Result<Option<Every>> {
        ensure!(
            mode == Mode::Train || self.checkpoint_every.is_none(),
            "--checkpoint-every is for train: a comparison is not gone on with"
        );
        Ok(self.checkpoint_every)
    }

    /// How many stay.
    pub fn keep(&mut self, mode: Mode) -> Result<usize> {
        ensure!(
            mode == Mode::Train || self.keep_checkpoints.is_none(),
            "--keep-checkpoints is for train: a comparison has none"
        );
        ensure!(self.keep_checkpoints != Some(0), "0 checkpoints: at least 1 is needed");
        Ok(match mode {
            Mode::Train => *self.keep_checkpoints.get_or_insert(KEPT),
            Mode::Compare => KEPT,
        })
    }
}

/// From one checkpoint to the next.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Every {
    /// So many steps.
    Steps(usize),
    /// Some time.
    Time(Duration),
}

/// Units of time, largest first.
const UNITS: [(&str, u64); 3] = [("h", 3600), ("m", 60), ("s", 1)];

impl FromStr for Every {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let time = || {
            let (number, unit) = UNITS.iter().find_map(|(name, unit)| Some((text.strip_suffix(name)?, *unit)))?;
            let seconds = number.parse::<u64>().ok()?.checked_mul(unit)?;
            (seconds > 0).then_some(Self::Time(Duration::from_secs(seconds)))
        };
        let steps = || text.parse().ok().filter(|&steps| steps > 0).map(Self::Steps);
        let refusal =
            || anyhow!("'{text}' is no time from checkpoint to checkpoint: write 100 for steps, or 30s, 10m, 1h");
        Ok(steps().or_else(time).ok_or_else(refusal)?)
    }
}

impl fmt::Display for Every {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Steps(steps) => steps.fmt(f),
            Self::Time(time) => {
                let (name, unit) =
                    UNITS.iter().find(|(_, unit)| time.as_secs().is_multiple_of(*unit)).unwrap_or(&("s", 1));
                write!(f, "{}{name}", time.as_secs() / unit)
            }
        }
    }
}

as_number_or_text!([] Every);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_and_times_are_written_as_they_are_read() {
        let every = |text: &str| text.parse::<Every>().map_err(|error| error.to_string());
        assert_eq!(every("100"), Ok(Every::Steps(100)));
        assert_eq!(every("90s"), Ok(Every::Time(Duration::from_secs(90))));
        for text in ["1", "1s", "10m", "36h", "61s"] {
            assert_eq!(every(text).unwrap().to_string(), text);
        }
        for text in ["0", "0s", "-1", "m", "1.5h", "10 m", "99999999999999999h", ""] {
            assert!(every(text).unwrap_err().starts_with(&format!("'{text}' is no time")), "{text}");
        }
    }
}
