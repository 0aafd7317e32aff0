//! The compressions by name, with what there is to choose in each.

use ringstep_nn::optim::Rule;
use serde::{Deserialize, Serialize};

use crate::SyncMethod;

/// How a job sends less than its numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub struct Compression {
    /// What is sent instead of them.
    pub method: Method,
    /// Whether what it leaves out is added to the numbers of the next step.
    pub error_feedback: bool,
}

/// What is sent instead of the numbers.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", rename_all_fields = "kebab-case")]
pub enum Method {
    /// IEEE's 16-bit floats.
    Fp16,
    /// The upper halves of 32-bit floats.
    Bf16,
    /// 8 bits a number, rounded at random.
    Int8,
    /// 4 bits a number, rounded at random.
    Int4,
    /// One bit a number.
    Sign,
    /// The numbers of largest magnitude.
    TopK {
        /// Which share of them.
        keep: f64,
    },
    /// Numbers chosen at random, the same on all ranks.
    RandomK {
        /// Which share of them.
        keep: f64,
    },
    /// The numbers whose magnitude reaches a threshold.
    Threshold {
        /// The least magnitude that is sent.
        threshold: f32,
    },
    /// Deep gradient compression: the largest numbers with their momentum, which is taken from the optimizer.
    Dgc {
        /// Which share of them after the warm-up.
        keep: f64,
        /// Epochs in which that share is larger.
        warm_up_epochs: usize,
        /// The largest norm of a bucket's gradient over all workers, if it is clipped.
        clip: Option<f64>,
    },
    /// Products of two narrow matrices.
    PowerSgd {
        /// How narrow.
        rank: usize,
    },
}

impl Method {
    /// All of them, with the numbers that serve unless told otherwise.
    pub const ALL: [Self; 10] = [
        Self::Fp16,
        Self::Bf16,
        Self::Int8,
        Self::Int4,
        Self::Sign,
        Self::TopK { keep: 0.01 },
        Self::RandomK { keep: 0.1 },
        Self::Threshold { threshold: 0.01 },
        Self::Dgc { keep: 0.001, warm_up_epochs: 4, clip: None },
        Self::PowerSgd { rank: 4 },
    ];

    /// The name on the command line and in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fp16 => "fp16",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
            Self::Int4 => "int4",
            Self::Sign => "sign",
            Self::TopK { .. } => "top-k",
            Self::RandomK { .. } => "random-k",
            Self::Threshold { .. } => "threshold",
            Self::Dgc { .. } => "dgc",
            Self::PowerSgd { .. } => "power-sgd",
        }
    }

    /// Whether it needs error feedback to converge. Methods that are right on average do not, and dgc has its own.
    pub fn needs_error_feedback(self) -> bool {
        match self {
            Self::Fp16 | Self::Bf16 | Self::Int8 | Self::Int4 | Self::Dgc { .. } => false,
            Self::Sign | Self::TopK { .. } | Self::RandomK { .. } | Self::Threshold { .. } | Self::PowerSgd { .. } => {
                true
            }
        }
    }

    /// The number of it that makes no sense, if there is one: its name, what it is and what it must be.
    fn wrong_number(self) -> Option<(&'static str, f32, &'static str)> {
        let (name, value, fits, range) = match self {
            Self::Fp16 | Self::Bf16 | Self::Int8 | Self::Int4 | Self::Sign => return None,
            Self::Dgc { clip: Some(norm), .. } if !(norm > 0.0 && norm.is_finite()) => {
                ("clip", norm as f32, false, "positive and finite")
            }
            Self::TopK { keep } | Self::RandomK { keep } | Self::Dgc { keep, .. } => {
                ("keep", keep as f32, keep > 0.0 && keep <= 1.0, "above 0 and at most 1")
            }
            Self::Threshold { threshold } => {
                ("threshold", threshold, threshold >= 0.0 && threshold.is_finite(), "at least 0")
            }
            Self::PowerSgd { rank } => ("rank", rank as f32, rank > 0, "at least 1"),
        };
        (!fits).then_some((name, value, range))
    }
}

