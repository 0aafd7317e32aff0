//! What a person sees in the terminal.

use std::fmt;
use std::io::{self, ErrorKind, Write};

use anyhow::{Context, Result};

mod bound;
mod progress;
mod table;
mod units;

pub use bound::bounds;
pub use progress::Progress;
pub use table::{HEADINGS, STEP_HEADINGS, Split, cells, step_cells, step_table, table};
pub use units::{bytes, percent, seconds};

/// Prints a warning on standard error.
pub fn warn(warning: &str) {
    let _ = writeln!(io::stderr(), "warning: {warning}");
}

/// Prints a line on standard output. Whoever has stopped reading, as `head` does, is no error.
pub fn print(line: fmt::Arguments<'_>) -> Result<()> {
    match writeln!(io::stdout(), "{line}").and_then(|()| io::stdout().flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("standard output"),
        _ => Ok(()),
    }
}
