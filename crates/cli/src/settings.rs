//! What a user asks for, by flags and by an experiment file, and the jobs that this means.

use std::fs;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use ringstep_cpu::{Instructions, Level};
use ringstep_data::augment::Augment;
use ringstep_data::mnist::MNIST;
use ringstep_data::synthetic;
use ringstep_nn::Architecture;
use ringstep_train::job::{Design, Length};
use ringstep_train::{Job, SyncMethod};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Deserializer, Serialize};

use crate::datasets::{self, Choice};
use crate::names::lookup;

/// Everything that can be said about a job, by flag or in a file. What is not said is decided by
/// [`Settings::complete`].
#[derive(Debug, Clone, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields, rename_all = "kebab-case")]
pub struct Settings {
    /// The network: lenet5, vgg11, resnet18, resnet20, cnn, cnn-without-bias, mlp, or a file of your own such as
    /// net.toml [default: lenet5]
    #[arg(long)]
    pub model: Option<String>,
    /// The images: mnist, fashion-mnist, cifar10; or synthetic, made from a seed to fit the model or in a shape of your
    /// own, as in synthetic:28x28x1. Given without --samples: all of them, 1,000 if synthetic [default: the first 100 of
    /// mnist]
    #[arg(long)]
    pub dataset: Option<String>,
    /// Folder with the data set's files, gzipped or unpacked [default: where `ringstep data get` puts them]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Train on the first N images only; of mnist up to 2,000 are built in, with 1,000 test images.
    #[arg(long, value_name = "N")]
    pub samples: Option<usize>,
    /// How workers stay in step: single, gather-scatter, all-reduce (a collective a parameter, after backward), ddp
    /// (buckets of gradients, while backward goes on), data-parallel (one process whose rank 0 holds the model); for
    /// compare a list [default: all-reduce; for compare the first four]
    #[arg(long, value_name = "WAY", value_delimiter = ',')]
    #[serde(deserialize_with = "one_or_many")]
    pub sync: Vec<String>,
    /// How an all-reduce goes about it: ring, gather-scatter, tree, recursive-doubling, halving-doubling, direct,
    /// hierarchical, or auto: the best by measurement [default: ring]
    #[arg(long)]
    pub algorithm: Option<String>,
    /// Size of ddp's buckets, such as 4MiB; the first is an eighth of it [default: from the cost model]
    #[arg(long, value_name = "BYTES")]
    pub bucket: Option<String>,
    /// How worker processes talk: auto, through shared memory within a host and over tcp between hosts; tcp, over it within
    /// a host too; shm, through shared memory, with all of them on one host [default: auto]
    #[arg(long)]
    pub transport: Option<String>,
    /// Number of workers [default: 4; for single 1]
    #[arg(long, value_name = "N")]
    pub workers: Option<usize>,
    /// Images a worker and step [default: 5; for single 20. In compare, single takes the images of all workers]
    #[arg(long, value_name = "N")]
    pub batch: Option<usize>,
    /// Batches in a step, whose gradients are added up before workers synchronise [default: 1]
    #[arg(long, value_name = "N")]
    pub accumulate: Option<usize>,
    /// Times to train on all images [default: 100]
    #[arg(long, value_name = "N", conflicts_with = "steps")]
    pub epochs: Option<usize>,
    /// Steps to train, instead of epochs
    #[arg(long, value_name = "N")]
    pub steps: Option<usize>,
    /// Threads that each worker computes on [default: 1]
    #[arg(long, value_name = "N")]
    pub threads: Option<usize>,
    /// Instructions that workers compute with: auto, portable, avx2, avx512 or neon [default: auto, the widest there are]
    #[arg(long, value_name = "LEVEL")]
    pub instructions: Option<String>,
    /// How parameters follow their gradients: sgd, adam, adamw, lars [default: sgd]
    #[arg(long, value_name = "RULE")]
    pub optimizer: Option<String>,
    /// Learning rate [default: 0.01]
    #[arg(long)]
    pub lr: Option<f32>,
    /// Momentum of sgd and lars [default: 0; for lars 0.9]
    #[arg(long)]
    pub momentum: Option<f32>,
    /// Nesterov's form of sgd's momentum [default: false]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub nesterov: Option<bool>,
    /// Weight decay [default: 0]
    #[arg(long)]
    pub weight_decay: Option<f32>,
    /// How far lars may move a tensor in a step, as a share of its norm [default: 0.001]
    #[arg(long)]
    pub trust: Option<f32>,
    /// The course of the learning rate: constant, step, cosine, polynomial [default: constant]
    #[arg(long, value_name = "CURVE")]
    pub schedule: Option<String>,
    /// Epochs from one change of the learning rate to the next, for --schedule step [default: 30]
    #[arg(long, value_name = "EPOCHS")]
    pub decay_every: Option<f32>,
    /// What it is multiplied by then [default: 0.1]
    #[arg(long, value_name = "FACTOR")]
    pub decay_factor: Option<f32>,
    /// The power of --schedule polynomial; 1 is a straight line [default: 2]
    #[arg(long)]
    pub power: Option<f32>,
    /// Epochs, or a part of one, before the full learning rate [default: 0]
    #[arg(long, value_name = "EPOCHS")]
    pub warm_up: Option<f32>,
    /// How it begins: linear, growing evenly; or constant, at a tenth [default: linear]
    #[arg(long, value_name = "KIND")]
    pub warm_up_kind: Option<String>,
    /// How much of the right class's probability is spread over all classes [default: 0]
    #[arg(long, value_name = "SHARE")]
    pub label_smoothing: Option<f32>,
    /// Decides the initial weights, the shuffling and the augmentation [default: 0]
    #[arg(long, value_name = "N")]
    pub seed: Option<u64>,
    /// Take the images in a new order in each epoch [default: false]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub shuffle: Option<bool>,
    /// How images are dealt out to workers: strided, every p-th to each; or contiguous, one piece to each [default:
    /// strided]
    #[arg(long, value_name = "strided|contiguous")]
    pub shard: Option<String>,
    /// What workers share of batch norm's statistics: local, nothing; broadcast, rank 0's running ones; or sync, all of
    /// them, as one worker with the whole batch would have them [default: local]
    #[arg(long, value_name = "MODE")]
    pub batch_norm: Option<String>,
    /// Change training images at random: crop pads by 4 pixels and takes a window of the old size, flip mirrors every
    /// other image; a list, or none [default: none]
    #[arg(long, value_name = "CHANGES", value_delimiter = ',')]
    #[serde(deserialize_with = "one_or_many")]
    pub augment: Vec<String>,
    /// Also test after every N epochs [default: only at the end]
    #[arg(long, value_name = "N")]
    pub test_every: Option<usize>,
    /// Compare all ranks' parameters after every N steps, with --batch-norm sync the running statistics too, and stop if
    /// one differs [default: at the end]
    #[arg(long, value_name = "N")]
    pub verify_every: Option<usize>,
    /// Print each rank's loss after every N steps
    #[arg(long, value_name = "N")]
    pub log_every: Option<usize>,
    /// Steps to record in trace.json, from the first on [default: 50]
    #[arg(long, value_name = "STEPS")]
    pub trace: Option<usize>,
    /// Measure the network at the end, and say how long a step should have taken by the cost model [default: true for
    /// compare]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub predict: Option<bool>,
    /// Start from these weights instead of random ones (PyTorch's names and layouts)
    #[arg(long, value_name = "FILE.safetensors")]
    pub init: Option<PathBuf>,
    /// Address of this machine at which worker processes meet, for workers that have networks of their own [default:
    /// 127.0.0.1]
    #[arg(long, value_name = "ADDRESS")]
    pub meet: Option<IpAddr>,
    /// Start each worker process by this command, in which {rank} is its rank: 'taskset -c {rank}', 'ip netns exec
    /// node{rank}'
    #[arg(long, value_name = "COMMAND")]
    pub start_with: Option<String>,
    /// Bind each worker process to one core, if it has one thread and each core gets as many workers, more than one: for
    /// a machine that does nothing else [default: false]
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    pub pin: Option<bool>,
    /// Workers are processes, or threads of this one that talk in its memory [default: processes]
    #[arg(long, value_name = "processes|threads")]
    pub launch: Option<String>,
}

