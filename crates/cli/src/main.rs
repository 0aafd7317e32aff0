//! The program `ringstep`; all of it is in the library beside it, where fuzzers find it too.

use std::process::ExitCode;

fn main() -> ExitCode {
    ringstep_cli::main()
}