/// Why a job cannot use a compression.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
pub enum Unusable {
    /// A number is out of its range.
    #[error("{method}'s {name} is {value}: it must be {range}")]
    Number {
        /// Whose number.
        method: &'static str,
        /// Which number.
        name: &'static str,
        /// What it is.
        value: f32,
        /// What it may be.
        range: &'static str,
    },
    /// It does not go with the way of synchronising.
    #[error("{sync} cannot use {method}: {why}")]
    Sync {
        /// The way.
        sync: &'static str,
        /// The compression.
        method: &'static str,
        /// What stands in between.
        why: &'static str,
    },
    /// Dgc does what only one optimizer does.
    #[error("dgc takes over the momentum of plain sgd: it goes with no other optimizer, nor with Nesterov's momentum")]
    Optimizer,
    /// Dgc has an error feedback that knows of momentum.
    #[error("dgc has an error feedback of its own and takes no other")]
    TwoFeedbacks,
}

impl Compression {
    /// With error feedback where the method needs it.
    pub fn new(method: Method) -> Self {
        Self { method, error_feedback: method.needs_error_feedback() }
    }

    /// Checks that it makes sense in a job that synchronises and follows its gradients like this.
    pub fn check(self, sync: SyncMethod, rule: Rule) -> Result<(), Unusable> {
        let method = self.method.name();
        if let Some((name, value, range)) = self.method.wrong_number() {
            return Err(Unusable::Number { method, name, value, range });
        }
        if let Some(why) = refusal(sync, self.method) {
            return Err(Unusable::Sync { sync: sync.name(), method, why });
        }
        if let Method::Dgc { .. } = self.method {
            if !matches!(rule, Rule::Sgd { nesterov: false, .. }) {
                return Err(Unusable::Optimizer);
            }
            if self.error_feedback {
                return Err(Unusable::TwoFeedbacks);
            }
        }
        Ok(())
    }

    /// Numbers that a rank remembers for each number of its gradients.
    pub fn remembers(self) -> usize {
        match self.method {
            Method::Dgc { .. } => 2,
            _ => usize::from(self.error_feedback),
        }
    }

    /// What is left of the optimizer's rule: dgc has the momentum.
    pub(crate) fn rule(self, rule: Rule) -> Rule {
        match (self.method, rule) {
            (Method::Dgc { .. }, Rule::Sgd { weight_decay, .. }) => {
                Rule::Sgd { momentum: 0.0, nesterov: false, weight_decay }
            }
            _ => rule,
        }
    }
}

/// Which ways can use which compressions: what stands in between, if something does.
fn refusal(sync: SyncMethod, method: Method) -> Option<&'static str> {
    match sync {
        SyncMethod::AllReduce { .. }
        | SyncMethod::Ddp { .. }
        | SyncMethod::ParameterServer { .. }
        | SyncMethod::Stale { .. }
        | SyncMethod::Async { .. } => None,
        SyncMethod::Single => Some("one worker sends nothing"),
        SyncMethod::GatherScatter => Some("rank 0 averages whole gradients"),
        SyncMethod::DataParallel => Some("gradients stay within one process"),
        SyncMethod::None => Some("its workers send nothing"),
        SyncMethod::LocalSgd { .. }
        | SyncMethod::PostLocalSgd { .. }
        | SyncMethod::DiLoCo { .. }
        | SyncMethod::Sma { .. } => match method {
            Method::Dgc { .. } => Some("its momentum is that of steps that all workers take together"),
            _ => None,
        },
    }
}

#[cfg(test)]
mod tests {
    use ringstep_comm::Algorithm;

    use super::*;
    use crate::strategy::{Round, Servers};

