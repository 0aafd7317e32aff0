//! The words of the command line.

use std::error::Error;
use std::path::PathBuf;

use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use ringstep_comm::Op;
use ringstep_cpu::Instructions;
use ringstep_data::fetch::Source;

use crate::bench::collectives::{Algorithms, BenchTransport};
use crate::datasets::Choice;
use crate::eyeriss::EyerissCommand;
use crate::names::{ByName, Bytes, Refusal};
use crate::settings::{ModelName, Settings};

/// Data-parallel training on CPUs: run every way of synchronising workers on the same job, and see what each costs.
#[derive(Parser)]
#[command(name = "ringstep", version, max_term_width = 110)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Subcommand)]
pub enum Command {
    /// Train one job under several ways of synchronising, and report.
    ///
    /// Without any options: LeNet-5 on the first 100 images of MNIST, on four worker processes, once for each way.
    #[command(allow_negative_numbers = true, disable_help_flag = true)]
    Compare(RunArgs),
    /// Train one job.
    #[command(allow_negative_numbers = true, disable_help_flag = true)]
    Train(RunArgs),
    /// Say how good a trained model is on test images, where it errs, and how fast it is.
    ///
    /// Accuracy, loss, confusion matrix, latency of single images, images a second and memory of the frozen model; a page
    /// shows the images that it is most wrong about.
    Eval(EvalArgs),
    /// Measure this machine.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Data sets: what is on this machine, and getting more.
    #[command(subcommand)]
    Data(DataCommand),
    /// Show a collective step by step, as a lecture would.
    ///
    /// It runs the real algorithm on threads: who sends what to whom in each round, what everyone then holds, and the
    /// steps and bytes that it took.
    Explain(ExplainArgs),
    /// The Eyeriss accelerator: its dataflow step by step, and what networks take on it.
    #[command(subcommand)]
    Eyeriss(EyerissCommand),
    /// One worker process; started by `compare` and `train`.
    #[command(hide = true)]
    Worker,
}

#[derive(Args)]
pub struct RunArgs {
    /// An experiment: any of the options below, without their dashes, as TOML; a table [[row]] for each row that has
    /// options of its own. Options given here go before it.
    #[arg(value_name = "FILE.toml")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub settings: Settings,
    /// Folder for what the run leaves behind [default: the next free runs/compare-N or runs/train-N]
    #[arg(long, value_name = "DIR", help_heading = "Records")]
    pub out: Option<PathBuf>,
    /// Print the summary as JSON on standard output, and nothing else there.
    #[arg(long, help_heading = "Records")]
    pub json: bool,
    /// Print each rank's loss and accuracy after each epoch.
    #[arg(short, long, help_heading = "Records")]
    pub verbose: bool,
    /// Show the options that are used most
    #[arg(short, long, action = ArgAction::HelpShort, help_heading = "Help")]
    help: Option<bool>,
    /// Show all options
    #[arg(long, action = ArgAction::HelpLong, help_heading = "Help")]
    help_all: Option<bool>,
}

#[derive(Args)]
pub struct EvalArgs {
    /// The folder of a run, of a comparison that of one way; or a file of weights in PyTorch's names and layouts
    #[arg(value_name = "runs/NAME|FILE.safetensors")]
    pub weights: PathBuf,
    /// The network, by name or as a file.toml [default: that of the run]
    #[arg(long)]
    pub model: Option<ModelName>,
    /// The data set, whose test images count: mnist, fashion-mnist, cifar10 or synthetic [default: that of the run; for a
    /// file the built-in sample of mnist]
    #[arg(long)]
    pub dataset: Option<Choice>,
    /// Folder with the data set's files [default: that of the run, or where `ringstep data get` puts them]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Images at once, for accuracy and images a second [default: 64]
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Threads to compute on
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// Instructions to compute with: auto, portable, avx2, avx512 or neon
    #[arg(long, value_name = "LEVEL", default_value = "auto")]
    pub instructions: ByName<Instructions>,
    /// Where the page goes [default: runs/NAME/eval.html; for a file of weights there is none]
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print it as JSON on standard output, and nothing else there.
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum BenchCommand {
    /// Time all-reduces: size, time, algbw, busbw, #wrong, as nccl-tests shows them.
    Collectives(CollectivesArgs),
    /// Time a training step, layer by layer, beside what this machine could do.
    Kernels(KernelsArgs),
}

/// What `bench kernels` times.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Passes {
    Step,
    Evaluation,
    Both,
}

