//! The words of the command line.

use std::error::Error;
use std::path::PathBuf;

use anyhow::{Result, ensure};
use clap::{ArgAction, Args, Parser, Subcommand, ValueEnum};
use ringstep_comm::{Algorithm, Op};
use ringstep_cpu::{Instructions, Level};
use ringstep_data::fetch::Source;
use ringstep_quant::{Calibration, Granularity};
use ringstep_train::job::MAX_THREADS;

use crate::bench::collectives::{Algorithms, BenchTransport};
use crate::cluster::ClusterFlags;
use crate::cluster::scripts::LaunchCommand;
use crate::datasets::Choice;
use crate::eyeriss::EyerissCommand;
use crate::names::{ByName, Bytes, Refusal};
use crate::settings::{Link, ModelName, ProcessTransport, Settings, SyncName};
use crate::simulate::SimulateArgs;

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
    /// Make a trained model one of integers, and show what each step costs.
    ///
    /// Weights, then activations, then biases become integers of up to 8 bits, as TFLite's specification has them; what comes
    /// out computes in integers only. Without any options: everything at once, on a small trained model that is built in.
    Quantize(QuantizeArgs),
    /// Write a trained model for other runtimes.
    Export(ExportArgs),
    /// Measure this machine.
    #[command(subcommand)]
    Bench(BenchCommand),
    /// Say what a step would take on any number of workers, without them.
    ///
    /// The schedules that a training runs, over simulated links and clocks: time a step, efficiency, exposed communication, and
    /// the best algorithm and size of buckets for each number of workers.
    Simulate(SimulateArgs),
    /// Data sets: what is on this machine, and getting more.
    #[command(subcommand)]
    Data(DataCommand),
    /// Show a collective, a way to stay in step or a way to send less, step by step, as a lecture would.
    ///
    /// A collective is run on threads: who sends what to whom in each round, what everyone then holds, and the steps and
    /// bytes that it took. The others do what they do in training on a few numbers.
    Explain(ExplainArgs),
    /// The Eyeriss accelerator: its dataflow step by step, and what networks take on it.
    #[command(subcommand)]
    Eyeriss(EyerissCommand),
    /// Write what starts a job on a cluster: a batch script, a manifest, or a command.
    #[command(subcommand)]
    Launch(LaunchCommand),
    /// One worker process; started by `compare` and `train`.
    #[command(hide = true)]
    Worker {
        /// Its first rank, for lists of processes alone.
        rank: Option<usize>,
    },
}

#[derive(Args)]
pub struct RunArgs {
    /// An experiment: any of the options below, without their dashes, as TOML; a table [[row]] for each row that has
    /// options of its own. Options given here go before it.
    #[arg(value_name = "FILE.toml")]
    pub file: Option<PathBuf>,
    #[command(flatten)]
    pub settings: Settings,
    #[command(flatten)]
    pub cluster: ClusterFlags,
    /// Folder for results [default: the next free runs/COMMAND-N]
    #[arg(long, value_name = "DIR", help_heading = "Records")]
    pub out: Option<PathBuf>,
    /// Replace what an earlier run has left in that folder.
    #[arg(long, help_heading = "Records", hide_short_help = true)]
    pub overwrite: bool,
    /// Go on with this run from its last checkpoint, as it was set
    #[arg(long, value_name = "runs/NAME", help_heading = "Records", conflicts_with_all = ["file", "out", "overwrite"])]
    pub resume: Option<PathBuf>,
    /// Print the summary as JSON on standard output, nothing else
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

/// What weights are of, where no run says so.
#[derive(Args, Clone, Default)]
pub struct SubjectArgs {
    /// The network, by name or as a file.toml [default: that of the run]
    #[arg(long)]
    pub model: Option<ModelName>,
    /// The data set, whose test images count, and by which images are normalised: mnist, fashion-mnist, cifar10 or synthetic
    /// [default: that of the run; for a file the built-in sample of mnist]
    #[arg(long)]
    pub dataset: Option<Choice>,
    /// Folder with the data set's files [default: that of the run, or where `ringstep data get` puts them]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
}

impl SubjectArgs {
    /// The first of these options that was typed.
    pub fn given(&self) -> Option<&'static str> {
        let given =
            [("--model", self.model.is_some()), ("--dataset", self.dataset.is_some()), ("--data", self.data.is_some())];
        given.into_iter().find_map(|(flag, given)| given.then_some(flag))
    }
}

