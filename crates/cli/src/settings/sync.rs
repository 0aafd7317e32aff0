//! How workers stay in step.

use anyhow::{Context, Result, bail, ensure};
use ringstep_comm::Algorithm;
use ringstep_train::SyncMethod;
use ringstep_train::batch_norm::BatchNorm;
use ringstep_train::job::Design;
use ringstep_train::strategy::{AUTO, Round, Servers};
use serde::{Deserialize, Serialize};

use self::SyncName::{AllReduce, Async, Ddp, DiLoCo, LocalSgd, ParameterServer, PostLocalSgd, Sma, Stale};
use super::options::Options;
use super::{Mode, one_or_many};
use crate::names::{ByName, Bytes, Named, NumberOr, choices};

/// Flags about synchronising.
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, rename_all = "kebab-case")]
#[command(next_help_heading = "Synchronisation")]
pub struct SyncFlags {
    /// How workers stay in step: single, gather-scatter, all-reduce (after backward), ddp (of buckets, during backward),
    /// data-parallel (rank 0 holds the model); alone for a while: local-sgd, post-local-sgd, diloco, sma, none; with
    /// servers: parameter-server, stale, async; for compare a list [default: all-reduce; for compare the first four]
    #[arg(long, value_name = "WAY", value_delimiter = ',')]
    #[serde(deserialize_with = "one_or_many", skip_serializing_if = "Vec::is_empty")]
    pub sync: Vec<ByName<SyncName>>,
    /// How an all-reduce goes about it: ring, gather-scatter, tree, recursive-doubling, halving-doubling, direct,
    /// hierarchical, or auto: the best by measurement; over mpi also mpi [default: ring, or mpi]
    #[arg(long)]
    pub algorithm: Option<ByName<Option<Algorithm>>>,
    /// Size of ddp's buckets, such as 4MiB; the first is an eighth of it [default: from the cost model]
    #[arg(long, value_name = "BYTES", hide_short_help = true)]
    pub bucket: Option<Bytes>,
    /// Processes beside the workers, each with a part of the parameters, for parameter-server, stale and async; or
    /// colocated: a thread in each worker's process [default: 1]
    #[arg(long, value_name = "N|colocated", hide_short_help = true)]
    pub servers: Option<NumberOr<ServersWord>>,
    /// Steps that a worker of stale may be ahead of the slowest; with 0 it is a parameter-server [default: 1]
    #[arg(long, value_name = "STEPS", hide_short_help = true)]
    pub staleness: Option<i64>,
    /// Seconds from one step of async's servers to the next, with 0 for a step on each gradient that arrives [default: 0]; or
    /// from one average of local-sgd, post-local-sgd and diloco to the next, instead of --every
    #[arg(long, value_name = "SECONDS", hide_short_help = true)]
    pub period: Option<f64>,
    /// Let gradients count for less in async the staler they are [default: false]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true)]
    #[arg(hide_short_help = true)]
    pub staleness_aware: Option<bool>,
    /// Steps from one average of local-sgd, post-local-sgd and diloco to the next, or epoch [default: 8; for diloco 32]
    #[arg(long, value_name = "STEPS|epoch", hide_short_help = true)]
    pub every: Option<NumberOr<EveryWord>>,
    /// Epochs of ddp before post-local-sgd becomes local-sgd [default: half of all]
    #[arg(long, value_name = "EPOCHS", hide_short_help = true)]
    pub switch_at: Option<f32>,
    /// Learning rate with which diloco's model follows the averages [default: 0.7]
    #[arg(long, value_name = "LR", hide_short_help = true)]
    pub outer_lr: Option<f32>,
    /// Its momentum, in Nesterov's form [default: 0.9]
    #[arg(long, value_name = "MOMENTUM", hide_short_help = true)]
    pub outer_momentum: Option<f32>,
    /// Replicas of the model that each worker of sma trains; or auto: more of them while that is faster [default: 1]
    #[arg(long, value_name = "N|auto", hide_short_help = true)]
    pub learners: Option<NumberOr<LearnersWord>>,
    /// How far a step pulls replicas of sma to the central model [default: 1 over the number of all replicas]
    #[arg(long, value_name = "SHARE", hide_short_help = true)]
    pub pull: Option<f32>,
    /// Momentum of sma's central model [default: 0.9]
    #[arg(long, value_name = "MOMENTUM", hide_short_help = true)]
    pub central_momentum: Option<f32>,
    /// What workers share of batch norm's statistics: local, nothing; broadcast, rank 0's running ones; or sync, all of
    /// them, as one worker with the whole batch would have them [default: local]
    #[arg(long, value_name = "MODE", hide_short_help = true)]
    pub batch_norm: Option<ByName<BatchNorm>>,
}