#[derive(Args)]
pub struct KernelsArgs {
    /// The network, by name or as a file.toml
    #[arg(long, default_value = "vgg11")]
    pub model: ModelName,
    /// Images a step
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub batch: usize,
    /// Threads to compute on
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// Instructions to compute with: auto, portable, avx2, avx512 or neon
    #[arg(long, value_name = "LEVEL", default_value = "auto")]
    pub instructions: ByName<Instructions>,
    /// What is timed: training steps, the passes of a frozen model, or both
    #[arg(long, value_enum, default_value_t = Passes::Both)]
    pub passes: Passes,
    /// Print it as JSON on standard output, and nothing else there.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct CollectivesArgs {
    /// Number of workers
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub workers: usize,
    /// shm, tcp (worker processes) or mem (threads); a list
    #[arg(long, value_delimiter = ',', default_value = "shm,tcp")]
    pub transport: Vec<ByName<BenchTransport>>,
    /// Algorithms by name, auto, or all; a list
    #[arg(long, value_delimiter = ',', default_value = "all")]
    pub algorithm: Vec<Algorithms>,
    /// The smallest size
    #[arg(long, value_name = "SIZE", default_value = "1KiB")]
    pub min: Bytes,
    /// The largest size
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub max: Bytes,
    /// How sizes grow
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub factor: usize,
    /// sum, mean, max, min or product
    #[arg(long, default_value = "sum")]
    pub op: ByName<Op>,
    /// Print the rows as JSON on standard output, and nothing else there.
    #[arg(long)]
    pub json: bool,
}

#[derive(Subcommand)]
pub enum DataCommand {
    /// Download a data set and verify it.
    Get(GetArgs),
    /// Show which data sets are on this machine.
    List,
}

#[derive(Args)]
pub struct GetArgs {
    /// mnist, fashion-mnist or cifar10
    pub dataset: ByName<&'static Source>,
    /// Take the files from this web folder or folder instead of the mirrors.
    #[arg(long, value_name = "URL|DIR")]
    pub from: Option<String>,
    /// Put them here [default: ~/.cache/ringstep/DATASET, where `train` looks]
    #[arg(long, value_name = "DIR")]
    pub to: Option<PathBuf>,
}

#[derive(Args)]
pub struct ExplainArgs {
    /// gather-scatter, tree, ring, recursive-doubling, halving-doubling, direct or hierarchical
    pub algorithm: String,
    /// Workers, 2 to 16 [default: as many as there are rows of values, or 4]
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// How numbers are reduced: sum, mean, max, min or product
    #[arg(long, default_value = "sum")]
    pub op: ByName<Op>,
    /// A row of numbers for each worker, as in "3,7,1; 4,2,8" [default: a small example]
    #[arg(long, value_name = "ROWS", allow_hyphen_values = true)]
    pub values: Option<String>,
    /// Write a page that animates it instead.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Clap's error with its tip, in one line.
pub fn one_line(error: &clap::Error) -> String {
    if let Some(refusal) = error.source().and_then(|source| source.downcast_ref::<Refusal>()) {
        return format!("error: {refusal}");
    }
    let text = error.to_string();
    let parts: Vec<&str> = text
        .lines()
        .take_while(|line| !line.starts_with("Usage:") && !line.starts_with("For more information"))
        .map(|line| line.trim().trim_start_matches("tip: "))
        .filter(|line| !line.is_empty())
        .collect();
    match parts.as_slice() {
        [first, rest @ ..] if !rest.is_empty() => format!("{first} ({})", rest.join(" ")),
        _ => format!("{}; see --help", parts.concat()),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    /// What `train --help` and `train --help-all` print, by the flag.
    fn help(flag: &str) -> String {
        let Err(error) = Cli::try_parse_from(["ringstep", "train", flag]) else { panic!("{flag} runs nothing") };
        error.to_string()
    }

    const HEADINGS: [&str; 7] = ["Model", "Data", "Training", "Synchronisation", "Workers", "Network", "Records"];

    /// The flags that a help shows, by how their lines begin.
    fn shown(help: &str) -> Vec<&str> {
        let flags = help.lines().map(|line| line.trim_start().trim_start_matches("-v, ").trim_start_matches("-h, "));
        flags.filter(|line| line.starts_with("--")).filter_map(|line| line.split([' ', '[', '=']).next()).collect()
    }

    #[test]
    fn the_long_help_shows_everything_in_groups() {
        let (all, command) = (help("--help-all"), Cli::command());
        let train = command.find_subcommand("train").unwrap();
        let mut flags: Vec<String> =
            train.get_arguments().filter_map(|flag| Some(format!("--{}", flag.get_long()?))).collect();
        let mut shown = shown(&all);
        flags.sort();
        shown.sort_unstable();
        assert_eq!(shown, flags);
        let at = HEADINGS.map(|heading| all.find(&format!("\n{heading}:\n")).expect(heading));
        assert!(at.is_sorted(), "{all}");
    }

    #[test]
    fn the_short_help_fits_on_a_screen_or_two() {
        let (some, all) = (help("--help"), help("--help-all"));
        assert_eq!(some, help("-h"));
        for heading in HEADINGS {
            assert!(some.contains(&format!("\n{heading}:\n")), "{heading}: {some}");
        }
        let (flags, lines) = (shown(&some), some.lines().count());
        for flag in
            ["--model", "--dataset", "--sync", "--workers", "--batch", "--epochs", "--lr", "--out", "--help-all"]
        {
            assert!(flags.contains(&flag), "{flag}: {some}");
        }
        assert!(flags.len() <= 26 && flags.len() < shown(&all).len() / 2 + 3 && lines <= 66, "{lines}: {some}");
    }
}