fn one_or_many<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<String>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged, expecting = "expected a name, or a list of names")]
    enum OneOrMany {
        One(String),
        Many(Vec<String>),
    }
    Ok(match OneOrMany::deserialize(deserializer)? {
        OneOrMany::One(name) => vec![name],
        OneOrMany::Many(names) => names,
    })
}

/// Which of the two commands asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    /// Several rows.
    Compare,
    /// One.
    Train,
}

impl Mode {
    /// The command's name.
    pub fn name(self) -> &'static str {
        match self {
            Self::Compare => "compare",
            Self::Train => "train",
        }
    }
}

/// How a model's name ends if it is a file.
const MODEL_FILE: &str = ".toml";

/// The network of this name, or in this file.
pub fn design(model: &str) -> Result<Design> {
    if model.ends_with(MODEL_FILE) {
        let network = read_toml(Path::new(model))?;
        return Design::new(model, network).with_context(|| model.to_owned());
    }
    let architecture = lookup("model", model, &Architecture::ALL, Architecture::name)?;
    Ok(Design::new(model, architecture.network())?)
}

/// The instructions of this name.
fn named_instructions(name: &str) -> Result<Instructions> {
    lookup("instructions", name, &Instructions::ALL, Instructions::name)
}

/// The instruction level of this name, if this machine has it.
pub fn level(name: &str) -> Result<Level> {
    Ok(named_instructions(name)?.level()?)
}

