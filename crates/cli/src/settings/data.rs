//! What it is trained on, and in which order.

use std::fmt;
use std::path::PathBuf;
use std::str::FromStr;

use anyhow::{Context, Result, bail, ensure};
use ringstep_data::Shape;
use ringstep_data::augment::Augment;
use ringstep_data::cifar10::CIFAR10;
use ringstep_data::mnist::{self, MNIST};
use ringstep_data::shard::Deal;
use serde::{Deserialize, Serialize};

use super::{SyncName, absolute, one_or_many};
use crate::datasets::{self, Choice, DataPlan, Images};
use crate::names::{ByName, Named, Refusal, as_text, choices};

/// Images of the course's job.
const SAMPLES: usize = 100;

/// Flags about the data.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
#[command(next_help_heading = "Data")]
pub struct DataFlags {
    /// The images: mnist, fashion-mnist, cifar10; mnist-or-sample, the built-in sample if there is none; synthetic, made to
    /// fit the model or as in synthetic:28x28x1; cifar10-or-synthetic. Without --samples: all of them, 1,000 if
    /// synthetic [default: the first 100 of mnist]
    #[arg(long)]
    pub dataset: Option<Choice>,
    /// Folder with the data set's files, gzipped or unpacked [default: where `ringstep data get` puts them]
    #[arg(long, value_name = "DIR", hide_short_help = true)]
    pub data: Option<PathBuf>,
    /// Train on the first N images only; of mnist up to 2,000 are built in, with 1,000 test images.
    #[arg(long, value_name = "N")]
    pub samples: Option<usize>,
    /// Mean and deviation of every channel that pixels from 0 to 1 are normalised by, as in 0.5,0.5 [default: those of the data
    /// set]
    #[arg(long, value_name = "MEAN,DEVIATION", hide_short_help = true)]
    pub normalise: Option<Normalise>,
    /// Take the images in a new order in each epoch [default: false]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    pub shuffle: Option<bool>,
    /// How images are dealt out to workers: strided, every p-th to each; or contiguous, one piece to each [default:
    /// strided]
    #[arg(long, value_name = "strided|contiguous", hide_short_help = true)]
    pub shard: Option<ByName<Deal>>,
    /// Change training images at random: crop pads by 4 pixels and takes a window of the old size, flip mirrors every
    /// other image; a list, or none [default: none]
    #[arg(long, value_name = "CHANGES", value_delimiter = ',', hide_short_help = true)]
    #[serde(deserialize_with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub augment: Vec<ByName<Change>>,
}

/// What pixels are normalised by.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Normalise(pub f32, pub f32);

impl FromStr for Normalise {
    type Err = Refusal;

    fn from_str(text: &str) -> Result<Self, Refusal> {
        let numbers = text.split_once(',').and_then(|(mean, deviation)| {
            let [mean, deviation]: [f32; 2] = [mean.trim().parse().ok()?, deviation.trim().parse().ok()?];
            (mean.is_finite() && deviation.is_finite() && deviation > 0.0).then_some(Self(mean, deviation))
        });
        Ok(numbers.with_context(|| {
            format!("'{text}' normalises nothing: write a mean and a deviation above zero, as in 0.5,0.5")
        })?)
    }
}

impl fmt::Display for Normalise {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.0, self.1)
    }
}

as_text!([] Normalise);

choices! {
    /// What can happen to training images at random.
    pub enum Change: "change of images" {
        /// A window of the old size, somewhere in the padded image.
        Crop = "crop",
        /// Perhaps the mirror image.
        Flip = "flip",
        /// Nothing.
        None = "none",
    }
}

impl Named for Deal {
    const KIND: &'static str = "way to shard";

    fn all() -> Vec<Self> {
        Self::ALL.to_vec()
    }

    fn spelling(self) -> &'static str {
        self.name()
    }
}