choices! {
    /// The ways of [`SyncMethod`], by name.
    pub enum SyncName: "way to synchronise" {
        /// One worker.
        Single = "single",
        /// Rank 0 averages each parameter's gradients.
        GatherScatter = "gather-scatter",
        /// An all-reduce a parameter.
        AllReduce = "all-reduce",
        /// Buckets of gradients, while backward goes on.
        Ddp = "ddp",
        /// Rank 0 holds the model.
        DataParallel = "data-parallel",
        /// Workers that never talk.
        None = "none",
        /// Models are averaged from time to time.
        LocalSgd = "local-sgd",
        /// First ddp, then local-sgd.
        PostLocalSgd = "post-local-sgd",
        /// The model follows averages with momentum.
        DiLoCo = "diloco",
        /// Replicas around a central model.
        Sma = "sma",
        /// Servers hold the parameters.
        ParameterServer = "parameter-server",
        /// The same, and workers may be ahead of others.
        Stale = "stale",
        /// Servers apply what has arrived.
        Async = "async",
    }
}

/// Options of some ways only.
pub const OPTIONS: Options<SyncName> = Options(&[
    ("algorithm", &[AllReduce, Ddp, LocalSgd, PostLocalSgd, DiLoCo, Sma]),
    ("bucket", &[Ddp, PostLocalSgd]),
    ("servers", &[ParameterServer, Stale, Async]),
    ("staleness", &[Stale]),
    ("period", &[Async, LocalSgd, PostLocalSgd, DiLoCo]),
    ("staleness-aware", &[Async]),
    ("every", &[LocalSgd, PostLocalSgd, DiLoCo]),
    ("switch-at", &[PostLocalSgd]),
    ("outer-lr", &[DiLoCo]),
    ("outer-momentum", &[DiLoCo]),
    ("learners", &[Sma]),
    ("pull", &[Sma]),
    ("central-momentum", &[Sma]),
]);

/// What `compare` compares unless told otherwise: the course's ways, and the one that hides its communication.
const COMPARED: [SyncName; 4] = [SyncName::Single, SyncName::GatherScatter, SyncName::AllReduce, SyncName::Ddp];

choices! {
    /// Servers that are not counted.
    pub enum ServersWord: "number of servers" {
        /// One in each worker's process.
        Colocated = "colocated",
    }
}

choices! {
    /// A round that is not counted in steps.
    pub enum EveryWord: "number of steps from average to average" {
        /// After every epoch.
        Epoch = "epoch",
    }
}

choices! {
    /// Learners that are not counted.
    pub enum LearnersWord: "number of learners" {
        /// As many as are found to be fastest.
        Auto = "auto",
    }
}

impl Named for Option<Algorithm> {
    const KIND: &'static str = "algorithm";

    fn all() -> Vec<Self> {
        #[cfg(feature = "mpi")]
        let own = [Some(Algorithm::Mpi)];
        #[cfg(not(feature = "mpi"))]
        let own = [];
        [None].into_iter().chain(Algorithm::ALL.map(Some)).chain(own).collect()
    }

    fn spelling(self) -> &'static str {
        self.map_or(AUTO, Algorithm::name)
    }
}

impl Named for BatchNorm {
    const KIND: &'static str = "batch norm mode";

    fn all() -> Vec<Self> {
        Self::ALL.to_vec()
    }

    fn spelling(self) -> &'static str {
        self.name()
    }
}

impl SyncFlags {
    /// The ways that are named, if any are.
    pub fn named(&self) -> Vec<SyncName> {
        self.sync.iter().map(|way| way.0).collect()
    }

    /// The ways to run, with this algorithm if none is said; where compressions are compared and no way is named, one that can
    /// use them all.
    pub fn ways(&mut self, mode: Mode, compresses: bool, algorithm: Algorithm) -> Result<Vec<SyncName>> {
        if self.sync.is_empty() {
            self.sync = match mode {
                Mode::Compare if compresses => vec![ByName(SyncName::Ddp)],
                Mode::Compare => COMPARED.map(ByName).to_vec(),
                Mode::Train => vec![ByName(SyncName::AllReduce)],
            };
        }
        if let Some(twice) = (1..self.sync.len()).find(|&at| self.sync[..at].contains(&self.sync[at])) {
            bail!("{} is given twice", self.sync[twice]);
        }
        ensure!(
            mode == Mode::Compare || self.sync.len() == 1,
            "train runs one way of synchronising, not {}: choose with --sync, or use compare",
            self.sync.len()
        );
        let ways = self.named();
        if OPTIONS.has_meaning("algorithm", &ways) {
            self.algorithm.get_or_insert(ByName(Some(algorithm)));
        }
        Ok(ways)
    }

