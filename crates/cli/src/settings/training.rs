//! How parameters follow their gradients, with which learning rate, and for how long.

use anyhow::{Result, bail, ensure};
use ringstep_nn::optim::Rule;
use ringstep_nn::schedule::{Curve, WarmUp};
use ringstep_train::job::Length;
use serde::{Deserialize, Serialize};

use super::workers::WORKERS;
use crate::names::{ByName, Named, choices};

/// Images that a worker of the course's job takes at once.
pub(super) const BATCH: usize = 5;
/// Epochs of the course's job.
const EPOCHS: usize = 100;
/// Its learning rate.
const LR: f32 = 0.01;
/// PyTorch's defaults.
const BETAS: [f32; 2] = [0.9, 0.999];
/// Share of the full learning rate during a constant warm-up.
const TENTH: f32 = 0.1;

/// Flags about training.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
#[command(next_help_heading = "Training")]
pub struct TrainingFlags {
    /// Images a worker and step [default: 5; for single 20. In compare, single takes the images of all workers]
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Batches in a step, whose gradients are added up before workers synchronise [default: 1]
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub accumulate: Option<usize>,
    /// Times to train on all images [default: 100]
    #[arg(long, value_name = "N", conflicts_with = "steps")]
    pub epochs: Option<usize>,
    /// Steps to train, instead of epochs
    #[arg(long, value_name = "N")]
    pub steps: Option<usize>,
    /// How parameters follow their gradients: sgd, adam, adamw, lars [default: sgd]
    #[arg(long, value_name = "RULE", hide_short_help = true)]
    pub optimizer: Option<ByName<RuleName>>,
    /// Learning rate [default: 0.01]
    #[arg(long)]
    pub lr: Option<f32>,
    /// Momentum of sgd and lars [default: 0; for lars 0.9]
    #[arg(long)]
    pub momentum: Option<f32>,
    /// Nesterov's form of sgd's momentum [default: false]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    #[arg(hide_short_help = true)]
    pub nesterov: Option<bool>,
    /// Weight decay [default: 0]
    #[arg(long, hide_short_help = true)]
    pub weight_decay: Option<f32>,
    /// How far lars may move a tensor in a step, as a share of its norm [default: 0.001]
    #[arg(long, hide_short_help = true)]
    pub trust: Option<f32>,
    /// The course of the learning rate: constant, step, cosine, polynomial [default: constant]
    #[arg(long, value_name = "CURVE")]
    pub schedule: Option<ByName<CurveName>>,
    /// Epochs from one change of the learning rate to the next, for --schedule step [default: 30]
    #[arg(long, value_name = "EPOCHS", hide_short_help = true)]
    pub decay_every: Option<f32>,
    /// What it is multiplied by then [default: 0.1]
    #[arg(long, value_name = "FACTOR", hide_short_help = true)]
    pub decay_factor: Option<f32>,
    /// The power of --schedule polynomial; 1 is a straight line [default: 2]
    #[arg(long, hide_short_help = true)]
    pub power: Option<f32>,
    /// Epochs, or a part of one, before the full learning rate [default: 0]
    #[arg(long, value_name = "EPOCHS", hide_short_help = true)]
    pub warm_up: Option<f32>,
    /// How it begins: linear, growing evenly; or constant, at a tenth [default: linear]
    #[arg(long, value_name = "KIND", hide_short_help = true)]
    pub warm_up_kind: Option<ByName<WarmUpName>>,
    /// How much of the right class's probability is spread over all classes [default: 0]
    #[arg(long, value_name = "SHARE", hide_short_help = true)]
    pub label_smoothing: Option<f32>,
    /// Decides initial weights, shuffling and augmentation [default: 0]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
}

choices! {
    /// The rules of [`Rule`], by name.
    pub enum RuleName: "optimizer" {
        /// Stochastic gradient descent.
        Sgd = "sgd",
        /// Adam.
        Adam = "adam",
        /// Adam with decoupled weight decay.
        AdamW = "adamw",
        /// Layer-wise adaptive rate scaling.
        Lars = "lars",
    }
}

choices! {
    /// The curves of [`Curve`], by name.
    pub enum CurveName: "schedule" {
        /// It stays what it is.
        Constant = "constant",
        /// Multiplied every so many epochs.
        Step = "step",
        /// Half a cosine.
        Cosine = "cosine",
        /// A power of what is left.
        Polynomial = "polynomial",
    }
}

choices! {
    /// The beginnings of [`WarmUp`], by name.
    pub enum WarmUpName: "kind of warm-up" {
        /// Growing evenly.
        Linear = "linear",
        /// At a tenth.
        Constant = "constant",
    }
}

