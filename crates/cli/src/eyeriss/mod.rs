//! `eyeriss`: the row-stationary accelerator.
//!
//! | look for | in |
//! | --- | --- |
//! | one small convolution, cycle by cycle, in the terminal and as a page | [`explain`], [`film`] |
//! | flags and files, and the study they mean | [`run`], [`choose`] |
//! | what each layer takes under each dataflow | [`study`] |
//! | the activations of a trained run | [`trained`] |
//! | the study in the terminal, as JSON and as a page | [`text`], [`json`], [`report`], [`stacks`] |

mod choose;
mod explain;
mod film;
mod json;
mod report;
mod run;
mod stacks;
mod study;
mod text;
mod trained;

use std::path::PathBuf;

use anyhow::Result;
use clap::{Args, Subcommand};

#[derive(Subcommand)]
pub enum EyerissCommand {
    /// Show a convolution on the PE array, cycle by cycle.
    Explain(ExplainArgs),
    /// Say what each layer of a network takes: mapping, cycles, accesses, energy.
    Run(RunArgs),
}

#[derive(Args)]
pub struct ExplainArgs {
    /// The filter, a row after the other, as in "-1,2; 1,0"
    #[arg(long, value_name = "ROWS", allow_hyphen_values = true)]
    pub filter: String,
    /// The input, likewise
    #[arg(long, value_name = "ROWS", allow_hyphen_values = true)]
    pub input: String,
    /// How far the filter moves
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub stride: usize,
    /// MACs that a PE does in a cycle [default: a whole filter row]
    #[arg(long, value_name = "N")]
    pub macs_per_cycle: Option<usize>,
    /// Write a page that animates it instead.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

#[derive(Args)]
pub struct RunArgs {
    /// alexnet, vgg16, vgg11, lenet5 or resnet18; this or --model
    #[arg(long, required_unless_present = "model", conflicts_with = "model")]
    pub network: Option<String>,
    /// The folder of a trained run: its weights, and its test images, say where zeros are
    #[arg(long, value_name = "runs/NAME")]
    pub model: Option<PathBuf>,
    /// Images at once
    #[arg(long, value_name = "N", default_value_t = 4)]
    pub batch: usize,
    /// The accelerator [default: the published chip, as in architectures/eyeriss-chip.toml]
    #[arg(long, value_name = "FILE.toml")]
    pub arch: Option<PathBuf>,
    /// row-stationary, weight-stationary, output-stationary, no-local-reuse, or all
    #[arg(long, default_value = "row-stationary")]
    pub dataflow: String,
    /// What the best mapping is best in: energy or latency
    #[arg(long, default_value = "energy")]
    pub objective: String,
    /// A mapping instead of the best: "m=64,n=1,e=27,p=16,q=2,r=1,t=1" for all layers, "CONV1: ...; CONV2: ..." for some,
    /// or published, the chip's own for alexnet
    #[arg(long)]
    pub mapping: Option<String>,
    /// conv for convolutions only, as the papers do; all; or names, a list
    #[arg(long, value_delimiter = ',', default_value = "conv")]
    pub layers: Vec<String>,
    /// Leave out the picture and the accesses of each layer.
    #[arg(long)]
    pub brief: bool,
    /// Print the result as JSON on standard output, and nothing else there.
    #[arg(long)]
    pub json: bool,
    /// Write a page about it, too.
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

/// Does what was asked for.
pub fn run(command: &EyerissCommand) -> Result<()> {
    match command {
        EyerissCommand::Explain(args) => explain::run(args),
        EyerissCommand::Run(args) => run::run(args),
    }
}
