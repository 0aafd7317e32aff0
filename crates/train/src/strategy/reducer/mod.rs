//! How a slice of numbers is summed over the workers: as it is, or by sending less.
//!
//! | look for | in |
//! | --- | --- |
//! | codes whose sum is a code: all-reduced as such | [`linear`], [`low_rank`] |
//! | codes that everybody gets from everybody, and adds up | [`gathered`], [`deep`] |
//! | codes that are summed by 1/p of the ranks each | [`in_halves`] |
//! | all of these as plain data | [`exchanges`] |
//!
//! All of it happens wherever [`Reducer::sum`] is called: under ddp on the communication thread, while backward goes on.

mod deep;
mod exchanges;
mod gathered;
mod in_halves;
mod linear;
mod low_rank;

use std::ops::Range;
use std::time::Instant;

use half::{bf16, f16};
use ringstep_comm::{Algorithm, CollectiveError, Element, Gathered, Group, How, Op, cost};
use ringstep_cpu::Level;
use ringstep_cpu::half::{add_bf16s, add_f16s, round_to_bf16s, round_to_f16s};
use ringstep_nn::Model;
use ringstep_nn::kernels::rows::sum_of_squares;
use ringstep_nn::optim::Rule;
use ringstep_nn::state::State;

use self::deep::Deep;
pub use self::exchanges::{Exchange, exchanges};
use self::gathered::Gathering;
use self::in_halves::InHalves;
use self::linear::{Chosen, Halves};
use self::low_rank::PowerSgd;
use super::how;
use crate::Job;
use crate::compress::dgc::{Dgc, WarmUp};
use crate::compress::error_feedback::Residuals;
use crate::compress::qsgd::{Qsgd, Width};
use crate::compress::random_k::RandomK;
use crate::compress::sign::Sign;
use crate::compress::sparse::{Threshold, TopK};
use crate::compress::{Compression, Key, Malformed, Method};
use crate::content::Content;
use crate::error::WorkerError;
use crate::records::Compressed;
use crate::world::World;

/// Sums slices of a flat buffer over the workers, in the same order on each of them.
pub(crate) struct Reducer {
    how: How,
    slices: Vec<Slice>,
    /// `None` if numbers are sent as they are.
    compressing: Option<Compressing>,
    /// The step of the job.
    step: usize,
}

/// A slice that is summed in one go.
struct Slice {
    name: String,
    label: u16,
    /// Bytes that this rank would send to sum its numbers as they are.
    dense: usize,
}

/// What it takes to send less.
struct Compressing {
    compression: Compression,
    compressor: Box<dyn Compressor>,
    /// What was left out and is not forgotten, with error feedback.
    residuals: Option<Residuals>,
    /// What is left out of a slice, without.
    dropped: Vec<f32>,
    seed: u64,
    record: Compressed,
    /// When something was encoded or decoded, and what it was about.
    encoding: Vec<(u16, [Instant; 2])>,
}

impl Reducer {
    /// For slices of a job's gradients on so many images, by name and place in the flat buffer. Workers all-reduce by this
    /// algorithm, or by the one that the cost model thinks best.
    pub fn new(
        (job, images): (&Job, usize),
        algorithm: Option<Algorithm>,
        model: &Model,
        slices: Vec<(String, Range<usize>)>,
        content: Content,
        world: &mut World<'_>,
    ) -> Self {
        let compressing = job.compress.map(|compression| Compressing {
            compression,
            compressor: compressor(compression, job, images, model, &slices),
            residuals: compression.error_feedback.then(|| Residuals::new(model.level())),
            dropped: Vec::new(),
            seed: job.seed,
            record: Compressed::default(),
            encoding: Vec::new(),
        });
        let slices = slices.into_iter().map(|(name, range)| {
            let (label, workers) = (world.label(&name, content), world.workers());
            let algorithm = algorithm.unwrap_or_else(|| workers.choice(range.len() * size_of::<f32>()));
            let (rank, topology) = (workers.rank(), workers.topology());
            let dense = cost::bytes_sent(algorithm, rank, topology, range.len(), size_of::<f32>());
            Slice { name, label, dense }
        });
        Self { how: how(algorithm), slices: slices.collect(), compressing, step: 0 }
    }

    /// From now on slices are those of this step of the job.
    pub fn begin_step(&mut self, step: usize) {
        self.step = step;
    }

    /// Replaces the numbers of a slice by their sum over the workers, or by what is left of it after compression: the same
    /// bits on all of them.
    pub fn sum(&mut self, group: &mut Group, slice: usize, values: &mut [f32]) -> Result<(), WorkerError> {
        let Slice { name, label, dense } = &self.slices[slice];
        group.label(*label);
        let Some(compressing) = &mut self.compressing else {
            return Ok(group.all_reduce(values, Op::Sum, self.how)?);
        };
        let rank = group.rank();
        let Compressing { compression, compressor, residuals, dropped, seed, record, encoding } = compressing;
        let key = Key { seed: *seed, step: self.step as u64, bucket: slice as u32, rank: rank as u32, part: 0 };
        let mut wire = Wire { group, how: self.how, since: Instant::now(), encoding: Vec::new() };
        let left = match residuals {
            Some(residuals) => residuals.add_to(key.bucket, values),
            None => {
                dropped.resize(values.len(), 0.0);
                dropped
            }
        };
        let Loss { lost, all } = compressor.sum(&mut wire, key, values, left).map_err(|trouble| match trouble {
            Trouble::Collective(error) => WorkerError::Collective(error),
            Trouble::Malformed { peer, problem } => {
                let (slice, method) = (name.clone(), compression.method.name());
                WorkerError::MalformedCode { rank, slice, peer, method, problem }
            }
        })?;
        record.bytes_dense += *dense as u64;
        record.lost += lost;
        record.all += all;
        wire.encoding.push([wire.since, Instant::now()]);
        for [began, ended] in wire.encoding {
            record.encode_seconds += (ended - began).as_secs_f64();
            encoding.push((*label, [began, ended]));
        }
        Ok(())
    }

