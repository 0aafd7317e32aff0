//! How parameters follow their gradients, and with which learning rate: the settings of optimizer and schedule.

use anyhow::{Result, bail};
use ringstep_nn::optim::Rule;
use ringstep_nn::schedule::{Curve, WarmUp};

use crate::names::lookup;
use crate::settings::Settings;

const SGD: &str = "sgd";
const ADAM: &str = "adam";
const ADAMW: &str = "adamw";
const LARS: &str = "lars";
/// PyTorch's defaults.
const BETAS: [f32; 2] = [0.9, 0.999];

const CONSTANT: &str = "constant";
const STEP: &str = "step";
const COSINE: &str = "cosine";
const POLYNOMIAL: &str = "polynomial";
const LINEAR: &str = "linear";
/// Share of the full learning rate during a constant warm-up.
const TENTH: f32 = 0.1;

/// Refuses what has no meaning here, instead of ignoring it.
fn refuse(given: bool, flag: &str, belongs: &str, chosen: &str) -> Result<()> {
    if given {
        bail!("{flag} belongs to {belongs}, not to {chosen}");
    }
    Ok(())
}

impl Settings {
    /// Decides what was left open about the optimizer.
    pub(crate) fn complete_optimizer(&mut self) -> Result<()> {
        let chosen = self.optimizer.get_or_insert_with(|| SGD.to_owned()).clone();
        match lookup("optimizer", &chosen, &[SGD, ADAM, ADAMW, LARS], |name| name)? {
            SGD => {
                refuse(self.trust.is_some(), "--trust", LARS, SGD)?;
                self.momentum.get_or_insert(0.0);
                self.nesterov.get_or_insert(false);
                if self.nesterov == Some(true) && self.momentum == Some(0.0) {
                    bail!("--nesterov needs a --momentum above 0");
                }
            }
            LARS => {
                refuse(self.nesterov.is_some(), "--nesterov", SGD, LARS)?;
                self.momentum.get_or_insert(0.9);
                self.trust.get_or_insert(0.001);
            }
            adam => {
                refuse(self.momentum.is_some(), "--momentum", "sgd and lars", adam)?;
                refuse(self.nesterov.is_some(), "--nesterov", SGD, adam)?;
                refuse(self.trust.is_some(), "--trust", LARS, adam)?;
            }
        }
        self.weight_decay.get_or_insert(0.0);
        Ok(())
    }

    /// Decides what was left open about the learning rate's course.
    pub(crate) fn complete_schedule(&mut self) -> Result<()> {
        let chosen = self.schedule.get_or_insert_with(|| CONSTANT.to_owned()).clone();
        let curve = lookup("schedule", &chosen, &[CONSTANT, STEP, COSINE, POLYNOMIAL], |name| name)?;
        if curve == STEP {
            self.decay_every.get_or_insert(30.0);
            self.decay_factor.get_or_insert(0.1);
        } else {
            refuse(self.decay_every.is_some(), "--decay-every", "--schedule step", curve)?;
            refuse(self.decay_factor.is_some(), "--decay-factor", "--schedule step", curve)?;
        }
        if curve == POLYNOMIAL {
            self.power.get_or_insert(2.0);
        } else {
            refuse(self.power.is_some(), "--power", "--schedule polynomial", curve)?;
        }
        self.warm_up.get_or_insert(0.0);
        self.warm_up_kind.get_or_insert_with(|| LINEAR.to_owned());
        self.warm_up().map(|_| ())
    }

    /// How parameters of a completed row follow their gradients.
    pub(crate) fn rule(&self) -> Result<Rule> {
        let chosen = self.optimizer.as_deref().unwrap_or_default();
        let (momentum, weight_decay) = (self.momentum.unwrap_or_default(), self.weight_decay.unwrap_or_default());
        Ok(match lookup("optimizer", chosen, &[SGD, ADAM, ADAMW, LARS], |name| name)? {
            SGD => Rule::Sgd { momentum, nesterov: self.nesterov.unwrap_or_default(), weight_decay },
            ADAM => Rule::Adam { betas: BETAS, weight_decay },
            ADAMW => Rule::AdamW { betas: BETAS, weight_decay },
            _ => Rule::Lars { momentum, weight_decay, trust: self.trust.unwrap_or_default() },
        })
    }

    /// The course of a completed row's learning rate.
    pub(crate) fn curve(&self) -> Result<Curve> {
        let chosen = self.schedule.as_deref().unwrap_or_default();
        Ok(match lookup("schedule", chosen, &[CONSTANT, STEP, COSINE, POLYNOMIAL], |name| name)? {
            CONSTANT => Curve::Constant,
            STEP => Curve::Step {
                every: self.decay_every.unwrap_or_default(),
                factor: self.decay_factor.unwrap_or_default(),
            },
            COSINE => Curve::Cosine,
            _ => Curve::Polynomial { power: self.power.unwrap_or_default() },
        })
    }

    /// The beginning of a completed row's learning rate.
    pub(crate) fn warm_up(&self) -> Result<WarmUp> {
        let (kind, epochs) = (self.warm_up_kind.as_deref().unwrap_or_default(), self.warm_up.unwrap_or_default());
        Ok(match lookup("kind of warm-up", kind, &[LINEAR, CONSTANT], |name| name)? {
            LINEAR => WarmUp::Linear { epochs },
            _ => WarmUp::Constant { epochs, factor: TENTH },
        })
    }
}
