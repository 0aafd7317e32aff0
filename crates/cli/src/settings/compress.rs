//! How workers send less than their numbers.

use anyhow::{Context, Result, bail, ensure};
use ringstep_train::compress::{Compression, Method};
use serde::{Deserialize, Serialize};

use self::CompressName::{Bf16, Dgc, Fp16, Int4, Int8, PowerSgd, RandomK, Sign, Threshold, TopK};
use super::options::Options;
use super::{Mode, one_or_many};
use crate::names::{ByName, Named, Share, choices};

/// Flags about compression.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
#[command(next_help_heading = "Compression")]
pub struct CompressFlags {
    /// What is sent instead of numbers: fp16, bf16, int8, int4, sign, top-k, random-k, threshold, dgc, power-sgd; for compare
    /// a list [default: none]
    #[arg(long, value_name = "METHOD", value_delimiter = ',')]
    #[serde(deserialize_with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub compress: Vec<ByName<CompressName>>,
    /// Which share of the numbers is sent, such as 1% or 0.01 [default: for top-k 1%, for random-k 10%, for dgc 0.1%]
    #[arg(long, value_name = "SHARE", hide_short_help = true)]
    pub keep: Option<Share>,
    /// Least magnitude that threshold sends [default: 0.01]
    #[arg(long, value_name = "MAGNITUDE", hide_short_help = true)]
    pub threshold: Option<f32>,
    /// Columns of power-sgd's matrices [default: 4]
    #[arg(long, value_name = "N", hide_short_help = true)]
    pub rank: Option<i64>,
    /// Epochs in which dgc sends more than it keeps to later [default: 4]
    #[arg(long, value_name = "EPOCHS", hide_short_help = true)]
    pub sparsity_warm_up: Option<i64>,
    /// Clip each bucket of dgc's gradients to this norm over all workers [default: they are not clipped]
    #[arg(long, value_name = "NORM", hide_short_help = true)]
    pub clip_norm: Option<f64>,
    /// Add what was not sent to the numbers of the next step [default: true where the method needs it]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    #[arg(hide_short_help = true)]
    pub error_feedback: Option<bool>,
}

choices! {
    /// The methods of [`Method`], by name.
    pub enum CompressName: "compression" {
        /// Numbers are sent as they are.
        None = "none",
        /// IEEE's 16-bit floats.
        Fp16 = "fp16",
        /// The upper halves of 32-bit floats.
        Bf16 = "bf16",
        /// 8 bits a number.
        Int8 = "int8",
        /// 4 bits a number.
        Int4 = "int4",
        /// One bit a number.
        Sign = "sign",
        /// The largest numbers.
        TopK = "top-k",
        /// Numbers chosen at random.
        RandomK = "random-k",
        /// Numbers that reach a threshold.
        Threshold = "threshold",
        /// Deep gradient compression.
        Dgc = "dgc",
        /// Products of two narrow matrices.
        PowerSgd = "power-sgd",
    }
}

/// Options of some compressions only.
pub const OPTIONS: Options<CompressName> = Options(&[
    ("keep", &[TopK, RandomK, Dgc]),
    ("threshold", &[Threshold]),
    ("rank", &[PowerSgd]),
    ("sparsity-warm-up", &[Dgc]),
    ("clip-norm", &[Dgc]),
    ("error-feedback", &[Fp16, Bf16, Int8, Int4, Sign, TopK, RandomK, Threshold, PowerSgd]),
]);

impl CompressFlags {
    /// The compressions that are named, if any are.
    pub fn named(&self) -> Vec<CompressName> {
        self.compress.iter().map(|method| method.0).collect()
    }

    /// The compressions to run with.
    pub fn methods(&mut self, mode: Mode) -> Result<Vec<CompressName>> {
        if self.compress.is_empty() {
            self.compress = vec![ByName(CompressName::None)];
        }
        if let Some(twice) = (1..self.compress.len()).find(|&at| self.compress[..at].contains(&self.compress[at])) {
            bail!("{} is given twice", self.compress[twice]);
        }
        ensure!(
            mode == Mode::Compare || self.compress.len() == 1,
            "train runs one compression, not {}: choose with --compress, or use compare",
            self.compress.len()
        );
        Ok(self.named())
    }

