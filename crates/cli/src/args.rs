//! The words of the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};

use crate::eyeriss::EyerissCommand;
use crate::settings::Settings;

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
    #[command(allow_negative_numbers = true)]
    Compare(RunArgs),
    /// Train one job.
    #[command(allow_negative_numbers = true)]
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
    /// An experiment: any of the options below, without their dashes, as TOML. Options given here go before it.
    #[arg(value_name = "FILE.toml")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub settings: Settings,
    /// Folder for what the run leaves behind [default: the next free runs/compare-N or runs/train-N]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Print the summary as JSON on standard output, and nothing else there.
    #[arg(long)]
    pub json: bool,
    /// Print each rank's loss and accuracy after each epoch.
    #[arg(short, long)]
    pub verbose: bool,
}

#[derive(Args)]
pub struct EvalArgs {
    /// The folder of a run, of a comparison that of one way; or a file of weights in PyTorch's names and layouts
    #[arg(value_name = "runs/NAME|FILE.safetensors")]
    pub weights: PathBuf,
    /// The network, by name or as a file.toml [default: that of the run]
    #[arg(long)]
    pub model: Option<String>,
    /// The data set, whose test images count: mnist, fashion-mnist, cifar10 or synthetic [default: that of the run; for a
    /// file the built-in sample of mnist]
    #[arg(long)]
    pub dataset: Option<String>,
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
    pub instructions: String,
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
    pub model: String,
    /// Images a step
    #[arg(long, value_name = "N", default_value_t = 64)]
    pub batch: usize,
    /// Threads to compute on
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// Instructions to compute with: auto, portable, avx2, avx512 or neon
    #[arg(long, value_name = "LEVEL", default_value = "auto")]
    pub instructions: String,
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
    pub transport: Vec<String>,
    /// Algorithms by name, auto, or all; a list
    #[arg(long, value_delimiter = ',', default_value = "all")]
    pub algorithm: Vec<String>,
    /// The smallest size
    #[arg(long, value_name = "SIZE", default_value = "1KiB")]
    pub min: String,
    /// The largest size
    #[arg(long, value_name = "SIZE", default_value = "64MiB")]
    pub max: String,
    /// How sizes grow
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub factor: usize,
    /// sum, mean, max, min or product
    #[arg(long, default_value = "sum")]
    pub op: String,
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
    pub dataset: String,
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
    pub op: String,
    /// A row of numbers for each worker, as in "3,7,1; 4,2,8" [default: a small example]
    #[arg(long, value_name = "ROWS", allow_hyphen_values = true)]
    pub values: Option<String>,
    /// Write a page that animates it instead.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Clap's error with its tip, in one line.
pub fn one_line(error: &clap::Error) -> String {
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