    /// What a way means with these options, each as it is unless told otherwise.
    pub fn method(&self, way: SyncName) -> Result<SyncMethod> {
        let named = |method: &SyncMethod| method.name() == way.spelling();
        let mut method = SyncMethod::ALL.into_iter().find(named).expect("ways have the names of their methods");
        let chosen = self.algorithm.map(|algorithm| algorithm.0);
        match &mut method {
            SyncMethod::Single | SyncMethod::GatherScatter | SyncMethod::DataParallel | SyncMethod::None => {}
            SyncMethod::AllReduce { algorithm } => set(algorithm, chosen),
            SyncMethod::Ddp { algorithm, bucket } => {
                set(algorithm, chosen);
                *bucket = self.bucket();
            }
            SyncMethod::LocalSgd { round, algorithm } => {
                set(round, self.round()?);
                set(algorithm, chosen);
            }
            SyncMethod::PostLocalSgd { switch_at, round, algorithm, bucket } => {
                *switch_at = self.switch_at;
                set(round, self.round()?);
                set(algorithm, chosen);
                *bucket = self.bucket();
            }
            SyncMethod::DiLoCo { round, outer_lr, outer_momentum, algorithm } => {
                set(round, self.round()?);
                set(outer_lr, self.outer_lr);
                set(outer_momentum, self.outer_momentum);
                set(algorithm, chosen);
            }
            SyncMethod::Sma { learners, pull, momentum, algorithm } => {
                set(learners, self.learners()?);
                *pull = self.pull;
                set(momentum, self.central_momentum);
                set(algorithm, chosen);
            }
            SyncMethod::ParameterServer { servers } => set(servers, self.servers()?),
            SyncMethod::Stale { servers, staleness } => {
                set(servers, self.servers()?);
                set(staleness, self.staleness()?);
            }
            SyncMethod::Async { servers, period, staleness_aware } => {
                set(servers, self.servers()?);
                set(period, self.period);
                set(staleness_aware, self.staleness_aware);
            }
        }
        Ok(method)
    }

    fn bucket(&self) -> Option<usize> {
        self.bucket.map(|bytes| bytes.0)
    }

    /// Who serves, if that is said.
    fn servers(&self) -> Result<Option<Servers>> {
        match self.servers {
            None => Ok(None),
            Some(NumberOr::Number(number)) => Ok(Some(Servers::Apart(count(number, "servers")?))),
            Some(NumberOr::Word(ServersWord::Colocated)) => Ok(Some(Servers::Colocated)),
        }
    }

    fn staleness(&self) -> Result<Option<usize>> {
        let staleness = |steps: i64| {
            usize::try_from(steps).ok().with_context(|| format!("staleness is {steps}: it must be at least 0"))
        };
        self.staleness.map(staleness).transpose()
    }

    /// When models are averaged, if that is said.
    fn round(&self) -> Result<Option<Round>> {
        Ok(match (self.every, self.period) {
            (None, None) => None,
            (Some(_), Some(_)) => bail!("every and period are both given: which of them?"),
            (Some(NumberOr::Word(EveryWord::Epoch)), None) => Some(Round::EveryEpoch),
            (Some(NumberOr::Number(steps)), None) => Some(Round::Every(count(steps, "steps from average to average")?)),
            (None, Some(seconds)) => Some(Round::Period(seconds)),
        })
    }

    /// Whether the number of learners is to be found out.
    pub fn leaves_learners_open(&self) -> bool {
        self.learners == Some(NumberOr::Word(LearnersWord::Auto))
    }

    /// Replicas of each worker; those that are yet to be found are one at first.
    fn learners(&self) -> Result<Option<usize>> {
        match self.learners {
            Some(NumberOr::Number(number)) => count(number, "learners").map(Some),
            Some(NumberOr::Word(LearnersWord::Auto)) | None => Ok(None),
        }
    }

    /// What workers share of batch norm's statistics.
    pub fn batch_norm(&self, design: &Design) -> Result<BatchNorm> {
        let Some(ByName(mode)) = self.batch_norm else { return Ok(BatchNorm::default()) };
        ensure!(design.normalises(), "--batch-norm {}: {} has no batch norm", mode.name(), design.name);
        Ok(mode)
    }
}

/// Changes what is there to what was said, if something was.
fn set<T>(there: &mut T, said: Option<T>) {
    if let Some(said) = said {
        *there = said;
    }
}

