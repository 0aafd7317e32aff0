//! The program `ringstep`.
//!
//! | look for | in |
//! | --- | --- |
//! | the words of the command line | [`args`] |
//! | flags and experiment files, and the runs they mean | [`settings`] |
//! | starting workers, watching them, ending them | [`launch`] |
//! | what a person sees while it runs and afterwards | [`show`], [`report`] |
//! | what a run leaves behind | [`run_dir`] |
//! | whether there is enough memory | [`memory`] |
//! | timing collectives and layers | [`bench`] |
//! | how good a trained model is, and how fast | [`eval`] |
//! | data sets on this machine | [`datasets`] |
//! | a collective step by step | [`explain`] |
//! | the accelerator Eyeriss | [`eyeriss`] |

mod args;
mod bench;
mod datasets;
mod eval;
mod explain;
mod eyeriss;
mod html;
mod launch;
mod memory;
mod names;
mod peak_memory;
mod report;
mod run_dir;
mod settings;
mod show;
mod trace_file;
mod train;

use std::process::ExitCode;

use clap::Parser;

use crate::args::{BenchCommand, Cli, Command, DataCommand};
use crate::launch::Interrupted;
use crate::settings::Mode;

fn main() -> ExitCode {
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
        Command::Bench(BenchCommand::Collectives(args)) => bench::collectives::collectives(&args),
        Command::Bench(BenchCommand::Kernels(args)) => bench::kernels::kernels(&args),
        Command::Data(DataCommand::Get(args)) => datasets::get(&args),
        Command::Data(DataCommand::List) => datasets::list(),
        Command::Explain(args) => explain::run(&args),
        Command::Eyeriss(command) => eyeriss::run(&command),
        Command::Worker => return launch::worker::main(),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::from(error.downcast_ref::<Interrupted>().map_or(1, Interrupted::exit_code))
        }
    }
}