/// What a model computes on.
#[derive(Args, Clone, Copy)]
pub struct ComputeArgs {
    /// Threads to compute on
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// Instructions to compute with: auto, portable, avx2, avx512 or neon
    #[arg(long, value_name = "LEVEL", default_value = "auto")]
    pub instructions: ByName<Instructions>,
}

impl ComputeArgs {
    /// The instructions that this means, if threads and instructions are possible.
    pub fn level(self) -> Result<Level> {
        ensure!(self.threads > 0, "0 threads: at least 1 is needed");
        ensure!(self.threads <= MAX_THREADS, "{} threads: at most {MAX_THREADS} are possible", self.threads);
        Ok(self.instructions.0.level()?)
    }
}

#[derive(Args)]
pub struct EvalArgs {
    /// The folder of a run, of a comparison that of one way; or a file of weights in PyTorch's names and layouts
    #[arg(value_name = "runs/NAME|FILE.safetensors")]
    pub weights: PathBuf,
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// Images at once, for accuracy and images a second [default: 64]
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Write what the model makes of each test image, as the tensor `logits` of a safetensors file
    #[arg(long, value_name = "FILE")]
    pub logits: Option<PathBuf>,
    /// Where the page goes [default: runs/NAME/eval.html; for a file of weights there is none]
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Print it as JSON on standard output, and nothing else there.
    #[arg(long)]
    pub json: bool,
}

#[derive(Args)]
pub struct ExportArgs {
    /// The folder of a run, of a comparison that of one way; or a file of weights in PyTorch's names and layouts
    #[arg(value_name = "runs/NAME|FILE.safetensors")]
    pub weights: PathBuf,
    /// Write it in ONNX here; input `images`, N,C,H,W, normalised by the `mean` and `std` in the file's metadata
    #[arg(long, value_name = "FILE")]
    pub onnx: PathBuf,
    #[command(flatten)]
    pub subject: SubjectArgs,
}

#[derive(Args)]
pub struct QuantizeArgs {
    /// The folder of a run, of a comparison that of one way; a file of weights in PyTorch's names and layouts; or an experiment
    /// with a table [quantize], which is trained first [default: LeNet-5, trained on MNIST, which is built in]
    #[arg(value_name = "runs/NAME|FILE.safetensors|FILE.toml")]
    pub weights: Option<PathBuf>,
    #[command(flatten)]
    pub subject: SubjectArgs,
    /// Bits of weights and activations, 2 to 8 [default: 8]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub bits: Option<i64>,
    /// Whether each filter has a scale of its own, or each layer: channel or tensor [default: channel]
    #[arg(long, value_name = "channel|tensor")]
    pub granularity: Option<ByName<Granularity>>,
    /// How the range of an activation is chosen: minmax, percentile, 3-sigma, entropy or mse; 3-sigma and mse say that of weights
    /// too [default: minmax]
    #[arg(long, value_name = "NAME")]
    pub calibration: Option<ByName<Calibration>>,
    /// Training images to calibrate with [default: 512]
    #[arg(long, value_name = "N")]
    pub images: Option<usize>,
    #[command(flatten)]
    pub compute: ComputeArgs,
    /// Write the model in ONNX: the quantized one here, with QuantizeLinear and DequantizeLinear, and the float one beside it, as
    /// FILE-float.onnx
    #[arg(long, value_name = "FILE")]
    pub onnx: Option<PathBuf>,
    /// Folder for the quantized model and the report [default: runs/NAME/quantized, or the next free runs/quantize-N]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
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
    /// Fill in the tables of a scaling lab: speed-up, computation against communication, bandwidth.
    ///
    /// Every batch size is trained with every number of workers, for two epochs of which the second is measured: with the same batch a
    /// worker (weak scaling), and with the same batch in all (strong scaling). Tables, sentences about them, a page with
    /// plots, JSON and CSV go to runs/scaling-N after every training.
    Scaling(ScalingArgs),
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
    /// Number of workers [default: 4; under mpirun, srun or torchrun as many as they have started]
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// shm, tcp, tls (worker processes), mem (threads) or, under mpirun, in a build with the feature mpi, mpi; a list
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
    /// Calls that are timed together, without a barrier between them: a time is then the mean of as many
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub in_a_row: usize,
    /// Print the rows as JSON on standard output, and nothing else there.
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub cluster: ClusterFlags,
}