/// Reads a TOML file; an error names the line.
fn read_toml<T: DeserializeOwned>(path: &Path) -> Result<T> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    toml::from_str(&text).map_err(|error| {
        // The first line of toml's own message only says that there is an error.
        let line = 1 + error.span().map_or(0, |span| text[..span.start].matches('\n').count());
        anyhow::anyhow!("{}, line {line}: {}", path.display(), error.message().replace('\n', " "))
    })
}

const CROP: &str = "crop";
const FLIP: &str = "flip";
const NO_CHANGES: &str = "none";

/// The course's job: 100 images, four workers, five images a worker and step.
mod course {
    pub const SAMPLES: usize = 100;
    pub const WORKERS: usize = 4;
    pub const BATCH: usize = 5;
    pub const EPOCHS: usize = 100;
    pub const LR: f32 = 0.01;
}

impl Settings {
    /// Reads an experiment file.
    pub fn read(path: &Path) -> Result<Self> {
        read_toml(path)
    }

    /// These settings where they say something, and `base` where they do not.
    pub fn over(self, base: Self) -> Self {
        let base = base.for_ways_of(&self);
        let own_length = self.epochs.is_some() || self.steps.is_some();
        let (epochs, steps) = if own_length { (self.epochs, self.steps) } else { (base.epochs, base.steps) };
        // A folder holds one data set: the base's is none of another's.
        let base_name = base.dataset.as_deref().unwrap_or(MNIST.name);
        let same_data = self.dataset.as_deref().is_none_or(|name| name == base_name);
        let base_data = base.data.filter(|_| same_data);
        Self {
            model: self.model.or(base.model),
            dataset: self.dataset.or(base.dataset),
            data: self.data.or(base_data),
            samples: self.samples.or(base.samples),
            sync: if self.sync.is_empty() { base.sync } else { self.sync },
            algorithm: self.algorithm.or(base.algorithm),
            bucket: self.bucket.or(base.bucket),
            transport: self.transport.or(base.transport),
            workers: self.workers.or(base.workers),
            batch: self.batch.or(base.batch),
            accumulate: self.accumulate.or(base.accumulate),
            epochs,
            steps,
            threads: self.threads.or(base.threads),
            instructions: self.instructions.or(base.instructions),
            optimizer: self.optimizer.or(base.optimizer),
            lr: self.lr.or(base.lr),
            momentum: self.momentum.or(base.momentum),
            nesterov: self.nesterov.or(base.nesterov),
            weight_decay: self.weight_decay.or(base.weight_decay),
            trust: self.trust.or(base.trust),
            schedule: self.schedule.or(base.schedule),
            decay_every: self.decay_every.or(base.decay_every),
            decay_factor: self.decay_factor.or(base.decay_factor),
            power: self.power.or(base.power),
            warm_up: self.warm_up.or(base.warm_up),
            warm_up_kind: self.warm_up_kind.or(base.warm_up_kind),
            label_smoothing: self.label_smoothing.or(base.label_smoothing),
            seed: self.seed.or(base.seed),
            shuffle: self.shuffle.or(base.shuffle),
            shard: self.shard.or(base.shard),
            batch_norm: self.batch_norm.or(base.batch_norm),
            augment: if self.augment.is_empty() { base.augment } else { self.augment },
            test_every: self.test_every.or(base.test_every),
            verify_every: self.verify_every.or(base.verify_every),
            log_every: self.log_every.or(base.log_every),
            trace: self.trace.or(base.trace),
            predict: self.predict.or(base.predict),
            init: self.init.or(base.init),
            meet: self.meet.or(base.meet),
            start_with: self.start_with.or(base.start_with),
            pin: self.pin.or(base.pin),
            launch: self.launch.or(base.launch),
        }
    }