    /// What it remembers from step to step.
    pub fn state(&mut self, state: &mut State<'_>) {
        if let Some(Compressing { compressor, residuals, record, .. }) = &mut self.compressing {
            state.within("compressor", |state| compressor.state(state));
            if let Some(residuals) = residuals {
                state.within("residuals", |state| residuals.state(state));
            }
            state.within("record", |state| record.state(state));
        }
    }

    /// What compression has done so far, if there is one.
    pub fn compressed(&self) -> Option<Compressed> {
        self.compressing.as_ref().map(|compressing| compressing.record)
    }

    /// When it encoded or decoded since the last time, and what that was about.
    pub fn take_encoding(&mut self) -> Vec<(u16, [Instant; 2])> {
        self.compressing.as_mut().map_or_else(Vec::new, |compressing| std::mem::take(&mut compressing.encoding))
    }

    /// How parameters follow what was summed, if they were to follow gradients by this rule.
    pub fn rule(&self, rule: Rule) -> Rule {
        self.compressing.as_ref().map_or(rule, |compressing| compressing.compression.rule(rule))
    }
}

/// Sums numbers over ranks by sending less than the numbers.
trait Compressor: Send {
    /// `values` becomes the sum over the ranks of what the numbers of each were taken for, and `left` what this rank's lacked
    /// then. The key is that of this rank.
    fn sum(&mut self, wire: &mut Wire<'_>, key: Key, values: &mut [f32], left: &mut [f32]) -> Result<Loss, Trouble>;

    /// What it remembers from step to step: most know all from the key.
    fn state(&mut self, _: &mut State<'_>) {}
}

/// How much of a rank's numbers is left out of what it sends, as sums of squares.
struct Loss {
    lost: f64,
    all: f64,
}

impl Loss {
    /// Of these numbers so much is left.
    fn of(level: Level, values: &[f32], left: &[f32]) -> Self {
        Self { lost: sum_of_squares(level, left), all: sum_of_squares(level, values) }
    }
}

/// Why numbers were not summed.
enum Trouble {
    Collective(CollectiveError),
    /// A rank sent what is no code.
    Malformed {
        peer: usize,
        problem: Malformed,
    },
}

impl From<CollectiveError> for Trouble {
    fn from(error: CollectiveError) -> Self {
        Self::Collective(error)
    }
}

/// The other ranks, and the time that was not spent with them.
struct Wire<'a> {
    group: &'a mut Group,
    how: How,
    /// When the last call of them ended, and the times between calls so far: they went to encoding and decoding.
    since: Instant,
    encoding: Vec<[Instant; 2]>,
}

impl Wire<'_> {
    fn world(&self) -> usize {
        self.group.world()
    }

    fn all_reduce<T: Element>(&mut self, data: &mut [T]) -> Result<(), CollectiveError> {
        let how = self.how;
        self.timed(|group| group.all_reduce(data, Op::Sum, how))
    }

    fn all_gather(&mut self, own: &[u8], limit: usize, all: &mut Gathered) -> Result<(), CollectiveError> {
        self.timed(|group| group.all_gather_varied(own, limit, all))
    }

    fn exchange(&mut self, out: &[Vec<u8>], limit: usize, all: &mut Gathered) -> Result<(), CollectiveError> {
        self.timed(|group| group.exchange_varied(out, limit, all))
    }

    fn timed<R>(&mut self, work: impl FnOnce(&mut Group) -> R) -> R {
        self.encoding.push([self.since, Instant::now()]);
        let result = work(self.group);
        self.since = Instant::now();
        result
    }
}

fn compressor(
    Compression { method, error_feedback }: Compression,
    job: &Job,
    images: usize,
    model: &Model,
    slices: &[(String, Range<usize>)],
) -> Box<dyn Compressor> {
    let level = model.level();
    match method {
        Method::Fp16 => Box::new(Halves::<f16>::new(level, round_to_f16s, add_f16s)),
        Method::Bf16 => Box::new(Halves::<bf16>::new(level, round_to_bf16s, add_bf16s)),
        Method::Int8 => Box::new(InHalves::new(level, Qsgd::new(level, Width::Int8))),
        Method::Int4 => Box::new(InHalves::new(level, Qsgd::new(level, Width::Int4))),
        Method::Sign => Box::new(Gathering::new(level, Sign::new(level))),
        Method::TopK { keep } => Box::new(Gathering::new(level, TopK::new(keep))),
        Method::RandomK { keep } => Box::new(Chosen::new(level, RandomK::new(keep, !error_feedback))),
        Method::Threshold { threshold } => Box::new(Gathering::new(level, Threshold::new(threshold))),
        Method::Dgc { keep, warm_up_epochs, clip } => {
            let momentum = if let Rule::Sgd { momentum, .. } = job.rule { momentum } else { 0.0 };
            let warm_up = WarmUp { epochs: warm_up_epochs, share: keep };
            Box::new(Deep::new(level, Dgc::new(level, momentum, keep), warm_up, job.steps_an_epoch(images), clip))
        }
        Method::PowerSgd { rank } => {
            Box::new(PowerSgd::new(level, rank, model.parameters(), slices.iter().map(|(_, range)| range.clone())))
        }
    }
}