/// A number of things of which there must be one.
fn count(number: i64, things: &str) -> Result<usize> {
    let count = usize::try_from(number).ok().filter(|&count| count > 0);
    count.with_context(|| format!("{number} {things}: at least 1 is needed"))
}

#[cfg(test)]
mod tests {
    use toml::Table;

    use super::*;

    #[test]
    fn a_way_and_its_method_have_one_name() {
        for way in SyncName::all() {
            assert_eq!(SyncFlags::default().method(way).unwrap().name(), way.spelling());
        }
        assert_eq!(SyncName::all().len(), SyncMethod::ALL.len());
    }

    #[test]
    fn a_bucket_is_ddps_and_ddp_needs_none() {
        let given: Table = toml::from_str("bucket = '1MiB'").unwrap();
        let error = OPTIONS.refuse_foreign(&given, &[SyncName::AllReduce]).unwrap_err();
        assert_eq!(error.to_string(), "--bucket belongs to ddp and post-local-sgd, not to all-reduce");
        OPTIONS.refuse_foreign(&given, &[SyncName::AllReduce, SyncName::Ddp]).unwrap();
        let algorithm = Some(Algorithm::Ring);
        let flags = SyncFlags { bucket: Some(Bytes(1 << 20)), ..SyncFlags::default() };
        assert_eq!(flags.method(SyncName::Ddp).unwrap(), SyncMethod::Ddp { algorithm, bucket: Some(1 << 20) });
        assert_eq!(SyncFlags::default().method(SyncName::Ddp).unwrap(), SyncMethod::Ddp { algorithm, bucket: None });
    }

    #[test]
    fn every_option_reaches_its_ways() {
        let method = |way: SyncName, text: &str| toml::from_str::<SyncFlags>(text).unwrap().method(way).unwrap();
        let algorithm = Some(Algorithm::Tree);
        assert_eq!(
            method(SyncName::LocalSgd, "every = 3\nalgorithm = 'tree'"),
            SyncMethod::LocalSgd { round: Round::Every(3), algorithm }
        );
        assert_eq!(
            method(SyncName::PostLocalSgd, "every = 'epoch'\nswitch-at = 1.5\nbucket = '1kB'\nalgorithm = 'tree'"),
            SyncMethod::PostLocalSgd { switch_at: Some(1.5), round: Round::EveryEpoch, algorithm, bucket: Some(1000) }
        );
        assert_eq!(
            method(SyncName::DiLoCo, "period = 0.5\nouter-lr = 0.3\nouter-momentum = 0.2\nalgorithm = 'tree'"),
            SyncMethod::DiLoCo { round: Round::Period(0.5), outer_lr: 0.3, outer_momentum: 0.2, algorithm }
        );
        assert_eq!(
            method(SyncName::Sma, "learners = 3\npull = 0.1\ncentral-momentum = 0.2\nalgorithm = 'tree'"),
            SyncMethod::Sma { learners: 3, pull: Some(0.1), momentum: 0.2, algorithm }
        );
        assert_eq!(
            method(SyncName::ParameterServer, "servers = 2"),
            SyncMethod::ParameterServer { servers: Servers::Apart(2) }
        );
        assert_eq!(
            method(SyncName::Stale, "servers = 2\nstaleness = 0"),
            SyncMethod::Stale { servers: Servers::Apart(2), staleness: 0 }
        );
        assert_eq!(
            method(SyncName::Async, "servers = 3\nperiod = 0.25\nstaleness-aware = true"),
            SyncMethod::Async { servers: Servers::Apart(3), period: 0.25, staleness_aware: true }
        );
        let refused =
            |way: SyncName, text: &str| toml::from_str::<SyncFlags>(text).unwrap().method(way).unwrap_err().to_string();
        assert_eq!(
            refused(SyncName::LocalSgd, "every = 8\nperiod = 1.0"),
            "every and period are both given: which of them?"
        );
    }

    #[test]
    fn a_batch_norm_mode_needs_batch_norm() {
        use ringstep_nn::Architecture;
        let mode = |model: Architecture, mode: BatchNorm| {
            let design = Design::new(model.name(), model.network()).unwrap();
            let flags = SyncFlags { batch_norm: Some(ByName(mode)), ..SyncFlags::default() };
            flags.batch_norm(&design).map_err(|error| error.to_string())
        };
        assert_eq!(mode(Architecture::ResNet20, BatchNorm::Sync), Ok(BatchNorm::Sync));
        assert_eq!(
            mode(Architecture::LeNet5, BatchNorm::Local),
            Err("--batch-norm local: lenet5 has no batch norm".into())
        );
    }
}