    /// Decides whatever was left open.
    pub fn complete(mut self, mode: Mode) -> Result<Self> {
        ensure!(self.epochs.is_none() || self.steps.is_none(), "epochs and steps are both given: which of them?");
        self.complete_ways(mode)?;
        let single = mode == Mode::Train && self.sync[0] == SyncMethod::Single.name();
        if let (true, Some(workers @ 2..)) = (single, self.workers) {
            let batch = workers.saturating_mul(self.batch.unwrap_or(course::BATCH));
            bail!("single has one worker, not {workers}: the same job is --sync single --workers 1 --batch {batch}");
        }
        if self.dataset.is_none() && self.data.is_none() {
            self.samples.get_or_insert(course::SAMPLES);
        }
        self.model.get_or_insert_with(|| Architecture::LeNet5.name().to_owned());
        self.dataset.get_or_insert_with(|| MNIST.name.to_owned());
        match self.dataset()? {
            Choice::Files(source) if self.data.is_none() => self.data = datasets::folder_for(source, self.samples)?,
            Choice::Files(_) => {}
            Choice::Synthetic(_) if self.data.is_some() => bail!("synthetic images are made, not read: no --data"),
            Choice::Synthetic(shape) => {
                let shape = shape.map_or_else(|| Ok(self.design()?.input()), anyhow::Ok)?;
                self.dataset = Some(format!("{}:{shape}", synthetic::NAME));
                self.samples.get_or_insert(datasets::SYNTHETIC_IMAGES);
            }
        }
        self.workers.get_or_insert(if single { 1 } else { course::WORKERS });
        self.batch.get_or_insert(if single { course::WORKERS * course::BATCH } else { course::BATCH });
        if self.steps.is_none() {
            self.epochs.get_or_insert(course::EPOCHS);
        }
        self.threads.get_or_insert(1);
        self.instructions.get_or_insert_with(|| Instructions::Auto.name().to_owned());
        self.lr.get_or_insert(course::LR);
        self.complete_optimizer()?;
        self.complete_schedule()?;
        self.label_smoothing.get_or_insert(0.0);
        self.seed.get_or_insert(0);
        self.shuffle.get_or_insert(false);
        if self.augment.is_empty() {
            self.augment = vec![NO_CHANGES.to_owned()];
        }
        self.complete_processes()?;
        // So that a run's configuration repeats it from anywhere.
        let absolute = |path: &Path| std::path::absolute(path).with_context(|| path.display().to_string());
        for path in [&mut self.data, &mut self.init].into_iter().flatten() {
            *path = absolute(path)?;
        }
        if let Some(model) = self.model.as_mut().filter(|model| model.ends_with(MODEL_FILE)) {
            *model = absolute(Path::new(model))?.display().to_string();
        }
        Ok(self)
    }

    /// The job of a completed row.
    pub fn job(&self) -> Result<Job> {
        const COMPLETE: &str = "the row is complete";
        Ok(Job {
            model: self.design()?,
            sync: self.way()?,
            workers: self.workers.expect(COMPLETE),
            batch: self.batch.expect(COMPLETE),
            accumulate: self.accumulate.expect(COMPLETE),
            length: self.steps.map_or_else(|| Length::Epochs(self.epochs.expect(COMPLETE)), Length::Steps),
            threads: self.threads.expect(COMPLETE),
            instructions: self.instructions()?,
            init: self.init.clone(),
            rule: self.rule()?,
            lr: self.lr.expect(COMPLETE),
            warm_up: self.warm_up()?,
            curve: self.curve()?,
            label_smoothing: self.label_smoothing.expect(COMPLETE),
            seed: self.seed.expect(COMPLETE),
            shuffle: self.shuffle.expect(COMPLETE),
            deal: self.deal()?,
            augment: self.changes()?,
            batch_norm: self.batch_norm()?,
            test_every: self.test_every,
            verify_every: self.verify_every,
            trace_steps: self.trace.expect(COMPLETE),
            predict: self.predict.expect(COMPLETE),
        })
    }