    const DDP: SyncMethod = SyncMethod::Ddp { algorithm: Some(Algorithm::Ring), bucket: None };
    const SGD: Rule = Rule::Sgd { momentum: 0.9, nesterov: false, weight_decay: 0.0 };

    #[test]
    fn what_makes_no_sense_gets_one_line() {
        let refusal = |method| Compression::new(method).check(DDP, SGD).unwrap_err().to_string();
        let dgc = |keep, clip| Method::Dgc { keep, warm_up_epochs: 0, clip };
        for (method, expected) in [
            (Method::TopK { keep: 0.0 }, "top-k's keep is 0: it must be above 0 and at most 1"),
            (Method::RandomK { keep: 1.5 }, "random-k's keep is 1.5: it must be above 0 and at most 1"),
            (Method::TopK { keep: f64::NAN }, "top-k's keep is NaN: it must be above 0 and at most 1"),
            (Method::Threshold { threshold: -1.0 }, "threshold's threshold is -1: it must be at least 0"),
            (dgc(-0.5, None), "dgc's keep is -0.5: it must be above 0 and at most 1"),
            (dgc(0.5, Some(0.0)), "dgc's clip is 0: it must be positive and finite"),
            (Method::PowerSgd { rank: 0 }, "power-sgd's rank is 0: it must be at least 1"),
        ] {
            assert_eq!(refusal(method), expected);
        }
        for method in Method::ALL {
            assert_eq!(Compression::new(method).check(DDP, SGD), Ok(()));
        }
    }

    #[test]
    fn dgc_takes_over_the_momentum_of_plain_sgd() {
        let dgc = Compression::new(Method::Dgc { keep: 0.1, warm_up_epochs: 0, clip: None });
        let refused = |rule| dgc.check(DDP, rule).unwrap_err();
        assert_eq!(refused(Rule::Sgd { momentum: 0.9, nesterov: true, weight_decay: 0.0 }), Unusable::Optimizer);
        assert_eq!(refused(Rule::Adam { betas: [0.9, 0.999], weight_decay: 0.0 }), Unusable::Optimizer);
        let twice = Compression { error_feedback: true, ..dgc };
        assert_eq!(twice.check(DDP, SGD), Err(Unusable::TwoFeedbacks));
        let decaying = |momentum| Rule::Sgd { momentum, nesterov: false, weight_decay: 0.1 };
        assert_eq!(dgc.rule(decaying(0.9)), decaying(0.0));
        assert_eq!(Compression::new(Method::Int8).rule(decaying(0.9)), decaying(0.9));
    }

    /// Dgc has the momentum of the gradients' sum, and here each worker has its own.
    #[test]
    fn averages_take_all_but_dgc() {
        let sync = SyncMethod::LocalSgd { round: Round::Every(2), algorithm: Some(Algorithm::Ring) };
        for method in Method::ALL {
            let usable = Compression::new(method).check(sync, SGD).is_ok();
            assert_eq!(usable, !matches!(method, Method::Dgc { .. }), "{method:?}");
        }
    }

    #[test]
    fn servers_take_all() {
        let servers = Servers::Apart(2);
        for sync in [
            SyncMethod::ParameterServer { servers },
            SyncMethod::Stale { servers, staleness: 1 },
            SyncMethod::Async { servers, period: 0.0, staleness_aware: false },
        ] {
            for method in Method::ALL {
                assert_eq!(Compression::new(method).check(sync, SGD), Ok(()));
            }
        }
    }

    #[test]
    fn ways_that_send_whole_gradients_say_so() {
        for sync in [SyncMethod::Single, SyncMethod::GatherScatter, SyncMethod::DataParallel] {
            for method in Method::ALL {
                let error = Compression::new(method).check(sync, SGD).unwrap_err().to_string();
                assert!(error.starts_with(&format!("{} cannot use {}: ", sync.name(), method.name())), "{error}");
            }
        }
    }
}