impl TrainingFlags {
    /// Images that a worker takes at once; one that is `alone` takes those of all.
    pub fn batch(&mut self, alone: bool) -> usize {
        *self.batch.get_or_insert(if alone { WORKERS * BATCH } else { BATCH })
    }

    /// When to stop.
    pub fn length(&mut self) -> Result<Length> {
        ensure!(self.epochs.is_none() || self.steps.is_none(), "epochs and steps are both given: which of them?");
        Ok(match self.steps {
            Some(steps) => Length::Steps(steps),
            None => Length::Epochs(*self.epochs.get_or_insert(EPOCHS)),
        })
    }

    /// Batches in a step.
    pub fn accumulate(&mut self) -> usize {
        *self.accumulate.get_or_insert(1)
    }

    /// How parameters follow their gradients.
    pub fn rule(&mut self) -> Result<Rule> {
        let ByName(chosen) = *self.optimizer.get_or_insert(ByName(RuleName::Sgd));
        let belongs = |given: bool, flag: &str, to: &str| refuse(given, flag, to, chosen.spelling());
        let weight_decay = *self.weight_decay.get_or_insert(0.0);
        if chosen != RuleName::Lars {
            belongs(self.trust.is_some(), "--trust", "lars")?;
        }
        if chosen != RuleName::Sgd {
            belongs(self.nesterov.is_some(), "--nesterov", "sgd")?;
        }
        if matches!(chosen, RuleName::Adam | RuleName::AdamW) {
            belongs(self.momentum.is_some(), "--momentum", "sgd and lars")?;
        }
        Ok(match chosen {
            RuleName::Sgd => {
                let momentum = *self.momentum.get_or_insert(0.0);
                let nesterov = *self.nesterov.get_or_insert(false);
                ensure!(!nesterov || momentum != 0.0, "--nesterov needs a --momentum above 0");
                Rule::Sgd { momentum, nesterov, weight_decay }
            }
            RuleName::Adam => Rule::Adam { betas: BETAS, weight_decay },
            RuleName::AdamW => Rule::AdamW { betas: BETAS, weight_decay },
            RuleName::Lars => {
                let momentum = *self.momentum.get_or_insert(0.9);
                Rule::Lars { momentum, weight_decay, trust: *self.trust.get_or_insert(0.001) }
            }
        })
    }

    /// The full learning rate.
    pub fn lr(&mut self) -> f32 {
        *self.lr.get_or_insert(LR)
    }

    /// How it goes on.
    pub fn curve(&mut self) -> Result<Curve> {
        let ByName(chosen) = *self.schedule.get_or_insert(ByName(CurveName::Constant));
        let belongs = |given: bool, flag: &str, to: &str| refuse(given, flag, to, chosen.spelling());
        if chosen != CurveName::Step {
            belongs(self.decay_every.is_some(), "--decay-every", "--schedule step")?;
            belongs(self.decay_factor.is_some(), "--decay-factor", "--schedule step")?;
        }
        if chosen != CurveName::Polynomial {
            belongs(self.power.is_some(), "--power", "--schedule polynomial")?;
        }
        Ok(match chosen {
            CurveName::Constant => Curve::Constant,
            CurveName::Step => Curve::Step {
                every: *self.decay_every.get_or_insert(30.0),
                factor: *self.decay_factor.get_or_insert(0.1),
            },
            CurveName::Cosine => Curve::Cosine,
            CurveName::Polynomial => Curve::Polynomial { power: *self.power.get_or_insert(2.0) },
        })
    }

    /// How it begins.
    pub fn warm_up(&mut self) -> WarmUp {
        let epochs = *self.warm_up.get_or_insert(0.0);
        match self.warm_up_kind.get_or_insert(ByName(WarmUpName::Linear)).0 {
            WarmUpName::Linear => WarmUp::Linear { epochs },
            WarmUpName::Constant => WarmUp::Constant { epochs, factor: TENTH },
        }
    }

    /// How much of the right class's probability is spread over all classes.
    pub fn label_smoothing(&mut self) -> f32 {
        *self.label_smoothing.get_or_insert(0.0)
    }

    /// Decides whatever is random.
    pub fn seed(&mut self) -> u64 {
        *self.seed.get_or_insert(0)
    }
}

/// Refuses what has no meaning here, instead of ignoring it.
fn refuse(given: bool, flag: &str, belongs: &str, chosen: &str) -> Result<()> {
    if given {
        bail!("{flag} belongs to {belongs}, not to {chosen}");
    }
    Ok(())
}