    /// What a compression means with these options, each as it is unless told otherwise.
    pub fn compression(&self, name: CompressName) -> Result<Option<Compression>> {
        let named = |method: &Method| method.name() == name.spelling();
        let Some(mut method) = Method::ALL.into_iter().find(named) else { return Ok(None) };
        match &mut method {
            Method::Fp16 | Method::Bf16 | Method::Int8 | Method::Int4 | Method::Sign => {}
            Method::TopK { keep } | Method::RandomK { keep } => *keep = self.keep.map_or(*keep, |share| share.0),
            Method::Threshold { threshold } => *threshold = self.threshold.unwrap_or(*threshold),
            Method::Dgc { keep, warm_up_epochs, clip } => {
                *keep = self.keep.map_or(*keep, |share| share.0);
                if let Some(epochs) = self.sparsity_warm_up {
                    *warm_up_epochs = usize::try_from(epochs)
                        .ok()
                        .with_context(|| format!("sparsity-warm-up is {epochs}: it must be at least 0"))?;
                }
                *clip = self.clip_norm;
            }
            Method::PowerSgd { rank } => {
                if let Some(given) = self.rank {
                    let given = usize::try_from(given)
                        .ok()
                        .filter(|&given| given > 0)
                        .with_context(|| format!("a rank of {given}: at least 1 is needed"));
                    *rank = given?;
                }
            }
        }
        let usual = Compression::new(method);
        Ok(Some(Compression { error_feedback: self.error_feedback.unwrap_or(usual.error_feedback), ..usual }))
    }
}

/// What a compression is called in tables and plots.
pub fn title(compression: &Compression) -> String {
    let number = match compression.method {
        Method::Fp16 | Method::Bf16 | Method::Int8 | Method::Int4 | Method::Sign => String::new(),
        Method::TopK { keep } | Method::RandomK { keep } | Method::Dgc { keep, .. } => format!(" {}", percent(keep)),
        Method::Threshold { threshold } => format!(" {threshold}"),
        Method::PowerSgd { rank } => format!(" rank {rank}"),
    };
    let feedback = match compression.error_feedback {
        usual if usual == compression.method.needs_error_feedback() => "",
        true => " with error feedback",
        false => " without error feedback",
    };
    format!("{}{number}{feedback}", compression.method.name())
}

/// Whether the title tells what this option says.
pub fn is_in_title(key: &str) -> bool {
    ["keep", "threshold", "rank", "error-feedback"].contains(&key)
}

/// A share in percent, without the digits that come of computing in binary.
fn percent(share: f64) -> String {
    format!("{}%", (share * 1e12).round() / 1e10)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_compression_and_its_method_have_one_name() {
        for name in CompressName::all() {
            let compression = CompressFlags::default().compression(name).unwrap();
            assert_eq!(compression.map_or("none", |compression| compression.method.name()), name.spelling());
        }
        assert_eq!(CompressName::all().len(), Method::ALL.len() + 1);
    }

    #[test]
    fn every_option_reaches_its_methods_and_shows() {
        let of = |name, text: &str| toml::from_str::<CompressFlags>(text).unwrap().compression(name).unwrap().unwrap();
        for (name, text, method, shown) in [
            (TopK, "keep = 0.07", Method::TopK { keep: 0.07 }, "top-k 7%"),
            (RandomK, "keep = '5%'", Method::RandomK { keep: 0.05 }, "random-k 5%"),
            (Threshold, "threshold = 0.5", Method::Threshold { threshold: 0.5 }, "threshold 0.5"),
            (PowerSgd, "rank = 2", Method::PowerSgd { rank: 2 }, "power-sgd rank 2"),
            (
                Dgc,
                "keep = 0.001\nsparsity-warm-up = 0\nclip-norm = 2.5",
                Method::Dgc { keep: 0.001, warm_up_epochs: 0, clip: Some(2.5) },
                "dgc 0.1%",
            ),
        ] {
            let compression = of(name, text);
            assert_eq!(compression, Compression::new(method));
            assert_eq!(title(&compression), shown);
        }
        assert_eq!(title(&of(Int8, "error-feedback = true")), "int8 with error feedback");
        assert_eq!(title(&of(Sign, "error-feedback = false")), "sign without error feedback");
    }
}