    /// What the workers of a completed row compute with; known to be there if they are on this machine.
    fn instructions(&self) -> Result<Instructions> {
        let instructions = named_instructions(self.instructions.as_deref().unwrap_or_default())?;
        instructions.level()?;
        Ok(instructions)
    }

    /// What a completed row trains.
    pub(crate) fn design(&self) -> Result<Design> {
        design(self.model.as_deref().unwrap_or_default())
    }

    /// What a completed row trains on.
    pub fn dataset(&self) -> Result<Choice> {
        Choice::named(self.dataset.as_deref().unwrap_or_default())
    }

    /// What happens to a completed row's training images.
    fn changes(&self) -> Result<Augment> {
        let mut augment = Augment::default();
        for name in &self.augment {
            match lookup("change of images", name, &[CROP, FLIP, NO_CHANGES], |name| name)? {
                CROP => augment.crop = true,
                FLIP => augment.flip = true,
                _ => ensure!(self.augment.len() == 1, "none and other changes of images: which of them?"),
            }
        }
        Ok(augment)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::workers::ProcessTransport;

    #[test]
    fn without_a_word_it_is_the_courses_job() {
        let rows = Settings::default().complete(Mode::Compare).unwrap().rows();
        let jobs: Vec<Job> = rows.iter().map(|row| row.job().unwrap()).collect();
        let shapes: Vec<_> = jobs.iter().map(|job| (job.sync.name(), job.workers, job.batch)).collect();
        assert_eq!(shapes, [("single", 1, 20), ("gather-scatter", 4, 5), ("all-reduce", 4, 5), ("ddp", 4, 5)]);
        assert!(rows.iter().all(|row| row.samples == Some(100) && row.data.is_none()));
        assert!(rows.iter().all(|row| row.transport().unwrap() == ProcessTransport::Auto));
    }

    #[test]
    fn what_is_written_is_what_is_read() {
        let settings = Settings::default().complete(Mode::Compare).unwrap();
        assert_eq!(toml::from_str::<Settings>(&toml::to_string(&settings).unwrap()).unwrap(), settings);
    }

    #[test]
    fn flags_go_before_the_file() {
        let file: Settings = toml::from_str("sync = \"single\"\nepochs = 3\nlr = 0.5\nweight-decay = 0.1").unwrap();
        let flags = Settings { steps: Some(7), lr: Some(0.25), ..Settings::default() };
        let merged = flags.over(file);
        assert_eq!((merged.epochs, merged.steps), (None, Some(7)));
        assert_eq!((merged.lr, merged.weight_decay), (Some(0.25), Some(0.1)));
        assert_eq!(merged.sync, ["single"]);
    }

    #[test]
    fn a_folder_belongs_to_its_data_set() {
        let file: Settings = toml::from_str("dataset = \"mnist\"\ndata = \"/mnist\"").unwrap();
        let over = |dataset: &str| Settings { dataset: Some(dataset.into()), ..Settings::default() }.over(file.clone());
        assert_eq!(over("mnist").data, Some("/mnist".into()));
        assert_eq!(over("cifar10").data, None);
        assert_eq!(Settings::default().over(file.clone()).data, Some("/mnist".into()));
    }

    #[test]
    fn synthetic_images_fit_the_model_unless_told_otherwise() {
        let dataset = |name: &str| {
            let settings =
                Settings { dataset: Some(name.into()), ..Settings::default() }.complete(Mode::Train).unwrap();
            (settings.dataset.unwrap(), settings.samples)
        };
        assert_eq!(dataset("synthetic"), ("synthetic:32x32x1".to_owned(), Some(1000)));
        assert_eq!(dataset("synthetic:8x9x3"), ("synthetic:8x9x3".to_owned(), Some(1000)));
    }
}
