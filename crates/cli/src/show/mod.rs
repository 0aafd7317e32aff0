//! What a person sees in the terminal.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

mod bound;
mod comparison;
mod interruption;
mod large_batch;
mod progress;
mod table;
mod units;

pub use bound::bounds;
pub use comparison::comparisons;
pub use interruption::interruptions;
pub use large_batch::{LargeBatches, large_batches};
pub use progress::{Progress, RunProgress};
pub use table::{Column, FEW, STEP_COLUMNS, Split, columns, table, table_of};
pub use units::{bytes, list, percent, seconds};

/// Prints a warning on standard error.
pub fn warn(warning: &str) {
    let _ = writeln!(io::stderr(), "warning: {warning}");
}

/// Prints on standard error what was decided for the user.
pub fn tell(note: &str) {
    let _ = writeln!(io::stderr(), "{note}");
}

/// Prints a line on standard output. Whoever has stopped reading, as `head` does, is no error.
pub fn print(line: fmt::Arguments<'_>) -> Result<()> {
    match writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
    }
}