#[derive(Args)]
pub struct ScalingArgs {
    /// The network, by name or as a file.toml
    #[arg(long, default_value = "resnet18")]
    pub model: ModelName,
    /// The images: cifar10, mnist, fashion-mnist, or synthetic [default: cifar10 if it is on this machine and fits the model,
    /// otherwise synthetic]
    #[arg(long)]
    pub dataset: Option<Choice>,
    /// Folder with the data set's files [default: where `ringstep data get` puts them]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Images of an epoch
    #[arg(long, value_name = "N", default_value_t = 2048)]
    pub samples: usize,
    /// Images that a worker takes at once; a list that ascends [default: 32, and four times as many each, until memory or
    /// images end]
    #[arg(long, value_name = "N,...", value_delimiter = ',')]
    pub batches: Option<Vec<usize>>,
    /// Numbers of workers; a list that ascends. One worker, to compare with, is always there
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,2,4")]
    pub workers: Vec<usize>,
    /// Threads that each worker computes on
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub threads: usize,
    /// How workers stay in step, as for train
    #[arg(long, value_name = "WAY", default_value = "ddp")]
    pub sync: ByName<SyncName>,
    /// How an all-reduce goes about it, as for train [default: ring]
    #[arg(long)]
    pub algorithm: Option<ByName<Option<Algorithm>>>,
    /// Size of ddp's buckets [default: from the cost model]
    #[arg(long, value_name = "BYTES")]
    pub bucket: Option<Bytes>,
    /// How worker processes talk: auto, tcp or shm [default: auto]
    #[arg(long)]
    pub transport: Option<ByName<ProcessTransport>>,
    /// Let messages between workers pass no faster than over such a network, as in bandwidth=100Mbit,latency=1ms
    #[arg(long, value_name = "LINK")]
    pub net: Option<Link>,
    /// Memory that all workers may take together, such as 4GiB [default: what is free]
    #[arg(long, value_name = "SIZE")]
    pub memory: Option<Bytes>,
    /// Folder for what the run leaves behind [default: the next free runs/scaling-N]
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Replace the earlier results in the folder of --out.
    #[arg(long)]
    pub overwrite: bool,
    /// Print the cells as JSON on standard output, and nothing else there.
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
    /// A collective: gather-scatter, tree, ring, recursive-doubling, halving-doubling, direct or hierarchical; a way to stay
    /// in step: parameter-server, stale, async, local-sgd, diloco or sma; a way to send less: int8, top-k or power-sgd
    #[arg(value_name = "NAME")]
    pub subject: String,
    /// Workers, 2 to 16 of a collective and 2 to 6 of a way [default: as many as there are rows of values, or 4; 2 or 3 of
    /// a way]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub workers: Option<usize>,
    /// How a collective reduces numbers: sum, mean, max, min or product [default: sum]
    #[arg(long)]
    pub op: Option<ByName<Op>>,
    /// A collective's row of numbers for each worker, as in "3,7,1; 4,2,8" [default: a small example]
    #[arg(long, value_name = "ROWS", allow_hyphen_values = true)]
    pub values: Option<String>,
    /// By how many steps workers may be ahead under stale, 0 to 6 [default: 1]
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true)]
    pub staleness: Option<u64>,
    /// Steps from one average to the next of local-sgd and diloco, 1 to 8 [default: 3]
    #[arg(long, value_name = "STEPS", allow_negative_numbers = true)]
    pub every: Option<usize>,
    /// The share of the numbers that top-k sends [default: 0.25]
    #[arg(long, value_name = "SHARE", allow_negative_numbers = true)]
    pub keep: Option<f64>,
    /// How narrow power-sgd's matrices are, 1 to 4 [default: 1, then 2]
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    pub rank: Option<usize>,
    /// Write a page that animates it instead.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl ExplainArgs {
    /// The options that not every subject knows, of those that were typed.
    pub fn given(&self) -> impl Iterator<Item = &'static str> {
        let options = [
            ("--workers", self.workers.is_some()),
            ("--op", self.op.is_some()),
            ("--values", self.values.is_some()),
            ("--staleness", self.staleness.is_some()),
            ("--every", self.every.is_some()),
            ("--keep", self.keep.is_some()),
            ("--rank", self.rank.is_some()),
        ];
        options.into_iter().filter(|(_, given)| *given).map(|(name, _)| name)
    }
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

    const HEADINGS: [&str; 8] =
        ["Model", "Data", "Training", "Synchronisation", "Compression", "Workers", "Network", "Records"];

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