impl DataFlags {
    /// Where the images come from; those that are made fit a model with this input unless told otherwise.
    pub fn plan(&mut self, input: Shape) -> Result<DataPlan> {
        if self.dataset.is_none() && self.data.is_none() {
            self.samples.get_or_insert(SAMPLES);
        }
        if let Some(folder) = &mut self.data {
            *folder = absolute(folder)?;
        }
        let dataset = self.dataset.get_or_insert(Choice::Files(&MNIST));
        if let Choice::MnistOrSample = dataset {
            *dataset = Choice::Files(&MNIST);
            if self.data.is_none() && !datasets::is_here(&MNIST)? {
                self.samples.get_or_insert(mnist::SAMPLE_TRAIN);
            }
        }
        if let Choice::Cifar10OrSynthetic = dataset {
            let is_here = self.data.is_some() || datasets::is_here(&CIFAR10)?;
            *dataset = if is_here { Choice::Files(&CIFAR10) } else { Choice::Synthetic(None) };
        }
        let images = match *dataset {
            Choice::Files(source) => {
                if self.data.is_none() {
                    self.data = datasets::folder_for(source, self.samples)?;
                }
                match &self.data {
                    Some(folder) => Images::Files { source: ByName(source), folder: folder.clone() },
                    None => Images::BuiltIn,
                }
            }
            Choice::MnistOrSample | Choice::Cifar10OrSynthetic => unreachable!("it has become one of the two"),
            Choice::Synthetic(_) if self.data.is_some() => bail!("synthetic images are made, not read: no --data"),
            Choice::Synthetic(shape) => {
                let Shape { height, width, channels } = shape.unwrap_or(input);
                *dataset = Choice::Synthetic(Some(shape.unwrap_or(input)));
                let count = *self.samples.get_or_insert(datasets::SYNTHETIC_IMAGES);
                Images::Synthetic { shape: [height, width, channels], count }
            }
        };
        Ok(DataPlan {
            images,
            samples: self.samples,
            tests: None,
            normalise: self.normalise.map(|Normalise(mean, deviation)| (mean, deviation)),
        })
    }

    /// Whether each epoch has an order of its own.
    pub fn shuffle(&mut self) -> bool {
        *self.shuffle.get_or_insert(false)
    }

    /// How images are dealt out to the workers of these ways.
    pub fn deal(&mut self, ways: &[SyncName]) -> Result<Deal> {
        if *ways != [SyncName::DataParallel] {
            return Ok(self.shard.get_or_insert(ByName(Deal::default())).0);
        }
        ensure!(
            self.shard.is_none(),
            "--shard: in data-parallel rank 0 deals every batch out, and no worker has a shard"
        );
        Ok(Deal::default())
    }

    /// What happens to training images at random.
    pub fn augment(&mut self) -> Result<Augment> {
        if self.augment.is_empty() {
            self.augment = vec![ByName(Change::None)];
        }
        let mut augment = Augment::default();
        for ByName(change) in &self.augment {
            match change {
                Change::Crop => augment.crop = true,
                Change::Flip => augment.flip = true,
                Change::None => {
                    ensure!(self.augment.len() == 1, "none and other changes of images: which of them?");
                }
            }
        }
        Ok(augment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn synthetic_images_fit_the_model_unless_told_otherwise() {
        let dataset = |name: &str| {
            let mut flags = DataFlags { dataset: Some(name.parse().unwrap()), ..DataFlags::default() };
            let plan = flags.plan(Shape::new(32, 32, 1)).unwrap();
            (flags.dataset.unwrap().to_string(), plan.images)
        };
        let made = |shape| Images::Synthetic { shape, count: 1000 };
        assert_eq!(dataset("synthetic"), ("synthetic:32x32x1".to_owned(), made([32, 32, 1])));
        assert_eq!(dataset("synthetic:8x9x3"), ("synthetic:8x9x3".to_owned(), made([8, 9, 3])));
    }

    #[test]
    fn without_a_word_the_built_in_sample_will_do() {
        let mut flags = DataFlags::default();
        let plan = flags.plan(Shape::new(32, 32, 1)).unwrap();
        assert_eq!((plan.images, plan.samples, flags.data), (Images::BuiltIn, Some(100), None));
    }
}
