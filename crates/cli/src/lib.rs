//! The program `ringstep`.
//!
//! | look for | in |
//! | --- | --- |
//! | the words of the command line | [`args`] |
//! | flags and experiment files, and the runs they mean | [`settings`] |
//! | starting workers, watching them, ending them | [`launch`] |
//! | processes that somebody else has started: which one this is, where they meet | [`cluster`] |
//! | what a person sees while it runs and afterwards | [`show`], [`report`] |
//! | what a run leaves behind | [`run_dir`] |
//! | checkpoints, and going on from one | [`checkpoints`] |
//! | whether there is enough memory | [`memory`] |
//! | MPI, in a build that has it | [`mpi`] |
//! | timing collectives, layers and whole trainings | [`bench`] |
//! | what a job would take on a cluster of any size | [`simulate`] |
//! | how good a trained model is, and how fast | [`eval`] |
//! | a trained model in integers | [`quantize`] |
//! | data sets on this machine | [`datasets`] |
//! | a collective or a way to stay in step, step by step | [`explain`] |
//! | the accelerator Eyeriss | [`eyeriss`] |
//! | pages that play something frame by frame | [`film`] |

mod args;
mod bench;
mod checkpoints;
mod cluster;
mod datasets;
mod eval;
mod explain;
mod eyeriss;
mod film;
#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod fuzzing;
mod html;
mod launch;
mod learners;
mod memory;
mod mpi;
mod names;
mod peak_memory;
mod prediction;
mod quantize;
#[cfg(test)]
#[path = "../../../fuzz/replay.rs"]
mod replay;
mod report;
mod row;
mod run_dir;
mod settings;
mod show;
mod simulate;
mod trace_file;
mod train;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{BenchCommand, Cli, Command, DataCommand};
use crate::launch::Interrupted;
use crate::settings::Mode;

/// Does what the command line says.
pub fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            let missing = error.kind() == clap::error::ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand;
            if error.use_stderr() && !missing {
                eprintln!("{}", args::one_line(&error));
            } else {
                let _ = error.print();
            }
            return ExitCode::from(error.exit_code() as u8);
        }
    };
    let result = match cli.command {
        Command::Compare(args) => train::run(Mode::Compare, args),
        Command::Train(args) => train::run(Mode::Train, args),
        Command::Eval(args) => eval::run(&args),
        Command::Quantize(args) => quantize::run(&args),
        Command::Export(args) => quantize::export(&args),
        Command::Bench(BenchCommand::Collectives(args)) => bench::collectives::collectives(&args),
        Command::Bench(BenchCommand::Kernels(args)) => bench::kernels::kernels(&args),
        Command::Bench(BenchCommand::Scaling(args)) => bench::scaling::scaling(&args),
        Command::Simulate(args) => simulate::run(&args),
        Command::Data(DataCommand::Get(args)) => datasets::get(&args),
        Command::Data(DataCommand::List) => datasets::list(),
        Command::Explain(args) => explain::run(&args),
        Command::Eyeriss(command) => eyeriss::run(&command),
        Command::Launch(command) => cluster::scripts::run(&command),
        Command::Worker { .. } => return launch::worker::main(),
    };
    mpi::end(result.is_err());
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(error.downcast_ref::<Interrupted>().map_or(1, Interrupted::exit_code))
        }
    }
}
