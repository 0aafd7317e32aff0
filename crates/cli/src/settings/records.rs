//! What is found out and recorded on the way.

use anyhow::{Result, bail, ensure};
use serde::{Deserialize, Serialize};

use super::{Mode, SyncName};
use crate::names::Share;

/// Steps that a trace holds unless told otherwise: enough to look at, little enough to open.
const TRACED_STEPS: usize = 50;

/// Flags about records.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
#[command(next_help_heading = "Records")]
pub struct RecordFlags {
    /// Also test after every N epochs [default: only at the end]
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub test_every: Option<usize>,
    /// Say when test accuracy first reached this, such as 97% or 0.97; tests after every epoch unless told otherwise
    #[arg(long, value_name = "ACCURACY", hide_short_help = true)]
    pub target: Option<Share>,
    /// Compare all ranks' parameters after every N steps, with --batch-norm sync the running statistics too, and stop if
    /// one differs [default: at the end]
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub verify_every: Option<usize>,
    /// Print each rank's loss after every N steps
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub log_every: Option<usize>,
    /// Steps to record in trace.json, from the first on [default: 50]
    #[arg(long, value_name = "STEPS", hide_short_help = true)]
    pub trace: Option<usize>,
    /// Measure the network at the end, and say how long a step should have taken by the cost model [default: true for
    /// compare]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    #[arg(hide_short_help = true)]
    pub predict: Option<bool>,
}

impl RecordFlags {
    /// Refuses what would record nothing.
    pub fn check(&self, ways: &[SyncName], mode: Mode) -> Result<()> {
        if mode == Mode::Train && *ways == [SyncName::DataParallel] && self.verify_every.is_some() {
            bail!("--verify-every: data-parallel has one model, that of rank 0: nothing can differ");
        }
        ensure!(self.log_every != Some(0), "0 steps from line to line: at least 1 is needed");
        Ok(())
    }

    /// The accuracy whose time is of interest, and after how many epochs it is looked for.
    pub fn target(&mut self) -> Result<Option<f64>> {
        let Some(Share(target)) = self.target else { return Ok(None) };
        ensure!(target > 0.0 && target <= 1.0, "target is {target}: it must be above 0 and at most 1, which is 100%");
        self.test_every.get_or_insert(1);
        Ok(Some(target))
    }

    /// Steps to trace.
    pub fn trace(&mut self) -> usize {
        *self.trace.get_or_insert(TRACED_STEPS)
    }

    /// Whether to say what the cost model would have expected.
    pub fn predict(&mut self, mode: Mode) -> bool {
        *self.predict.get_or_insert(mode == Mode::Compare)
    }
}
