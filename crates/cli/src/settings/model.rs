//! What is trained.

use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, Result};
use ringstep_nn::Architecture;
use ringstep_train::job::Design;
use serde::{Deserialize, Serialize};

use super::absolute;
use super::file::read_toml;
use crate::names::{Refusal, as_text, lookup};

/// Flags about the model.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
#[command(next_help_heading = "Model")]
pub struct ModelFlags {
    /// The network: lenet5, vgg11, resnet18, resnet20, cnn, cnn-without-bias, mlp, or a file of your own such as
    /// net.toml [default: lenet5]
    #[arg(long)]
    pub model: Option<ModelName>,
    /// Start from these weights instead of random ones (PyTorch's names and layouts)
    #[arg(long, value_name = "FILE.safetensors", hide_short_help = true)]
    pub init: Option<PathBuf>,
}

impl ModelFlags {
    /// What to train.
    pub fn design(&mut self) -> Result<Design> {
        let model = self.model.get_or_insert(ModelName::Known(Architecture::LeNet5));
        let design = model.design()?;
        if let ModelName::File(path) = model {
            *path = absolute(path)?;
        }
        Ok(design)
    }

    /// The weights to start from, if they are not random.
    pub fn init(&mut self) -> Result<Option<PathBuf>> {
        if let Some(path) = &mut self.init {
            *path = absolute(path)?;
        }
        Ok(self.init.clone())
    }
}

/// A network that has a name, or one of the user's own.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ModelName {
    /// One of the program's.
    Known(Architecture),
    /// A list of layers in a file.
    File(PathBuf),
}

/// How a model's name ends if it is a file.
const MODEL_FILE: &str = ".toml";

impl ModelName {
    /// The network itself.
    pub fn design(&self) -> Result<Design> {
        let name = self.to_string();
        match self {
            Self::Known(architecture) => Ok(Design::new(name, architecture.network())?),
            Self::File(path) => Design::new(&name, read_toml(path)?).context(name),
        }
    }
}

impl FromStr for ModelName {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        Ok(match text.ends_with(MODEL_FILE) {
            true => Self::File(Path::new(text).to_owned()),
            false => Self::Known(lookup("model", text, &Architecture::ALL, Architecture::name)?),
        })
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Known(architecture) => f.write_str(architecture.name()),
            Self::File(path) => path.display().fmt(f),
        }
    }
}

as_text!([] ModelName);
